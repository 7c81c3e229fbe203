"""A long conversation made short for a model, at the cost of what is shown; nothing is deleted.

Compaction adds an entry, a summary that says up to which position it reaches, and windows begin
behind that. There is one append, so a crash leaves all of it or nothing. Each summary is made from
the one before it and what was said since.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from limpet.backends.contract import Head
from limpet.conversations.repair import Notes
from limpet.conversations.transcript import (
    POPPED,
    SHORTENED,
    SUMMARY,
    ConversationMeta,
    Item,
    Summary,
)
from limpet.conversations.window import Budget, Units, View
from limpet.errors import Conflict, StoreReadOnly, WindowTooSmall
from limpet.llm.messages.repair import repair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limpet.conversations.window import Windows

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


class _Scene(Struct, frozen=True):
    """A conversation as compaction finds it."""

    head: Head
    meta: ConversationMeta
    summary: Summary | None
    items: list[Item]  # since the summary, without the system messages in front, as shown
    cut: int  # how many of them are to go

    @property
    def upto(self) -> int:
        """The position of the newest message that is to go."""
        return self.items[self.cut - 1][0]


class Compactor:
    """Makes one conversation shorter."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._transcript = windows.transcript
        self._journal = windows.transcript.journal

    async def window(
        self, budget: Budget, steps: Sequence[Step], **options: Any
    ) -> tuple[View, Notes] | None:
        """What fits *budget*, after as many *steps* as it takes; None if there is nothing.

        *options* are those of `Windows.view`.
        """
        left = list(steps)
        # Of the newest messages, too, but only if they would not fit otherwise.
        lengths = [budget.room, SHORT] if OUTPUTS in left else []
        while (head := await self._journal.head()) is not None:
            try:
                view, notes = await self._windows.view(head, budget, **options)
            except WindowTooSmall as error:
                if not lengths:
                    raise
                try:
                    items = await self._windows.items(head, await self._windows.front(head))
                    await self._shorten(head, items, head.seq, max(SHORT, lengths.pop(0)))
                except StoreReadOnly:
                    raise error from None
                continue
            if not (view.cut and left):
                return view, notes
            try:
                await self.run([left.pop(0)], keep=budget.room // 2, count=budget.count)
            except StoreReadOnly:
                left.clear()  # nothing can be stored: what fits has to do
        return None

    async def run(
        self, steps: Sequence[Step], *, keep: int, count: Any, over: int | None = None
    ) -> Summary | None:
        """Take *steps* until what was said since the last summary takes no more than *over*.

        Returns the summary that then stands.
        """
        summary = None
        for step in steps:
            head = await self._journal.head()
            if head is None:
                return None
            front = await self._windows.front(head)
            items = await self._windows.items(head, front)
            cut, tokens = _cut(items, Budget(keep, None, count, whole=True))
            summary = front.summary
            if not cut or (over is not None and tokens <= over):
                continue
            scene = _Scene(head, ConversationMeta.of(head), summary, items, cut)
            if step == OUTPUTS:
                await self._shorten(head, items[:cut], scene.upto, SHORT)
            else:
                summary = await self._sum_up(step, scene)
        return summary

    async def _sum_up(self, step: Step, scene: _Scene) -> Summary | None:
        """Make a summary of what is to go, or trim it; the one that then stands."""
        before = scene.summary
        gone = [message for at, message in scene.items[: scene.cut] if at not in scene.meta.pins]
        if not gone:
            return before
        text = None if before is None else before.text
        if callable(step):
            # `StoreReadOnly` before a model is paid for what could not be stored: an append of
            # nothing is refused where any is.
            await self._journal.append()
            text = await self._text(step, scene, gone)
        body = {
            "upto": scene.upto,
            "messages": len(gone) + (0 if before is None else before.messages),
            "text": text,
            "previous": 0 if before is None else before.position,
        }
        return await self._store(scene, body)

    async def _text(self, summarise: Summarise, scene: _Scene, gone: list[dict[str, Any]]) -> str:
        before = None if scene.summary is None else scene.summary.message
        messages = repair(gone if before is None else [before, *gone]).messages
        text = await self._journal.runtime.invoke(summarise, messages)
        if not isinstance(text, str) or not text.strip():
            what = "an empty text" if isinstance(text, str) else f"a {type(text).__name__}"
            name = getattr(summarise, "__qualname__", repr(summarise))
            msg = f"{name} returned {what}. A summary is text, and nothing was changed without one."
            raise TypeError(msg)
        return text

    async def _store(self, scene: _Scene, body: dict[str, Any]) -> Summary | None:
        """Put the new summary in place of the one before; of two at once, the first one stands."""
        while True:
            head = await self._journal.head()
            # Positions say nothing of another conversation that has come to have this id.
            if head is None or head.incarnation != scene.head.incarnation:
                return None
            meta = ConversationMeta.of(head)
            if (scene.meta.start, scene.meta.summary) != (meta.start, meta.summary):
                return await self._transcript.summary(meta.summary)
            # It must not speak of a message that was taken back meanwhile.
            for entry in await self._journal.read(after=scene.head.seq):
                if entry.type == POPPED and entry.body["position"] <= scene.upto:
                    return scene.summary
            meta = meta.but(summary=head.seq + 1)
            with suppress(Conflict):
                done = await self._transcript.write_at(head.expect, [(SUMMARY, body)], meta)
                return await self._transcript.summary(done.seq)

    async def _shorten(self, head: Head, items: list[Item], upto: int, most: int) -> None:
        """Show outputs up to position *upto* shorter, if there is one among *items* to shorten."""
        notes = Notes()
        notes.shorten(upto, most)
        if all(notes.show(position, message) is message for position, message in items):
            return
        now: Head | None = head
        while now is not None and now.incarnation == head.incarnation:
            entry = (SHORTENED, {"upto": upto, "most": most})
            with suppress(Conflict):
                await self._transcript.write_at(now.expect, [entry], ConversationMeta.of(now))
                return
            now = await self._journal.head()


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
