"""DynamoDB: one table, conditional writes, consistent reads.

A small append is one update of one item, however long the journal. ``docs/dynamodb.md`` says what
lies where, what it costs, and what permissions it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from msgspec.structs import replace

from limpet.backends import decide, forks
from limpet.backends.contract import (
    Append,
    Appended,
    Backend,
    Expect,
    Head,
    Key,
    Lease,
    Page,
    Record,
)
from limpet.backends.dynamodb.appends import Appender
from limpet.backends.dynamodb.expiry import Remover
from limpet.backends.dynamodb.heads import Heads
from limpet.backends.dynamodb.layout import LAST_ID, current, new_token
from limpet.backends.dynamodb.opening import open_store, table_facts
from limpet.backends.dynamodb.records import Bodies, Records
from limpet.backends.dynamodb.table import Table
from limpet.backends.facts import Fact
from limpet.backends.url import flag, safe_url, seconds, url_parameters
from limpet.errors import InvalidURL, StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from limpet.backends.dynamodb.heads import Attempt
    from limpet.backends.dynamodb.layout import Stored

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


class DynamoBackend(Backend):
    """Journals in a DynamoDB table of their own.

    Credentials come from where boto3 finds them; *profile* names one of its own. *create_table*:
    make the table if it is not there, billed by request. *timeout*: how long a call goes on trying
    while the server is away or has too much to do.
    """

    concurrency = 32

    keeps: ClassVar[tuple[str, ...]] = (
        "Point-in-time recovery keeps what was deleted for up to 35 days, a stream for a day.",
        "Backups and exports are not reached.",
    )

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
        super().__init__(f"dynamodb://{table}", readonly=readonly)
        self._table = Table(
            table,
            region=region,
            endpoint_url=endpoint_url,
            profile=profile,
            timeout=seconds(timeout),
        )
        self._heads = Heads(self._table)
        self._bodies = Bodies(self._table, self._heads)
        self._records = Records(self._table, self._heads, self._bodies)
        self._appender = Appender(self._table, self._heads, self._records, self._bodies)
        self._remover = Remover(self._table, self._heads, self._bodies)
        try:
            open_store(self._table, create=create and not readonly, create_table=create_table)
        except BaseException:
            self.close()
            raise
        forks.register(self)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        name, parameters = url_parameters(url, _PARAMETERS)
        table = name.removeprefix("dynamodb:").removeprefix("//").rstrip("/")
        if not table or "@" in table:
            msg = f"{safe_url(url)} names no table. Write dynamodb://TABLE?region=eu-west-1."
            raise InvalidURL(msg)
        return cls(table, **(parameters | options))

    # -- records -------------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        self.check_writable()
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
        self.check_open()
        return self._records.read(key, after=after, upto=upto, limit=limit, reverse=reverse)

    def head(self, key: Key) -> Head | None:
        self.check_open()
        return self._visible(self._heads.load(key))

    def _visible(self, stored: Stored | None) -> Head | None:
        return None if stored is None else decide.visible(stored.head, self._table.clock.now())

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
        self.check_open()
        if len(prefix.encode()) > LONGEST:
            return Page([], None)
        low = max(prefix, " " if cursor is None else cursor + "\0")
        wanted = dict(labels or {}).items()
        heads: list[Head] = []
        for _, stored in self._heads.listed(
            tenant, kind, low, prefix + LAST_ID, at_once=min(limit + 1, 100)
        ):
            head = self._visible(stored)
            if head is None or status not in (None, head.status):
                continue
            if not wanted <= head.labels.items():
                continue
            if len(heads) == limit:
                return Page(heads, heads[-1].key.id)
            heads.append(head)
        return Page(heads, None)

    def kinds(self) -> list[tuple[str, str]]:
        self.check_open()
        return [kind for kind in self._heads.kinds() if self.scan(*kind, limit=1).heads]

    def delete(self, key: Key, *, expect: Expect | None = None) -> bool:
        self.check_writable()
        return self._remover.delete(key, expect)

    def compact(self, key: Key, before: int) -> int:
        self.check_writable()
        return self._records.compact(key, before)

    def sweep(self, limit: int = 1000) -> int:
        self.check_writable()
        return self._remover.sweep(limit)

    # -- leases --------------------------------------------------------------------------------

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        self.check_writable()
        token = new_token()  # it is stored: if the answer is lost, the next try finds it

        def work(attempt: Attempt) -> Lease:
            now = self._table.clock.now()
            base = current(attempt.stored, now)
            if base.lease_token == token and base.head is not None and base.head.lease is not None:
                return base.head.lease
            # An epoch is a time. Those before a deletion are past, whatever our clock says.
            now = max(now, base.last_epoch + 1)
            head = decide.acquire(base.head, key, now, holder=holder, ttl=ttl, over=over)
            return self._write_lease(attempt, base, head, lease_token=token)

        return self._heads.change(key, work)

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        self.check_writable()

        def work(attempt: Attempt) -> Lease:
            now = self._table.clock.now()
            base = current(attempt.stored, now)
            head = decide.renew(base.head, key, lease, ttl, now)
            return self._write_lease(attempt, base, head)

        return self._heads.change(key, work)

    def release(self, key: Key, lease: Lease) -> None:
        self.check_writable()

        def work(attempt: Attempt) -> None:
            now = self._table.clock.now()
            base = current(attempt.stored, now)
            head = decide.release(base.head, lease)
            if head is None:
                attempt.require_fresh()
                return
            # Ended long ago: so it is over for a client whose clock is behind ours as well.
            over = replace(head, lease=Lease(lease.holder, lease.epoch, 0))
            self._write_lease(attempt, base, over)

        self._heads.change(key, work)

    def _write_lease(self, attempt: Attempt, base: Stored, head: Head, **token: str) -> Lease:
        new = replace(base, head=head, **token)
        self._heads.write(attempt, self._heads.prepare(attempt, base, new))
        assert head.lease is not None  # noqa: S101 - it has just been written
        return head.lease

    # -- the place itself ----------------------------------------------------------------------

    def facts(self, *, deep: bool = False) -> list[Fact]:
        self.check_open()
        facts = table_facts(self._table)
        return [*facts, *self._examined()] if deep else facts

    def _examined(self) -> list[Fact]:
        """Every journal, read and counted; what is missing."""
        counts: dict[str, list[int]] = {}
        broken: list[str] = []
        for tenant, kind in self.kinds():
            for head in self.heads(tenant, kind):
                count = counts.setdefault(kind, [0, 0, 0])
                entries = head.seq + 1 - head.first
                count[:] = count[0] + 1, count[1] + entries, count[2] + head.size
                after = 0
                try:
                    while page := self.read(head.key, after=after, limit=500):
                        after = page[-1].seq
                except StoreCorrupt:
                    broken.append(f"{kind}/{head.key.id}")
        missing = f"records are missing of {', '.join(broken[:5])}"
        return [
            *(Fact.of_kind(kind, *sums) for kind, sums in sorted(counts.items())),
            Fact(
                "integrity",
                missing if broken else "ok",
                ok=not broken,
                advice="Restore the table to a point in time, beside this one, and compare.",
            ),
        ]

    def _close(self) -> None:
        self._table.close()

    # -- fork ----------------------------------------------------------------------------------

    def before_fork(self) -> None:
        self._table.before_fork()

    def after_fork_in_parent(self) -> None:
        self._table.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        self._table.begin()
        self._heads.begin()
