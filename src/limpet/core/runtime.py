"""One body of code, two faces.

Nouns are written once, as coroutines over a `Port`. The async face runs them on the caller's event
loop, with a port that hops to a thread. The sync face runs the same coroutines with a port that
does everything in place, so they never suspend, and no event loop is needed to run them::

    class Conversation(Face[AsyncConversation]):
        append = blocking(AsyncConversation.append)  # same parameters, same result, no await
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from limpet.errors import StepTimedOut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from concurrent.futures import Future

    from limpet.backends.contract import Append, Appended, Backend, Key

__all__ = [
    "Face",
    "HopPort",
    "InlinePort",
    "Port",
    "Pulled",
    "aside",
    "blocking",
    "blocking_faced",
    "blocking_iter",
    "drive",
    "faced",
]

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")


class Port(Protocol):
    """How a noun reaches its backend, its user's functions, and the clock."""

    @property
    def backend(self) -> Backend: ...

    async def append(self, request: Append) -> Appended:
        """`Backend.append`."""

    async def transact(
        self, work: Callable[[Any], R], request: Callable[[R], Append]
    ) -> tuple[R, Appended]:
        """`Backend.transact`."""

    async def wait(self, key: Key, after: int, timeout: float) -> None:  # noqa: ASYNC109
        """`Backend.wait`."""

    async def call(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Any other method of the backend."""

    async def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A function of the user's."""

    def own(self, function: Callable[..., Coroutine[Any, Any, R]]) -> Callable[..., Any]:
        """A coroutine function of a noun's, as one that `ask` takes."""

    async def ask_within(
        self, seconds: float, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """`ask`, given up with `TimeoutError` after *seconds*.

        What awaits is cancelled; a plain function runs on in its thread, and nobody listens.
        """

    async def sleep(self, seconds: float) -> None: ...


class InlinePort:
    """Everything in the calling thread."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def append(self, request: Append) -> Appended:
        return self.backend.append(request)

    async def transact(
        self, work: Callable[[Any], R], request: Callable[[R], Append]
    ) -> tuple[R, Appended]:
        return self.backend.transact(work, request)

    async def wait(self, key: Key, after: int, timeout: float) -> None:  # noqa: ASYNC109
        self.backend.wait(key, after=after, timeout=timeout)

    async def call(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return method(*args, **kwargs)

    async def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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

    def own(self, function: Callable[..., Coroutine[Any, Any, R]]) -> Callable[..., Any]:
        return lambda *args: drive(function(*args))

    async def ask_within(
        self, seconds: float, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        call = functools.partial(self.ask, function, *args, **kwargs)
        found = aside(lambda: drive(call()))
        try:
            return found.result(seconds)
        except TimeoutError as error:
            if found.done():
                return found.result()  # the function's own error, or it has just ended
            raise _timed_out(seconds) from error

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this face has no loop to block


class HopPort:
    """Backend calls on a thread each; the user's functions on the event loop."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def append(self, request: Append) -> Appended:
        return await self.backend.append_async(request)

    async def transact(
        self, work: Callable[[Any], R], request: Callable[[R], Append]
    ) -> tuple[R, Appended]:
        return await self.backend.transact_async(work, request)

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

    async def call(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.backend.hop(method, *args, **kwargs)

    async def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return await result if hasattr(result, "__await__") else result

    def own(self, function: Callable[..., Coroutine[Any, Any, R]]) -> Callable[..., Any]:
        return function

    async def ask_within(
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
                result = await asyncio.wrap_future(aside(call))
                return await result if hasattr(result, "__await__") else result
        except TimeoutError as error:
            if not limit.expired():
                raise  # the function's own
            raise _timed_out(seconds) from error

    async def sleep(self, seconds: float) -> None:
        import asyncio  # noqa: PLC0415 - sync programs never pay for it

        await asyncio.sleep(seconds)


class Face(Generic[C]):
    """The sync side of an async noun, which it holds as ``_core``."""

    def __init__(self, core: C) -> None:
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("Async", "", 1)


def drive(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    msg = "A sync store met code that awaits an event loop; open the store with open_async()."
    raise RuntimeError(msg)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The sync twin of an async method; to a type checker, with the overloads that it has."""

    @functools.wraps(method)
    def twin(self: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return drive(method(self._core, *args, **kwargs))

    return twin


def blocking_iter(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """The sync twin of an async generator method."""

    @functools.wraps(method)
    def twin(self: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        items = method(self._core, *args, **kwargs)
        while True:
            try:
                yield drive(_next(items))
            except StopAsyncIteration:
                return

    return twin


def faced(
    method: Callable[Concatenate[Any, P], C], face: Callable[[C], R]
) -> Callable[Concatenate[Any, P], R]:
    """The sync twin of a plain method that returns an async noun: it returns that noun's *face*."""

    @functools.wraps(method)
    def twin(self: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return face(method(self._core, *args, **kwargs))

    return twin


def blocking_faced(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, C]], face: Callable[[C], R]
) -> Callable[Concatenate[Any, P], R]:
    """The sync twin of an async method that returns an async noun: it returns its *face*."""

    @functools.wraps(method)
    def twin(self: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return face(drive(method(self._core, *args, **kwargs)))

    return twin


class Pulled(Generic[R]):
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


def _timed_out(seconds: float) -> StepTimedOut:
    return StepTimedOut(f"The attempt took longer than its {seconds:g} seconds and was given up.")


def aside(call: Callable[[], R], name: str = "limpet-step") -> Future[R]:
    """What *call* returns, from a thread of its own that does not hold up the interpreter's end."""
    import contextvars  # noqa: PLC0415 - rarely needed
    import threading  # noqa: PLC0415
    from concurrent.futures import Future  # noqa: PLC0415

    found: Future[R] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        if not found.set_running_or_notify_cancel():
            return
        try:
            result = context.run(call)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            found.set_exception(error)
        else:
            found.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return found


async def _next(items: AsyncIterator[R]) -> R:
    return await anext(items)
