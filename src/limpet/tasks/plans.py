"""Plans: made once, and changed for a reason. What is done stays done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from limpet.core.codec import fresh, plain
from limpet.core.ids import check_id
from limpet.tasks import entries as kinds
from limpet.tasks.context import StepContext, Turn
from limpet.tasks.entries import item_name, numbered
from limpet.tasks.retry import How, InDoubt, Retry
from limpet.tasks.steps import Steps, called
from limpet.tasks.terms import text

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.tasks.core import Core

__all__ = ["AsyncStep", "Plans", "Remaining"]

S = TypeVar("S")
T = TypeVar("T")


class AsyncStep:
    """One planned step; see `Step`."""

    def __init__(self, task: Plans, name: str, item: Any) -> None:
        self.name = name
        self.task: Core = task
        self.data: dict[str, Any] = fresh(item) if isinstance(item, dict) else {"name": item}
        self._run = task._run  # noqa: SLF001 - its own task
        self._ran = task._ran  # noqa: SLF001

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, done={self.done})"

    @property
    def done(self) -> bool:
        """Whether it has a result."""
        return self.name in self.task._state.results  # noqa: SLF001 - its own task

    @property
    def idempotency_key(self) -> str:
        """``task:step``, the same on every retry."""
        return StepContext(self.task.id, self.name).idempotency_key

    @overload
    async def run(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: type[T],
        in_doubt: InDoubt | None = None,
        verify: Callable[[str], Any] | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def run(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: Any = None,
        in_doubt: InDoubt | None = None,
        verify: Callable[[str], Any] | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> Any: ...
    async def run(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: Any = None,
        in_doubt: InDoubt | None = None,
        verify: Callable[[str], Any] | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call *function* and store what it returns; if the step is done, only return that.

        The options are those of `Task.step`.
        """
        how = How.of(in_doubt, verify, retry)
        try:
            return await self._run(self.name, function, args, kwargs, how, as_=as_)
        finally:
            self._ran(self.name)


class Remaining(Iterator[S]):
    """The planned steps that are left, each in its turn, in which `Core._around` finds it.

    A turn ends when the next step is asked for, and when the loop is left, by whatever way. Nothing
    tells us that but the end of what the loop goes by: so each loop has one of its own, which
    nobody else holds, and no name depends on who still has what `remaining` returned. Where there
    is no loop, but a call of ``next``, the turn ends when its step has run.
    """

    def __init__(
        self,
        task: Plans,
        shown: Callable[[AsyncStep], S],
        offered: set[str] | None = None,
        *,
        brief: bool = True,
    ) -> None:
        self._task = task
        self._shown = shown
        self._offered = set() if offered is None else offered
        self._brief = brief
        self._turn: Turn | None = None

    def __iter__(self) -> Remaining[S]:
        self._end()
        return Remaining(self._task, self._shown, self._offered, brief=False)

    def __next__(self) -> S:
        self._end()
        for name, item in self._task._left():  # noqa: SLF001 - its own task
            if name not in self._offered:
                self._offered.add(name)
                self._turn = Turn(self._task.id, name, brief=self._brief)
                self._task._turns.append(self._turn)  # noqa: SLF001
                return self._shown(AsyncStep(self._task, name, item))
        raise StopIteration

    def _end(self) -> None:
        if self._turn in self._task._turns:  # noqa: SLF001 - or its step has run
            self._task._turns.remove(self._turn)  # noqa: SLF001
        self._turn = None

    __del__ = _end


class Plans(Steps):
    """The plan of a task.

    A change of it is known by what it changes. A resumed task that comes to the same call again
    finds it made; the same change a second time in one run is a second change.
    """

    async def plan(self, plan: object) -> list[Any]:
        """The plan: a list, or a function that makes one and is called once, ever.

        Steps are names, or dicts with a "name". The function gets the goal if it needs an argument.
        """
        if self._state.plan is None:
            await self._check_open_to("plan")
            made = plan
            if callable(plan):
                made = await self._runtime.invoke(plan, *([self.goal] if _needs_one(plan) else []))
            with called("planned['steps']", "plan"):
                await self._record(kinds.PLANNED, {"steps": _checked(made)})
        return list(fresh(self._state.plan or []))

    def remaining(self) -> Iterator[AsyncStep]:
        """The planned steps without a result, one after the other; each is offered once.

        A plan that is changed meanwhile is followed as it then is. What the loop does is part
        of the step's turn: a wait for "approval" is that of this step, "name/approval".
        """
        return Remaining(self, lambda step: step)

    def _ran(self, name: str) -> None:
        """End the turn of the step *name*, if it lasts no longer than that runs."""
        if self._turns:
            self._turns[:] = [one for one in self._turns if not (one.brief and one.name == name)]

    def _left(self) -> Iterator[tuple[str, Any]]:
        """Names and items of the planned steps that have no result."""
        for name, item in zip(self._state.planned_names(), self._state.plan or (), strict=True):
            if name not in self._state.results:
                yield name, item

    async def replan(self, plan: Iterable[Any], *, because: str | None = None) -> list[Any]:
        """Put *plan* in the place of all that is not done, and record why; the whole plan then."""
        steps = _checked(plan)
        change = self._changing("replan", steps)
        return await self._replan(lambda _left: steps, change, because)

    async def insert(
        self,
        *items: Any,
        before: str | None = None,
        after: str | None = None,
        because: str | None = None,
    ) -> list[Any]:
        """Add steps *before* or *after* one that is not done; without either, at the end."""
        if before is not None and after is not None:
            msg = "insert() takes before= or after=, not both."
            raise ValueError(msg)
        added = _checked(items)

        def inserted(left: dict[str, Any]) -> list[Any]:
            place = len(left)
            if before is not None:
                place = self._place(before, left)
            elif after is not None:
                # What is done comes first: behind it is before all that is not.
                place = 0 if after in self._state.results else self._place(after, left) + 1
            steps = list(left.values())
            steps[place:place] = added
            return steps

        return await self._replan(
            inserted, self._changing("insert", [before, after, *added]), because
        )

    async def drop(self, *names: str, because: str | None = None) -> list[Any]:
        """Take steps that are not done out of the plan."""

        def kept(left: dict[str, Any]) -> list[Any]:
            for name in names:
                self._place(name, left)
            return [item for name, item in left.items() if name not in names]

        return await self._replan(kept, self._changing("drop", list(names)), because)

    async def reorder(self, names: Iterable[str], *, because: str | None = None) -> list[Any]:
        """Put what is not done into this order; steps that are not named come after."""
        names = list(names)

        def reordered(left: dict[str, Any]) -> list[Any]:
            first = []
            for name in names:
                self._place(name, left)
                first.append(left.pop(name))
            return [*first, *left.values()]

        return await self._replan(reordered, self._changing("reorder", names), because)

    def _changing(self, how: str, what: list[Any]) -> str:
        """What a change is known by: its content, the step it is made in, and how often it was."""
        import hashlib  # noqa: PLC0415 - slow to import, and most plans stay as they are

        digest = hashlib.sha256(msgspec.json.encode(what, order="sorted")).hexdigest()[:16]
        outer = self._around()
        place = "" if outer is None else f"{outer.name}: "
        with self._counting:
            seen = self._changing_seen if outer is None else outer.seen
            return numbered(f"{place}{how} {digest}", seen)

    def _place(self, name: str, left: dict[str, Any]) -> int:
        """Where *name* is among the steps that are *left*."""
        if name in left:
            return list(left).index(name)
        why = "is done, and stays" if name in self._state.results else "is not in the plan"
        msg = f"Step {name!r} of task {self.id!r} {why}. Left are: {', '.join(left) or 'none'}."
        raise ValueError(msg)

    async def _replan(
        self, changed: Callable[[dict[str, Any]], list[Any]], change: str, because: str | None
    ) -> list[Any]:
        """Record the plan: what is done, then what *changed* makes of the rest. Once."""
        if change in self._state.changes:
            return list(fresh(self._state.plan or []))
        await self._check_open_to("change of its plan")
        steps = changed(dict(self._left()))
        names = self._state.planned_names()
        done = [
            item
            for name, item in zip(names, self._state.plan or (), strict=True)
            if name in self._state.results
        ]
        plan = [*done, *steps]
        if plan == self._state.plan:
            self._idle_changes.append(change)
        else:
            body = {"steps": plan, "because": because and text(because, "reason"), "change": change}
            if self._idle_changes:  # on a resume they would make a difference: to this change
                body["besides"] = self._idle_changes.copy()
            with called("replanned['steps']", "plan"):
                await self._record(kinds.REPLANNED, body)
        return list(fresh(self._state.plan or []))


def _needs_one(function: Callable[..., Any]) -> bool:
    """Whether *function* cannot be called without an argument."""
    import inspect  # noqa: PLC0415 - slow to import, needed once a task

    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):  # or it is a builtin that does not say
        return True
    return False


def _checked(made: object) -> list[Any]:
    if isinstance(made, (str, bytes, Mapping)) or not isinstance(made, Iterable):
        msg = f"A plan is a list of steps, not a {type(made).__name__}."
        raise TypeError(msg)
    return [_checked_item(item, at) for at, item in enumerate(made)]


def _checked_item(item: object, at: int) -> Any:
    found = item if isinstance(item, str) else plain(item, f"plan[{at}]")
    if not isinstance(found, str) and not (isinstance(found, dict) and "name" in found):
        msg = f"A planned step is a name, or a dict with a 'name'; not {item!r:.80}."
        raise TypeError(msg)
    check_id(item_name(found), "step name")
    return found
