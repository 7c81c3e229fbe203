"""A long conversation made short for a model, at the cost of what is shown; nothing is deleted.

Compaction adds an entry, a summary that says up to which position it reaches, and windows begin
behind that. There is one append, so a crash leaves all of it or nothing. Each summary is made from
the one before it and what was said since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from limpet.backends.contract import Head
from limpet.conversations.front import Front, Fronts
from limpet.conversations.marks import Marks
from limpet.conversations.notes import SHORTENED, SUMMARY, Notes, Summary, find_summary
from limpet.conversations.transcript import POPPED, Item
from limpet.conversations.window import Budget, Units, View, Window
from limpet.errors import Conflict, StoreReadOnly, WindowTooSmall
from limpet.llm import tokens
from limpet.llm.messages.repair import repair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limpet.conversations.transcript import Transcript
    from limpet.core.journal import AsyncJournal
    from limpet.llm.messages.repair import Rule
    from limpet.llm.messages.shape import Shape

    #: Makes the text of a summary out of messages.
    Summarise = Callable[[list[dict[str, Any]]], Any]
    #: A function that writes the summary; "trim", which leaves messages out without one; "outputs",
    #: which shortens what tools returned.
    Step = Summarise | Literal["trim", "outputs"]

__all__ = ["Compactor", "Step", "steps_of"]

TRIM = "trim"
OUTPUTS = "outputs"
#: Characters of a tool's output that are left when it is shortened.
SHORT = 200


class Scene(Struct, frozen=True):
    """A conversation as compaction finds it."""

    head: Head
    marks: Marks
    summary: Summary | None
    items: list[Item]  # since the summary, without the system messages in front, as shown
    cut: int  # how many of them are to go
    tokens: int

    @property
    def upto(self) -> int:
        """The position of the newest message that is to go."""
        return self.items[self.cut - 1][0]


class Compactor:
    """Shows one conversation to a model, and makes it shorter; *ask* calls the user's functions."""

    def __init__(self, journal: AsyncJournal, said: Transcript, ask: Callable[..., Any]) -> None:
        self._journal = journal
        self._said = said
        self._ask = ask
        self._fronts = Fronts(journal, said)

    async def window(
        self, budget: Budget, steps: Sequence[Step], **terms: Any
    ) -> tuple[View, Notes] | None:
        """What fits *budget*, after as many *steps* as it takes; None if there is nothing."""
        left = list(steps)
        # Of the newest messages, too, but only if they would not fit otherwise.
        lengths = [budget.room, SHORT] if OUTPUTS in left else []
        while (head := await self._journal.head()) is not None:
            try:
                found, notes = await self._view(head, budget, **terms)
            except WindowTooSmall as error:
                if not lengths:
                    raise
                try:
                    items = await self._items(head, await self._fronts.of(head))
                    await self._shorten(items, head.seq, max(SHORT, lengths.pop(0)))
                except StoreReadOnly:
                    raise error from None
                continue
            if not (found.cut and left):
                return found, notes
            try:
                await self.run([left.pop(0)], keep=budget.room // 2, count=budget.count)
            except StoreReadOnly:
                left.clear()  # nothing can be kept: what fits has to do
        return None

    async def _view(
        self,
        head: Head,
        budget: Budget,
        *,
        rule: Rule = "stub",
        shape: Shape | None = None,
        keep_system: bool = True,
    ) -> tuple[View, Notes]:
        """The window: what is in front, then from the end what is needed."""
        marks, notes = Marks.of(head), Notes()
        front = await self._fronts.of(head)
        if not keep_system:
            front = Front([], front.summary, front.pins)
        window = Window(budget, rule=rule, shape=shape, look=notes.look)
        _put(front, window)
        size = _page(head, budget)
        await self._said.newest_first(window.take, size, after=front.after(marks), see=notes.see)
        return window.view(), notes

    async def check(self, message: dict[str, Any], budget: Budget) -> None:
        """`WindowTooSmall` if *message*, said now, would not fit with what stands in front."""
        window = Window(budget)
        head = await self._journal.head()
        if head is not None:
            _put(await self._fronts.of(head), window)
        window.keep((0, message), "This message, which was not stored,")

    async def run(
        self, steps: Sequence[Step], *, keep: int, count: Any, over: int | None = None
    ) -> Summary | None:
        """Take *steps* until what was said since the last summary takes no more than *over*.

        Returns the summary that then stands.
        """
        summary = None
        for step in steps:
            scene = await self._scene(keep, count)
            if scene is None:
                return None
            summary = scene.summary
            if scene.cut and (over is None or scene.tokens > over):
                summary = await self._step(step, scene)
        return summary

    async def _scene(self, keep: int, count: Any) -> Scene | None:
        head = await self._journal.head()
        if head is None:
            return None
        marks = Marks.of(head)
        front = await self._fronts.of(head)
        items = await self._items(head, front)
        cut, tokens = _cut(items, Budget(keep, None, count, whole=True))
        return Scene(head, marks, front.summary, items, cut, tokens)

    async def _items(self, head: Head, front: Front) -> list[Item]:
        """What was said behind what is in *front*, as shown."""
        notes = Notes()
        found = await self._said.items(after=front.after(Marks.of(head)), see=notes.see)
        return [(position, notes.show(position, message)) for position, message in found]

    async def _step(self, step: Step, scene: Scene) -> Summary | None:
        if step == OUTPUTS:
            await self._shorten(scene.items[: scene.cut], scene.upto, SHORT)
            return scene.summary
        gone = [item for item in scene.items[: scene.cut] if item[0] not in scene.marks.pins]
        if not gone:
            return scene.summary
        before = scene.summary
        text = None if before is None else before.text
        if callable(step):
            await self._check_writable()
            text = await self._text(step, scene, [message for _, message in gone])
        body = {
            "upto": scene.upto,
            "messages": len(gone) + (0 if before is None else before.messages),
            "text": text,
            "previous": 0 if before is None else before.position,
        }
        return await self._stand(scene, body)

    async def _check_writable(self) -> None:
        """`StoreReadOnly`, before a model is paid for what could not be kept."""
        await self._journal.append()  # of nothing, which only a store that takes writes takes

    async def _text(self, summarise: Summarise, scene: Scene, gone: list[dict[str, Any]]) -> str:
        before = None if scene.summary is None else scene.summary.message
        messages = repair(gone if before is None else [before, *gone]).messages
        text = await self._ask(summarise, messages)
        if not isinstance(text, str) or not text.strip():
            what = "an empty text" if isinstance(text, str) else f"a {type(text).__name__}"
            name = getattr(summarise, "__qualname__", repr(summarise))
            msg = f"{name} returned {what}. A summary is text, and nothing was changed without one."
            raise TypeError(msg)
        return text

    async def _stand(self, scene: Scene, body: dict[str, Any]) -> Summary | None:
        """Put the new summary in place of the one before; of two at once, the first one stands."""
        while True:
            head = await self._journal.head()
            marks = Marks.of(head)
            # Positions say nothing of another conversation that has come to have this id.
            if head is None or head.created != scene.head.created:
                return None
            if (scene.marks.start, scene.marks.summary) != (marks.start, marks.summary):
                return await find_summary(self._journal, marks.summary)
            if await self._taken_back(scene):
                return scene.summary
            status = marks.but(summary=head.seq + 1).text
            try:
                done = await self._journal.write(
                    [(SUMMARY, body)], expect=head.expect, status=status
                )
            except Conflict:
                continue
            return await find_summary(self._journal, done.seq)

    async def _taken_back(self, scene: Scene) -> bool:
        """Whether a message that the summary speaks of was popped meanwhile."""
        new = await self._journal.read(after=scene.head.seq)
        return any(e.type == POPPED and e.body["position"] <= scene.upto for e in new)

    async def _shorten(self, items: list[Item], upto: int, most: int) -> None:
        """Show outputs up to position *upto* shorter, if there is one among *items* to shorten."""
        notes = Notes()
        notes.shorten(upto, most)
        if any(notes.show(position, message) is not message for position, message in items):
            await self._journal.append((SHORTENED, {"upto": upto, "most": most}))


def _put(front: Front, window: Window) -> None:
    """Put what is in *front* into *window*."""
    for item in front.opening:
        window.keep(item, "The system message")
    summary = None if front.summary is None else front.summary.message
    if summary is not None:
        window.keep((0, summary), "The summary")
    in_front = dict(front.opening)
    for item in front.pins:
        if item[0] not in in_front:
            window.pin(item)


def _cut(items: list[Item], budget: Budget) -> tuple[int, int]:
    """How many of *items* have to go so that the rest is in *budget*, and what all of them take.

    The newest unit stays in any case.
    """
    units = Units()
    found = [unit for item in reversed(items) for unit in units.feed(item)]
    found += units.rest()
    left, used, full = len(items), 0, False
    for unit in found:
        used += sum(budget.cost(message) for _, message in unit)
        full = full or (left < len(items) and not budget.allows(used, 0))
        left -= 0 if full else len(unit)
    return left, used


def steps_of(how: Step | Sequence[Step]) -> list[Step]:
    """*how* as a list of steps; `ValueError` if one of them is none."""
    steps: list[Step] = list(how) if isinstance(how, (list, tuple)) else [how]  # type: ignore[list-item]
    for step in steps:
        if not callable(step) and step not in (TRIM, OUTPUTS):
            msg = (
                f"{step!r} is no way to compact: pass a function that makes a text of messages, "
                '"trim" or "outputs", or several in a list.'
            )
            raise ValueError(msg)
    return steps


def _page(head: Head, budget: Budget) -> int:
    """How many records a window will take, by a guess: two messages each, of the usual size."""
    if budget.max_tokens is None:
        return budget.max_messages or 100
    estimated = not getattr(budget.count, "exact", True)
    size = tokens.ESTIMATED_BYTES if estimated else tokens.BYTES_PER_TOKEN
    usual = max(1, head.size // max(1, head.seq - (head.first - 1))) / size
    return min(budget.places, int(budget.room / usual * 0.6) + 4)
