"""DynamoDB: one table, conditional writes, consistent reads.

A small append is one update of one item, however long the journal. ``docs/dynamodb.md`` says what
lies where, what it costs, and what permissions it takes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from limpet.backends.contract import (
    Append,
    Appended,
    Backend,
    Fact,
    Head,
    Key,
    Lease,
    Page,
    Record,
)
from limpet.backends.dynamodb.append import Appender
from limpet.backends.dynamodb.bodies import Bodies
from limpet.backends.dynamodb.errors import Refused
from limpet.backends.dynamodb.heads import Heads
from limpet.backends.dynamodb.leases import Leases
from limpet.backends.dynamodb.life import Life
from limpet.backends.dynamodb.open import open_store, table_facts
from limpet.backends.dynamodb.records import Records
from limpet.backends.dynamodb.sweep import Sweeper
from limpet.backends.dynamodb.table import Table
from limpet.backends.url import flag, safe_url, seconds, url_parameters
from limpet.errors import InvalidURL, StoreCorrupt, StoreReadOnly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from limpet.backends.dynamodb.layout import Journal

__all__ = ["DynamoBackend"]

_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "region": str,
    "endpoint_url": str,
    "profile": str,
    "create_table": flag,
    "timeout": seconds,
    "readonly": flag,
    "create": flag,
}

#: Bytes of an id, and some; DynamoDB refuses a key of more than 1024.
LONGEST = 1_000

#: Behind every id: the last code point, which no id contains.
LAST = "\U0010ffff"


class DynamoBackend(Backend):
    """Journals in a DynamoDB table of their own.

    Credentials come from where boto3 finds them; *profile* names one of its own. *create_table*:
    make the table if it is not there, billed by request. *timeout*: how long a call goes on trying
    while the server is away or has too much to do.
    """

    hops = 32

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        create_table: bool = False,
        create: bool = True,
        readonly: bool = False,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(f"dynamodb://{table}")
        self._readonly = readonly
        self._table = Table(
            table,
            region=region,
            endpoint_url=endpoint_url,
            profile=profile,
            timeout=seconds(timeout),
        )
        self._heads = Heads(self._table)
        self._life = Life(self._table, self._heads)
        self._bodies = Bodies(self._table, self._life)
        self._records = Records(self._table, self._heads, self._bodies)
        self._leases = Leases(self._table, self._heads, self._life)
        self._sweeper = Sweeper(self._table, self._heads, self._life, self._bodies)
        self._appender = Appender(self._table, self._heads, self._bodies, self._records, self._life)
        try:
            open_store(self._table, create=create and not readonly, create_table=create_table)
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        name, parameters = url_parameters(url, _PARAMETERS)
        table = name.removeprefix("dynamodb:").removeprefix("//").rstrip("/")
        if not table:
            msg = f"{safe_url(url)} names no table. Write dynamodb://TABLE?region=eu-west-1."
            raise InvalidURL(msg)
        return cls(table, **(parameters | options))

    def _check_writable(self) -> None:
        self._check_open()
        if self._readonly:
            msg = (
                f"The store {self.url} was opened with readonly=True, and is read-only. "
                "Open it without, to write."
            )
            raise StoreReadOnly(msg)

    # -- records -------------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        self._check_writable()
        return self._appender.append(request)

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        self._check_open()
        return self._records.read(key, after=after, upto=upto, limit=limit, reverse=reverse)

    def head(self, key: Key) -> Head | None:
        self._check_open()
        return self._head(key, self._heads.load(key))

    def _head(self, key: Key, journal: Journal | None) -> Head | None:
        now = self._table.clock.now()
        return journal.head(key, now) if journal is not None and journal.live(now) else None

    def scan(
        self,
        tenant: str,
        kind: str,
        *,
        prefix: str = "",
        status: str | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        self._check_open()
        low = max(prefix, " " if cursor is None else cursor + "\0")
        wanted = dict(labels or {}).items()
        heads: list[Head] = []
        if len(prefix.encode()) > LONGEST:
            return Page([], None)
        for key, journal in self._heads.listed(
            tenant, kind, low, prefix + LAST, at_once=min(limit + 1, 100)
        ):
            head = self._head(key, journal)
            if head is None or status not in (None, head.status):
                continue
            if not wanted <= head.labels.items():
                continue
            if len(heads) == limit:
                return Page(heads, heads[-1].key.id)
            heads.append(head)
        return Page(heads, None)

    def kinds(self) -> list[tuple[str, str]]:
        self._check_open()
        return [kind for kind in self._heads.kinds() if self.scan(*kind, limit=1).heads]

    def delete(self, key: Key) -> bool:
        self._check_writable()
        turn, deadline = 0, time.monotonic() + self._table.timeout
        while True:
            journal = self._heads.load(key)
            if journal is None:
                return False
            there = journal.live(self._table.clock.now())
            if not (journal.seq or journal.epoch or journal.leaves):
                return False
            try:
                # A reply that was lost is no loss: the transaction's token makes it known again.
                self._life.bury(key, journal, expired=not there and journal.seq > 0)
            except Refused:
                turn += 1
                self._table.try_again(turn, deadline)
            else:
                return there

    def compact(self, key: Key, before: int) -> int:
        self._check_writable()
        return self._records.compact(key, before)

    def sweep(self, limit: int = 1000) -> int:
        self._check_writable()
        return self._sweeper.sweep(limit)

    # -- leases --------------------------------------------------------------------------------

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        self._check_writable()
        return self._leases.acquire(key, holder, ttl, over)

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        self._check_writable()
        return self._leases.renew(key, lease, ttl)

    def release(self, key: Key, lease: Lease) -> None:
        self._check_writable()
        self._leases.release(key, lease)

    # -- the place itself ----------------------------------------------------------------------

    def facts(self, *, deep: bool = False) -> list[Fact]:
        self._check_open()
        facts = table_facts(self._table)
        return [*facts, *self._examined()] if deep else facts

    def _examined(self) -> list[Fact]:
        """Every journal, read and counted; what is missing."""
        counts: dict[str, list[int]] = {}
        broken: list[str] = []
        for tenant, kind in self.kinds():
            for key, journal in self._heads.listed(tenant, kind, " ", LAST):
                head = self._head(key, journal)
                if head is None:
                    continue
                count = counts.setdefault(kind, [0, 0, 0])
                count[:] = count[0] + 1, count[1] + head.seq - head.floor, count[2] + head.size
                broken += [f"{kind}/{key.id}"] * (not self._whole(key))
        facts = [Fact.of_kind(kind, *sums) for kind, sums in sorted(counts.items())]
        missing = f"records are missing of {', '.join(broken[:5])}"
        return [
            *facts,
            Fact(
                "integrity",
                missing if broken else "ok",
                ok=not broken,
                advice="Restore the table to a point in time, beside this one, and compare.",
            ),
        ]

    def _whole(self, key: Key) -> bool:
        """Whether all records of a journal are there."""
        after = 0
        try:
            while page := self.read(key, after=after, limit=500):
                after = page[-1].seq
        except StoreCorrupt:
            return False
        return True

    def _close(self) -> None:
        self._table.close()

    # -- fork ----------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        self._table.before_fork()

    def _after_fork_in_parent(self) -> None:
        self._table.after_fork_in_parent()

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        self._table.begin()
        self._heads.begin()
        self._appender.begin()
