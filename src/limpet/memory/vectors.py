"""Vectors of a namespace in memory, and which of them lie near a query's. Needs numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.errors import MissingExtra
from limpet.memory.lookup import passing
from limpet.memory.ranking import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.memory.finding import Query
    from limpet.memory.index import Index

__all__ = [
    "Vectors",
    "mixed",
    "numpy",
    "packed",
    "vectors_of",
]


def numpy() -> Any:
    """The module, or `MissingExtra`."""
    try:
        import numpy as np  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtra.of("Recall by meaning", "numpy", "embeddings") from error
    return np


def packed(vectors: Sequence[Any]) -> list[bytes]:
    """Each of *vectors* as it is stored: of length 1, in half precision."""
    return [row.tobytes() for row in _unit(vectors).astype("<f2")]


def mixed(text: Any, whole: Any) -> Any:
    """The vector of a memory: that of its text, and a part of that of context and text as one."""
    (alone,) = _unit([text])
    return alone if whole is None else alone + CONTEXT * _unit([whole])[0]


def _unit(vectors: Sequence[Any]) -> Any:
    np = numpy()
    try:
        matrix = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
    except (TypeError, ValueError):
        matrix = np.empty(0)  # no numbers, or not as many in each
    if matrix.ndim != 2 or not np.isfinite(matrix).all():  # noqa: PLR2004 - rows of numbers
        msg = "An embedding function returns a list of numbers for each text, all of one length."
        raise ValueError(msg)
    length = np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix / np.maximum(length, 1e-12)


# -- in the index ----------------------------------------------------------------------------------


def _stored(index: Index, after: int) -> tuple[int, list[tuple[int, int, bytes]]]:
    """How many vectors have gone so far, and those that came *after* one."""
    with index.lock:
        rows = index.run("SELECT v, n, value FROM vector WHERE v > ? ORDER BY v", [after])
        return index.value("SELECT gone FROM model"), rows


# -- in memory -------------------------------------------------------------------------------------


def vectors_of(index: Index) -> Vectors:
    """The vectors of *index*, which stay in memory with it."""
    if index.vectors is None:
        index.vectors = Vectors()
    return index.vectors


class Vectors:
    """The vectors of one index: those that are new are read before each query."""

    def __init__(self) -> None:
        self._np = numpy()
        self._gone = -1
        self._last = 0
        # A line each, and room for more; the row of the index that each is of; and back.
        self._room: Any = None
        self._rows: Any = self._np.zeros(0, dtype=self._np.int64)
        self._lines: dict[int, int] = {}
        self._scores: Any = None

    def refresh(self, index: Index) -> None:
        """Read what is new; everything, if some are gone."""
        gone, rows = _stored(index, self._last)
        if gone != self._gone:
            self.__init__()  # type: ignore[misc]
            self._gone, rows = _stored(index, 0)
        if not rows:
            return
        np = self._np
        new = np.frombuffer(b"".join(value for *_, value in rows), dtype="<f2")
        self._put(new.reshape(len(rows), -1))
        numbers = np.array([n for _, n, _ in rows])
        start = len(self._rows)
        self._lines.update((int(n), start + i) for i, n in enumerate(numbers))
        self._rows = np.concatenate([self._rows, numbers])
        self._last = rows[-1][0]

    def _put(self, new: Any) -> None:
        """Add lines; where there is no room for them there is twice as much from now on."""
        used, room = len(self._rows), self._room
        if room is None or used + len(new) > len(room):
            size = max(2 * used, used + len(new))
            self._room = self._np.empty((size, new.shape[1]), dtype=self._np.float32)
            if used:
                self._room[:used] = room[:used]
        self._room[used : used + len(new)] = new

    def near(self, index: Index, query: Query) -> dict[int, float]:
        """The rows that mean what *query* does, most of all, and how much: from 0 to 1."""
        self.refresh(index)
        self._scores = None
        if self._room is None:
            return {}
        np = self._np
        matrix = self._room[: len(self._rows)]
        # Not by "@": to wake other threads for so little takes longer than it does.
        self._scores = np.clip(np.einsum("ij,j->i", matrix, _unit([query.vector])[0]), 0, 1)
        scores, rows = self._scores, self._rows
        wanted = passing(index, query.filters)
        if wanted is not None:
            among = np.isin(rows, wanted)
            scores, rows = scores[among], rows[among]
        if len(scores) > query.most:
            best = np.argpartition(scores, -query.most)[-query.most :]
            scores, rows = scores[best], rows[best]
        return dict(zip(rows.tolist(), scores.tolist(), strict=True))

    def score(self, n: int) -> float:
        """How near row *n* is to what was last asked for; 0 if it has no vector yet."""
        line = self._lines.get(n)
        return 0.0 if line is None or self._scores is None else float(self._scores[line])
