"""Texts that mention a subject, in journals of others: each is replaced, and its place stays.

Numbers, roles, names of steps and the order of things are as they were, so that a conversation goes
on, a task resumes and a state loads. What is found by its name cannot be renamed; that is said.
"""

from __future__ import annotations

import contextlib
import json
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.backends.contract import HIDDEN, new_incarnation
from limpet.core.ids import OWN
from limpet.core.redaction import FORGOTTEN, Redactor, text_in
from limpet.core.text_index import forget_journal
from limpet.erasure.receipt import Mention
from limpet.errors import Conflict, LimpetError
from limpet.memory.entries import MemoryEntry
from limpet.memory.forget import ESCAPING, Subject
from limpet.memory.memory import KIND as MEMORY
from limpet.states import format as states
from limpet.states.rewriting import Rewriter
from limpet.tasks.entries import KIND as TASK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from limpet.backends.contract import Head, Record
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.scope import Scope
    from limpet.erasure.receipt import Digests

__all__ = ["Mentions"]

#: For the subject "forgotten".
OTHER_MARKER = "[…]"

PAGE = 256

#: How often a journal is looked at that others write to meanwhile.
TRIES = 20

#: LangGraph's store, whose items come with vectors.
ITEMS = "langgraph-store"

NAMES = "names and ids mention it: a step, a call, a key, an append"
ITS_ID = "its id mentions it"
ITS_LABELS = "labels mention it"
IN_MEMORY = "the source, the tags or the like of memories mention it"
OF_THE_STORE = "it is what the store records of itself, and is not changed"
CANNOT = "this store cannot change what is stored"
IN_USE = "somebody works on it: forget again when that has ended"
UNREADABLE = "it cannot be read"
MOVED = "it was written to at the same time: forget again"


class Mentions:
    """Finds and replaces the texts that mention *name*."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self._is_about = Subject(name)
        self._marker = OTHER_MARKER if self._is_about(FORGOTTEN) else FORGOTTEN
        # A word of ASCII is in a text of ASCII as it is: most texts need no closer look.
        words = name.lower().split()
        self._word = max(words, key=len) if words and name.isascii() and name.isalnum() else None
        self._texts = 0
        self._redactor = Redactor([self._without])

    def names(self, text: str) -> bool:
        """Whether *text* mentions it."""
        if self._word is not None and text.isascii() and self._word not in text.lower():
            # Unless another spelling is written out in it: Stra\u00dfe is STRASSE.
            return any(sign in text for sign in ESCAPING) and self._is_about(text)
        return self._is_about(text)

    def _without(self, text: str) -> str:
        """What stands in the place of *text*; in JSON, as tools are called with, of its parts."""
        if not self.names(text):
            return self._without_in_bytes(text)
        self._texts += 1
        if text[:1] in "{[":
            with contextlib.suppress(ValueError):
                value = json.loads(text)
                made = self._redactor.value(value)
                if made is not value:
                    self._texts -= 1
                    return json.dumps(made, ensure_ascii=False)
        return self._marker

    def _without_in_bytes(self, text: str) -> str:
        """The same of bytes, which are stored as base64."""
        if len(text) % 4 or not _BASE64.fullmatch(text):
            return text
        try:
            held = text_in(b64decode(text))
        except NotBase64:
            return text
        if held is None or not self.names(held):
            return text
        return b64encode(self._without(held).encode()).decode()

    async def replace(
        self,
        head: Head,
        digests: Digests,
        *,
        dry_run: bool,
        held: bool,
        gone: Collection[str] = (),
    ) -> list[Mention]:
        """Replace the texts in the journal of *head*: how many, and why others stay.

        Of a memory, whose texts go whole, the memories are *gone*.
        """
        if head.key.kind.startswith(OWN):
            found = await self._in_own(head)
        elif head.key.kind == MEMORY:
            found = await self._in_memory(head, gone)
        else:
            found = await self._in_texts(head, digests, dry_run=dry_run, held=held)
        return [Mention(*head.key[1:], texts, why) for texts, why in found]

    async def _in_texts(
        self, head: Head, digests: Digests, *, dry_run: bool, held: bool
    ) -> list[tuple[int, str | None]]:
        journal = self._scope.journal(head.key.kind, head.key.id, redactor=None)
        why = IN_USE if held else None if self._scope.backend.rewrites else CANNOT
        stays: list[tuple[int, str | None]] = []
        texts = 0
        for left in range(TRIES - 1, -1, -1):
            try:
                bodies, found, names = await self._look(journal, head)
            except (LimpetError, states.Damage, ValueError):
                return [(1, UNREADABLE)]
            stays = self._names_of(head) + ([(names, NAMES)] if names else [])
            texts, meta = max(self._texts, 1), _meta_without(self._redactor, head)
            if not bodies and meta == head.meta:
                return stays
            if why is not None:
                return [*stays, (texts, why)]
            if dry_run or await self._write(journal, head, bodies, meta):
                for record in found:
                    digests.add(head.key, record)
                return [*stays, (texts, None)]
            now = await journal.head()
            if now is None:
                return []  # all of it is gone
            if not left or now.lease is not None:
                break
            head = now  # somebody has written to it meanwhile
        return [*stays, (texts, MOVED)]

    def _names_of(self, head: Head) -> list[tuple[int, str | None]]:
        """What mentions it by which the journal is found."""
        labels = [one for one in head.labels.items() if not one[0].startswith(HIDDEN)]
        named = sum(self.names(name) or self.names(value) for name, value in labels)
        found: list[tuple[int, str | None]] = [(1, ITS_ID)] if self.names(head.key.id) else []
        return [*found, (named, ITS_LABELS)] if named else found

    async def _in_memory(self, head: Head, gone: Collection[str]) -> list[tuple[int, str | None]]:
        """What mentions it in a memory when the ids that are *gone* are: where they come from."""
        left = 0
        try:
            for page in await self._pages(head):
                for entry in page:
                    body = MemoryEntry.of(entry.seq, 0, entry.type, entry.body).body
                    left += body.get("id") not in gone and self._is_left(body)
        except (LimpetError, ValueError):
            return [(1, UNREADABLE)]
        return [*self._names_of(head), *([(left, IN_MEMORY)] if left else [])]

    async def _in_own(self, head: Head) -> list[tuple[int, str | None]]:
        """What mentions it of what the store keeps for itself: acts, and rules."""
        try:
            found = [self._is_left(one.body) for page in await self._pages(head) for one in page]
        except LimpetError:
            return [(1, UNREADABLE)]
        return [(sum(found), OF_THE_STORE)] if any(found) else []

    async def _pages(self, head: Head) -> list[list[Entry]]:
        journal = self._scope.journal(head.key.kind, head.key.id, redactor=None)
        return [page async for page in journal.pages()]

    async def _look(
        self, journal: AsyncJournal, head: Head
    ) -> tuple[dict[int, bytes], list[Record], int]:
        """Other bodies for records that mention it; those records; and how many names stay."""
        change = _change(self._redactor, head.key.kind)
        bodies: dict[int, bytes] = {}
        found: list[Record] = []
        self._texts = names = 0
        after = head.first - 1
        while page := await journal.page(after=after, upto=head.seq, limit=PAGE):
            after = page[-1].seq
            for record in page:
                entries = journal.entries(record)
                made = [(entry.type, change(entry)) for entry in entries]
                names += record.id is not None and self.names(record.id)
                names += sum(self._is_left(body) for _, body in made)
                if [body for _, body in made] != [entry.body for entry in entries]:
                    bodies[record.seq] = journal.encode(made)
                    found.append(record)
        return bodies, found, names

    async def _write(
        self, journal: AsyncJournal, head: Head, bodies: dict[int, bytes], meta: bytes | None
    ) -> bool:
        backend, call = self._scope.backend, self._scope.runtime.call
        if meta != head.meta:
            try:
                await journal.append(meta=meta, expect=head.expect)
            except Conflict:
                return False
        # A task's is a part of its idempotency keys: with another, effects would happen again.
        renewed = None if head.key.kind == TASK else new_incarnation()
        count = await call(backend.rewrite, head.key, bodies, expect=head.expect, renewed=renewed)
        await call(forget_journal, backend, head.key)
        return count == len(bodies)

    def _is_left(self, body: Any) -> bool:
        """Whether it is mentioned in *body* still, by names that stay."""
        counted = self._texts
        left = self._redactor.value(body) is not body
        self._texts = counted
        return left


#: What bytes are stored as; a shorter text can hold no name.
_BASE64 = re.compile(r"[A-Za-z0-9+/]{4,}={0,2}")


def _change(redactor: Redactor, kind: str) -> Callable[[Entry], Any]:
    """What makes of an entry, of a journal of that *kind*, the body that it is to have."""
    rewriter = Rewriter(redactor.value)
    changed: set[str] = set()  # keys of items in LangGraph's store

    def change(entry: Entry) -> Any:
        if kind == states.KIND and entry.type in states.SAVES:
            return rewriter.take(entry)
        body = entry.body
        if kind == ITEMS and isinstance(body, dict) and isinstance(body.get("key"), str):
            if "vectors" in body and body["key"] in changed:  # of the text that was there
                return {**body, "vectors": {}}
            made = redactor.entry(kind, body)
            if made is not body:
                changed.add(body["key"])
            return made
        return redactor.entry(kind, body)

    return change


def _meta_without(redactor: Redactor, head: Head) -> bytes | None:
    """The meta of *head* without the errors that mention it."""
    if head.meta is None:
        return None
    try:
        return redactor.meta(head.meta)
    except (msgspec.DecodeError, AttributeError):
        return head.meta  # it is not ours
