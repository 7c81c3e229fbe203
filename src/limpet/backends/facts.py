"""What `limpet doctor` reports of a place, as people read it."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Fact", "human_size"]


class Fact(Struct, frozen=True):
    """One line of `limpet doctor`: what is so, whether that is well, and if not, what to do.

    *unsure*: it may be well or not, and nobody can tell; *advice* says how to find out.
    """

    name: str
    value: str
    ok: bool = True
    advice: str = ""
    unsure: bool = False

    @classmethod
    def of_kind(cls, kind: str, journals: int, entries: int | None = None, size: int = 0) -> Fact:
        """How much there is of one *kind* of journal."""
        name = f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s"
        if entries is None:
            return cls(name, f"{journals:,}")
        word = "entry" if entries == 1 else "entries"
        return cls(name, f"{journals:,} with {entries:,} {word}, {human_size(size)}")


def human_size(count: int) -> str:
    """*count* bytes, as people say it.

    >>> human_size(999), human_size(49_152)
    ('999 B', '49.2 KB')
    """
    amount = float(count)
    for unit in ("B", "KB", "MB"):
        if amount < 1000:  # noqa: PLR2004 - as the SI has it
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
