"""Leases on journals: small files of their own, apart from what people keep and compare."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from limpet.backends.contract import Lease
from limpet.backends.file import disk
from limpet.backends.file.lines import is_whole, seal

if TYPE_CHECKING:
    from limpet.backends.file.names import Place

__all__ = ["Held", "hold", "newest", "valid"]


class Held(Struct, frozen=True, omit_defaults=True):
    """The newest lease on a journal; and, if there is no record yet, what it is to begin with."""

    holder: str
    epoch: int
    until: int
    status: str | None = None
    labels: dict[str, str] = {}

    @property
    def lease(self) -> Lease:
        """The same as the contract has it."""
        return Lease(self.holder, self.epoch, self.until)


_decode = msgspec.json.Decoder(Held).decode


def newest(place: Place) -> Held | None:
    """The newest lease on a journal, valid or not."""
    raw = disk.read_whole(place.lease)
    if raw is None or not is_whole(raw.removesuffix(b"\n")):
        return None  # without fear: whoever takes it gets a higher epoch, by the clock
    try:
        return _decode(raw)
    except msgspec.DecodeError:
        return None


def valid(place: Place, now: int) -> Lease | None:
    """The newest lease, if it is valid."""
    held = newest(place)
    return held.lease if held is not None and held.until > now else None


def hold(place: Place, last: Held | None, **changes: Any) -> Lease:
    """Store a lease: the *last* one with some *changes*, or a new one."""
    held = Held(**changes) if last is None else msgspec.structs.replace(last, **changes)
    # Not synced: whoever holds a lease on this machine does not outlive a power loss.
    disk.make_directories(os.path.dirname(place.lease))
    disk.write_file(place.lease, seal(held))
    return held.lease
