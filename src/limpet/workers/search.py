"""What a worker finds to do: tasks that are open and nobody's, and those whose time has come."""

from __future__ import annotations

import itertools
import logging
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.core.ids import make_key
from limpet.core.leases import is_dead, store_now
from limpet.errors import LimpetError
from limpet.tasks import entries as kinds
from limpet.tasks import task
from limpet.tasks.state import FRUITLESS
from limpet.workers.registry import AWAY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Head, Page
    from limpet.store import Store

__all__ = ["PATIENCE", "Found", "Room", "Search"]

log = logging.getLogger("limpet.workers.worker")

#: Seconds. What cannot be done now is tried again after ever longer, and at least so often.
PATIENCE = 60.0

#: Looking at all tasks there are takes at most a tenth of the time, however many there are.
LEISURE = 9

#: Seconds between two looks while there is something to do.
BREATH = 0.02

#: Runs in a row that came to nothing, after which a task is suspected to kill its workers.
SUSPECT = 2

#: Entries at the end of a journal in which those runs are looked for.
TAIL = 20


class Found(Struct, frozen=True):
    """A task that can be run now. A *suspect* is not run beside another.

    Or one task that kills its worker would, again and again, take the same others with it, until
    they are given up too.
    """

    id: str
    kind: str
    new: bool = False
    suspect: bool = False


class Room:
    """What runs, and what else may."""

    def __init__(self, limits: dict[str, int], concurrency: int) -> None:
        self.limits = limits
        self.concurrency = concurrency
        self.running: dict[str, Found] = {}

    def free(self, kind: str) -> int:
        """How many more of *kind* may run."""
        same = sum(found.kind == kind for found in self.running.values())
        return min(self.limits[kind] - same, self.concurrency - len(self.running))

    def kinds(self) -> list[str]:
        """Those of which more may run."""
        return [kind for kind in self.limits if self.free(kind) > 0]

    def admits(self, found: Found) -> bool:
        """Whether it may run too."""
        suspects = any(other.suspect for other in self.running.values())
        return self.free(found.kind) > 0 and not (found.suspect and suspects)

    def take(self, found: Found) -> bool:
        """Let it run, if it may."""
        if not self.admits(found):
            return False
        self.running[found.id] = found
        return True

    def give_back(self, found: Found) -> None:
        """It has ended."""
        self.running.pop(found.id, None)


class Search:
    """Finds tasks that can be run now, and says when to look again."""

    def __init__(self, store: Store, poll: float) -> None:
        self._store = store
        self._poll = poll
        self._away = Pauses(poll)
        self._shelved = Pauses(poll)
        self._trouble = Pauses(poll)  # the same, for what nobody waits for to be idle
        self._cursors: dict[str, str | None] = {}
        self._due: dict[str, tuple[float, Found]] = {}  # when those that wait are to be woken
        self._begun: dict[str, Found] = {}  # those behind so many new ones that no look sees all
        self._sweep_again = 0.0
        #: By the monotonic clock.
        self.again = 0.0
        #: Whether at the last look there was nothing to do.
        self.idle = False

    def ended(self, found: Found, *, pause: bool) -> None:
        """Look again at once, for a run may have made work; but not at this one if in *pause*."""
        self._due.pop(found.id, None)
        self._begun.pop(found.id, None)
        self._trouble.clear(found.id)
        if pause:
            self._shelved.put(found.id)
        self._look_again()

    def troubled(self, found: Found, *, passing: bool) -> None:
        """It could not be run to an end; leave it alone for ever longer. *passing*: it will be."""
        (self._shelved if passing else self._trouble).put(found.id, longer=True)
        self._look_again()

    def _look_again(self) -> None:
        self.idle = False
        if not self._away.any():
            self.again = 0.0

    def look(self, room: Room) -> list[Found]:
        """Those for which there is *room*: what was begun first, else in random order.

        Random, so that workers choose differently. Raises if the store cannot be searched, once
        nothing runs any more.
        """
        began = time.monotonic()
        try:
            candidates = self._candidates(room)
            random.shuffle(candidates)
            begun = [f for f in candidates if not f.new][: room.concurrency]
            chosen = [*map(self._examined, begun), *(f for f in candidates if f.new)]
        except LimpetError as error:
            away = isinstance(error, AWAY)
            if not (away or room.running):
                raise  # damage does not go away by itself; but whoever runs is let end first
            self.again, self.idle = self._away.put("", longer=True), False
            what = "is away" if away else "cannot be searched"
            why = " ".join(str(error).split())
            log.warning("the store %s, next look in %.1f s: %s", what, self.again - began, why)
            return []
        if self._away.clear(""):
            log.info("the store is back")
        found = [f for f in chosen if room.admits(f)]
        self.idle = not found and not self._shelved.any()
        if found:
            self.again = began + BREATH
        else:
            soon = [due for due, _ in self._due.values() if due > began]
            self.again = min([_jittered(began, self._poll), *soon])
        return found

    def _candidates(self, room: Room) -> list[Found]:
        """Tasks of kinds for which there is room, which nobody runs and nothing speaks against."""
        free = room.kinds()
        found = {f.id: f for kind in free for f in self._open_tasks(kind, 10 * room.free(kind))}
        now = time.monotonic()
        if now >= self._sweep_again:
            self._sweep(room)
            took = time.monotonic() - now
            self._sweep_again = now + max(self._poll / 2, LEISURE * took)
        found.update((f.id, f) for f in self._begun.values() if f.kind in free)
        for due, one in self._due.values():
            if due <= now and one.kind in free:
                # It may have been woken by somebody else meanwhile, or wait for another time.
                key = make_key(self._store.tenant, task.KIND, one.id)
                head = self._store.backend.head(key)
                if head is None or head.status != kinds.WAITING or not _is_free(head):
                    continue
                moment = _due(head)
                if moment is not None and moment <= self._now():
                    found[one.id] = one
        paused = (self._shelved, self._trouble)
        return [
            f
            for f in found.values()
            if f.id not in room.running and not any(pauses.has(f.id) for pauses in paused)
        ]

    def _examined(self, found: Found) -> Found:
        """The same; as a suspect, if its last runs came to nothing."""
        try:
            tail = self._store.journal(task.KIND, found.id).read(reverse=True, limit=TAIL)
        except AWAY:
            raise
        except LimpetError:  # a damaged task is not to end the worker: opening it will say so
            return found
        last = itertools.takewhile(lambda entry: entry.type in FRUITLESS, tail)
        fruitless = sum(entry.type == kinds.RESUMED for entry in last)
        return Found(found.id, found.kind, suspect=fruitless >= SUSPECT)

    def _sweep(self, room: Room) -> None:
        """Look at all that wait; and at all that is open, of kinds of which a look sees a part.

        Or a task whose worker has died would be one among thousands of new ones.
        """
        waiting: dict[str, tuple[float, Found]] = {}
        for kind in room.limits:
            for page in self._pages(kind, kinds.WAITING, None):
                for head in page.heads:
                    due = _due(head)
                    if due is not None and _is_free(head):
                        left = (due - self._now()).total_seconds()
                        found = Found(head.key.id, kind)
                        waiting[found.id] = (time.monotonic() + left, found)
        self._due = waiting
        many = [kind for kind in room.limits if self._cursors.get(kind) is not None]
        self._begun = {
            head.key.id: Found(head.key.id, kind)
            for kind in many
            for page in self._pages(kind, kinds.OPEN, None)
            for head in page.heads
            if head.seq > 1 and _is_free(head)
        }

    def _open_tasks(self, kind: str, enough: int) -> list[Found]:
        """Open tasks of nobody, from where the last look ended: all shall have their turn."""
        found: dict[str, Found] = {}
        start = self._cursors.get(kind)
        for cursor in [start, None] if start else [None]:
            for page in self._pages(kind, kinds.OPEN, cursor):
                for head in page.heads:
                    if _is_free(head):
                        found[head.key.id] = Found(head.key.id, kind, new=head.seq == 1)
                self._cursors[kind] = page.cursor
                if len(found) >= enough:
                    return list(found.values())
        return list(found.values())

    def _now(self) -> datetime:
        return store_now(self._store.backend, self._store.tenant)

    def _pages(self, kind: str, status: str, cursor: str | None) -> Iterator[Page]:
        scan, labels = self._store.backend.scan, {kinds.RUN: kind}
        while True:
            page = scan(self._store.tenant, task.KIND, status=status, labels=labels, cursor=cursor)
            yield page
            cursor = page.cursor
            if cursor is None:
                return


def _is_free(head: Head) -> bool:
    """Whether it is nobody's, or that of a process of this machine that is no more."""
    return head.lease is None or is_dead(head.lease.holder)


def _due(head: Head) -> datetime | None:
    """When it is to be woken. Users can change labels: what is no time is none."""
    try:
        return datetime.fromisoformat(head.labels[kinds.DUE]).astimezone(UTC)
    except (KeyError, ValueError):
        return None


class Pauses:
    """Until when to leave something alone; ever *longer* if it goes on so."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._until: dict[str, tuple[float, float]] = {}  # when, and how long that was

    def put(self, name: str, *, longer: bool = False) -> float:
        """Leave it alone for a while; until when."""
        now = time.monotonic()
        self._until = {n: u for n, u in self._until.items() if now < u[0] + 2 * PATIENCE}
        last = self._until[name][1] if longer and name in self._until else self._first / 2
        pause = min(2 * last, PATIENCE)
        until = _jittered(now, pause)
        self._until[name] = until, pause
        return until

    def clear(self, name: str) -> bool:
        """All is well with it; whether it was otherwise before."""
        return self._until.pop(name, None) is not None

    def has(self, name: str) -> bool:
        """Whether it is to be left alone now."""
        return name in self._until and time.monotonic() < self._until[name][0]

    def any(self) -> bool:
        """Whether something is."""
        return any(map(self.has, self._until))


def _jittered(start: float, seconds: float) -> float:
    """*seconds* after *start*, more or less: workers that began together shall not stay so."""
    return start + seconds * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
