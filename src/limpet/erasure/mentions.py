"""Texts that mention a subject, in journals of others: each is replaced, and its place stays.

Numbers, roles, names of steps and the order of things are as they were, so that a conversation goes
on, a task resumes and a state loads. What is found by its name cannot be renamed; that is said.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.backends.contract import new_incarnation
from limpet.core.redaction import Redactor
from limpet.core.text_index import forget_journal
from limpet.errors import Conflict, LimpetError
from limpet.memory.forget import Subject
from limpet.states import format as states
from limpet.states.rewriting import Rewriter
from limpet.tasks.entries import KIND as TASK

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.scope import Scope
    from limpet.erasure.receipt import Digests

__all__ = ["Mentions"]

MARKER = "[forgotten]"
#: For the subject "forgotten".
OTHER_MARKER = "[…]"

PAGE = 256

#: LangGraph's store, whose items come with vectors.
ITEMS = "langgraph-store"

NAMES = "names and ids mention it: a step, a call, a key, an append"
ITS_ID = "its id mentions it"
CANNOT = "this store cannot change what is stored"
IN_USE = "somebody works on it: forget again when that has ended"
UNREADABLE = "it cannot be read"
MOVED = "it was written to at the same time: forget again"


class Mentions:
    """Finds and replaces the texts that mention *name*."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self._is_about = Subject(name)
        self._marker = OTHER_MARKER if self._is_about(MARKER) else MARKER
        # A word of ASCII is in a text of ASCII as it is: most texts need no closer look.
        words = name.lower().split()
        self._word = max(words, key=len) if words and name.isascii() and name.isalnum() else None
        self._texts = 0
        self._redactor = Redactor([self._without])

    def names(self, text: str) -> bool:
        """Whether *text* mentions it."""
        if self._word is not None and text.isascii() and self._word not in text.lower():
            return False
        return self._is_about(text)

    def _without(self, text: str) -> str:
        """What stands in the place of *text*; in JSON, as tools are called with, of its parts."""
        if not self.names(text):
            return text
        self._texts += 1
        if text[:1] in "{[":
            with contextlib.suppress(ValueError):
                value = json.loads(text)
                made = self._redactor.value(value)
                if made is not value:
                    self._texts -= 1
                    return json.dumps(made, ensure_ascii=False)
        return self._marker

    async def replace(
        self, head: Head, digests: Digests, *, dry_run: bool, held: bool
    ) -> list[tuple[int, str | None]]:
        """Replace the texts in the journal of *head*: how many, and why others stay."""
        key = head.key
        journal = self._scope.journal(key.kind, key.id, redactor=None)
        try:
            bodies, texts, names = await self._look(journal, head, digests)
        except (LimpetError, states.Damage, ValueError):
            return [(1, UNREADABLE)]
        meta = _meta_without(self._redactor, head)
        stays: list[tuple[int, str | None]] = []
        if self.names(key.id):
            stays.append((1, ITS_ID))
        if names:
            stays.append((names, NAMES))
        if not bodies and meta == head.meta:
            return stays
        why: str | None = None
        if held:
            why = IN_USE
        elif not self._scope.backend.rewrites:
            why = CANNOT
        elif not dry_run and not await self._write(journal, head, bodies, meta):
            why = MOVED
        return [*stays, (max(texts, 1), why)]

    async def _look(
        self, journal: AsyncJournal, head: Head, digests: Digests
    ) -> tuple[dict[int, bytes], int, int]:
        """Other bodies for records that mention it; how many texts, and names that stay."""
        change = _change(self._redactor, head.key.kind)
        bodies: dict[int, bytes] = {}
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
                    digests.add(head.key, record)
        return bodies, self._texts, names

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
