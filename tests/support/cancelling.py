"""A coroutine that is cancelled, at each place in turn where it awaits something."""

from __future__ import annotations

import asyncio
import types
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

#: Seconds in which anything ends that does not wait for ever.
ENOUGH = 60


class Cancel:
    """Cancels the task that runs a coroutine, at its *nth* suspension.

    *late*: when what it awaits has come, and it has not been told so yet.
    """

    def __init__(self, nth: int, *, late: bool) -> None:
        self.hit = False
        self._left = nth
        self._late = late

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """*work*, which is cancelled on its way."""
        task = asyncio.current_task()
        assert task is not None
        resume: Callable[[Any], Any] = work.send
        given: Any = None
        while True:
            try:
                awaited = resume(given)
            except StopIteration as end:
                return end.value
            self._left -= 1
            if not self._left:
                self.hit = True
                if self._late and awaited is not None:
                    awaited.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            try:
                given = yield awaited
                resume = work.send
            except BaseException as error:  # noqa: BLE001 - it is for the coroutine
                resume, given = work.throw, error


async def cancelled_everywhere(
    work: Callable[[str], Coroutine[Any, Any, Any]], check: Callable[[str], Awaitable[Any]]
) -> None:
    """Cancel *work* at its first suspension, at its second, … until it comes to its end.

    It is given another name each time. After each, and after it was run once more to its end,
    there is a *check*.
    """
    for late in (False, True):
        for nth in count(1):
            name = f"{'late' if late else 'soon'} {nth}"
            cancel = Cancel(nth, late=late)

            async def cancelled(cancel: Cancel = cancel, name: str = name) -> None:
                await cancel.run(work(name))

            task = asyncio.ensure_future(cancelled())
            await asyncio.wait({task}, timeout=ENOUGH)
            assert task.done(), f"{name}: it waits for ever"
            assert task.cancelled() or task.exception() is None, f"{name}: {task!r}"
            await check(name)
            if not cancel.hit:
                assert nth > 1, "it should have been cancelled"
                break
            await asyncio.wait_for(work(name), ENOUGH)
            await check(name)
