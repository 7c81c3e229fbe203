"""Ways to find a memory: Limpet's, the plain ones it is made of, and those of peers."""

from __future__ import annotations

import os
import re
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import apsw
import msgspec
import numpy as np
from msgspec import Struct

import limpet
from limpet.errors import MissingExtra
from limpet.memory.local_model import WORD_WIDTH, LocalModel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench._locomo import Turn
    from limpet.memory import Memory, MemoryHit

#: How far down each list rank fusion looks.
DEPTH = 100


class Recaller(Protocol):
    """One way; it is given one conversation and then asked about it."""

    def index(self, turns: Sequence[Turn]) -> None:
        """Take in *turns*, and nothing that was there before."""

    def recall(self, question: str, k: int) -> list[str]:
        """The ids of the *k* turns that fit best."""

    def close(self) -> None:
        """Let go of what it holds."""


class Embedder:
    """The model that all ways share. A text is embedded once, and how long that took is kept."""

    model = "bench"

    def __init__(self, embed: LocalModel, file: Path | None = None) -> None:
        self._embed = embed
        self._known: dict[str, tuple[np.ndarray[Any, Any], tuple[list[str], Any]]] = {}
        #: What was embedded in this run, and how long that took.
        self.count = 0
        self.seconds = 0.0
        self._file = file
        if file is not None and file.exists():
            stored = msgspec.msgpack.decode(file.read_bytes(), type=dict[str, _Stored])
            self._known = {text: one.vectors() for text, one in stored.items()}

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        """Unit vectors."""
        return [vector for vector, _ in self.with_words(texts)]

    def with_words(
        self, texts: Sequence[str]
    ) -> list[tuple[np.ndarray[Any, Any], tuple[list[str], Any]]]:
        """Those, and the vectors of the words."""
        new = list(dict.fromkeys(text for text in texts if text not in self._known))
        began = perf_counter()
        for at in range(0, len(new), 64):
            part = new[at : at + 64]
            self._known.update(zip(part, self._embed.with_words(part), strict=True))
        self.seconds += perf_counter() - began
        self.count += len(new)
        return [self._known[text] for text in texts]

    def keep(self) -> None:
        """Write the vectors to the file, for another run."""
        if self._file is not None:
            stored = {
                text: _Stored(vector.astype("<f4").tobytes(), words, matrix.astype("<f2").tobytes())
                for text, (vector, (words, matrix)) in self._known.items()
            }
            self._file.write_bytes(msgspec.msgpack.encode(stored))


class _Stored(Struct, array_like=True):
    vector: bytes
    words: list[str]
    matrix: bytes

    def vectors(self) -> tuple[np.ndarray[Any, Any], tuple[list[str], Any]]:
        matrix = np.frombuffer(self.matrix, "<f2").astype(np.float32).reshape(-1, WORD_WIDTH)
        return np.frombuffer(self.vector, "<f4"), (self.words, matrix)


def local_model() -> LocalModel | None:
    """The model of ``limpet[embeddings]``, if it is installed, on all processors."""
    try:
        return LocalModel(threads=os.cpu_count() or 1)
    except MissingExtra:
        return None


# The commonest words of a question say nothing of what it is about.
_COMMON = frozenset(
    """a an and are as at be been but by can could did do does for from had has have he her hers him
    his how i if in into is it its me my of on or our she so than that the their them then there
    these they this those to was we were what when where which who whom whose why will with would
    you your""".split()  # noqa: SIM905 - as people read it
)


def _text(turn: Turn, with_context: bool) -> str:  # noqa: FBT001 - of this file
    return f"{turn.context} {turn.text}" if with_context and turn.context else turn.text


class PlainBM25:
    """BM25 as FTS5 has it, over stemmed words; of a question without the commonest."""

    def __init__(self, *, context: bool = False) -> None:
        self._with_context = context
        self._ids: list[str] = []
        self._database = apsw.Connection(":memory:")

    def index(self, turns: Sequence[Turn]) -> None:
        """A table of texts."""
        self._ids = [turn.id for turn in turns]
        self._database.execute(
            "DROP TABLE IF EXISTS turn;"
            "CREATE VIRTUAL TABLE turn USING fts5(text, tokenize='porter unicode61')"
        )
        with self._database:
            texts = (_text(turn, self._with_context) for turn in turns)
            put = "INSERT INTO turn(rowid, text) VALUES(?, ?)"
            self._database.executemany(put, enumerate(texts))

    def ranked(self, question: str, k: int) -> list[int]:
        """The numbers of the *k* turns that fit best; fewer if no more have a word of it."""
        words = [word for word in re.findall(r"\w+", question) if word.lower() not in _COMMON]
        query = " OR ".join(f'"{word}"' for word in words or re.findall(r"\w+", question))
        found = self._database.execute(
            "SELECT rowid FROM turn WHERE turn MATCH ? ORDER BY rank LIMIT ?", (query, k)
        )
        return [number for (number,) in found]

    def recall(self, question: str, k: int) -> list[str]:
        """By score."""
        return [self._ids[number] for number in self.ranked(question, k)]

    def close(self) -> None:
        """The table goes with it."""
        self._database.close()


class PlainVectors:
    """Cosine similarity with every turn."""

    def __init__(self, embed: Embedder, *, context: bool = False) -> None:
        self._embed = embed
        self._with_context = context
        self._ids: list[str] = []
        self._matrix = np.zeros((0, 0))

    def index(self, turns: Sequence[Turn]) -> None:
        """Embed every turn."""
        self._ids = [turn.id for turn in turns]
        self._matrix = np.stack(self._embed([_text(turn, self._with_context) for turn in turns]))

    def ranked(self, question: str, k: int) -> list[int]:
        """The numbers of the *k* nearest turns."""
        near = self._matrix @ self._embed([question])[0]
        return [int(number) for number in np.argsort(-near)[:k]]

    def recall(self, question: str, k: int) -> list[str]:
        """The nearest."""
        return [self._ids[number] for number in self.ranked(question, k)]

    def close(self) -> None:
        """Nothing."""


class RankFusion:
    """Both plain ways by reciprocal rank, with the usual constant of 60."""

    def __init__(self, embed: Embedder) -> None:
        self._ways = PlainBM25(), PlainVectors(embed)
        self._ids: list[str] = []

    def index(self, turns: Sequence[Turn]) -> None:
        """Both."""
        self._ids = [turn.id for turn in turns]
        for way in self._ways:
            way.index(turns)

    def recall(self, question: str, k: int) -> list[str]:
        """By the sum of both reciprocal ranks."""
        total = dict.fromkeys(range(len(self._ids)), 0.0)
        for way in self._ways:
            for rank, number in enumerate(way.ranked(question, DEPTH), 1):
                total[number] += 1 / (60 + rank)
        order = sorted(total, key=lambda number: -total[number])
        return [self._ids[number] for number in order[:k]]

    def close(self) -> None:
        """Nothing."""


class Ours:
    """Limpet's memory, on SQLite: a namespace for each conversation."""

    def __init__(
        self, place: Path, embed: Embedder | None = None, *, with_speaker: bool = False
    ) -> None:
        self._with_speaker = with_speaker
        self._store = limpet.open(place / f"ours-{uuid4().hex}.db", durability="normal")
        self._embed = embed
        self._memory: Memory | None = None
        self._count = 0

    def index(self, turns: Sequence[Turn]) -> None:
        """Remember all, and have them indexed: what else would happen at the first question."""
        self._count += 1
        self._memory = self._store.memory(f"conversation-{self._count}", embed=self._embed)
        self._memory.remember_all(
            {
                "text": turn.text,
                "context": turn.context or None,
                "source": turn.id,
                "by": turn.by if self._with_speaker else None,
            }
            for turn in turns
        )
        self._memory.stats()
        self._memory.embed()

    def hits(self, question: str, k: int) -> list[MemoryHit]:
        """What it recalls."""
        return [] if self._memory is None else self._memory.recall(question, k=k)

    def recall(self, question: str, k: int) -> list[str]:
        """The turns that those are."""
        return [hit.source or "" for hit in self.hits(question, k)]

    def close(self) -> None:
        """The store."""
        self._store.close()
