"""What can still be read of a damaged SQLite file, page by page.

SQLite finds rows by way of other pages, and stops at the first one that is damaged. Here every page
is looked at for itself: a page of rows says of each what it is, and a row of a journal or a record
is known by its shape. So one damaged page costs the rows that were in it, and no others. The log is
read first, as SQLite reads it. What is found goes into a new store in a directory of its own, from
which it is copied; the damaged file is only read.

The file format is at https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import apsw

from limpet.backends.contract import new_incarnation
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.backends.sqlite.database import MAGIC, check_path
from limpet.errors import NotAStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["salvaged"]

Row = tuple[Any, ...]

#: Kinds of pages: rows of a table, and of an index, with and without pages below them.
TABLE, INDEX = 0x0D, 0x0A
TABLE_ABOVE, INDEX_ABOVE = 0x05, 0x02

#: The name of a journal whose own is lost.
NAMELESS = ("default", "salvaged", "journal-{}")

_PAGE_SIZES = frozenset(1 << bits for bits in range(9, 17))
_WAL_MAGIC = 0x377F0682


class Salvaged(SqliteBackend):
    """What was read of a damaged store. Its directory is gone when it is closed."""

    def _close(self) -> None:
        super()._close()
        shutil.rmtree(os.path.dirname(self.path))


def salvaged(path: str) -> Salvaged:
    """A new store with what can be read of the one at *path*."""
    check_path(path)
    directory = tempfile.mkdtemp(prefix="limpet-salvage-")
    try:
        image = os.path.join(directory, "image")
        pages = Pages(path, image)
        try:
            new = os.path.join(directory, "salvaged.db")
            _fill(new, pages)
        finally:
            pages.close()
        os.remove(image)
        return Salvaged(new)
    except BaseException:
        shutil.rmtree(directory)
        raise


# -- pages -----------------------------------------------------------------------------------------


class Pages:
    """The pages of a database, as they are after the last commit in its log."""

    def __init__(self, path: str, image: str) -> None:
        # By SQLite's own means: closing a file of ours would give up the locks of connections.
        file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
        try:
            size = file.xFileSize()
            header = file.xRead(min(100, size), 0)
            log = b""
            with suppress(OSError), open(f"{path}-wal", "rb") as wal:
                log = wal.read()
            self.size = _page_size(header, log)
            self._image = os.open(image, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            for start in range(0, size, self.size):
                with suppress(apsw.Error):  # the disk does not give it: a page of zeros
                    page = file.xRead(min(self.size, size - start), start)
                    os.pwrite(self._image, page, start)
        finally:
            file.xClose()
        for number, page in _committed(log, self.size):
            os.pwrite(self._image, page, (number - 1) * self.size)
        self.count = -(-os.fstat(self._image).st_size // self.size)
        first = self.page(1)
        self._usable = self.size - (first[20] if first.startswith(MAGIC) else 0)
        self._free = set(self._find_free(first))

    def close(self) -> None:
        """Let go of it."""
        os.close(self._image)

    def page(self, number: int) -> bytes:
        """One of them; of one that is not there, zeros."""
        return os.pread(self._image, self.size, (number - 1) * self.size).ljust(self.size, b"\0")

    def _find_free(self, first: bytes) -> Iterator[int]:
        """The pages that hold nothing any more."""
        (trunk,) = struct.unpack_from(">I", first, 32)
        seen = set()
        while 1 < trunk <= self.count and trunk not in seen:
            seen.add(trunk)
            yield trunk
            page = self.page(trunk)
            trunk, leaves = struct.unpack_from(">II", page)
            if leaves <= self.size // 4 - 2:
                yield from struct.unpack_from(f">{leaves}I", page, 8)

    def rows(self) -> Iterator[tuple[int, Row]]:
        """The rows of all tables, each with its number, wherever they are."""
        for number in range(1, self.count + 1):
            if number not in self._free:
                yield from self._cells(number, TABLE)

    def tree(self, root: int) -> Iterator[Row | None]:
        """The rows of the index with that *root*; None for a page that cannot be read."""
        todo, seen = [root], set()
        while todo:
            number = todo.pop()
            page = self.page(number)
            if number in seen or page[0] not in (INDEX, INDEX_ABOVE):
                yield None
                continue
            seen.add(number)
            yield from (row for _, row in self._cells(number, page[0]))
            if page[0] == INDEX_ABOVE:
                count, right = struct.unpack_from(">H", page, 3)[0], page[8:12]
                starts = struct.unpack_from(f">{min(count, self.size // 2 - 6)}H", page, 12)
                below = [page[start : start + 4] for start in starts if start < self.size - 4]
                todo += [int.from_bytes(child) for child in (*below, right)]

    def _cells(self, number: int, kind: int) -> Iterator[tuple[int, Row]]:
        """The rows in one page, if it is of that *kind*; those of an index have no number."""
        page, at = self.page(number), 100 if number == 1 else 0
        if page[at] != kind:
            return
        (count,) = struct.unpack_from(">H", page, at + 3)
        begin = at + (12 if kind == INDEX_ABOVE else 8)
        for place in range(min(count, (self.size - begin) // 2)):
            (start,) = struct.unpack_from(">H", page, begin + 2 * place)
            try:
                found = self._cell(page, start + (4 if kind == INDEX_ABOVE else 0), kind)
            except _DAMAGE:
                continue
            yield found

    def _cell(self, page: bytes, at: int, kind: int) -> tuple[int, Row]:
        size, at = _varint(page, at)
        number = 0
        if kind == TABLE:
            number, at = _varint(page, at)
        usable = self._usable
        most = usable - 35 if kind == TABLE else (usable - 12) * 64 // 255 - 23
        here = size
        if size > most:
            least = (usable - 12) * 32 // 255 - 23
            here = least + (size - least) % (usable - 4)
            here = here if here <= most else least
        if at + here > usable or size > self.count * self.size:
            raise ValueError("it goes on behind the end")
        payload = bytearray(page[at : at + here])
        rest = int.from_bytes(page[at + here : at + here + 4]) if size > here else 0
        while len(payload) < size:
            if not 1 < rest <= self.count:
                raise ValueError("it goes on nowhere")
            more = self.page(rest)
            payload += more[4 : min(usable, 4 + size - len(payload))]
            rest = int.from_bytes(more[:4])
        return number, _row(bytes(payload))


#: What reading bytes comes to that are no row.
_DAMAGE = (ValueError, LookupError, struct.error)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for place in range(8):
        byte = data[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004 - the last
            return value, at + place + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >> 63 else value, at + 9


def _row(payload: bytes) -> Row:
    """The values of a record."""
    end, at = _varint(payload, 0)
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values: list[Any] = []
    at = end
    for kind in kinds:
        size = _SIZES[kind] if kind < len(_SIZES) else (kind - 12) // 2
        value = payload[at : at + size]
        if len(value) != size:
            raise ValueError("it is cut short")
        at += size
        if kind == 0:
            values.append(None)
        elif kind in (8, 9):
            values.append(kind - 8)
        elif kind < 7:  # noqa: PLR2004 - whole numbers
            values.append(int.from_bytes(value, signed=True))
        elif kind == 7:  # noqa: PLR2004 - a float, which we do not store
            values.append(struct.unpack(">d", value)[0])
        else:
            values.append(value.decode() if kind % 2 else value)
    if at != len(payload):
        raise ValueError("something is behind its end")
    return tuple(values)


_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)


def _page_size(header: bytes, log: bytes) -> int:
    """By the file, or if its beginning is damaged, by its log; else what nearly all have."""
    size = int.from_bytes(header[16:18])
    size = 1 << 16 if size == 1 else size
    if not (header.startswith(MAGIC) and size in _PAGE_SIZES):
        size = int.from_bytes(log[8:12])
    return size if size in _PAGE_SIZES else 4096


def _committed(log: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """The pages in a *log*, up to its last commit."""
    if len(log) < 32 or int.from_bytes(log[:4]) & ~1 != _WAL_MAGIC:  # noqa: PLR2004 - its header
        return
    order = ">" if log[3] & 1 else "<"
    salts, sums = log[16:24], _checksum(log[:24], (0, 0), order)
    pending: list[tuple[int, bytes]] = []
    for start in range(32, len(log) - size - 23, size + 24):
        head, page = log[start : start + 24], log[start + 24 : start + 24 + size]
        sums = _checksum(page, _checksum(head[:8], sums, order), order)
        if head[8:16] != salts or struct.unpack(">II", head[16:]) != sums:
            return
        pending.append((int.from_bytes(head[:4]), page))
        if int.from_bytes(head[4:8]):
            yield from pending
            pending = []


def _checksum(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two


# -- rows ------------------------------------------------------------------------------------------


def _fits(*kinds: tuple[type, ...]) -> Callable[[Row], bool]:
    def fits(row: Row) -> bool:
        return len(row) == len(kinds) and all(map(isinstance, row, kinds))

    return fits


_NONE = type(None)
_INT, _TEXT, _BLOB = (int,), (str,), (bytes,)
_MAYBE_INT, _MAYBE_TEXT, _MAYBE_BLOB = (int, _NONE), (str, _NONE), (bytes, _NONE)
_is_record = _fits((_NONE,), _INT, _INT, _INT, _INT, _INT, _MAYBE_TEXT, _BLOB)
_is_journal = _fits(
    *((_NONE,), _TEXT, _TEXT, _TEXT, _TEXT, _INT, _INT, _INT, _INT),
    *(_MAYBE_INT, _MAYBE_INT, _MAYBE_TEXT, _MAYBE_BLOB, _MAYBE_TEXT),
    *(_MAYBE_TEXT, _MAYBE_INT, _MAYBE_INT),
)
_is_note = _fits((_NONE,), _BLOB)  # a user's row may be of that shape; then it is no journal's
_is_schema = _fits(_TEXT, _TEXT, _TEXT, _INT, _MAYBE_TEXT)
_is_indexed = _fits(_INT, _INT, _INT)
_is_recent_note = _fits(_INT, _INT, _INT, _BLOB)
_is_named = _fits(_TEXT, _TEXT, _TEXT, _INT)


def _fill(new: str, pages: Pages) -> None:
    """Make a store at *new* of what is in *pages*."""
    SqliteBackend(new).close()
    connection = apsw.Connection(new)
    try:
        connection.execute("PRAGMA synchronous = OFF")  # it is gone when it was copied
        connection.execute("BEGIN")
        # Records come in any order here, and what is moved comes before what is not.
        connection.execute("DROP TRIGGER limpet_records_gathered")
        roots: dict[str, int] = {}
        for number, row in pages.rows():
            if _is_record(row):
                _add_record(connection, number, row)
            elif _is_journal(row) and row[4]:
                marks = ", ".join("?" * len(row))
                sql = f"INSERT OR IGNORE INTO limpet_journals VALUES ({marks})"  # noqa: S608 - marks
                connection.execute(sql, (number, *row[1:]))
            elif _is_note(row):
                connection.execute(
                    "INSERT OR IGNORE INTO limpet_notes VALUES (?, ?)", (number, row[1])
                )
            elif _is_schema(row):
                roots[row[1]] = row[3]
        if connection.execute("SELECT count(*) FROM limpet_records").get == 0:
            msg = "Nothing of a Limpet store can be read in this file. Nothing was changed."
            raise NotAStore(msg)
        ends, whole = _ends(pages, roots)
        _add_recent_notes(connection, pages, roots)
        _add_nameless(connection, pages, roots)
        _add_lost(connection, ends, whole=whole)
        connection.execute(
            "INSERT OR IGNORE INTO limpet_labels SELECT journal, key, value "
            "FROM limpet_journals, json_each(labels) WHERE labels IS NOT NULL"
        )
        connection.execute("COMMIT")
    finally:
        connection.close()


def _add_record(connection: apsw.Connection, number: int, row: Row) -> None:
    """Add a record, unless it is there, or cannot be one."""
    _, journal, seq, count, _at, _total, _id, _body = row
    if not (0 < count <= seq and journal > 0 and number > 0):
        return
    known = "SELECT 1 FROM limpet_index_recent WHERE journal = ? AND seq = ?"
    if connection.execute(known, (journal, seq)).get is None:
        sql = "INSERT OR IGNORE INTO limpet_records VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        connection.execute(sql, (number, *row[1:]))


def _add_recent_notes(connection: apsw.Connection, pages: Pages, roots: dict[str, int]) -> None:
    """Add the notes that lie in the small index."""
    root = roots.get("limpet_index_recent")
    for row in pages.tree(root) if root else ():
        if row is not None and _is_recent_note(row):
            sql = "INSERT OR REPLACE INTO limpet_notes VALUES (?, ?)"
            connection.execute(sql, (row[0], row[3]))


def _ends(pages: Pages, roots: dict[str, int]) -> tuple[dict[int, int], bool]:
    """The last number of each journal, by the index; and whether all of that can be read."""
    ends: dict[int, int] = {}
    whole = "limpet_index" in roots
    for name in ("limpet_index", "limpet_index_recent"):
        for row in pages.tree(roots[name]) if name in roots else ():
            if row is None:
                whole = False
            elif _is_indexed(row[:3]) and row[2]:
                ends[row[0]] = max(row[1], ends.get(row[0], 0))
    return ends, whole


def _add_nameless(connection: apsw.Connection, pages: Pages, roots: dict[str, int]) -> None:
    """Give the records of journals whose rows are lost a journal."""
    names: dict[int, Row] = {}
    root = roots.get("sqlite_autoindex_limpet_journals_1")
    for row in pages.tree(root) if root else ():
        if row is not None and _is_named(row):
            names[row[3]] = row[:3]
    sql = """
        SELECT journal, min(at), min(seq - count) FROM limpet_records
        WHERE journal NOT IN (SELECT journal FROM limpet_journals) GROUP BY journal
    """
    rows: list[Any] = connection.execute(sql).fetchall()
    for journal, at, before in rows:
        tenant, kind, id_ = names.get(journal) or NAMELESS
        connection.execute(
            "INSERT OR IGNORE INTO limpet_journals (journal, tenant, kind, id, incarnation, "
            "created, dropped_seq, dropped_at, dropped_total) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (journal, tenant, kind, id_.format(journal), new_incarnation(), at, before, at),
        )


def _add_lost(connection: apsw.Connection, ends: dict[int, int], *, whole: bool) -> None:
    """Let journals end where they ended: with something that nobody can read, and is so known."""
    sql = """
        SELECT j.journal, dropped_seq, max(seq), coalesce(max(at), dropped_at), max(total)
        FROM limpet_journals j LEFT JOIN limpet_records r USING (journal) GROUP BY j.journal
    """
    rows: list[Any] = connection.execute(sql).fetchall()
    for journal, dropped, known, at, total in rows:
        end = ends.get(journal, 0)
        if known is None and not (whole and dropped):
            end = max(end, dropped + 1)  # a journal has a record, unless it was compacted away
        last = dropped if known is None else known
        if end > last:
            connection.execute(
                "INSERT INTO limpet_records (journal, seq, count, at, total, body) "
                "VALUES (?, ?, ?, ?, ?, x'')",
                (journal, end, end - last, at, total or 0),
            )
