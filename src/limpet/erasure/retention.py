"""How long things are kept: rules by kind, label and age, in a journal that workers see too.

A rule is one line: ``conversation label:channel=web 90d``. Age counts from the last entry. A task
is removed when it has ended, unless the rule says ``even-open``; what is worked on never is.
"""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.contract import from_micros
from limpet.core import audit
from limpet.core.ids import OWN, check_seconds, make_key
from limpet.erasure.forget import (
    Chosen,
    all_heads,
    delete_journal,
    goes_with,
)
from limpet.erasure.receipt import Gone
from limpet.errors import Conflict
from limpet.memory.memory import KIND as MEMORY
from limpet.tasks.entries import CANCELLED, DONE, FAILED
from limpet.tasks.entries import KIND as TASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.backends.contract import Head, Key
    from limpet.core.scope import Scope
    from limpet.memory.memory import AsyncMemory

__all__ = ["KIND", "Retained", "Rule", "apply", "rules", "set_rules"]

KIND = "limpet-retention"
ID = "rules"

RULES = "rules"
EVEN_OPEN = "even-open"
ENDED = (DONE, FAILED, CANCELLED)

_UNITS = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
_AGE = re.compile(r"(\d{1,9})(d|h|min|s)")
BECAUSE = "older than a rule allows"


class Rule(Struct, frozen=True, omit_defaults=True):
    """What is removed *age* seconds after its last entry; of memories, after it was remembered.

    *age* is a whole number. *label* is a name, or name=value; of memories, a tag.
    """

    kind: str
    age: float
    label: str | None = None
    even_open: bool = False

    @classmethod
    def parse(cls, text: str) -> Rule:
        """The rule that *text* says; `ValueError` if it says none.

        >>> Rule.parse("conversation label:channel=web 90d")
        Rule(kind='conversation', age=7776000, label='channel=web', even_open=False)
        """
        try:
            kind, *parts = shlex.split(text) or [""]
        except ValueError as error:
            raise ValueError(f"{text!r} is no rule: {error}. {_EXAMPLE}") from error
        label = age = None
        even_open = False
        for part in parts:
            if part.startswith("label:") and label is None:
                label = part.removeprefix("label:")
            elif part == EVEN_OPEN:
                even_open = True
            elif age is None and (found := _AGE.fullmatch(part)):
                age = int(found[1]) * _UNITS[found[2]]
            else:
                raise ValueError(f"{part!r} is no part of a rule. {_EXAMPLE}")
        if age is None:
            raise ValueError(f"{text!r} does not say how old something may become. {_EXAMPLE}")
        if even_open and kind != TASK:
            raise ValueError(f"{EVEN_OPEN} is for tasks; a {kind} is never open.")
        make_key("default", kind, "any")
        if kind.startswith(OWN):
            raise ValueError(f"What the store keeps for itself, such as {kind}, has no age.")
        check_seconds(age, "age")
        return cls(kind, age, label, even_open)

    def __str__(self) -> str:
        whole = ((u, s) for u, s in _UNITS.items() if not self.age % s)
        unit, seconds = next(whole, ("s", 1))
        label = [] if self.label is None else [shlex.quote(f"label:{self.label}")]
        words = [self.kind, *label, f"{self.age // seconds:.0f}{unit}"]
        return " ".join([*words, EVEN_OPEN] if self.even_open else words)

    def holds_for(self, head: Head, now: datetime) -> bool:
        """Whether the journal of *head* is to go."""
        if head.key.kind != self.kind or head.key.kind == MEMORY:
            return False
        name, is_pair, value = (self.label or "").partition("=")
        if self.label is not None and (
            name not in head.labels or (is_pair and head.labels[name] != value)
        ):
            return False
        if from_micros(head.updated) > now - timedelta(seconds=self.age):
            return False
        return head.key.kind != TASK or self.even_open or head.status in ENDED


_EXAMPLE = "For example: conversation label:channel=web 90d; or: task 30d."


class Retained(Struct, frozen=True):
    """What rules have removed, or would: journals, and how many memories of which namespace."""

    journals: tuple[Gone, ...] = ()
    memories: dict[str, int] = {}

    @property
    def count(self) -> int:
        """Of both together."""
        return len(self.journals) + sum(self.memories.values())


async def rules(scope: Scope) -> list[Rule]:
    """The rules of one tenant."""
    journal = scope.journal(KIND, ID, redactor=None)
    for entry in await journal.read(limit=1, reverse=True):
        return journal.understand(entry, lambda one: [Rule.parse(text) for text in one.body])
    return []


async def set_rules(scope: Scope, new: Sequence[Rule]) -> None:
    """Let these be the rules."""
    journal = scope.journal(KIND, ID, ttl=None, redactor=None)
    stored = [str(rule) for rule in new]
    for rule, text in zip(new, stored, strict=True):
        if Rule.parse(text) != rule:
            raise ValueError(f"{rule!r} cannot be stored: an age is a whole number of seconds.")
    await journal.append((RULES, stored))


async def apply(scope: Scope, *, dry_run: bool = False) -> Retained:
    """Remove what is older than the rules of this tenant allow, or say what that is."""
    known = await rules(scope)
    if not known:
        return Retained()
    now = datetime.now(UTC)
    heads = await all_heads(scope, [])
    gone: dict[Key, Chosen] = {}
    for key, one in _choose(heads, known, now).items():
        # After what it goes with, and not without: somebody may have come back to that one.
        if one.why != BECAUSE and goes_with(one.head, gone, {}) is None:
            continue
        if not dry_run:
            # It may have another label or status by now, which is no entry.
            head = await scope.journal(*key[1:]).head()
            if one.why == BECAUSE and not (head and _is_old(head, known, now)):
                continue
            try:
                await delete_journal(scope, one.head, expect=one.head.expect)
            except Conflict:
                continue  # somebody has come back to it
        gone[key] = one
    journals = tuple(
        Gone(*key[1:], one.head.seq - (one.head.first - 1), one.head.size, one.why)
        for key, one in gone.items()
    )
    memories = await _old_memories(scope, heads, known, now, dry_run=dry_run)
    found = Retained(journals, memories)
    if not dry_run and found.count:
        await scope.runtime.call(scope.backend.scrub)
        about = {"journals": len(gone), "memories": sum(memories.values())}
        await audit.record(scope, "applied retention", via="retention", who=None, about=about)
    return found


def _is_old(head: Head, known: list[Rule], now: datetime) -> bool:
    return any(rule.holds_for(head, now) for rule in known)


def _choose(heads: list[Head], known: list[Rule], now: datetime) -> dict[Key, Chosen]:
    """The journals that are to go: what goes with another comes after it."""
    free = [head for head in heads if head.lease is None]
    chosen = {head.key: Chosen(head, BECAUSE) for head in free if _is_old(head, known, now)}
    size = -1
    while size < len(chosen):
        size = len(chosen)
        for head in free:
            why = None if head.key in chosen else goes_with(head, chosen, {})
            # A step that has not ended goes on, whatever became of the task that it is a step of.
            if why is not None and (head.key.kind != TASK or head.status in ENDED):
                chosen[head.key] = Chosen(head, why)
    return chosen


async def _old_memories(
    scope: Scope, heads: list[Head], known: list[Rule], now: datetime, *, dry_run: bool
) -> dict[str, int]:
    found: dict[str, int] = {}
    mine = [rule for rule in known if rule.kind == MEMORY]
    for head in heads if mine else ():
        if head.key.kind != MEMORY or head.seq < head.first:
            continue
        memory: AsyncMemory = scope.memory(head.key.id)
        old = [
            one.id
            for one in await memory.list(superseded=True)
            if any(
                one.at <= now - timedelta(seconds=rule.age)
                and (rule.label is None or rule.label in one.tags)
                for rule in mine
            )
        ]
        if old:
            found[head.key.id] = len(old)
            if not dry_run:
                await memory.forget(*old)
    return found
