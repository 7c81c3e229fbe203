"""The words that a memory's journal is written in, and what can be in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.core.ids import check_id, check_seconds
from limpet.errors import TooLarge

if TYPE_CHECKING:
    from limpet.memory.hits import Remembered

__all__ = [
    "Draft",
    "Told",
    "identity",
    "instant",
    "is_id",
    "link",
    "living",
    "micros",
    "quoting",
    "successor",
]

REMEMBERED = "remembered"
SUPERSEDED = "superseded"  # a memory by another one: {id, other, because}
CONTRADICTED = "contradicted"  # the same
CONFIRMED = "confirmed"
USED = "used"
FORGOTTEN = "forgotten"
KEPT = "kept"  # an entry from before a rewriting: [seq, at, type, body]

#: Hexadecimal digits of an id: nobody comes upon two texts with the same.
DIGITS = 24
PREFIX = "m-"
#: Characters that a context and a text have in common by more than chance.
PIECE = 20
#: Characters of a text and its context: what is stored can be written again by a rewriting.
LONGEST = 1_000_000

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Told(Struct, frozen=True, gc=False):
    """An entry as it was first written, though a rewriting may have moved it."""

    seq: int
    at: int
    type: str
    body: Any

    @classmethod
    def of(cls, seq: int, at: int, type_: str, body: Any) -> Told:
        """What an entry says."""
        return cls(*body) if type_ == KEPT else cls(seq, at, type_, body)

    def kept(self) -> tuple[str, list[Any]]:
        """As an entry that keeps it."""
        return KEPT, [self.seq, self.at, self.type, self.body]


class Draft(Struct, frozen=True, kw_only=True):
    """What is to be remembered, checked."""

    text: str
    kind: str = "fact"
    tags: tuple[str, ...] = ()
    source: str | None = None
    by: str | None = None
    trust: float | None = None
    context: str | None = None
    valid_from: datetime | None = None
    ttl: float | None = None
    key: str | None = None
    #: What it replaces; makes it another memory than the same words without that.
    supersedes: tuple[str, ...] = ()

    @classmethod
    def of(cls, item: str | Mapping[str, Any] | Draft) -> Draft:
        """*item* is a text, or what `Memory.remember` takes, as a dict."""
        if isinstance(item, Draft):
            return item
        fields: dict[str, Any] = {"text": item} if isinstance(item, str) else _fields(item)
        fields["tags"] = _tags(fields.get("tags", ()))
        return cls(**fields)

    def __post_init__(self) -> None:
        text: Any = self.text
        if not isinstance(text, str) or not text.strip():
            raise ValueError("What is remembered is text, and not empty.")
        check_id(self.kind, "kind of memory", 64)
        for name in ("source", "by", "key"):
            value = getattr(self, name)
            if value is not None:
                check_id(value, f"memory's {name}")
        self._check_context()
        self._check_figures()

    def _check_context(self) -> None:
        context: Any = self.context
        if context is not None and not isinstance(context, str):
            raise TypeError("A memory's context is text.")
        size = len(self.text) + len(context or "") + sum(map(len, self.tags))
        if size > LONGEST:
            with_ = "with its context and tags"
            msg = f"A memory has up to {LONGEST:,} characters, {with_}; not {size:,}."
            raise TooLarge(msg, "text")

    def _check_figures(self) -> None:
        trust: Any = self.trust
        if trust is not None and not (isinstance(trust, (int, float)) and 0 <= trust <= 1):
            raise ValueError(f"trust is a number from 0 to 1, not {trust!r:.80}.")
        if self.valid_from is not None:
            instant(self.valid_from, "valid_from")
        if self.ttl is not None:
            check_seconds(self.ttl, "ttl")

    def body(self, id_: str) -> dict[str, Any]:
        """As it is stored: what is not said is left out."""
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
            found["from"] = instant(self.valid_from, "valid_from").isoformat()
        return found


def micros(at: Any, what: str) -> int:
    """*at* in microseconds since 1970; `ValueError` if nobody knows when that is."""
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise ValueError(f"{what} is a datetime with a time zone: datetime.now(UTC), for example.")
    # Not by a float, which rounds the last of the year 9999 up; nor in UTC, where it may be later.
    return (at - EPOCH) // timedelta(microseconds=1)


def instant(at: Any, what: str) -> datetime:
    """*at* in UTC; `ValueError` if nobody knows when that is."""
    micros(at, what)
    try:
        return at.astimezone(UTC)  # type: ignore[no-any-return]
    except OverflowError as error:
        raise ValueError(f"{what} is a time that no calendar here has: {at}.") from error


def _fields(item: Any) -> dict[str, Any]:
    """What is said of a memory; `TypeError` for what cannot be."""
    fields = dict(item) if isinstance(item, Mapping) else {}
    unknown = fields.keys() - set(Draft.__struct_fields__) | fields.keys() & {"supersedes"}
    if unknown or "text" not in fields:
        what = ", ".join(sorted(unknown)) or ("no text" if fields else type(item).__name__)
        msg = f"remember_all() takes texts, or dicts with what remember() takes; not {what}."
        raise TypeError(msg)
    return fields


def _tags(tags: Iterable[str] | str) -> tuple[str, ...]:
    several = (tags,) if isinstance(tags, str) else tags
    if not isinstance(several, Iterable):
        raise TypeError(f"tags are a list of words, not {type(tags).__name__}.")
    return tuple(dict.fromkeys(check_id(tag, "tag") for tag in several))


def identity(scope: tuple[str, str], draft: Draft) -> str:
    """The id of a memory: by its words, so that the same said again is the same memory.

    Tenant and namespace go in, so that no id says what is remembered elsewhere.
    """
    parts = (*scope, " ".join(draft.text.split()), *draft.supersedes)
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for part in parts:
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return PREFIX + digest.hexdigest()


def is_id(text: Any) -> bool:
    """Whether *text* looks like the id of a memory."""
    if not isinstance(text, str):
        return False
    digits = text.removeprefix(PREFIX)
    return text != digits and len(digits) == DIGITS and not digits.strip("0123456789abcdef")


def quoting(texts: Iterable[str], contexts: Iterable[str | None]) -> set[str]:
    """Those of *contexts* that hold one of *texts*, or a piece of one; spaces do not count.

    Both may be many: not each is looked for in every other.

    >>> quoting(["no"], ["before: no, never", "we know", None])
    {'before: no, never'}
    """
    plain = {" ".join(text.split()) for text in texts}
    # What has twice as many signs in common with a text has one of these whole.
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
    # Too short to have a piece whole, though it may be one.
    parts = {words for words in within.values() if PIECE <= len(words) < 2 * PIECE}
    taken = _parts_of(plain, parts) if parts else set()
    return found | {context for context, words in within.items() if words in taken}


_BEGINS, _GOES_ON = re.compile(r"(?<!\w)"), re.compile(r"\w")


def _has_words(context: str, short: set[str]) -> bool:
    """Whether one is in *context*, as words of its own: it is a part of many a word."""
    lengths = sorted({len(text) for text in short})
    for found in _BEGINS.finditer(context):
        for end in (found.start() + length for length in lengths):
            if context[found.start() : end] in short and not _GOES_ON.match(context, end):
                return True
    return False


def _parts_of(texts: Iterable[str], parts: set[str]) -> set[str]:
    """Those of *parts* that are in one of *texts*."""
    begins = {part[:PIECE] for part in parts}
    lengths = sorted({len(part) for part in parts})
    return {
        text[at : at + length]
        for text in texts
        for at in range(len(text) - PIECE + 1)
        if text[at : at + PIECE] in begins
        for length in lengths
        if text[at : at + length] in parts
    }


def living(told: Iterable[Told]) -> list[Told]:
    """What is left of a journal without all that it says is forgotten: each entry once."""
    found: dict[int, Told] = {}
    for one in told:
        if one.type == FORGOTTEN:
            found = _without(found, frozenset(one.body["ids"]))
        else:
            found.setdefault(one.seq, one)
    return [found[seq] for seq in sorted(found)]


def _without(told: dict[int, Told], ids: frozenset[str]) -> dict[int, Told]:
    said = [one.body for one in told.values() if one.type == REMEMBERED]
    gone = {body["text"] for body in said if body["id"] in ids}
    quoted = quoting(gone, (body.get("context") for body in said))
    left = ((seq, _stripped(one, ids, quoted)) for seq, one in told.items())
    return {seq: one for seq, one in left if one is not None}


def _stripped(one: Told, ids: frozenset[str], quoted: set[str]) -> Told | None:
    """*one* with nothing in it of *ids*, whose words are *quoted*; None if it is about them."""
    body = one.body
    if "ids" in body:
        left = [id_ for id_ in body["ids"] if id_ not in ids]
        return _with(one, body | {"ids": left}) if left else None
    if body["id"] in ids or body.get("other") in ids:
        return None
    if one.type != REMEMBERED or not (body.keys() & {"context", "supersedes"}):
        return one
    body = dict(body)
    if body.get("context") in quoted:
        del body["context"]
    if "supersedes" in body:
        body["supersedes"] = [id_ for id_ in body["supersedes"] if id_ not in ids]
    return _with(one, body)


def _with(one: Told, body: dict[str, Any]) -> Told:
    return Told(one.seq, one.at, one.type, body)


def link(id_: str, other: str, because: str | None) -> dict[str, Any]:
    """That memory *id_* gives way to another, or is disputed by it."""
    said: Any = because
    if said is not None and not isinstance(said, str):
        raise TypeError(f"because is text, not {type(said).__name__}.")
    if because and len(because) > LONGEST:
        msg = f"A reason has up to {LONGEST:,} characters; not {len(because):,}."
        raise TooLarge(msg, "because")
    return {"id": id_, "other": other} | ({"because": because} if because else {})


def successor(old: list[Remembered], text: str) -> Draft:
    """A draft that says *text* in the place of *old* memories, and is found by what they were."""
    first = old[0]
    same = {
        name: value
        for name in ("source", "by", "trust", "context")
        if len({getattr(one, name) for one in old}) == 1
        and (value := getattr(first, name)) is not None
    }
    # What was to be gone by then is not to outlive it in other words, nor to count sooner.
    lives = [one.expires_at - one.at for one in old if one.expires_at is not None]
    begins = [one.valid_from for one in old if one.valid_from is not None]
    later = [begin for begin in begins if begin > datetime.now(UTC)]
    return Draft(
        text=text,
        kind=first.kind,
        tags=_tags(tag for one in old for tag in one.tags),
        valid_from=max(later, default=None),
        ttl=min(lives).total_seconds() if lives else None,
        supersedes=tuple(one.id for one in old),
        **same,
    )
