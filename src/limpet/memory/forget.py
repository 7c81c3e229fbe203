"""Forgetting for good: which memories go, what goes with them, and how the journal loses them.

First an entry says what is forgotten; from then on nobody recalls it. A journal can only be added
to, so it is then rewritten: what is to stay is stored again at its end, entry by entry, and all
that stood before is compacted away. A crash at any moment loses nothing and doubles nothing: an
entry that is there twice counts once, and whoever forgets next finishes what was left undone.
Others may write meanwhile: each portion is written only behind entries that are known, and what
came between is read first.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct, structs

from limpet.backends.contract import Expect, from_micros
from limpet.core.ids import check_id
from limpet.core.text_index import forget_journal
from limpet.errors import Conflict, MemoryNotFound
from limpet.memory.entries import FORGOTTEN, REMEMBERED, MemoryEntry, contexts_quoting
from limpet.memory.index import ONE_OF, Index
from limpet.memory.indexed_journal import now_micros
from limpet.memory.passages import WHOLE
from limpet.memory.results import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from limpet.backends.contract import Key
    from limpet.memory.indexed_journal import IndexedJournal

__all__ = ["ESCAPING", "Subject", "forget", "same_name", "surviving", "would_forget"]

#: Signs by which what is written in a text may be escaped.
ESCAPING = "\\%&"

#: Bytes of a rewritten portion, about: any backend takes them in one record.
PORTION = 256 * 1024


class Selection(Struct, frozen=True):
    """What is to go: ids; the ids of memories whose context quotes them; how many vectors."""

    ids: list[str]
    contexts: list[str]
    vectors: int


async def forget(journal: IndexedJournal, ids: Sequence[str], filters: dict[str, Any]) -> Receipt:
    """Forget the memories *ids*, and those that all of *filters* hold for."""
    try:
        chosen, at = await _write_forgotten(journal, ids, filters)
    except MemoryNotFound:
        await _finish_earlier(journal)
        raise
    if not chosen.ids:
        await _finish_earlier(journal)
        return Receipt()
    entries, size = await _rewrite(journal)
    return Receipt(
        ids=tuple(chosen.ids),
        contexts=tuple(chosen.contexts),
        journals=(f"{journal.key.kind}/{journal.key.id}",),
        entries=entries,
        bytes=size,
        indexed=len(chosen.ids),
        vectors=chosen.vectors,
        scrubbed=await _scrub(journal),
        at=from_micros(at),
    )


async def would_forget(
    journal: IndexedJournal, ids: Sequence[str], filters: dict[str, Any]
) -> Receipt:
    """What `forget` would remove now."""
    chosen = await journal.query(_select, journal.key, ids, filters, now_micros())
    return Receipt(
        ids=tuple(chosen.ids),
        contexts=tuple(chosen.contexts),
        indexed=len(chosen.ids),
        vectors=chosen.vectors,
    )


async def _write_forgotten(
    journal: IndexedJournal, ids: Sequence[str], filters: dict[str, Any]
) -> tuple[Selection, int]:
    """What goes, once an entry says so; and the time of that entry."""
    while True:
        chosen, known = await journal.query_at(_select, journal.key, ids, filters, now_micros())
        if not chosen.ids:
            return chosen, 0
        expect: Expect | None = known
        while expect is not None:
            with contextlib.suppress(Conflict):
                return chosen, await journal.write([(FORGOTTEN, {"ids": chosen.ids})], expect)
            expect = await _after_unrelated(journal, expect, frozenset(chosen.ids))


async def _after_unrelated(
    journal: IndexedJournal, known: Expect, chosen: frozenset[str]
) -> Expect | None:
    """Where the journal is now, if what was written since *known* does not concern *chosen*.

    To select again takes long, and a busy writer would always be first.
    """
    head = await journal.journal.head()
    if head is None or head.incarnation != known.incarnation or head.first - 1 > known.seq:
        return None
    new = await journal.read(known.seq, head.seq)
    # What was made from the chosen ones meanwhile must not outlast them.
    concerned = any(one.type == FORGOTTEN or one.body.get("id") in chosen for one in new)
    return None if concerned else head.expect


async def _finish_earlier(journal: IndexedJournal) -> None:
    """Finish a forgetting that the journal says has begun, and that was interrupted."""
    head = await journal.journal.head()
    if head is not None:
        entries = await journal.read(head.first - 1, head.seq)
        if any(entry.type == FORGOTTEN for entry in entries):
            await _rewrite(journal)
        await _scrub(journal)


async def _scrub(journal: IndexedJournal) -> bool:
    """Overwrite where the words were, in the indexes and in the store; False if that cannot."""
    await journal.change_index(Index.scrub)
    await journal.runtime.call(forget_journal, journal.runtime.backend, journal.key)
    return await journal.runtime.call(journal.runtime.backend.scrub)


# -- which memories go -----------------------------------------------------------------------------


def _select(
    index: Index, key: Key, ids: Sequence[str], filters: dict[str, Any], now: int
) -> Selection:
    index.existing(ids, key)
    named = list(dict.fromkeys([*ids, *_passing(index, filters, now)]))
    older, newer = index.versions(named)
    # What was made from these goes with them; what else it was made from stays, and counts again.
    chosen = list(dict.fromkeys([*named, *older, *newer]))
    gone = index.get(chosen)
    rows = index.run("SELECT id, context FROM memory WHERE context NOTNULL")
    quoted = contexts_quoting({one.text for one in gone.values()}, (text for _, text in rows))
    contexts = [id_ for id_, context in rows if id_ not in gone and context in quoted]
    vectors = (
        "SELECT count(*) FROM vector JOIN passage USING (p) JOIN memory USING (n)"  # noqa: S608 - all of it is ours
        f" WHERE id {ONE_OF}"
    )
    return Selection(chosen, contexts, index.value(vectors, [json.dumps(chosen)]))


def _passing(index: Index, filters: dict[str, Any], now: int) -> list[str]:
    """The ids of the memories that all of *filters* hold for; none without filters."""
    for name in filters.keys() - {"expired"}:
        check_id(filters[name], f"{name} to forget")
    found: list[list[str]] = []
    if "source" in filters:
        found.append(_ids(index, "m.source = ?", filters["source"]))
    if "tag" in filters:
        found.append(_ids(index, "m.n IN (SELECT t.n FROM tag t WHERE t.tag = ?)", filters["tag"]))
    if "subject" in filters:
        found.append(_about(index, filters["subject"]))
    if "expired" in filters:
        # Only the newest version: an older one that has expired does not take it along.
        found.append(_ids(index, "m.expires <= ? AND m.superseded IS NULL", now))
    common = set(found[0]).intersection(*found[1:]) if found else set()
    return [id_ for id_ in found[0] if id_ in common] if found else []


def _ids(index: Index, where: str, value: Any) -> list[str]:
    sql = f"SELECT m.id FROM memory m WHERE {where}"  # noqa: S608 - a condition of ours
    return [id_ for (id_,) in index.run(sql, [value])]


# A memory with other letters than those of ASCII: it has more bytes than characters. Or with signs
# by which it may be escaped: the index has its words as they are written.
_NOT_PLAIN = (
    "octet_length(m.text) > length(m.text)"
    " OR octet_length(coalesce(m.context, '')) > length(coalesce(m.context, ''))"
    rf" OR m.text || coalesce(m.context, '') GLOB '*[{ESCAPING}]*'"
)


_IN_TEXT = "m.n IN (SELECT p.n FROM words JOIN passage p ON p.p = words.rowid WHERE words MATCH ?)"
# The context of a long text is in no index.
_IN_CONTEXT = (
    "m.n IN (SELECT rowid FROM around WHERE around MATCH ?)"  # noqa: S608 - as above
    f" OR (m.context NOTNULL AND length(m.text) > {WHOLE:d})"
)


def _about(index: Index, name: str) -> list[str]:
    """Those with *name* as a tag, or in their text or context: as it is, not by its stem."""
    words = _plain(name.replace('"', " ")).strip()
    if any(sign.isalnum() for sign in words):
        tags = [tag for (tag,) in index.run("SELECT DISTINCT tag FROM tag") if same_name(tag, name)]
        tagged = f"m.n IN (SELECT t.n FROM tag t WHERE t.tag {ONE_OF})"  # noqa: S608 - of ours
        # Each word by itself: two of a name may be in two passages. Beyond ASCII, the index of
        # words does not know all capitals: Weiß is WEISS.
        each = [f'"{word}"' for word in words.split()]
        in_text = " AND ".join([_IN_TEXT] * len(each))
        match = f"({in_text}) OR {_IN_CONTEXT} OR {_NOT_PLAIN}"
        sql = f"SELECT m.id FROM memory m WHERE {match}"  # noqa: S608 - all of it is ours
        found = index.run(sql, [*each, f'"{words}"'])
        perhaps = [*_ids(index, tagged, json.dumps(tags)), *(id_ for (id_,) in found)]
    else:
        perhaps = [id_ for (id_,) in index.run("SELECT id FROM memory")]  # signs are not indexed
    is_about = Subject(name)
    return [
        one.id
        for one in index.get(dict.fromkeys(perhaps)).values()
        if any(same_name(tag, name) for tag in one.tags)
        or is_about(one.text)
        or is_about(one.context or "")
    ]


# Signs that make a name another one belong to it; all others stand by themselves.
_PARTS = re.compile(
    r"""
    [^\W_]*\.(?:js|ts|net|io|ai)(?![^\W_])                    # .NET, Node.js
    | (?<![^\W_])[a-z](?:\#+|\+\++|\+(?![^\W_]))              # C#, C++, C++11, an A+; but not A+B
    | [^\W_]+(?:\+\+)?                                        # a word; Notepad++
    | \.(?=[^\W_]) | [^\w\s.]
    """,
    re.VERBOSE,
)
#: How texts within texts are written: JSON's escapes, once or several times; a URL's; HTML's.
_ESCAPE = re.compile(r"(?<!\\)\\+(?:u([0-9a-fA-F]{4})|[\"'/bfnrt])")

#: Signs that count, with those that Unicode calls symbols, where the subject has them.
_DISTINCTIVE = "&%."


class Subject:
    """Called with a text, tells whether it has these words, whole and in this order.

    >>> is_about = Subject("C++")
    >>> is_about("We moved to c++20."), is_about("C, then C#")
    (True, False)
    >>> Subject("ada lovelace")("Met Áda-Lovelace's mother")
    True
    """

    def __init__(self, name: str) -> None:
        words = _plain(name)
        self._signs = {
            part
            for part in _PARTS.findall(words)
            if part in _DISTINCTIVE or (len(part) == 1 and unicodedata.category(part)[0] == "S")
        }
        self._wanted = " ".join(self._read(words))

    def __call__(self, text: str) -> bool:
        """Whether *text* is about it."""
        if not self._wanted:
            return False  # a full stop is nobody's name
        return self._is_in(text) or (
            any(sign in text for sign in ESCAPING) and self._is_in(_unescaped(text))
        )

    def _is_in(self, text: str) -> bool:
        words = f" {' '.join(self._read(_plain(text)))} "
        # With an s: a plural, or a genitive.
        return f" {self._wanted} " in words or f" {self._wanted}s " in words

    def _read(self, words: str) -> list[str]:
        """Words, and the signs that count."""
        parts = _PARTS.findall(words)
        return [part for part in parts if part in self._signs or any(map(str.isalnum, part))]


def _unescaped(text: str) -> str:
    r"""*text* as whoever reads what is in it sees it: JSON, a URL, HTML.

    >>> _unescaped(r'{"who": "Ad\u0061", "in": "/?q=Ada%20L"}')
    '{"who": "Ada", "in": "/?q=Ada L"}'
    """

    def sign(found: re.Match[str]) -> str:
        return chr(int(found[1], 16)) if found[1] else " "

    plain = html.unescape(unquote(_ESCAPE.sub(sign, text)))
    # Signs beyond the first 65,536 are two escapes.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def same_name(one: str, other: str) -> bool:
    """Whether two names differ in capitals and accents at most."""
    return one == other or _plain(one) == _plain(other)


# Languages that put no space between words: each sign is a word.
_SIGNS = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u303f\u3040-\u30ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)


def _plain(text: str) -> str:
    """*text* without capitals and accents."""
    spaced = text if text.isascii() else _SIGNS.sub(r" \1 ", text)
    letters = unicodedata.normalize("NFKD", spaced.replace("\0", " ")).casefold()
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


# -- rewriting the journal -------------------------------------------------------------------------


async def _rewrite(journal: IndexedJournal) -> tuple[int, int]:
    """Store the journal again without what is forgotten; how many entries and bytes are gone."""
    head = await journal.journal.head()
    if head is None:
        return 0, 0
    start = seen = head.seq
    entries = await journal.read(head.first - 1, start)
    before = {entry.seq: entry for entry in entries if entry.type != FORGOTTEN}
    done: set[int] = set()
    pending = surviving(entries)
    while portion := _next_portion(pending):
        try:
            expect = Expect(head.incarnation, seen)
            await journal.write([entry.rewritten() for entry in portion], expect)
        except Conflict:
            now = await journal.journal.head()
            if now is None or now.incarnation != head.incarnation or now.first - 1 > seen:
                # Another has rewritten it, and entries that said what is forgotten may be gone.
                return await _rewrite(journal)
            new = await journal.read(seen, now.seq)
            seen = now.seq
            # It stands behind the start, and stays. But it may be about entries that are still to
            # be moved, and would stand before them then: so it is moved as well, after those.
            entries += new
            if any(entry.type == FORGOTTEN for entry in new):
                pending = [entry for entry in surviving(entries) if entry.seq not in done]
            else:  # quickly, or a busy writer is always first
                pending += [entry for entry in new if entry.seq > start]
        else:
            seen += len(portion)
            done |= {entry.seq for entry in portion}
            pending = pending[len(portion) :]
    await journal.journal.compact(start + 1)
    gone = [entry for seq, entry in before.items() if seq not in done]
    return len(gone), sum(map(_size, gone))


def _next_portion(pending: list[MemoryEntry]) -> list[MemoryEntry]:
    """As many as go into one record; at least one."""
    size = 0
    for count, entry in enumerate(pending):
        size += _size(entry)
        if size > PORTION and count:
            return pending[:count]
    return pending


def _size(entry: MemoryEntry) -> int:
    return len(msgspec.json.encode(entry.body))


def surviving(entries: Iterable[MemoryEntry]) -> list[MemoryEntry]:
    """*entries* without what they say is forgotten: in their first order, and each once."""
    found: dict[int, MemoryEntry] = {}
    for entry in entries:
        if entry.type != FORGOTTEN:
            found.setdefault(entry.seq, entry)
            continue
        ids = frozenset(entry.body["ids"])
        memories = [one.body for one in found.values() if one.type == REMEMBERED]
        texts = {body["text"] for body in memories if body["id"] in ids}
        quoted = contexts_quoting(texts, (body.get("context") for body in memories))
        left = ((seq, _without(one, ids, quoted)) for seq, one in found.items())
        found = {seq: one for seq, one in left if one is not None}
    return [found[seq] for seq in sorted(found)]


def _without(entry: MemoryEntry, ids: frozenset[str], quoted: set[str]) -> MemoryEntry | None:
    """*entry* with nothing of *ids* in it, nor a context that is *quoted*; None if it is theirs."""
    body = entry.body
    if not entry.known:
        return entry
    if "ids" in body:
        left = [id_ for id_ in body["ids"] if id_ not in ids]
        return structs.replace(entry, body=body | {"ids": left}) if left else None
    if body["id"] in ids or body.get("other") in ids:
        return None
    if entry.type != REMEMBERED or not (body.keys() & {"context", "supersedes"}):
        return entry
    body = dict(body)
    if body.get("context") in quoted:
        del body["context"]
    if "supersedes" in body:
        body["supersedes"] = [id_ for id_ in body["supersedes"] if id_ not in ids]
    return structs.replace(entry, body=body)
