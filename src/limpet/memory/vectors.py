"""The vectors of a namespace: how they are stored, searched, and kept when the index is made again.

What makes them of texts is `limpet.memory.embeddings`. Needs numpy, which is optional.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.errors import MissingExtra
from limpet.memory import ranking

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from limpet.memory.index import Index

__all__ = [
    "Backoff",
    "Embedded",
    "Nearest",
    "SavedVectors",
    "TextVectors",
    "Unembedded",
    "Vectors",
    "WordVectors",
    "combine",
    "find_unembedded",
    "numpy",
    "pack",
    "store_failure",
    "store_vectors",
    "word_by_word",
]


def numpy() -> Any:
    """The module, or `MissingExtra`."""
    try:
        import numpy as np  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtra.of("Recall by meaning", "numpy", "embeddings") from error
    return np


def pack(vectors: Sequence[Any]) -> list[bytes]:
    """Each of *vectors* as it is stored: of length 1, in half precision."""
    return [row.tobytes() for row in _unit(vectors).astype("<f2")]


def combine(text: Any, whole: Any) -> Any:
    """The vector of a passage: that of its text, and of the *whole* that it is a part of."""
    (alone,) = _unit([text])
    return alone if whole is None else alone + ranking.WHOLE * _unit([whole])[0]


def _unit(vectors: Sequence[Any]) -> Any:
    """*vectors* as a matrix of unit vectors; `ValueError` if they are none."""
    np = numpy()
    try:
        matrix = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
    except (TypeError, ValueError):
        matrix = np.empty(0)  # not numbers, or not of one length
    if matrix.ndim != 2 or not np.isfinite(matrix).all():  # noqa: PLR2004 - rows of numbers
        msg = "An embedding function returns a list of numbers for each text, all of one length."
        raise ValueError(msg)
    length = np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix / np.maximum(length, 1e-12)


# -- searching -------------------------------------------------------------------------------------


class Nearest(NamedTuple):
    """What is nearest to a vector, by rows of memories: how near, and by which passage of each.

    *usual* is how near a passage is on average.
    """

    scores: dict[int, float]
    passages: dict[int, int]
    usual: float


class Vectors:
    """The vectors of one index in memory; before each search the new ones are read."""

    def __init__(self) -> None:
        self._np = numpy()
        #: How near each memory is to the vector of the last search, by its row.
        self._scores: Any = None
        self._reset(removed=-1)

    def _reset(self, removed: int) -> None:
        #: How many vectors had been removed from the index when these were read, and the last one.
        self._removed = removed
        self._last = 0
        #: One vector a line, with spare lines at the end; which passage each is of, which memory.
        self._matrix: Any = None
        self._passages: Any = self._np.zeros(0, dtype=self._np.int64)
        self._rows: Any = self._np.zeros(0, dtype=self._np.int64)

    def _refresh(self, index: Index) -> None:
        """Read the vectors that are new; all of them, if some were removed."""
        np = self._np
        with index.lock:
            removed = index.value("SELECT removed FROM model")
            if removed != self._removed:
                self._reset(removed)
            sql = "SELECT v, p, n, value FROM vector JOIN passage USING (p) WHERE v > ? ORDER BY v"
            stored = index.run(sql, [self._last])
        if not stored:
            return
        new = np.frombuffer(b"".join(value for *_, value in stored), dtype="<f2")
        new = new.reshape(len(stored), -1)
        used, needed = len(self._rows), len(self._rows) + len(new)
        if self._matrix is None or needed > len(self._matrix):
            larger = np.empty((max(2 * used, needed), new.shape[1]), dtype=np.float32)
            if used:
                larger[:used] = self._matrix[:used]
            self._matrix = larger
        self._matrix[used:needed] = new
        self._passages = np.concatenate([self._passages, [p for _, p, *_ in stored]])
        self._rows = np.concatenate([self._rows, [n for *_, n, _ in stored]])
        self._last = stored[-1][0]

    def nearest(self, index: Index, vector: Any, most: int, among: list[int] | None) -> Nearest:
        """The memories of the *most* passages nearest to *vector*, only those *among* some rows."""
        self._refresh(index)
        self._scores = None
        if self._matrix is None:
            return Nearest({}, {}, 0.0)
        np = self._np
        matrix = self._matrix[: len(self._rows)]
        # Not by "@": for so little work, waking other threads takes longer than the work itself.
        scores = np.einsum("ij,j->i", matrix, _unit([vector])[0])
        usual, rows, passages = float(scores.mean()), self._rows, self._passages
        np.clip(scores, 0, 1, out=scores)
        count = np.bincount(rows)
        if count.max() > 1:
            # The best of many is higher than that of few by chance alone: as much is taken off as
            # the highest of so many draws is over their mean.
            many = np.maximum(count, 1)
            mean = np.bincount(rows, scores) / many
            spread = np.sqrt(np.maximum(np.bincount(rows, scores**2) / many - mean**2, 0))
            by_chance = spread * np.sqrt(2 * np.log(many))
            scores = np.clip(scores - by_chance[rows].astype(np.float32), 0, 1)
        # The best passage decides.
        self._scores = np.full(int(rows.max()) + 1, -1, dtype=np.float32)
        np.maximum.at(self._scores, rows, scores)
        if among is not None:
            wanted = np.isin(rows, among)
            scores, rows, passages = scores[wanted], rows[wanted], passages[wanted]
        if len(scores) > most:
            best = np.argpartition(scores, -most)[-most:]
            scores, rows, passages = scores[best], rows[best], passages[best]
        order = np.argsort(scores, kind="stable")
        of = rows[order].tolist()
        return Nearest(
            dict(zip(of, scores[order].tolist(), strict=True)),
            dict(zip(of, passages[order].tolist(), strict=True)),
            max(usual, 0.0),
        )

    def score(self, n: int) -> float | None:
        """How near row *n* is to the vector of the last search; None if it has no vector yet."""
        if self._scores is None or n >= len(self._scores) or self._scores[n] < 0:
            return None
        return float(self._scores[n])


# -- word by word ----------------------------------------------------------------------------------


class WordVectors(NamedTuple):
    """The words of a text that say something, and what each means there: a vector a word."""

    words: list[str]
    vectors: Any

    def pack(self) -> bytes:
        """As they are stored: a byte a number; how long they are does not matter."""
        np = numpy()
        if not self.words:
            return b""
        longest = np.maximum(np.abs(self.vectors).max(axis=1, keepdims=True), 1e-12)
        packed: bytes = np.rint(self.vectors / longest * 127).astype(np.int8).tobytes()
        return packed


class TextVectors(NamedTuple):
    """What a model makes of a text: its vector, and those of its words, if it gives them."""

    vector: Any
    words: WordVectors | None


def word_by_word(query: WordVectors, weights: Sequence[float], packed: Sequence[bytes]) -> Any:
    """How near each text comes to the words of *query*, each taken by itself, from 0 to 1.

    Of a text, the word counts that is nearest to the one of the query. *packed* are the words of
    the texts; for one without any it is 0.
    """
    np = numpy()
    width = query.vectors.shape[1]
    counts = np.array([len(one) // width for one in packed])
    found = np.zeros(len(packed), dtype=np.float32)
    if not counts.any():
        return found
    words = np.frombuffer(b"".join(packed), dtype=np.int8).reshape(-1, width).astype(np.float32)
    # Not by "@", as above.
    near = np.einsum("ij,kj->ik", words, _unit(query.vectors))
    near /= np.maximum(np.sqrt(np.einsum("ij,ij->i", words, words)), 1e-12)[:, None]
    there = counts > 0
    starts = np.concatenate([[0], np.cumsum(counts[there])[:-1]])
    share = np.asarray(weights, dtype=np.float32) / sum(weights)
    found[there] = np.maximum.reduceat(near, starts, axis=0) @ share
    return np.clip(found, 0, 1)


# -- keeping them ----------------------------------------------------------------------------------


class SavedVectors:
    """The vectors that an index had, by the texts that they are of.

    A vector may have cost money, and an index is made again whenever another machine has forgotten
    something. So the vectors of texts that are still there go back. Meanwhile they are in memory
    only: of a text that is gone, nothing stays in a file.
    """

    def __init__(self, database: apsw.Connection) -> None:
        rows: Any = database.execute(
            f"SELECT {_TEXT}, {_WHOLE}, v.value, v.words"  # noqa: S608 - all of it is ours
            " FROM vector v JOIN passage q USING (p) JOIN memory m USING (n)"
        )
        self._vectors = {_digest(text, whole): found for text, whole, *found in rows}
        self._model = _model(database)
        self._length = next((len(value) for value, _ in self._vectors.values()), None)

    def put_back(self, database: apsw.Connection) -> None:
        """Give a vector to every row whose text had one, unless they are of another model."""
        length = database.execute("SELECT length(value) FROM vector LIMIT 1").fetchone()
        same = _model(database) == self._model and length in (None, (self._length,))
        if not self._vectors or not same:
            return
        rows: Any = database.execute(
            f"SELECT q.p, {_TEXT}, {_WHOLE} FROM passage q JOIN memory m USING (n)"  # noqa: S608 - all of it is ours
            f" WHERE {_NO_VECTOR}"
        )
        known = [(p, self._vectors.get(_digest(text, whole))) for p, text, whole in rows]
        found = [(p, *vector) for p, vector in known if vector is not None]
        database.executemany("INSERT INTO vector(p, value, words) VALUES(?, ?, ?)", found)


def _model(database: apsw.Connection) -> Any:
    return database.execute("SELECT name FROM model").fetchone()


def _digest(text: str, whole: str | None) -> bytes:
    words = f"{len(text)} {text}" if whole is None else f"{len(text)} {text} {whole}"
    return hashlib.blake2b(words.encode(errors="surrogatepass"), digest_size=16).digest()


# -- passages without a vector ---------------------------------------------------------------------

#: Texts that are embedded in one call.
BATCH = 64
#: Characters of a long text that say what its passages are about.
BEGINNING = 1200
#: Seconds after which a text that was refused by itself is tried again.
TRY_AGAIN = 600.0

_ONE_OF = "IN (SELECT value FROM json_each(?))"
_NO_VECTOR = "NOT EXISTS (SELECT 1 FROM vector v WHERE v.p = q.p)"
_TEXT = "coalesce(q.text, m.text)"
# What a text is a part of: a passage, of what its memory begins with; an instruction, of what it is
# about; else it is one with its context, for what an answer means depends on the question.
_WHOLE = f"""CASE WHEN q.text NOTNULL THEN substr(m.text, 1, {BEGINNING})
WHEN m.about NOTNULL THEN m.about ELSE m.context || ' ' || m.text END"""
_STORE = f"""
INSERT OR REPLACE INTO vector(p, value, words)
SELECT q.p, ?, ? FROM passage q JOIN memory m USING (n)
WHERE q.p = ? AND m.id = ? AND {_TEXT} = ? AND {_WHOLE} IS ?
"""  # noqa: S608 - all of it is ours


class Backoff:
    """How many texts to embed at once, and which not yet, when some were refused.

    One text of a batch that failed may be to blame (too long, say), and nobody knows which. So half
    as many are tried next, and one that fails by itself is left out for a while.
    """

    def __init__(self) -> None:
        self._size: int | None = None
        self._until: dict[str, float] = {}

    @property
    def size(self) -> int:
        """How many to try next."""
        return BATCH if self._size is None else self._size

    def failed(self, ids: Sequence[str]) -> None:
        """None of *ids* got a vector."""
        self._size = max(len(ids) // 2, 1)
        if len(ids) == 1:
            self._until[ids[0]] = time.monotonic() + TRY_AGAIN

    def succeeded(self) -> None:
        """All of a batch did."""
        self._size = None if 2 * self.size >= BATCH else 2 * self.size

    def left_out(self) -> list[str]:
        """Those not to be tried yet."""
        now = time.monotonic()
        self._until = {id_: until for id_, until in self._until.items() if until > now}
        return list(self._until)

    def clear(self) -> None:
        """Leave nothing out: the function may be another one, or work again."""
        self._size = None
        self._until.clear()


class Unembedded(NamedTuple):
    """A passage without a vector, the id of its memory, its text, and what that is a part of."""

    p: int
    id: str
    text: str
    whole: str | None


class Embedded(NamedTuple):
    """A passage with its vector, and the vectors of its words, if the model gives them."""

    passage: Unembedded
    value: bytes
    words: bytes | None


def find_unembedded(
    index: Index, model: str, like: bytes | None, most: int | None
) -> tuple[int, list[Unembedded]]:
    """How many passages have no vector of *model*, and the next of them, newest first.

    Up to *most*, and no more than a batch. *like* is one of its vectors: if those that are stored
    have another length they are another model's, whatever it is called, and are removed.
    """
    with index.lock:
        index.saved_vectors = None  # new vectors are made from here on
        if index.value("SELECT name FROM model") != model or not _fits(index, like):
            _start_over(index, model)
        left_out = json.dumps(index.backoff.left_out())
        every = index.value("SELECT (SELECT count(*) FROM passage) - (SELECT count(*) FROM vector)")
        joined = "FROM passage q JOIN memory m USING (n)"
        refused = f"SELECT count(*) {joined} WHERE m.id {_ONE_OF} AND {_NO_VECTOR}"
        count = every - index.value(refused, [left_out])
        # No more than there are: to look for one that is not there means to look at all.
        size = min(index.backoff.size, count, count if most is None else most)
        sql = (
            f"SELECT q.p, m.id, {_TEXT}, {_WHOLE} {joined} WHERE {_NO_VECTOR}"
            f" AND m.id NOT {_ONE_OF} ORDER BY q.p DESC LIMIT ?"
        )
        rows = index.run(sql, [left_out, size]) if size > 0 else []
        return count, [Unembedded(*row) for row in rows]


def store_vectors(index: Index, model: str, vectors: Sequence[Embedded]) -> None:
    """Store what *model* made of passages, if they still are what they were.

    Meanwhile something may have been forgotten that their contexts quoted.
    """
    with index.lock:
        if not _fits(index, vectors[0].value):
            _start_over(index, model)
        with index.writing() as database:
            if index.value("SELECT name FROM model") == model:
                database.executemany(
                    _STORE, [(one.value, one.words, *one.passage) for one in vectors]
                )
                database.execute("UPDATE model SET failed = NULL")
        index.backoff.succeeded()


def store_failure(index: Index, tried: Sequence[Unembedded], error: str) -> None:
    """Record that no vectors could be made of those that were *tried*: the name of the *error*."""
    with index.writing() as database:
        database.execute("UPDATE model SET failed = ?", (error,))
        index.backoff.failed([one.id for one in tried])


def _fits(index: Index, value: bytes | None) -> bool:
    """Whether *value* has the length of the vectors that are stored."""
    length = index.value("SELECT length(value) FROM vector LIMIT 1")
    return value is None or length in (None, len(value))


def _start_over(index: Index, model: str) -> None:
    """Remove all vectors: those to come are of another *model*."""
    with index.writing() as database:
        database.execute("DELETE FROM vector")
        database.execute("UPDATE model SET name = ?, failed = NULL", (model,))
    index.backoff.clear()
