"""Checking the store for the doctor's page: in a thread, for as long as somebody looks at it.

What is so of the place is asked for when the page is, and shown when it is there: in a large store
that takes a while. Every record is read when somebody asks for that, once at a time, and no longer
than a page follows: it may be all of a hundred gigabytes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from limpet import AsyncStore, Store
from limpet.backends.facts import Fact
from limpet.backends.url import in_commands, is_default
from limpet.core.runtime import in_thread
from limpet.errors import LimpetError
from limpet.inspector.follow import Topic
from limpet.views.doctor import Report, check_journals, index_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.core.scope import Scope

__all__ = ["Check", "Checker"]

#: Seconds for which the first page waits for what is so of the place.
PATIENCE = 1.0
#: Seconds for which that is not asked for anew.
FRESH = 5.0
#: Seconds between two words to the pages that follow.
TELL = 1.0
#: Seconds for which a check goes on after the last page was asked for.
LINGER = 30.0


class _Unwanted(Exception):
    """Nobody looks any more: ends a check."""


class Check:
    """One look at the store: what it has found so far, and how it ended."""

    def __init__(self, scope: Scope) -> None:
        self.report = Report(scope.backend.url, scope.tenant)
        self.began = datetime.now(UTC)
        self.stopped = False  # before its end
        self._unwanted = threading.Event()

    def stop(self) -> None:
        """Nobody wants it any more."""
        self._unwanted.set()

    def pulse(self) -> None:
        """End it, if nobody wants it any more."""
        if self._unwanted.is_set():
            raise _Unwanted


class Checker:
    """The checks of one app's store. *place*: also of the place, where all tenants are."""

    def __init__(self, scope: Scope, *, place: bool) -> None:
        self.topic = Topic()
        self.place = place
        #: What is so of the place; and every record, of this tenant, as it was read last.
        self.facts: Check | None = None
        self.records: Check | None = None
        #: How many checks of every record were begun.
        self.count = 0
        self._scope = scope
        self._store = Store(AsyncStore(scope.as_sync()))
        self._looking: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._looked = self._wanted = float("-inf")

    async def look(self, *, check: int | None = None) -> None:
        """Somebody looks. *check*: begin that check of every record, if it is the next one.

        So a link that is followed twice, or a page that is asked for anew, begins it once.
        """
        self._wanted = time.monotonic()
        if check == self.count + 1 and not self.running:
            self.count += 1
            self.records = Check(self._scope)
            self._reading = asyncio.create_task(self._run(self.records, self._read_all))
        if self.place and time.monotonic() - self._looked > FRESH:
            if self._looking is None or not _is_running(self._looking):
                self._looking = asyncio.create_task(self._look_at_place())
            await asyncio.wait([self._looking], timeout=PATIENCE)

    @property
    def running(self) -> bool:
        """Whether every record is being read."""
        return self._reading is not None and _is_running(self._reading)

    async def _look_at_place(self) -> None:
        def work(check: Check) -> None:
            check.report.facts = [*self._facts(deep=False), *index_facts()]

        found = Check(self._scope)
        await self._run(found, work)
        self.facts, self._looked = found, time.monotonic()
        self.topic.change()

    async def _run(self, check: Check, work: Callable[[Check], None]) -> None:
        """Do *work* in a thread, and tell those who follow how far it is."""

        def done() -> None:
            try:
                work(check)
            except _Unwanted:
                check.stopped = True
            except (LimpetError, OSError) as error:
                check.report.error = f"{type(error).__name__}: {error}"

        # Of its own, which nobody waits for when the process ends.
        future = asyncio.wrap_future(in_thread(done, "limpet-doctor"))
        try:
            while not (await asyncio.wait([future], timeout=TELL))[0]:
                self.topic.change()
                if not self.topic.followers and time.monotonic() - self._wanted > LINGER:
                    check.stop()
            await future
        finally:
            check.stop()
            self.topic.change()

    def _read_all(self, check: Check) -> None:
        check_journals(self._store, check.report, check.pulse)
        if self.place:
            check.report.facts = self._facts(deep=True)

    def _facts(self, *, deep: bool) -> list[Fact]:
        backend, tenant = self._scope.backend, self._scope.tenant
        url = None if is_default(backend.url) else backend.url
        return [
            Fact(
                fact.name,
                fact.value,
                ok=fact.ok,
                advice=in_commands(fact.advice, url=url, tenant=tenant),
                unsure=fact.unsure,
            )
            for fact in backend.facts(deep=deep)
        ]


def _is_running(task: asyncio.Task[None]) -> bool:
    return not task.done() and task.get_loop() is asyncio.get_running_loop()
