"""The words that a memory's journal is written in, and what can be in them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.ids import check_id, check_seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from holdfast.memory.hits import Remembered

__all__ = ["Draft", "Told", "identity", "is_id", "link", "living", "quotes", "successor"]

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
#: Characters from which on a context that lies within a text is taken to quote it.
PIECE = 20


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
        fields: dict[str, Any] = {"text": item} if isinstance(item, str) else dict(item)
        unknown = fields.keys() - set(cls.__struct_fields__)
        if unknown or "text" not in fields:
            what = ", ".join(sorted(unknown)) or "no text"
            msg = f"remember_all() takes texts, or dicts with what remember() takes; not {what}."
            raise TypeError(msg)
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
        if self.trust is not None and not 0 <= self.trust <= 1:
            raise ValueError(f"trust is from 0 to 1, not {self.trust!r}.")
        context: Any = self.context
        if context is not None and not isinstance(context, str):
            raise TypeError("A memory's context is text.")
        if self.valid_from is not None and self.valid_from.tzinfo is None:
            raise ValueError("valid_from needs a time zone: datetime.now(UTC), for example.")
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
            found["from"] = self.valid_from.astimezone(UTC).isoformat()
        return found


def _tags(tags: Iterable[str] | str) -> tuple[str, ...]:
    several = (tags,) if isinstance(tags, str) else tags
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


def is_id(text: str) -> bool:
    """Whether *text* looks like the id of a memory."""
    digits = text.removeprefix(PREFIX)
    return text != digits and len(digits) == DIGITS and not digits.strip("0123456789abcdef")


def quotes(context: str | None, texts: Collection[str]) -> bool:
    """Whether a *context* holds one of *texts*, or is a piece of one."""
    if not context:
        return False
    piece = len(context) >= PIECE
    return any(text in context or (piece and context in text) for text in texts)


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
    texts = {body["text"] for body in said if body["id"] in ids}
    left = ((seq, _stripped(one, ids, texts)) for seq, one in told.items())
    return {seq: one for seq, one in left if one is not None}


def _stripped(one: Told, ids: frozenset[str], texts: set[str]) -> Told | None:
    """*one* with nothing in it of *ids*, whose words are *texts*; None if it is about them."""
    body = one.body
    if "ids" in body:
        left = [id_ for id_ in body["ids"] if id_ not in ids]
        return _with(one, body | {"ids": left}) if left else None
    if body["id"] in ids or body.get("other") in ids:
        return None
    if one.type != REMEMBERED or not (body.keys() & {"context", "supersedes"}):
        return one
    body = dict(body)
    if quotes(body.get("context"), texts):
        del body["context"]
    if "supersedes" in body:
        body["supersedes"] = [id_ for id_ in body["supersedes"] if id_ not in ids]
    return _with(one, body)


def _with(one: Told, body: dict[str, Any]) -> Told:
    return Told(one.seq, one.at, one.type, body)


def link(id_: str, other: str, because: str | None) -> dict[str, Any]:
    """That memory *id_* gives way to another, or is disputed by it."""
    return {"id": id_, "other": other} | ({"because": because} if because else {})


def successor(old: list[Remembered], text: str) -> Draft:
    """A draft that says *text* in the place of *old* memories, and is found by what they were."""
    first, many = old[0], len(old) > 1
    same = {
        name: value
        for name in ("source", "by", "trust", "context")
        if len({getattr(one, name) for one in old}) == 1
        and (value := getattr(first, name)) is not None
    }
    ends = None if many or first.expires_at is None else first.expires_at - first.at
    return Draft(
        text=text,
        kind=first.kind,
        tags=_tags(tag for one in old for tag in one.tags),
        ttl=None if ends is None else ends.total_seconds(),
        supersedes=tuple(one.id for one in old),
        **same,
    )
