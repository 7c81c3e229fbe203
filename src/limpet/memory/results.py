"""What the calls of a memory return: a memory, a hit, a receipt, figures.

No `repr` shows the text of a memory: it would end up in logs.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from limpet.core.recalled import Recalled
from limpet.memory.ranking import Parts

__all__ = ["MemoryHit", "MemoryPage", "Receipt", "Remembered", "Stats", "Why"]


class Remembered(Struct, frozen=True, kw_only=True):
    """A memory: its text, where it comes from, and what has happened to it since."""

    id: str
    text: str
    kind: str = "fact"
    tags: tuple[str, ...] = ()
    source: str | None = None
    by: str | None = None
    trust: float | None = None
    context: str | None = None
    key: str | None = None
    at: datetime
    #: When it was said, if that was not when it was remembered.
    said_at: datetime | None = None
    valid_from: datetime | None = None
    expires_at: datetime | None = None
    #: The versions that this one replaced, the one that replaced it, and why.
    supersedes: tuple[str, ...] = ()
    superseded_by: str | None = None
    because: str | None = None
    contradicted_by: tuple[str, ...] = ()
    #: How often it was confirmed, and how often it was marked as used (which a confirmation is).
    confirmed: int = 0
    uses: int = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.kind!r})"


class Why(Struct, frozen=True):
    """Why something was recalled: the parts of its score, each from 0 to 1.

    *words*: how many of the query's words it has, rare ones counting for more. *meaning*: how near
    it is to the query's meaning; None without embeddings. *activation*: how recently and how often
    it was used. *older*: the query matched an older version, which this one replaced. *same*: the
    ids of memories that say the same, and were left out for it. *near*: words of the query that no
    memory has, each with one that it was found by instead. *word_by_word*: how near its words are
    to each of the query's; None where the model does not say. *speaker*: whether the query asks
    about whoever said it; None if it asks about nobody. *time*: how well it fits the time that the
    query asks about; None if it asks about none. *standing*: how far to trust it, if it is an
    instruction or a preference, or reads as one; None if it is none. *neighbour*: how good the
    better one is of those that were remembered right before and after it, if any was found. *adds*:
    what each part adds to the score.

    *newer_than*: the ids of other hits that say otherwise about the same, and were said earlier; it
    comes before them, whatever their scores, and they are *outdated*, as far as their words tell.
    """

    words: float
    meaning: float | None
    activation: float
    older: bool = False
    same: tuple[str, ...] = ()
    near: tuple[tuple[str, str], ...] = ()
    word_by_word: float | None = None
    speaker: float | None = None
    adds: Parts = Parts(0.0)
    time: float | None = None
    newer_than: tuple[str, ...] = ()
    outdated: bool = False
    standing: float | None = None
    neighbour: float | None = None

    def shares(self) -> Parts:
        """What each part adds to the score of what `recall` found, which is their sum."""
        return self.adds

    def __str__(self) -> str:
        parts = [f"words {self.words:.2f}"]
        if self.meaning is not None:
            parts.append(f"meaning {self.meaning:.2f}")
        if self.word_by_word is not None:
            parts.append(f"word by word {self.word_by_word:.2f}")
        if self.speaker is not None:
            parts.append(f"speaker {self.speaker:.2f}")
        if self.standing is not None:
            parts.append(f"standing {self.standing:.2f}")
        if self.neighbour is not None:
            parts.append(f"neighbour {self.neighbour:.2f}")
        parts.append(f"activation {self.activation:.2f}")
        if self.time is not None:
            parts.append(f"time {self.time:.2f}")
        return ", ".join([*parts, *self.notes()])

    def notes(self) -> list[str]:
        """What else there is to say, each in a few words."""
        found = ["by an older version"] if self.older else []
        found += [f"{len(self.same)} more say the same"] if self.same else []
        if self.newer_than:
            found.append(f"newer than {len(self.newer_than)} that say otherwise")
        found += ["a newer one says otherwise"] if self.outdated else []
        return found + [f"{other!r} for {word!r}" for word, other in self.near]


class MemoryHit(Remembered, frozen=True, kw_only=True):
    """A memory that matches a query; the better it does, the higher its *score*, up to 1.

    *passage* is the part of a long text that matches best; of a short one it is the text.
    """

    score: float
    why: Why
    age: timedelta
    passage: str

    def __repr__(self) -> str:
        return f"MemoryHit({self.id!r}, {self.kind!r}, score={self.score:.2f})"

    def recalled(self) -> Recalled:
        """As `Task.resume_context` takes it."""
        return Recalled.of(self)


class MemoryPage(Struct, frozen=True):
    """Some memories, the one that was remembered last first.

    *older* is what to give as *before* for those that come next; None if there are none.
    """

    memories: list[Remembered]
    older: int | None


class Receipt(Struct, frozen=True, kw_only=True):
    """What was forgotten: which memories, and what was removed with them."""

    #: All that are gone: those that were named, their other versions, and what was made from them.
    ids: tuple[str, ...] = ()
    #: Other memories whose context quoted one of them; that context was removed.
    contexts: tuple[str, ...] = ()
    #: Journals that were rewritten, and how many entries and bytes were removed from them.
    journals: tuple[str, ...] = ()
    entries: int = 0
    bytes: int = 0
    #: Rows that were removed from the index on this machine: texts and vectors.
    indexed: int = 0
    vectors: int = 0
    #: Whether the store overwrote the place where they had been.
    scrubbed: bool = False
    at: datetime | None = None

    def __bool__(self) -> bool:
        return bool(self.ids)


class Stats(Struct, frozen=True, kw_only=True):
    """A namespace in figures."""

    namespace: str
    memories: int
    superseded: int
    expired: int
    contradicted: int
    kinds: dict[str, int]
    tags: dict[str, int]
    sources: int
    #: How many have a vector, and how many do not yet; older versions count, too.
    embedded: int
    unembedded: int = 0
    model: str | None
    #: The name of the error that the last attempt to embed some ended with; None if it succeeded.
    embedding_failed: str | None = None
    #: Entries and bytes of the journal, which is the truth.
    position: int
    size: int
    #: Bytes of the index on this machine, which is derived.
    index_size: int
    oldest: datetime | None = None
    newest: datetime | None = None
