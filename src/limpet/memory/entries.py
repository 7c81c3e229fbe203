"""The entries of a memory's journal: what types there are, and what may be in them.

An entry *remembered* holds a memory; *superseded* and *contradicted* link one to another;
*confirmed* and *used* name some; *forgotten* says which are gone. An entry *rewritten* is one of
these that a rewrite of the journal has moved (see `limpet.memory.forget`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Struct, field

from limpet.core.ids import check_id, check_seconds
from limpet.errors import TooLarge

if TYPE_CHECKING:
    from limpet.backends.contract import Key

__all__ = [
    "Draft",
    "MemoryEntry",
    "check_aware",
    "contexts_quoting",
    "is_id",
    "link",
    "memory_id",
]

REMEMBERED = "remembered"
SUPERSEDED = "superseded"  # by another memory: {id, other, because}
CONTRADICTED = "contradicted"  # the same
CONFIRMED = "confirmed"
USED = "used"
FORGOTTEN = "forgotten"
REWRITTEN = "rewritten"  # an entry that was moved: [seq, at, type, body]

#: What an id begins with, and its hexadecimal digits: enough that no two texts have the same.
PREFIX, DIGITS = "m-", 24
#: A context that shares so many characters with a text quotes it.
PIECE = 20
#: Characters of a text with its context and tags, so that a rewrite can always store it again.
LONGEST = 1_000_000


#: A number or time of an entry, as far as an index can hold it.
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Memory(Struct, gc=False):
    """The body of an entry *remembered*, as `Draft.body` makes it."""

    id: str
    text: str
    kind: str
    source: str | None = None
    by: str | None = None
    trust: float | bool | None = None  # which is a number to Python, and was taken for one
    context: str | None = None
    ttl: float | bool | None = None
    key: str | None = None
    tags: list[str] = []
    supersedes: list[str] = []
    begins: datetime | None = field(default=None, name="from")
    said: datetime | None = None


class _Link(Struct, gc=False):
    """That of one that links. Anything could be a reason once."""

    id: str
    other: str


class _Ids(Struct, gc=False):
    """That of one that names some."""

    ids: list[str]


_SHAPES: dict[str, type[Struct]] = {
    REMEMBERED: _Memory,
    SUPERSEDED: _Link,
    CONTRADICTED: _Link,
    CONFIRMED: _Ids,
    USED: _Ids,
    FORGOTTEN: _Ids,
}


class MemoryEntry(Struct, frozen=True, gc=False):
    """An entry with the number and time that it was first stored under."""

    seq: int
    at: int
    type: str
    body: Any

    @classmethod
    def of(cls, seq: int, at: int, type_: str, body: Any) -> MemoryEntry:
        """What is stored at *seq*: that entry, or the one that was moved there.

        `msgspec.ValidationError` if *body* is not what is stored under that type.
        """
        if type_ == REWRITTEN:
            seq, at, type_, body = msgspec.convert(body, tuple[_Number, _Number, str, Any])
        if (shape := _SHAPES.get(type_)) is not None:
            msgspec.convert(body, shape)
        return cls(seq, at, type_, body)

    @property
    def known(self) -> bool:
        """Whether this release writes entries of its type."""
        return self.type in _SHAPES

    def rewritten(self) -> tuple[str, list[Any]]:
        """Itself as an entry that stores it elsewhere in the journal."""
        return REWRITTEN, [self.seq, self.at, self.type, self.body]


class Draft(Struct, frozen=True, kw_only=True):
    """What is to be remembered, checked."""

    text: str
    kind: str = "fact"
    tags: tuple[str, ...] = ()
    source: str | None = None
    by: str | None = None
    trust: float | None = None
    context: str | None = None
    said_at: datetime | None = None
    valid_from: datetime | None = None
    ttl: float | None = None
    key: str | None = None
    #: The memories that it replaces. The same text without them is another memory.
    supersedes: tuple[str, ...] = ()

    @classmethod
    def of(cls, item: str | Mapping[str, Any] | Draft) -> Draft:
        """*item* is a text, or a dict of what `Memory.remember` takes."""
        if isinstance(item, Draft):
            return item
        fields: dict[str, Any] = {}
        if isinstance(item, str):
            fields = {"text": item}
        elif isinstance(item, Mapping):
            fields = dict(item)
        unknown = fields.keys() - set(cls.__struct_fields__) | fields.keys() & {"supersedes"}
        if unknown or "text" not in fields:
            what = ", ".join(sorted(unknown)) or ("no text" if fields else type(item).__name__)
            msg = f"remember_all() takes texts, or dicts of what remember() takes; not {what}."
            raise TypeError(msg)
        tags = fields.get("tags", ())
        if not isinstance(tags, Iterable):
            raise TypeError(f"tags are a list of words, not {type(tags).__name__}.")
        several = [tags] if isinstance(tags, str) else tags
        fields["tags"] = tuple(dict.fromkeys(check_id(tag, "tag") for tag in several))
        return cls(**fields)

    def __post_init__(self) -> None:
        # Any: nobody has checked yet that they are what their annotations say.
        text: Any = self.text
        context: Any = self.context
        trust: Any = self.trust
        if not isinstance(text, str) or not text.strip():
            raise ValueError("What is remembered must be text, and not empty.")
        if context is not None and not isinstance(context, str):
            raise TypeError(f"A memory's context is text, not {type(context).__name__}.")
        size = len(text) + len(context or "") + sum(map(len, self.tags))
        if size > LONGEST:
            limit = f"{LONGEST:,} characters, with its context and tags"
            raise TooLarge(f"A memory has up to {limit}; not {size:,}.", "text")
        check_id(self.kind, "kind of memory", 64)
        for name in ("source", "by", "key"):
            value = getattr(self, name)
            if value is not None:
                check_id(value, f"memory's {name}")
        if trust is not None and not (isinstance(trust, (int, float)) and 0 <= trust <= 1):
            raise ValueError(f"trust is a number from 0 to 1, not {trust!r:.80}.")
        if self.valid_from is not None:
            _in_utc(self.valid_from, "valid_from")
        if self.said_at is not None:
            _in_utc(self.said_at, "said_at")
        if self.ttl is not None:
            check_seconds(self.ttl, "ttl")

    def body(self, id_: str) -> dict[str, Any]:
        """As an entry stores it: without the fields that were not given."""
        found: dict[str, Any] = {"id": id_, "text": self.text, "kind": self.kind}
        for name in ("source", "by", "trust", "context", "ttl", "key"):
            value = getattr(self, name)
            if value is not None:
                found[name] = value
        if self.tags:
            found["tags"] = list(self.tags)
        if self.supersedes:
            found["supersedes"] = list(self.supersedes)
        if self.valid_from is not None:
            found["from"] = _in_utc(self.valid_from, "valid_from").isoformat()
        if self.said_at is not None:
            found["said"] = _in_utc(self.said_at, "said_at").isoformat()
        return found


def check_aware(at: Any, what: str) -> datetime:
    """*at*, if it is a datetime with a time zone; else `ValueError`."""
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise ValueError(f"{what} is a datetime with a time zone: datetime.now(UTC), for example.")
    return at


def _in_utc(at: Any, what: str) -> datetime:
    try:
        return check_aware(at, what).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{what} must be from year 1 to year 9999 in UTC, not {at}.") from error


def memory_id(key: Key, draft: Draft) -> str:
    """The id of a memory, made from its words: the same words again are the same memory.

    Tenant and namespace are a part of it, so that no id tells what others remember.
    """
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for part in (key.tenant, key.id, " ".join(draft.text.split()), *draft.supersedes):
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return PREFIX + digest.hexdigest()


def is_id(text: Any) -> bool:
    """Whether *text* looks like the id of a memory."""
    if not isinstance(text, str):
        return False
    digits = text.removeprefix(PREFIX)
    return text != digits and len(digits) == DIGITS and not digits.strip("0123456789abcdef")


def link(id_: str, other: str, because: str | None) -> dict[str, Any]:
    """The body of an entry that links memory *id_* to the *other* that replaces or disputes it."""
    reason: Any = because
    if reason is not None and not isinstance(reason, str):
        raise TypeError(f"because is text, not {type(reason).__name__}.")
    if because and len(because) > LONGEST:
        msg = f"A reason has up to {LONGEST:,} characters; not {len(because):,}."
        raise TooLarge(msg, "because")
    return {"id": id_, "other": other} | ({"because": because} if because else {})


# -- contexts that quote a text --------------------------------------------------------------------


def contexts_quoting(texts: Iterable[str], contexts: Iterable[str | None]) -> set[str]:
    """Those of *contexts* that quote one of *texts*, or a piece of one; white space is ignored.

    Both may be many, so this does not look for each text in each context.

    >>> contexts_quoting(["no"], ["before: no, never", "we know", None])
    {'before: no, never'}
    """
    plain = {" ".join(text.split()) for text in texts}
    # A context that shares 2 * PIECE characters with a text contains one of these pieces whole.
    pieces = {
        text[at : at + PIECE] for text in plain for at in range(0, len(text) - PIECE + 1, PIECE)
    }
    short = {text for text in plain if len(text) < PIECE}
    within = {context: " ".join(context.split()) for context in contexts if context}
    found = {
        context
        for context, words in within.items()
        if any(words[at : at + PIECE] in pieces for at in range(len(words) - PIECE + 1))
        or (short and _has_words(words, short))
    }
    # A context that is shorter than that may lie within a text, and contain no such piece.
    parts = {words for words in within.values() if PIECE <= len(words) < 2 * PIECE}
    quoted = _parts_within(plain, parts) if parts else set()
    return found | {context for context, words in within.items() if words in quoted}


_WORD_START, _WORD_GOES_ON = re.compile(r"(?<!\w)"), re.compile(r"\w")


def _has_words(context: str, short: set[str]) -> bool:
    """Whether *context* has one of *short* as whole words: "no" is a part of many a word."""
    lengths = sorted({len(text) for text in short})
    for start in (found.start() for found in _WORD_START.finditer(context)):
        for end in (start + length for length in lengths):
            if context[start:end] in short and not _WORD_GOES_ON.match(context, end):
                return True
    return False


def _parts_within(texts: Iterable[str], parts: set[str]) -> set[str]:
    """Those of *parts* that are a part of one of *texts*."""
    starts = {part[:PIECE] for part in parts}
    lengths = sorted({len(part) for part in parts})
    return {
        text[at : at + length]
        for text in texts
        for at in range(len(text) - PIECE + 1)
        if text[at : at + PIECE] in starts
        for length in lengths
        if text[at : at + length] in parts
    }
