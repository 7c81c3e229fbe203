"""``file:``, a directory that people can read: a journal is a file, and an append a line of JSON.

Every append is synced before it returns. Writers keep each other out by the locks of the system;
readers need none. What is in a line is in `limpet.backends.file.format`, what lies where in
`limpet.backends.file.directory`.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from msgspec import structs

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
from limpet.backends.file import disk, doctor
from limpet.backends.file.directory import STRIPES, Directory, Paths, misplaced
from limpet.backends.file.reading import JournalFile, opened, read_lease
from limpet.backends.file.writing import UNUSABLE, Stripe, is_idle
from limpet.backends.url import (
    at_home,
    check_durability,
    flag,
    safe_url,
    seconds,
    url_parameters,
)
from limpet.errors import InvalidURL, LimpetError, StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from limpet.backends.facts import Fact
    from limpet.errors import StoreError

__all__ = ["FileBackend"]

P = ParamSpec("P")
T = TypeVar("T")

_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "timeout": seconds,
    "durability": check_durability,
    "readonly": flag,
    "create": flag,
}


class FileBackend(Backend):
    """Journals in a directory, one file each.

    Several processes may have it open. *timeout*: how long a write waits for another process's.
    *durability*: ``full`` (survives power loss) or ``normal`` (survives the process only; faster).
    """

    readable: ClassVar[bool] = True
    rewrites: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = (
        "A file that is written anew leaves its old blocks to the file system.",
        "Backups, snapshots, and what `limpet doctor --repair` has set aside are not reached.",
    )

    def __init__(
        self,
        path: str,
        *,
        create: bool = True,
        readonly: bool = False,
        timeout: float = 30.0,
        durability: str = "full",
    ) -> None:
        super().__init__(f"file:{path}", readonly=readonly)
        self.path = os.path.abspath(path)
        self._durability = check_durability(durability)
        self._directory = Directory(self.path)
        self._stripes = [
            Stripe(
                self.path,
                number,
                timeout=seconds(timeout),
                readonly=readonly,
                durable=durability == "full",
            )
            for number in range(STRIPES)
        ]
        with self._translated():
            if create and not readonly:
                self._directory.create(self._stripes[0].lock)
            self._directory.check(readonly=readonly)
        forks.register(self)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        path, parameters = cls._split(url)
        return cls(path, **(parameters | options))

    @classmethod
    def path_of(cls, url: str) -> str | None:
        return os.path.abspath(cls._split(url)[0])

    @classmethod
    def _split(cls, url: str) -> tuple[str, dict[str, Any]]:
        """The path that *url* names, and its parameters."""
        place, parameters = url_parameters(url, _PARAMETERS)
        path = place.removeprefix("file:")
        if path.startswith("//"):
            host, slash, rest = path[2:].partition("/")
            if host or not slash:
                msg = (
                    f"{safe_url(url)} names a host. Write file:state for a directory here, or "
                    "file:/var/lib/state for one anywhere."
                )
                raise InvalidURL(msg)
            path = "/" + rest
        if not path:
            msg = "file: names no directory. Write file:state, or file:/var/lib/state."
            raise InvalidURL(msg)
        return at_home(path), parameters

    # -- writing -----------------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        return self._write(request.key, Stripe.append, request)

    def delete(self, key: Key, *, expect: Expect | None = None) -> bool:
        return self._write(key, Stripe.delete, key, expect)

    def compact(self, key: Key, before: int) -> int:
        return self._write(key, Stripe.compact, key, before)

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
            key,
            Stripe.change,
            key,
            bodies,
            expect=expect,
            renewed=renewed,
            labels=labels or {},
            note=note,
        )

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        return self._write(key, Stripe.acquire, key, holder, ttl, over)

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        return self._write(key, Stripe.renew, key, lease, ttl)

    def release(self, key: Key, lease: Lease) -> None:
        self._write(key, Stripe.release, lease)

    def _write(
        self,
        key: Key,
        work: Callable[Concatenate[Stripe, Paths, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Do *work*, a method of `Stripe`, with all others kept out of the journal."""
        self.check_writable()
        paths = self._directory.paths(key)
        stripe = self._stripes[paths.stripe]
        try:  # in place, not by `_translated`: every append comes this way
            return stripe.lock.run(work, stripe, paths, *args, **kwargs)
        except LimpetError:
            raise
        except OSError as error:
            raise disk.explain(error, self.path) from error

    def sweep(self, limit: int = 1000) -> int:
        self.check_writable()
        count = 0
        with self._translated():
            for paths in self._directory.all_paths():
                if count >= limit:
                    break
                if is_idle(paths):
                    stripe = self._stripes[paths.stripe]
                    count += stripe.lock.run(stripe.sweep, paths)
            for paths in self._directory.unfinished():
                self._stripes[paths.stripe].lock.run(disk.remove, paths.new)
        return count

    def scrub(self) -> bool:
        return True  # what is deleted or compacted is in no file any more

    # -- reading -----------------------------------------------------------------------------------

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        def look(file: JournalFile) -> list[Record]:
            found: list[Record] = []
            for _, line in file.lines_back(upto) if reverse else file.lines(after):
                behind = upto is not None and line.seq - line.count >= upto
                if len(found) >= limit or (line.seq <= after if reverse else behind):
                    break
                if line.count and not behind:
                    found.append(line.record())
            return found

        return self._look(key, look) or []

    def bodies(self, key: Key, *, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        def look(file: JournalFile) -> list[tuple[int, bytes]]:
            records = (line for _, line in file.lines(after) if line.count)
            return [(line.seq, line.record_body()) for line in islice(records, limit)]

        return self._look(key, look) or []

    def head(self, key: Key) -> Head | None:
        lease = self._directory.paths(key).lease

        def look(file: JournalFile) -> Head | None:
            return decide.visible(structs.replace(file.head, lease=read_lease(lease)), disk.now())

        return self._look(key, look)

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
        wanted = dict(labels or {}).items()
        with self._translated():
            ids = self._directory.ids(tenant, kind, again=cursor is not None)
        heads: list[Head] = []
        damaged: list[tuple[Key, StoreError]] = []
        for number in range(
            max(bisect_left(ids, prefix), bisect_right(ids, cursor or "")), len(ids)
        ):
            if not ids[number].startswith(prefix):
                break
            key = Key(tenant, kind, ids[number])
            try:
                head = self.head(key)
            except UNUSABLE as error:
                damaged.append((key, error))
                continue
            if head is None or (status is not None and head.status != status):
                continue
            if wanted <= head.labels.items():
                heads.append(head)
                if len(heads) > limit:
                    return Page(heads[:limit], heads[limit - 1].key.id, damaged)
        self._directory.forget_ids()
        return Page(heads, None, damaged)

    def kinds(self) -> list[tuple[str, str]]:
        self.check_open()
        found = []
        with self._translated():
            for kind in self._directory.kinds():
                key = next(filter(self._exists, self._directory.keys(kind)), None)
                if key is not None:
                    found.append(key[:2])
        return sorted(found)

    def _exists(self, key: Key) -> bool:
        try:
            return self.head(key) is not None
        except UNUSABLE:
            return True

    def lost(self, key: Key) -> list[tuple[int, int]]:
        def look(file: JournalFile) -> list[tuple[int, int]]:
            runs: list[tuple[int, int]] = []
            for _, line in file.lines():
                if line.lost:
                    before = line.previous
                    first = runs.pop()[0] if runs and runs[-1][1] == before else before + 1
                    runs.append((first, before + line.lost))
            return runs

        return self._look(key, look) or []

    def _look(self, key: Key, look: Callable[[JournalFile], T]) -> T | None:
        """What *look* makes of the journal's file; None if the journal is not there."""
        self.check_open()
        paths = self._directory.paths(key)
        with self._translated():
            try:
                return _look(key, paths, look)
            except StoreCorrupt:
                # Or did we see a writer undo what has failed? Look again with writers kept out.
                return self._stripes[paths.stripe].lock.run(_look, key, paths, look)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the system's errors into ours."""
        try:
            yield
        except LimpetError:
            raise
        except OSError as error:
            raise disk.explain(error, self.path) from error

    # -- the place itself --------------------------------------------------------------------------

    def facts(self, *, deep: bool = False) -> list[Fact]:
        self.check_open()
        with self._translated():
            return doctor.facts(self._directory, self._durability, deep=deep)

    def repair(self) -> list[str]:
        self.check_writable()
        done = []
        with self._translated():
            for paths in self._directory.all_paths():
                stripe = self._stripes[paths.stripe]
                done.append(stripe.lock.run(doctor.repair, stripe, paths))
        return [text for text in done if text is not None]

    @classmethod
    def from_damaged(cls, url: str) -> Backend:
        import shutil  # noqa: PLC0415 - rarely needed, like the next
        from tempfile import mkdtemp  # noqa: PLC0415

        path, _ = cls._split(url)
        cls(path, create=False, readonly=True).close()  # or there is none
        directory = mkdtemp(prefix="limpet-salvage-")
        try:
            copy = shutil.copytree(path, os.path.join(directory, "copy"), symlinks=True)
            salvaged = _Salvaged(copy)
            salvaged.repair()
        except BaseException:
            shutil.rmtree(directory)
            raise
        return salvaged

    def _close(self) -> None:
        for stripe in self._stripes:
            stripe.close()

    # -- fork --------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        for stripe in self._stripes:  # nobody may be holding a lock that the child would share
            stripe.lock.mutex.acquire()

    def after_fork_in_parent(self) -> None:
        for stripe in self._stripes:
            stripe.lock.mutex.release()

    def after_fork_in_child(self) -> None:
        for stripe in self._stripes:
            stripe.after_fork_in_child()


def _look(key: Key, paths: Paths, look: Callable[[JournalFile], T]) -> T | None:
    with opened(paths.journal) as file:
        if file is None:
            return None
        if file.header.key != key:
            raise misplaced(paths.journal, file.header.key)
        head, at = file.head, disk.now()
        if head.expires is not None and head.expires <= at:
            head = structs.replace(head, lease=read_lease(paths.lease))
            if decide.live(head, at) is None:
                return None
        return look(file)


class _Salvaged(FileBackend):
    """A repaired copy of a damaged store. It is gone when it is closed."""

    def _close(self) -> None:
        import shutil  # noqa: PLC0415 - rarely needed

        super()._close()
        shutil.rmtree(os.path.dirname(self.path))
