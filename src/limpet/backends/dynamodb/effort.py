"""One append on its way: what it has come to so far, and the change that it makes to a head."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from limpet.backends.contract import Append, UnsetType, conflict, fenced, micros
from limpet.backends.dynamodb.layout import Change, Journal, Kept, head_key, made_token

if TYPE_CHECKING:
    from limpet.backends.dynamodb.bodies import Upload

__all__ = ["Draft", "Effort", "check", "in_micros"]


class Effort:
    """One append on its way: its mark, and what has become of it so far."""

    def __init__(self, request: Append, timeout: float) -> None:
        self.request = request
        self.key = request.key
        self.mark = made_token() if request.id is None else f"={request.id}"
        self.fresh = False  # whether the head was read within this call
        self.in_doubt = False  # whether a try may have been carried out
        self.since: tuple[str, int] | None = None  # when first tried: generation, end of chunks
        self.late: int | None = None  # the time of a try that was refused because of it
        self.upload: Upload | None = None
        self.rev = ""  # that the head has if it was changed without a record
        self.moves = False  # whether it is the one that moves the tail
        self.turn = 0
        self.deadline = time.monotonic() + timeout

    def kept(self, at: int, seq: int = 0) -> Kept:
        """The record, as it will be kept."""
        request, upload = self.request, self.upload
        payload, parts = request.body, 0
        if upload is not None:
            payload, parts = upload.name.encode(), upload.parts
        return Kept(seq, request.count, at, self.mark, parts, len(request.body), payload)

    def tried(self, journal: Journal) -> None:
        """It is about to be tried: remember from where on it could be found in chunks."""
        if self.since is None or self.since[0] != journal.gen:
            self.since = journal.gen, journal.stored

    def time(self, now: int) -> int:
        """The time that the record is to have."""
        if self.request.origin is not None:
            return self.request.origin.at
        return now if self.late is None else self.late


class Draft(Change):
    """A change of a head, on the condition that it has not changed, and what it *then* says."""

    def __init__(self, effort: Effort, journal: Journal, now: int) -> None:
        super().__init__(head_key(effort.key))
        self.then: dict[str, Any] = {}
        self.when("#rev = :old", old=journal.rev)
        request = effort.request
        if request.epoch is not None:
            self.when("#epoch = :epoch", epoch=request.epoch)
        if request.expect is not None:
            self.when("#seq = :expect", expect=request.expect)
        if journal.life is not None:
            self.when("(#expires > :now OR #until > :now)", now=now)

    def say(self, **values: Any) -> None:
        """Put *values*, and remember it."""
        self.put(**values)
        self.then |= values

    def describe(self, request: Append) -> None:
        """Let it change status and labels."""
        if request.status is not UNSET:
            self.put(status=request.status)
        if request.labels is not UNSET:
            for number, (label, value) in enumerate(request.labels.items()):
                place = f"#labels.{self.name(label)}"
                if value is None:
                    self.remove(place)
                else:
                    self.set(f"{place} = :label{number}", **{f"label{number}": value})

    def not_leased_after(self, moment: int) -> None:
        """Only if no lease holds the journal for longer than *moment*, in seconds."""
        self.when("(attribute_not_exists(#until) OR #until < :moment)", moment=moment * 1_000_000)


def check(request: Append, journal: Journal | None) -> None:
    """Refuse what the head does not allow."""
    if request.epoch is not None and (journal is None or journal.epoch != request.epoch):
        raise fenced(request.key)
    seq = 0 if journal is None else journal.seq
    if request.expect is not None and request.expect != seq:
        raise conflict(request, seq)


def in_micros(seconds: float | UnsetType | None) -> int | None:
    """A time to live, if there is one."""
    return None if seconds is None or seconds is UNSET else micros(seconds)
