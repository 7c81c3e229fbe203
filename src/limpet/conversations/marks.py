"""What a conversation's head remembers, so that nobody has to read all of it to find out.

It is kept as the journal's status, in words: "cleared at 12, summary at 57, pinned 3 17". Most
conversations have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from limpet.errors import InvalidMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from limpet.backends.contract import Head

__all__ = ["Marks", "damaged"]

_FORKING = "forking"
_START = "cleared at"
_SUMMARY = "summary at"
_PINS = "pinned"
_GAPS = "without"

#: They are kept with the head, and in every window.
MOST_PINS = 50


class Marks(Struct, frozen=True):
    """Where a conversation begins, and where to find what stays in every window."""

    start: int = 0  # it begins behind this position
    forking: bool = False  # a fork that is not all here
    summary: int = 0  # where the newest summary is
    pins: tuple[int, ...] = ()
    #: First and last of the entries between or behind the system messages at the beginning that no
    #: longer count. Those elsewhere need no mark: who reads from the end learns of them in time.
    gaps: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, head: Head | None) -> Marks:
        """The marks of *head*; words that mean nothing to this release are passed over."""
        found = cls()
        for phrase in (head.status or "").split(", ") if head is not None else ():
            found = _read(phrase, found)
        return found

    @property
    def text(self) -> str | None:
        """The status that says so."""
        words = [_FORKING] if self.forking else []
        if self.start:
            words.append(f"{_START} {self.start}")
        if self.summary:
            words.append(f"{_SUMMARY} {self.summary}")
        if self.pins:
            words.append(f"{_PINS} {' '.join(map(str, self.pins))}")
        if self.gaps:
            words.append(f"{_GAPS} {' '.join(f'{first}-{last}' for first, last in self.gaps)}")
        return ", ".join(words) or None

    def but(self, **changes: object) -> Marks:
        """The same with *changes*."""
        return msgspec.structs.replace(self, **changes)

    def pinned(self, positions: Iterable[int]) -> Marks:
        """The same with *positions* pinned as well."""
        pins = tuple(sorted({*self.pins, *positions}))
        if len(pins) > MOST_PINS:
            msg = (
                f"A conversation has room for {MOST_PINS} pinned messages, and these would be "
                f"{len(pins)}. Unpin some, or pin one message that says it all."
            )
            raise InvalidMessage(msg)
        return self.but(pins=pins)

    def unpinned(self, positions: Sequence[int]) -> Marks:
        """The same without pins at *positions*."""
        return self.but(pins=tuple(pin for pin in self.pins if pin not in positions))

    def without(self, first: int, last: int) -> Marks:
        """The same with a gap from *first* to *last*, in place of those within it."""
        gaps = [gap for gap in self.gaps if not first <= gap[0] <= last]
        return self.but(gaps=(*gaps, (first, last)))

    def gap_at(self, position: int) -> int | None:
        """The last of the gap that *position* lies in, if it lies in one."""
        return next((last for first, last in self.gaps if first <= position <= last), None)


def damaged(status: str) -> str | None:
    """The first phrase of *status* that begins as a mark does and is none."""
    return next((phrase for phrase in status.split(", ") if _change(phrase) is None), None)


def _read(phrase: str, marks: Marks) -> Marks:
    change = _change(phrase)
    return marks.but(**change) if change else marks


def _change(phrase: str) -> dict[str, object] | None:
    """What *phrase* says of the marks: nothing, if it is unknown; None, if it cannot be read."""
    try:
        return _said(phrase)
    except ValueError:
        return None


def _said(phrase: str) -> dict[str, object]:
    if phrase == _FORKING:
        return {"forking": True}
    if phrase.startswith(_START):
        return {"start": _position(phrase.removeprefix(_START))}
    if phrase.startswith(_SUMMARY):
        return {"summary": _position(phrase.removeprefix(_SUMMARY))}
    if phrase.startswith(_PINS):
        return {"pins": tuple(map(_position, phrase.removeprefix(_PINS).split()))}
    if phrase.startswith(_GAPS):
        pairs = (gap.partition("-") for gap in phrase.removeprefix(_GAPS).split())
        return {"gaps": tuple((_position(first), _position(last)) for first, _, last in pairs)}
    return {}


def _position(text: str) -> int:
    position = int(text)
    if position < 0:
        raise ValueError(text)
    return position
