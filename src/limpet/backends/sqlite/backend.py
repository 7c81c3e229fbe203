"""SQLite, the default: one file, write-ahead log, every commit synced, many callers to a commit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from limpet.backends import decide, forks
from limpet.backends.contract import Append, Appended, Expect, Head, Key, Lease, Page, Record
from limpet.backends.group_commit import GroupCommit, Ticket
from limpet.backends.sqlite import files
from limpet.backends.sqlite.appender import END, QUERIES, Appender, find, listed, now
from limpet.backends.sqlite.database import SQLITE_ERRORS, Database
from limpet.backends.sqlite.facts import facts
from limpet.backends.sqlite.transaction import Transactions
from limpet.backends.transactions import TransactionalBackend
from limpet.backends.url import at_home, check_durability, flag, safe_url, seconds, url_parameters
from limpet.errors import InvalidURL, LimpetError, StoreBusy, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from contextlib import AbstractContextManager

    from limpet.backends.contract import Backend, Transaction
    from limpet.backends.facts import Fact

__all__ = ["SqliteBackend"]

T = TypeVar("T")

_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "timeout": seconds,
    "durability": check_durability,
    "readonly": flag,
    "create": flag,
    "vfs": str,
}


class SqliteBackend(TransactionalBackend):
    """Journals in a SQLite file.

    Several processes may have it open. *timeout*: how long a write waits for another process's.
    *durability*: ``full`` (survives power loss) or ``normal`` (survives the process only; faster).
    *vfs*: the name of a registered SQLite VFS.
    """

    beside: ClassVar[tuple[str, ...]] = ("-wal", "-shm")
    rewrites: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = (
        "Rows are overwritten in the file when they go, and the log is emptied if nobody reads.",
        "Backups, copies, snapshots, and what a drive itself keeps are not reached.",
    )

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
        super().__init__(f"sqlite:{path}", readonly=readonly)
        # Where a link leads to: SQLite keeps its log beside the file itself.
        self.path = os.path.realpath(path) if vfs is None else os.path.abspath(path)
        self._durability = check_durability(durability)
        self._database = Database(
            self.path, timeout=seconds(timeout), durability=durability, readonly=readonly, vfs=vfs
        )
        self._database.open(create=create)
        self._begin()
        forks.register(self)

    def _begin(self) -> None:
        """Start with nobody waiting and nothing seen, also in a forked child."""
        self._appender: Appender | None = None
        self._group = GroupCommit(
            self._commit,
            self._commit_one,
            self._database.writing,
            timeout=self._database.timeout,
            what=self.path,
        )
        self._transactions = Transactions(self._database, self._group)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        path, parameters = cls._split(url)
        return cls(path, **(parameters | options))

    @classmethod
    def _split(cls, url: str) -> tuple[str, dict[str, Any]]:
        """The path that *url* names, and its parameters."""
        place, parameters = url_parameters(url, _PARAMETERS)
        path = place.removeprefix("sqlite:")
        if path.startswith("//"):
            msg = (
                f"{safe_url(url)} is ambiguous. Write sqlite:agents.db for a file in this "
                "directory, or sqlite:/var/lib/agents.db for one anywhere."
            )
            raise InvalidURL(msg)
        if path in ("", ":memory:"):
            msg = f"sqlite:{path} names no file. A store that ends with the process is memory:"
            raise InvalidURL(msg)
        return at_home(path), parameters

    # -- writing -----------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        if self.closed or self.readonly or self._inside:  # hardly ever
            self.check_writable()
        done: Appended = self._group.run(request)
        return done

    def append_async(self, request: Append) -> Coroutine[Any, Any, Appended]:
        self.check_writable()
        return self._group.run_async(request)

    def append_all(self, requests: Sequence[Append]) -> list[Appended]:
        return self._write(lambda appender, at: appender.append_all(requests, at))

    def delete(self, key: Key, *, expect: Expect | None = None) -> bool:
        return self._write(lambda appender, at: appender.delete(key, at, expect))

    def compact(self, key: Key, before: int) -> int:
        return self._write(lambda appender, at: appender.compact(key, before, at))

    def rewrite(
        self,
        key: Key,
        bodies: Mapping[int, bytes],
        *,
        expect: Expect,
        renewed: str | None = None,
        labels: Mapping[str, str] | None = None,
        note: bytes | None = None,
    ) -> int:
        return self._write(
            lambda appender, at: appender.rewrite(
                key, bodies, at, expect=expect, renewed=renewed, labels=labels or {}, note=note
            )
        )

    def sweep(self, limit: int = 1000) -> int:
        return self._write(lambda appender, at: appender.sweep(limit, at))

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        def work(appender: Appender, at: int) -> Lease:
            head = decide.acquire(
                appender.live_head(key, at), key, at, holder=holder, ttl=ttl, over=over
            )
            return appender.set_lease(key, head)

        return self._write(work)

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        def work(appender: Appender, at: int) -> Lease:
            head = decide.renew(appender.live_head(key, at), key, lease, ttl, at)
            return appender.set_lease(key, head)

        return self._write(work)

    def release(self, key: Key, lease: Lease) -> None:
        def work(appender: Appender, at: int) -> None:
            head = decide.release(appender.live_head(key, at), lease)
            if head is not None:
                appender.set_lease(key, head)

        self._write(work)

    def _write(self, work: Callable[[Appender, int], T]) -> T:
        """Run *work* in a transaction, perhaps together with others' work.

        A work that raises has written nothing: what it refuses leaves no trace.
        """
        self.check_writable()
        done: T = self._group.run(work)
        return done

    def _transaction(self) -> AbstractContextManager[Transaction]:
        return self._transactions.open()

    def _commit_one(self, work: Any) -> Any:
        """Do *work*, an `Append` or a function of an appender and the time, in a transaction."""
        connection = self._database.writer()
        appender = self._appender
        if appender is None or appender.connection is not connection:
            appender = self._appender = Appender(connection)
            connection.set_commit_hook(appender.is_overtaken)
        try:
            if work.__class__ is not Append:
                return appender.transact(work)
            done = appender.append_one(work)
            if done is None:
                done = appender.transact(lambda appender, at: appender.append(work, at))
        except SQLITE_ERRORS as error:
            explained = self._database.explained(error, connection)
            if isinstance(explained, StoreUnavailable):
                self._database.distrust()
            raise explained from error
        return done

    def _commit(self, batch: list[Ticket]) -> None:
        """Commit *batch* as `GroupCommit` asks."""

        def work(appender: Appender, at: int) -> None:
            for ticket in batch:
                one = ticket.work
                try:
                    if one.__class__ is Append:
                        ticket.result = appender.append(one, at)
                    else:
                        ticket.result = one(appender, at)
                    ticket.error = None
                except LimpetError as refusal:
                    ticket.error = refusal

        try:
            self._commit_one(work)
        except (StoreBusy, StoreUnavailable):  # a second try could write what is there already
            raise
        except Exception:
            if len(batch) == 1:
                raise
            for ticket in batch:  # whoever spoilt it for all is found by itself
                try:
                    ticket.result, ticket.error = self._commit_one(ticket.work), None
                except Exception as error:  # noqa: BLE001 - the caller's to see
                    ticket.result, ticket.error = None, error

    # -- reading -----------------------------------------------------------------------------

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        sql = QUERIES["read_down" if reverse else "read"]
        values = (*key, now(), after, END if upto is None else upto, limit)
        with self._database.reader() as connection:
            return [Record(*row) for row in connection.execute(sql, values)]

    def bodies(self, key: Key, *, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        with self._database.reader() as connection:
            found = connection.execute(QUERIES["bodies"], (*key, now(), after, limit))
            return cast("list[tuple[int, bytes]]", found.fetchall())

    def head(self, key: Key) -> Head | None:
        with self._database.reader() as connection:
            found = find(connection, key)
        return None if found is None else decide.visible(found.head, now())

    def has(self, key: Key) -> bool:
        # By the connection that is open already: whoever only writes has no other.
        database = self._database
        with database.translated(), database.writing:
            return bool(database.writer().execute(QUERIES["has_journal"], key).fetchall())

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
        sql, values = QUERIES["scan"], [tenant, kind, at, at]
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
            sql += (
                " AND journal IN (SELECT journal FROM limpet_labels WHERE name = ? AND value = ?)"
            )
            values += pair
        with self._database.reader() as connection:
            rows = connection.execute(sql + " ORDER BY id LIMIT ?", (*values, limit + 1)).fetchall()
            found = [
                decide.visible(listed(connection, tenant, kind, row), at) for row in rows[:limit]
            ]
        heads = [head for head in found if head is not None]
        return Page(heads, str(rows[limit - 1][1]) if len(rows) > limit else None)

    def kinds(self) -> list[tuple[str, str]]:
        with self._database.reader() as connection:
            rows = connection.execute(QUERIES["kinds"], (now(),))
            return [(str(tenant), str(kind)) for tenant, kind in rows]

    # -- the place itself --------------------------------------------------------------------

    def scrub(self) -> bool:
        self.check_writable()
        return self._database.scrub()

    def facts(self, *, deep: bool = False) -> list[Fact]:
        self.check_open()
        with self._database.reader() as connection:
            return facts(connection, self.path, self._durability, deep=deep)

    @classmethod
    def path_of(cls, url: str) -> str | None:
        path, parameters = cls._split(url)
        return None if "vfs" in parameters else os.path.realpath(path)

    @classmethod
    def write_snapshot(cls, path: str, new: str) -> bool:
        files.write_snapshot(path, new)
        return True

    @classmethod
    def alone(cls, path: str) -> AbstractContextManager[None]:
        return files.alone(path)

    @classmethod
    def from_damaged(cls, url: str) -> Backend:
        from limpet.backends.sqlite.salvage import salvaged  # noqa: PLC0415 - rarely needed

        path, _ = cls._split(url)
        return salvaged(os.path.realpath(path))

    def _close(self) -> None:
        self._group.close()
        self._database.close()

    # -- fork --------------------------------------------------------------------------------

    def before_fork(self) -> None:
        self._database.before_fork(writing=self._transactions.before_fork())

    def after_fork_in_parent(self) -> None:
        self._database.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        self._forget_other_threads()
        self._group.after_fork_in_child()
        self._database.after_fork_in_child()
        self._begin()
