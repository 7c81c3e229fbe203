"""One body of code for sync and async.

Models are written once, as coroutines over a `Runtime`. The async classes run them on the caller's
event loop, and their backend calls on threads. The sync classes wrap the same coroutines with a
runtime that does everything in place, so they never suspend, and no event loop is needed::

    class Conversation(SyncWrapper[AsyncConversation]):
        append = sync(AsyncConversation.append)  # same parameters, same result, no await
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from limpet.errors import StepTimedOut

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from concurrent.futures import Future as ThreadFuture
    from concurrent.futures import ThreadPoolExecutor

    from limpet.backends.contract import Append, Appended, Backend, Key

    #: A task that waits for a lock, its loop, and what it waits for there.
    _Place = tuple[object, AbstractEventLoop, Future[None]]

__all__ = [
    "AsyncEntered",
    "AsyncRuntime",
    "Lock",
    "Pages",
    "Runtime",
    "SyncRuntime",
    "SyncWrapper",
    "core_of",
    "finished",
    "in_thread",
    "run_to_end",
    "sync",
    "sync_iter",
    "sync_wrapped",
    "wrapped",
]

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")


class Runtime(Protocol):
    """How a model reaches its backend, its user's functions, and the clock."""

    @property
    def backend(self) -> Backend: ...

    def append(self, request: Append) -> Coroutine[Any, Any, Appended]:
        """`Backend.append`. Cancelled, it ends first: nothing lands after the caller has left."""

    async def call(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Any other method that blocks. Cancelled, it ends first, as `append` does."""

    async def transact(
        self, work: Callable[[Any], R], request: Callable[[R], Append]
    ) -> tuple[R, Appended]:
        """A transaction: *work* with its connection, then the append that *request* makes of it."""

    async def wait(self, key: Key, after: int, timeout: float) -> None:  # noqa: ASYNC109
        """`Backend.wait`."""

    async def invoke(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A function of the user's, plain or async."""

    async def invoke_within(
        self, seconds: float, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """`invoke`, given up with `StepTimedOut` after *seconds*.

        What awaits is cancelled; a plain function runs on in its thread, and nobody listens.
        """

    def as_function(self, function: Callable[..., Coroutine[Any, Any, R]]) -> Callable[..., Any]:
        """A coroutine function of a model's, as one that `invoke` takes."""

    async def sleep(self, seconds: float) -> None: ...

    def lock(self, reentered: str) -> Lock:
        """A lock for one object of a model; *reentered* is what to tell who waits for itself."""


class Lock(Protocol):
    """Lets one caller in at a time, in the order in which they came."""

    async def run(self, function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
        """Call *function* while nobody else's runs."""


# -- everything in the calling thread ----------------------------------------------------------


class SyncRuntime:
    """Everything in the calling thread."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def append(self, request: Append) -> Appended:
        return self.backend.append(request)

    async def call(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return method(*args, **kwargs)

    async def transact(
        self, work: Callable[[Any], R], request: Callable[[R], Append]
    ) -> tuple[R, Appended]:
        return _transact(self.backend, work, request)

    async def wait(self, key: Key, after: int, timeout: float) -> None:  # noqa: ASYNC109
        self.backend.wait(key, after=after, timeout=timeout)

    async def invoke(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if hasattr(result, "__await__"):
            getattr(result, "close", lambda: None)()
            name = getattr(function, "__qualname__", repr(function))
            msg = (
                f"{name} is async, and this store is not. Open the store with "
                "limpet.open_async(), or pass a plain function."
            )
            raise TypeError(msg)
        return result

    async def invoke_within(
        self, seconds: float, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        call = functools.partial(self.invoke, function, *args, **kwargs)
        future = in_thread(lambda: run_to_end(call()))
        try:
            return future.result(seconds)
        except TimeoutError as error:
            if future.done():
                return future.result()  # the function's own error, or it has just ended
            raise _timed_out(seconds) from error

    def as_function(self, function: Callable[..., Coroutine[Any, Any, R]]) -> Callable[..., Any]:
        return lambda *args: run_to_end(function(*args))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop to block

    def lock(self, reentered: str) -> Lock:
        return _SyncLock(reentered)


class _SyncLock:
    """A lock of threads."""

    def __init__(self, reentered: str) -> None:
        self._lock = threading.RLock()
        self._reentered = reentered

    async def run(self, function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
        if self._lock._is_owned():  # type: ignore[attr-defined] # noqa: SLF001 - as `threading` asks
            raise RuntimeError(self._reentered)
        # `with` on the lock itself: Python lets it go whatever strikes, a method of ours it might
        # never begin. Nothing suspends here, so that no other coroutine runs meanwhile.
        with self._lock:
            return await function(*args)


# -- the event loop, and threads for what blocks -----------------------------------------------


class AsyncRuntime:
    """Backend calls on threads, the user's functions on the loop. `close` ends the threads."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._mutex = threading.Lock()
        self._threads: dict[str, ThreadPoolExecutor] = {}

    def append(self, request: Append) -> Coroutine[Any, Any, Appended]:
        if self.backend.append_async is not None:
            return self.backend.append_async(request)
        return self.call(self.backend.append, request)

    async def call(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if not self.backend.blocks:
            return method(*args, **kwargs)
        return await self._in_pool("limpet", self.backend.concurrency, method, *args, **kwargs)

    async def transact(
        self, work: Callable[[Any], R], request: Callable[[R], Append]
    ) -> tuple[R, Appended]:
        # On threads for nothing else: however many wait for their turn, reads go on.
        most = self.backend.transactions
        return await self._in_pool(
            "limpet-transaction", most, _transact, self.backend, work, request
        )

    async def _in_pool(
        self, name: str, most: int, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        import asyncio  # noqa: PLC0415 - sync programs never pay for it

        self.backend.check_open()
        with self._mutex:
            pool = self._threads.get(name)
            if pool is None:
                from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - as above

                pool = self._threads[name] = ThreadPoolExecutor(most, thread_name_prefix=name)
        work = functools.partial(call, *args, **kwargs)
        return await finished(asyncio.get_running_loop().run_in_executor(pool, work))

    async def wait(self, key: Key, after: int, timeout: float) -> None:  # noqa: ASYNC109
        # Whoever looks again and again sleeps on the loop: threads are few, and for calls.
        at_once = timeout if self.backend.wakes else 0.0
        deadline, pause = time.monotonic() + timeout, 0.01
        while not await self.call(self.backend.wait, key, after=after, timeout=at_once):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            await self.sleep(min(pause, left))
            pause = min(2 * pause, 0.5)

    async def invoke(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return await result if hasattr(result, "__await__") else result

    async def invoke_within(
        self, seconds: float, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        import asyncio  # noqa: PLC0415 - sync programs never pay for it
        import inspect  # noqa: PLC0415

        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                if inspect.iscoroutinefunction(function):
                    return await function(*args, **kwargs)
                call = functools.partial(function, *args, **kwargs)
                result = await asyncio.wrap_future(in_thread(call))
                return await result if hasattr(result, "__await__") else result
        except TimeoutError as error:
            if not limit.expired():
                raise  # the function's own
            raise _timed_out(seconds) from error

    def as_function(self, function: Callable[..., Coroutine[Any, Any, R]]) -> Callable[..., Any]:
        return function

    async def sleep(self, seconds: float) -> None:
        import asyncio  # noqa: PLC0415 - sync programs never pay for it

        await asyncio.sleep(seconds)

    def lock(self, reentered: str) -> Lock:
        return _AsyncLock(reentered)

    def close(self) -> None:
        """Wait for what is under way on the threads, and end them."""
        for pool in self._threads.values():
            pool.shutdown()

    def after_fork(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._mutex = threading.Lock()
        self._threads = {}


class _AsyncLock:
    """A lock of tasks, which may run on several event loops."""

    def __init__(self, reentered: str) -> None:
        self._reentered = reentered
        self._mutex = threading.Lock()
        self._owner: object = None
        self._waiting: deque[_Place] = deque()

    async def run(self, function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
        import asyncio  # noqa: PLC0415 - sync programs never pay for it

        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        place: _Place | None = None
        with self._mutex:
            if self._owner is task:
                raise RuntimeError(self._reentered)
            if self._owner is None:
                self._owner = task
            else:
                place = task, loop, loop.create_future()
                self._waiting.append(place)
        try:
            if place is not None:
                await place[2]
            return await function(*args)
        finally:
            self._leave(task, place)

    def _leave(self, task: object, place: _Place | None) -> None:
        """Let the next one in; or, if this one was still waiting, only leave the queue."""
        with self._mutex:
            if self._owner is not task:
                if place is not None and place in self._waiting:
                    self._waiting.remove(place)
                return
            self._owner = None
            while self._waiting:
                owner, loop, future = self._waiting.popleft()
                if loop.is_closed():
                    continue
                self._owner = owner
                loop.call_soon_threadsafe(_resolve, future)
                return


def _resolve(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def finished(future: Future[R]) -> R:
    """Await *future*; if cancelled meanwhile, wait for its end, then let the cancellation go on.

    So a cancelled write never lands after its caller was told that it is over.
    """
    import asyncio  # noqa: PLC0415 - sync programs never pay for it

    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                continue
        if not future.cancelled():
            future.exception()  # seen, so that the loop does not report it as lost
        raise


def in_thread(call: Callable[[], R], name: str = "limpet-step") -> ThreadFuture[R]:
    """What *call* returns, from a thread of its own that does not hold up the interpreter's end."""
    import contextvars  # noqa: PLC0415 - rarely needed
    from concurrent.futures import Future as ThreadFuture  # noqa: PLC0415

    future: ThreadFuture[R] = ThreadFuture()
    context = contextvars.copy_context()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = context.run(call)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _transact(
    backend: Backend, work: Callable[[Any], R], request: Callable[[R], Append]
) -> tuple[R, Appended]:
    with backend.transaction() as transaction:
        made = work(transaction.connection)
        done = transaction.append(request(made))
    return made, done


def _timed_out(seconds: float) -> StepTimedOut:
    return StepTimedOut(f"The attempt took longer than its {seconds:g} seconds and was given up.")


# -- sync wrappers -------------------------------------------------------------------------------


class AsyncEntered:
    """What is entered by ``async with``, and says so to who writes ``with``."""

    if not TYPE_CHECKING:  # a type checker knows by itself, as long as it does not see these

        def __enter__(self) -> None:
            msg = (
                f"{type(self).__name__} is async: enter it with 'async with', in an async "
                "function. A program that is not async opens its store with limpet.open()."
            )
            raise TypeError(msg)

        def __exit__(self, *_: object) -> None:
            """Python looks for it before it enters."""


class SyncWrapper(Generic[C]):
    """The sync side of an async class, whose object it holds as ``_core``."""

    def __init__(self, core: C) -> None:
        self._core = core

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in vars(cls).items():
            if isinstance(method, FunctionType) and hasattr(method, "__wrapped__"):
                method.__qualname__ = f"{cls.__qualname__}.{name}"
                method.__module__ = cls.__module__

    def __repr__(self) -> str:
        return repr(self._core).replace("Async", "", 1)

    if not TYPE_CHECKING:  # as above

        async def __aenter__(self) -> None:
            msg = (
                f"{type(self).__name__} is not async: enter it with 'with'. An async program "
                "opens its store with limpet.open_async()."
            )
            raise TypeError(msg)

        async def __aexit__(self, *_: object) -> None:
            """Python looks for it before it enters."""


def core_of(wrapper: SyncWrapper[C]) -> C:
    """The async object behind *wrapper*, over a sync runtime: for what is built on it."""
    return wrapper._core  # noqa: SLF001 - the one place where others get at it


def sync(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The sync twin of an async method; to a type checker, with the overloads that it has."""

    def twin(self: SyncWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        coroutine = method(self._core, *args, **kwargs)
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise _suspended(coroutine)

    return _described(twin, method)


def sync_iter(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """The sync twin of a method that returns an async iterator."""

    def twin(self: SyncWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        items = method(self._core, *args, **kwargs)
        while True:
            try:
                yield run_to_end(_next(items))
            except StopAsyncIteration:
                return

    return _described(twin, method)


def wrapped(
    method: Callable[Concatenate[Any, P], C], wrapper: Callable[[C], R]
) -> Callable[Concatenate[Any, P], R]:
    """The sync twin of a plain method that returns an async model: it returns the *wrapper*'s."""

    def twin(self: SyncWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return wrapper(method(self._core, *args, **kwargs))

    return _described(twin, method)


def sync_wrapped(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, C]], wrapper: Callable[[C], R]
) -> Callable[Concatenate[Any, P], R]:
    """The sync twin of an async method that returns an async model: it returns the *wrapper*'s."""

    def twin(self: SyncWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return wrapper(run_to_end(method(self._core, *args, **kwargs)))

    return _described(twin, method)


#: The flags of code that make a coroutine, or an async generator, of a function.
_ASYNC = 0x0080 | 0x0200


def _described(twin: Callable[..., R], method: Callable[..., Any]) -> Callable[..., R]:
    """*twin* with the docstring and the signature of *method*, and no trace of a coroutine.

    ``__wrapped__`` is what `inspect` reads a signature from, and what some frameworks ask whether
    it is async. So it is a copy of *method* that is not, and returns a ``Task``, not an
    ``AsyncTask``.
    """
    functools.update_wrapper(twin, method)
    if isinstance(method, FunctionType):
        code = method.__code__
        plain = FunctionType(
            code.replace(co_flags=code.co_flags & ~_ASYNC),
            method.__globals__,
            method.__name__,
            method.__defaults__,
            method.__closure__,
        )
        plain.__kwdefaults__ = method.__kwdefaults__
        returns = str(method.__annotations__.get("return", "Any")).replace("Async", "")
        plain.__annotations__ = {**method.__annotations__, "return": returns}
        twin.__wrapped__ = plain  # type: ignore[attr-defined]
    return twin


def run_to_end(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise _suspended(coroutine)


def _suspended(coroutine: Coroutine[Any, Any, Any]) -> RuntimeError:
    coroutine.close()
    msg = "A sync store met code that awaits an event loop; open the store with open_async()."
    return RuntimeError(msg)


class Pages(Generic[R]):
    """An async iterator over what *pull* returns, until that is None.

    Not an async generator: one that is left early must be closed by its event loop.
    """

    def __init__(self, pull: Callable[[], Coroutine[Any, Any, R | None]]) -> None:
        self._pull = pull

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        found = await self._pull()
        if found is None:
            raise StopAsyncIteration
        return found


async def _next(items: AsyncIterator[R]) -> R:
    return await anext(items)
