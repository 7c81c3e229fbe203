"""Vectors of items: how they are stored, and how near they are to that of a query."""

from __future__ import annotations

import math
import operator
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["pack", "scores"]

#: Bytes of a number.
WIDTH = 4


def pack(vector: Sequence[float]) -> bytes:
    """*vector* as it is stored."""
    return struct.pack(f"<{len(vector)}f", *vector)


def scores(query: Sequence[float], vectors: Sequence[Sequence[bytes]]) -> list[float | None]:
    """How near the nearest of each list of *vectors* is to that of the *query*: its cosine.

    None where there is none; nor does one of another length count, which is another model's.
    """
    width = len(query) * WIDTH
    flat = [(at, one) for at, many in enumerate(vectors) for one in many if len(one) == width]
    best: list[float | None] = [None] * len(vectors)
    cosines = _cosines(query, [one for _, one in flat])
    for (at, _), cosine in zip(flat, cosines, strict=True):
        before = best[at]
        best[at] = cosine if before is None or cosine > before else before
    return best


def _cosines(query: Sequence[float], vectors: list[bytes]) -> list[float]:
    try:
        import numpy as np  # noqa: PLC0415 - optional
    except ImportError:
        length = math.hypot(*query)
        each = (struct.unpack(f"<{len(query)}f", one) for one in vectors)
        return [
            _ratio(sum(map(operator.mul, query, one)), length * math.hypot(*one)) for one in each
        ]
    asked = np.asarray(query, dtype=np.float64)
    numbers: Any = np.frombuffer(b"".join(vectors), dtype="<f4").astype(np.float64)
    matrix = numbers.reshape(len(vectors), len(query))
    products = matrix @ asked
    lengths = np.linalg.norm(matrix, axis=1) * np.linalg.norm(asked)
    return [_ratio(one, length) for one, length in zip(products, lengths, strict=True)]


def _ratio(product: float, length: float) -> float:
    return float(product / length) if length else 0.0
