"""Messages that a model is shown otherwise than they are stored: repaired, or cut short.

Both are recorded in the conversation, in entries that lie behind the messages that they are about.
So whoever reads from the end sees them first.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from limpet.conversations.transcript import REPAIRED, SHORTENED, ConversationMeta
from limpet.errors import Conflict, StoreReadOnly
from limpet.llm.messages.shape import blocks_of, is_result, role_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from limpet.conversations.transcript import Transcript
    from limpet.core.journal import Entry
    from limpet.llm.messages.repair import Repair, Rule

__all__ = ["Notes", "RecordedRepair", "shortened"]

#: What repairs call a result without a call.
ORPHAN = "orphan_result"
#: What they find that comes of where a window was cut.
NO_DAMAGE = ("headless", "trailing_space")

#: What a model reads where a tool's output was cut short.
CUT = "… [limpet: {:,} of {:,} characters of this output are left out here]"
#: How long that can become. What is longer than it should be by no more is left as it is: it may
#: have been cut before.
LONGEST_CUT = len(CUT.format(10**9, 10**9))


class RecordedRepair(Struct, frozen=True):
    """Something that was wrong in a conversation, and how it was shown to a model instead."""

    position: int  # of the message
    kind: str
    what: str
    rule: str
    call_id: str | None = None
    name: str | None = None
    at: datetime | None = None  # when it was found


class Notes:
    """What the entries beside the messages say of them, to one who reads from the end."""

    def __init__(self) -> None:
        self.repairs: list[RecordedRepair] = []
        self.cut: set[int] = set()  # the messages that were shown shorter than they are
        self._shortened: list[tuple[int, int]] = []  # up to which position, to how many characters

    def see(self, entry: Entry) -> None:
        """Take in one entry. Types that this release does not know say nothing."""
        if entry.type == SHORTENED:
            self.shorten(entry.body["upto"], entry.body["most"])
        elif entry.type == REPAIRED:
            found = entry.body["repairs"]
            self.repairs += msgspec.convert(
                [{**repair, "at": entry.at} for repair in found], list[RecordedRepair]
            )

    def shorten(self, upto: int, most: int) -> None:
        """Show tool outputs up to position *upto* with at most so many characters."""
        self._shortened.append((upto, most))

    def show(self, position: int, message: dict[str, Any]) -> dict[str, Any]:
        """*message* as a model is shown it: its outputs shortened, if they were."""
        most = min((most for upto, most in self._shortened if position <= upto), default=None)
        shown = message if most is None else shortened(message, most)
        if shown is not message:
            self.cut.add(position)
        return shown

    def orphans(self, position: int) -> list[str]:
        """The results in the message at *position* that are known to lack their call."""
        found = [r.call_id for r in self.repairs if r.position == position and r.kind == ORPHAN]
        return [call_id for call_id in found if call_id is not None]

    async def record(
        self, transcript: Transcript, found: Iterable[tuple[int, Repair]], rule: Rule
    ) -> None:
        """Record those of *found* that are damage, once; each comes with its message's position."""
        known = {(r.position, r.kind, r.call_id) for r in self.repairs}
        repairs = [
            {
                "position": position,
                "kind": repair.kind,
                "what": repair.what,
                "rule": rule,
                "call_id": repair.call_id,
                "name": repair.name,
            }
            for position, repair in found
            if repair.kind not in NO_DAMAGE and (position, repair.kind, repair.call_id) not in known
        ]
        if not repairs:
            return
        import hashlib  # noqa: PLC0415 - most conversations are whole

        entry = (REPAIRED, {"repairs": repairs})
        digest = hashlib.sha256(repr(entry).encode()).hexdigest()
        while (head := await transcript.journal.head()) is not None:
            meta = ConversationMeta.of(head)
            with suppress(Conflict):
                # If the store is read-only, it is found, and shown so, every time.
                with suppress(StoreReadOnly):
                    await transcript.write_at(
                        head.expect, [entry], meta, id=f"repair-{digest[:32]}"
                    )
                return


# -- outputs cut short -----------------------------------------------------------------------------


def shortened(message: dict[str, Any], most: int) -> dict[str, Any]:
    """*message* with each tool output in it cut to *most* characters; itself if none is longer."""

    def text(value: Any) -> Any:
        """Text cut short, also where it lies in parts."""
        if isinstance(value, list):
            return _each(lambda part: _with(part, ("text", "stdout", "stderr"), text), value)
        if not isinstance(value, str) or len(value) <= most + LONGEST_CUT:
            return value
        return value[:most] + CUT.format(len(value) - most, len(value))

    def block(value: Any) -> Any:
        is_output = isinstance(value, dict) and is_result(value)
        return _with(value, ("content",), text) if is_output else value

    shown = message
    if role_of(message) in ("tool", "function"):
        shown = _with(message, ("content", "output"), text)
    elif any(map(is_result, blocks_of(message))):
        shown = _with(message, ("content",), lambda blocks: _each(block, blocks))
    return shown


def _each(change: Callable[[Any], Any], parts: list[Any]) -> list[Any]:
    """*parts*, each changed; itself if none is."""
    changed = [change(part) for part in parts]
    return parts if all(new is old for new, old in zip(changed, parts, strict=True)) else changed


def _with(thing: Any, keys: Iterable[str], change: Callable[[Any], Any]) -> Any:
    """*thing* with its values under *keys* changed; itself if none is, or if it is no dict."""
    if not isinstance(thing, dict):
        return thing
    changed = {key: change(thing[key]) for key in keys if key in thing}
    same = all(value is thing[key] for key, value in changed.items())
    return thing if same else {**thing, **changed}
