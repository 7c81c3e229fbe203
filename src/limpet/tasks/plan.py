"""Plans: made once, and changed for a reason. What is done stays done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from limpet.core.codec import fresh, plain
from limpet.core.ids import check_id
from limpet.core.runtime import SyncWrapper, sync
from limpet.tasks import entries as kinds
from limpet.tasks.context import Turn
from limpet.tasks.entries import error_path, item_name, text
from limpet.tasks.retry import InDoubt, Retry, StepPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.tasks.record import LiveTask, TaskRecord
    from limpet.tasks.task import AsyncTask, Task

__all__ = ["AsyncPlan", "AsyncStep", "Plan", "Remaining", "Step"]

S = TypeVar("S")
T = TypeVar("T")


class AsyncPlan:
    """The plan of a task; see `Plan`."""

    # A change is known by what it changes. A resumed task that comes to the same call again finds
    # it made; the same change a second time in one run is a second change.

    def __init__(self, record: TaskRecord) -> None:
        self._record = record

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.steps!r})"

    @property
    def steps(self) -> list[Any]:
        """All steps, those that are done among them: names, or dicts with a "name"."""
        return list(fresh(self._record.state.plan or []))

    async def __call__(self, plan: object) -> list[Any]:
        """The plan: a list, or a function that makes one and is called once, ever.

        Steps are names, or dicts with a "name". The function gets the goal if it needs an argument.
        """
        record = self._record
        if record.state.plan is None:
            await record.check_open_to("plan")
            made = plan
            if callable(plan):
                needed = [record.state.goal] if _needs_an_argument(plan) else []
                made = await record.runtime.invoke(plan, *needed)
            with error_path("planned['steps']", "plan"):
                await record.write(kinds.PLANNED, {"steps": _checked(made)})
        return self.steps

    async def replace(self, steps: Iterable[Any], *, because: str | None = None) -> list[Any]:
        """Put *steps* in the place of all that is not done, and record why; the whole plan then."""
        new = _checked(steps)
        return await self._change("replace", new, lambda _left: new, because)

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
                done = after in self._record.state.results
                place = 0 if done else self._place(after, left) + 1
            steps = list(left.values())
            steps[place:place] = added
            return steps

        return await self._change("insert", [before, after, *added], inserted, because)

    async def drop(self, *names: str, because: str | None = None) -> list[Any]:
        """Take steps that are not done out of the plan."""

        def without(left: dict[str, Any]) -> list[Any]:
            for name in names:
                self._place(name, left)
            return [item for name, item in left.items() if name not in names]

        return await self._change("drop", list(names), without, because)

    async def reorder(self, names: Iterable[str], *, because: str | None = None) -> list[Any]:
        """Put what is not done into this order; steps that are not named come after."""
        names = list(names)

        def reordered(left: dict[str, Any]) -> list[Any]:
            first = []
            for name in names:
                self._place(name, left)
                first.append(left.pop(name))
            return [*first, *left.values()]

        return await self._change("reorder", names, reordered, because)

    def _place(self, name: str, left: dict[str, Any]) -> int:
        """Where *name* is among the steps that are *left*."""
        if name in left:
            return list(left).index(name)
        state = self._record.state
        why = "is done, and stays" if name in state.results else "is not in the plan"
        names = ", ".join(left) or "none"
        raise ValueError(f"Step {name!r} of task {state.task_id!r} {why}. Left are: {names}.")

    async def _change(
        self,
        how: str,
        content: list[Any],
        changed: Callable[[dict[str, Any]], list[Any]],
        because: str | None,
    ) -> list[Any]:
        """Record the plan: what is done, then what *changed* makes of the rest. Once."""
        import hashlib  # noqa: PLC0415 - slow to import, and most plans stay as they are

        record, live = self._record, self._record.live
        digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]
        change = live.name_change(f"{how} {digest}")
        if change in live.state.change_ids:
            return self.steps
        await record.check_open_to("change of its plan")
        state = live.state
        done = [item for name, item in state.planned.items() if name in state.results]
        plan = [*done, *changed(state.steps_left())]
        if plan == state.plan:
            live.run.idle_changes.append(change)
            return self.steps
        value = {"steps": plan, "because": because and text(because, "reason"), "change": change}
        if live.run.idle_changes:  # on a resume they would make a difference: to this change
            value["besides"] = live.run.idle_changes.copy()
        with error_path("replanned['steps']", "plan"):
            await record.write(kinds.REPLANNED, value)
        return self.steps


class Plan(SyncWrapper[AsyncPlan]):
    """The plan of a task: made once, and changed for a reason.

    >>> import limpet
    >>> with limpet.open("memory:") as store, store.task("t", goal="Write the report") as task:
    ...     task.plan(["collect", "write"])
    ...     task.plan.insert("sort", after="collect", because="there is much of it")
    ['collect', 'write']
    ['collect', 'sort', 'write']
    """

    @property
    def steps(self) -> list[Any]:
        """All steps, those that are done among them: names, or dicts with a "name"."""
        return self._core.steps

    __call__ = sync(AsyncPlan.__call__)
    replace = sync(AsyncPlan.replace)
    insert = sync(AsyncPlan.insert)
    drop = sync(AsyncPlan.drop)
    reorder = sync(AsyncPlan.reorder)


def _needs_an_argument(function: Callable[..., Any]) -> bool:
    """Whether *function* cannot be called without an argument."""
    import inspect  # noqa: PLC0415 - slow to import, needed once a task

    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):  # or it is a builtin that does not say
        return True
    return False


def _checked(made: object) -> list[Any]:
    """The steps of a plan, as they are stored."""
    if isinstance(made, (str, bytes, Mapping)) or not isinstance(made, Iterable):
        msg = f"A plan is a list of steps, not a {type(made).__name__}."
        raise TypeError(msg)
    found = []
    for at, item in enumerate(made):
        step = item if isinstance(item, str) else plain(item, f"plan[{at}]")
        if not isinstance(step, str) and not (isinstance(step, dict) and "name" in step):
            msg = f"A planned step is a name, or a dict with a 'name'; not {item!r:.80}."
            raise TypeError(msg)
        check_id(item_name(step), "step name")
        found.append(step)
    return found


# -- planned steps -------------------------------------------------------------------------------


class AsyncStep:
    """One planned step; see `Step`."""

    def __init__(self, task: AsyncTask, name: str, item: Any) -> None:
        self.name = name
        self.task = task
        self.data: dict[str, Any] = fresh(item) if isinstance(item, dict) else {"name": item}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, done={self.done})"

    @property
    def done(self) -> bool:
        """Whether it has a result."""
        return self.name in self.task.runner.live.state.results

    @property
    def idempotency_key(self) -> str:
        """That of `StepContext`, which the step has when it runs."""
        return self.task.runner.live.idempotency_key(self.name)

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
        policy = StepPolicy.of(in_doubt, verify, retry)
        runner = self.task.runner
        try:
            return await runner.run(self.name, function, args, kwargs, policy, as_=as_)
        finally:  # its turn ends, if it lasts no longer than that
            run = runner.live.run
            run.turns = [one for one in run.turns if not (one.brief and one.name == self.name)]


class Step(SyncWrapper[AsyncStep]):
    """One planned step: ``name``, ``data`` (the plan's item), ``done``, and `run`."""

    def __init__(self, core: AsyncStep, task: Task) -> None:
        super().__init__(core)
        self.task = task

    @property
    def name(self) -> str:
        """What the step is known by."""
        return self._core.name

    @property
    def data(self) -> dict[str, Any]:
        """The plan's item, if it is a dict; otherwise its name."""
        return self._core.data

    @property
    def done(self) -> bool:
        """Whether it has a result."""
        return self._core.done

    @property
    def idempotency_key(self) -> str:
        """That of `StepContext`, which the step has when it runs."""
        return self._core.idempotency_key

    run = sync(AsyncStep.run)


class Remaining(Iterator[S]):
    """The planned steps that are left, each in its turn, in which `LiveTask.around` finds it.

    A turn ends when the next step is asked for, and when the loop is left, by whatever way. Nothing
    tells us that but the end of what the loop goes by: so each loop has one of its own, which
    nobody else holds, and no name depends on who still has what `remaining` returned. Where there
    is no loop, but a call of ``next``, the turn ends when its step has run.
    """

    def __init__(
        self,
        live: LiveTask,
        make: Callable[[str, Any], S],
        offered: set[str] | None = None,
        *,
        brief: bool = True,
    ) -> None:
        self._live = live
        self._make = make
        self._offered = set() if offered is None else offered
        self._brief = brief
        self._turn: Turn | None = None
        self._planned: dict[str, Any] = {}
        self._left: Iterator[tuple[str, Any]] = iter(())

    def __iter__(self) -> Remaining[S]:
        self._end_turn()
        return Remaining(self._live, self._make, self._offered, brief=False)

    def __next__(self) -> S:
        self._end_turn()
        state = self._live.state
        if self._planned is not state.planned:  # another plan: from its beginning
            self._planned, self._left = state.planned, iter(state.planned.items())
        for name, item in self._left:
            if name not in state.results and name not in self._offered:
                self._offered.add(name)
                self._turn = Turn(self._live, name, brief=self._brief)
                self._live.run.turns.append(self._turn)
                return self._make(name, item)
        raise StopIteration

    def _end_turn(self) -> None:
        turns = self._live.run.turns
        if self._turn in turns:  # or its step has run
            turns.remove(self._turn)
        self._turn = None

    __del__ = _end_turn
