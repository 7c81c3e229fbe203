"""Ages and sizes as people write them: 30d, 12h, 500kB."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AGES", "SIZES", "measured"]

#: Seconds, and bytes, by their units; without a unit a number is of the first.
AGES = {"": 1, "s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_557_600}
SIZES = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20}


def measured(text: str, units: Mapping[str, float]) -> float:
    """How much *text* says, in the smallest of *units*; `ValueError` if it is no such number.

    >>> measured("1.5 h", AGES)
    5400.0
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?) ?([a-zA-Z]*)", text, re.ASCII)
    scale = units.get(found[2].lower()) if found else None
    if found is None or scale is None:
        known = ", ".join(unit for unit in units if unit)
        raise ValueError(f"{text!r} is not a number with one of the units {known}.")
    return float(found[1]) * scale
