"""SQLite, the default: one file, write-ahead log, every commit synced, many callers to a commit."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import apsw

from limpet.backends.contract import (
    Append,
    Appended,
    Fact,
    Head,
    Key,
    Lease,
    Page,
    Record,
    fenced,
    held,
    micros,
    next_epoch,
)
from limpet.backends.group_commit import GroupCommit, Ticket
from limpet.backends.sqlite.append import (
    append_all,
    append_one,
    create,
    find,
    now,
    remove,
)
from limpet.backends.sqlite.database import Database
from limpet.backends.sqlite.facts import facts
from limpet.backends.sqlite.lending import Lending
from limpet.backends.transactions import Transactional
from limpet.backends.url import at_home, check_durability, flag, seconds, url_parameters
from limpet.errors import InvalidURL, LimpetError, StoreBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from limpet.backends.transactions import Opened

__all__ = ["SqliteBackend"]

T = TypeVar("T")


_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "timeout": seconds,
    "durability": check_durability,
    "readonly": flag,
    "create": flag,
    "vfs": str,
}

#: Whether a journal is there; the parameter is the time.
_LIVE = "coalesce(max(expires, coalesce(until, 0)) > ?, 1)"

_HEAD = """
SELECT id, seq, floor, size, created, updated, ttl, expires, status, holder, epoch, until,
       (SELECT json_group_object(name, value) FROM limpet_labels l WHERE l.journal = j.journal)
FROM limpet_journals j
"""

_KINDS = f"""
SELECT DISTINCT tenant, kind FROM limpet_journals WHERE seq > 0 AND {_LIVE} ORDER BY tenant, kind
"""  # noqa: S608 - all of it from here

_FROM = f"""
FROM limpet_records
WHERE journal = (SELECT journal FROM limpet_journals
                 WHERE tenant = ? AND kind = ? AND id = ? AND {_LIVE})
  AND seq > ?
"""  # noqa: S608 - all of it from here

_READ = f"SELECT seq, count, at, body, id {_FROM}"
_BODIES = f"SELECT seq, body {_FROM} ORDER BY seq LIMIT ?"


class SqliteBackend(Transactional):
    """Journals in a SQLite file.

    Several processes may have it open. *timeout*: how long a write waits for another process's.
    *durability*: ``full`` (survives power loss) or ``normal`` (survives the process only; faster).
    *vfs*: the name of a registered SQLite VFS.
    """

    def __init__(
        self,
        path: str,
        *,
        create: bool = True,
        readonly: bool = False,
        timeout: float = 30.0,
        durability: str = "full",
        vfs: str | None = None,
    ) -> None:
        super().__init__(f"sqlite:{path}")
        self.path = os.path.abspath(path)
        self._durability = check_durability(durability)
        self._database = Database(
            self.path, timeout=seconds(timeout), durability=durability, readonly=readonly, vfs=vfs
        )
        self._database.open(create=create)
        self._lending = Lending(self._database)
        self._group = self._new_group()

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        path, parameters = url_parameters(url.removeprefix("sqlite:"), _PARAMETERS)
        if path.startswith("//"):
            msg = (
                f"sqlite:{path} is ambiguous. Write sqlite:agents.db for a file in this directory, "
                "or sqlite:/var/lib/agents.db for one anywhere."
            )
            raise InvalidURL(msg)
        if path in ("", ":memory:"):
            msg = f"sqlite:{path} names no file. A store that ends with the process is memory:"
            raise InvalidURL(msg)
        return cls(at_home(path), **(parameters | options))

    def _new_group(self) -> GroupCommit:
        return GroupCommit(self._commit, lambda lead: self._threads().submit(lead))

    # -- records -----------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        self._check_open()
        self._check_outside()
        done: Appended = self._group.run(request)
        return done

    async def append_async(self, request: Append) -> Appended:
        """Joins the group commit without a thread of its own."""
        self._check_open()
        self._check_outside()
        done: Appended = await self._group.run_async(request)
        return done

    def append_all(self, requests: Sequence[Append]) -> list[Appended]:
        return self._write(partial(self._append_all, requests))

    def _append_all(self, requests: Sequence[Append]) -> list[Appended]:
        connection = self._database.writer()
        done: list[Appended] = []
        with connection:  # a savepoint: the first that is refused takes the others with it
            done += map(_done, append_all(connection, requests))
        return done

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        sql, values = _READ, [*key, now(), after]
        if upto is not None:
            # The first record that ends at or behind *upto* is the last that can hold it.
            sql += (
                " AND seq - count < ? AND seq <= coalesce((SELECT min(seq) FROM limpet_records r"
                " WHERE r.journal = limpet_records.journal AND r.seq >= ?), ?)"
            )
            values += [upto, upto, upto]
        sql += " ORDER BY seq DESC LIMIT ?" if reverse else " ORDER BY seq LIMIT ?"
        with self._database.reader() as connection:
            return [Record(*row) for row in connection.execute(sql, (*values, limit))]

    def bodies(self, key: Key, *, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        with self._database.reader() as connection:
            found = connection.execute(_BODIES, (*key, now(), after, limit))
            return cast("list[tuple[int, bytes]]", found.fetchall())

    def head(self, key: Key) -> Head | None:
        with self._database.reader() as connection:
            at = now()
            rows = connection.execute(
                _HEAD + f"WHERE tenant = ? AND kind = ? AND id = ? AND seq > 0 AND {_LIVE}",
                (*key, at),
            ).fetchall()
        return _head(key.tenant, key.kind, rows[0], at) if rows else None

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
        at = now()
        sql = f"{_HEAD} WHERE tenant = ? AND kind = ? AND seq > 0 AND {_LIVE}"
        values: list[object] = [tenant, kind, at]
        if prefix:
            # U+10FFFF is the last code point, and no id contains it.
            sql += " AND id >= ? AND id < ?"
            values += [prefix, prefix + "\U0010ffff"]
        if cursor is not None:
            sql += " AND id > ?"
            values.append(cursor)
        if status is not None:
            sql += " AND status = ?"
            values.append(status)
        for pair in (labels or {}).items():
            sql += " AND journal IN (SELECT journal FROM limpet_labels WHERE name=? AND value=?)"
            values += pair
        with self._database.reader() as connection:
            rows = connection.execute(sql + " ORDER BY id LIMIT ?", (*values, limit + 1)).fetchall()
        heads = [_head(tenant, kind, row, at) for row in rows[:limit]]
        return Page(heads, heads[-1].key.id if len(rows) > limit else None)

    def kinds(self) -> list[tuple[str, str]]:
        with self._database.reader() as connection:
            rows = connection.execute(_KINDS, (now(),))
            return [(str(tenant), str(kind)) for tenant, kind in rows]

    def delete(self, key: Key) -> bool:
        return self._write(partial(self._delete, key))

    def _delete(self, key: Key) -> bool:
        found = self._find(key, now())
        if found is None:
            return False
        remove(self._database.writer(), found[0])
        return found[1] > 0

    def compact(self, key: Key, before: int) -> int:
        return self._write(partial(self._compact, key, before))

    def _compact(self, key: Key, before: int) -> int:
        found = self._find(key, now())
        if found is None:
            return 0
        floor, count, size = self._run(
            "SELECT max(seq), sum(count), sum(length(body)) FROM limpet_records"
            " WHERE journal = ? AND seq < ?",
            (found[0], before),
        )[0]
        if floor is None:
            return 0
        self._run("DELETE FROM limpet_records WHERE journal = ? AND seq < ?", (found[0], before))
        self._run(
            "UPDATE limpet_journals SET floor = ?, size = size - ? WHERE journal = ?",
            (floor, size, found[0]),
        )
        return int(count)

    def scrub(self) -> bool:
        self._check_open()
        self._check_outside()
        return self._database.scrub()

    def sweep(self, limit: int = 1000) -> int:
        return self._write(partial(self._sweep, limit))

    def _sweep(self, limit: int) -> int:
        """Expired journals, and the empty ones left behind by a lease that came to nothing."""
        rows = self._run(
            "SELECT journal FROM limpet_journals WHERE expires <= ?1 AND coalesce(until, 0) <= ?1"
            " UNION SELECT journal FROM limpet_journals WHERE seq = 0 AND until <= ?1"
            " LIMIT ?2",
            (now(), limit),
        )
        for (journal,) in rows:
            remove(self._database.writer(), journal)
        return len(rows)

    # -- leases --------------------------------------------------------------------------------

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        return self._write(partial(self._acquire, key, holder, ttl, over))

    def _acquire(self, key: Key, holder: str, ttl: float, over: int | None) -> Lease:
        at = now()
        found = self._find(key, at)
        journal = found[0] if found else create(self._database.writer(), key, at)
        last = self._lease(journal)
        if last and last.until > at and last.epoch != over:
            raise held(key, last)
        lease = Lease(holder, next_epoch(last.epoch if last else 0, at), at + micros(ttl))
        self._set_lease(journal, lease)
        return lease

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        return self._write(partial(self._renew, key, lease, ttl))

    def _renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        at = now()
        found = self._find(key, at)
        if found is None or found[2] != lease.epoch:
            raise fenced(key)
        renewed = Lease(lease.holder, lease.epoch, at + micros(ttl))
        self._set_lease(found[0], renewed)
        return renewed

    def release(self, key: Key, lease: Lease) -> None:
        self._write(partial(self._release, key, lease))

    def _release(self, key: Key, lease: Lease) -> None:
        at = now()
        found = self._find(key, at)
        if found is not None and found[2] == lease.epoch:
            self._set_lease(found[0], Lease(lease.holder, lease.epoch, at))

    def _lease(self, journal: int) -> Lease | None:
        holder, epoch, until = self._run(
            "SELECT holder, epoch, until FROM limpet_journals WHERE journal = ?", (journal,)
        )[0]
        return None if epoch is None else Lease(holder, epoch, until)

    def _set_lease(self, journal: int, lease: Lease) -> None:
        self._run(
            "UPDATE limpet_journals SET holder = ?, epoch = ?, until = ? WHERE journal = ?",
            (lease.holder, lease.epoch, lease.until, journal),
        )

    # -- transactions --------------------------------------------------------------------------

    def _run(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """One statement on the writer, within a work's transaction."""
        return self._database.writer().execute(sql, values).fetchall()

    def _find(self, key: Key, at: int) -> tuple[int, int, int | None] | None:
        """journal, seq and epoch of a journal that is there."""
        return find(self._database.writer(), key, at)

    def _write(self, work: Callable[[], T]) -> T:
        """Run *work* in a transaction, perhaps together with others' work.

        A work that raises has written nothing, or undone it: what it refuses leaves no trace.
        """
        self._check_open()
        self._check_outside()
        done: T = self._group.run(work)
        return done

    def _lend(self) -> AbstractContextManager[Opened]:
        return self._lending.transaction()

    def _commit(self, batch: list[Ticket]) -> None:
        """Commit *batch* as `GroupCommit` asks."""
        writing, left = self._database.writing, self._database.timeout
        if self._lending.lent is not None:
            began = time.monotonic()
            self._lending.wait()
            left = max(0, left - (time.monotonic() - began))
        try:
            # A transaction may have come in between.
            if not writing.acquire(True, left):  # noqa: FBT003 - by name it costs twice as much
                raise _busy(self.path)
            self._together(batch)
        finally:
            try:  # noqa: SIM105 - an interrupt might come before the methods of `suppress`
                writing.release()
            except RuntimeError:  # the time was up, or an interrupt came while we waited
                pass

    def _together(self, batch: list[Ticket]) -> None:
        try:
            self._transact(batch)
        except StoreBusy:
            raise
        except Exception:
            if len(batch) == 1:
                raise
            for ticket in batch:  # whoever spoilt it for all is found by itself
                self._alone(ticket)

    def _alone(self, ticket: Ticket) -> None:
        try:
            self._transact([ticket])
        except Exception as error:  # noqa: BLE001 - the caller's to see
            ticket.error = error
        ticket.settled = True

    def _transact(self, batch: list[Ticket]) -> None:
        done = False
        connection = self._database.writer()
        try:
            # BEGIN IMMEDIATE: a deferred lock could be lost between the read and the write.
            connection.execute("BEGIN IMMEDIATE")
            _perform(connection, batch)
            done = True
            connection.execute("COMMIT")
            _settle(batch)
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            elif done and not isinstance(error, apsw.Error):
                _settle(batch)  # an interrupt that came in after COMMIT had done its work
            with self._database.translated():
                raise

    # -- the place itself ------------------------------------------------------------------------

    def facts(self, *, deep: bool = False) -> list[Fact]:
        self._check_open()
        with self._database.reader() as connection:
            return facts(connection, self.path, self._durability, deep=deep)

    def _close(self) -> None:
        super()._close()
        self._database.close()

    # -- fork ------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        self._database.before_fork(writing=self._lending.before_fork())

    def _after_fork_in_parent(self) -> None:
        self._database.after_fork_in_parent()

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        self._database.after_fork_in_child()
        self._lending.begin()
        self._group = self._new_group()


def _perform(connection: apsw.Connection, batch: list[Ticket]) -> None:
    """Do what the tickets ask for, in their order; neighbouring appends together."""
    if len(batch) == 1 and isinstance(batch[0].work, Append):
        _tell(batch[0], append_one(connection, batch[0].work))
        return
    appends: list[Ticket] = []
    for ticket in batch:
        if isinstance(ticket.work, Append):
            appends.append(ticket)
            continue
        _append(connection, appends)
        appends = []
        try:
            ticket.result, ticket.error = ticket.work(), None
        except LimpetError as refusal:
            ticket.error = refusal
    _append(connection, appends)


def _append(connection: apsw.Connection, tickets: list[Ticket]) -> None:
    outcomes = append_all(connection, [ticket.work for ticket in tickets]) if tickets else []
    for ticket, outcome in zip(tickets, outcomes, strict=True):
        _tell(ticket, outcome)


def _settle(batch: list[Ticket]) -> None:
    for ticket in batch:
        ticket.settled = True


def _busy(path: str) -> StoreBusy:
    return StoreBusy(
        f"Another thread of this process, in a transaction perhaps, kept {path} for longer than "
        "the timeout. Keep such blocks short, or open the store with a larger timeout=."
    )


def _done(outcome: Appended | LimpetError) -> Appended:
    if isinstance(outcome, LimpetError):
        raise outcome
    return outcome


def _tell(ticket: Ticket, outcome: Appended | LimpetError) -> None:
    if isinstance(outcome, Appended):
        ticket.result, ticket.error = outcome, None
    else:
        ticket.error = outcome


def _head(tenant: str, kind: str, row: tuple[Any, ...], at: int) -> Head:
    import json  # noqa: PLC0415 - not needed to write or read records

    id_, seq, floor, size, created, updated, ttl, expires, status, *lease, labels = row
    holder, epoch, until = lease
    return Head(
        key=Key(tenant, kind, id_),
        seq=seq,
        floor=floor,
        size=size,
        created=created,
        updated=updated,
        ttl=ttl,
        expires=expires,
        status=status,
        labels=json.loads(labels),
        lease=Lease(holder, epoch, until) if epoch is not None and until > at else None,
    )
