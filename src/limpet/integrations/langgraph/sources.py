"""The databases of LangGraph's own checkpointers, read thread by thread and never written.

`SqliteSaver` (and its async twin) and `PostgresSaver` (and the shallow one) each have a reader here
that knows their tables. Their packages need not be installed. A thread is read in one transaction,
so that it is whole although somebody goes on writing, and one checkpoint at a time.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import apsw
import ormsgpack
from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_DELTA_SNAPSHOT,
    EXT_NUMPY_ARRAY,
    JsonPlusSerializer,
)
from langgraph.checkpoint.serde.types import TASKS
from msgspec import Struct

from limpet.backends.sqlite.database import readonly_uri
from limpet.backends.sqlite.errors import translate
from limpet.backends.url import safe_url
from limpet.errors import (
    LimpetError,
    MissingExtra,
    NotImportable,
    StoreNotFound,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import ModuleType

    import psycopg

__all__ = [
    "Damaged",
    "NotAllowed",
    "Place",
    "Source",
    "Stored",
    "Thread",
    "Write",
    "open_source",
]


class Place(NamedTuple):
    """Where a checkpoint is in its thread. Places sort as their checkpoints were made."""

    id: str
    ns: str

    def __str__(self) -> str:
        return f"checkpoint {self.id}" + (f" of {self.ns}" if self.ns else "")


class Write(NamedTuple):
    """A pending write, in the order in which LangGraph applies them."""

    path: str
    task: str
    idx: int
    channel: str
    value: Any


class Stored(Struct):
    """A checkpoint as its saver gives it, with all that is stored of its writes."""

    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[Write]


class Damaged(LimpetError):
    """A row that cannot be read; the message names it."""


class NotAllowed(LimpetError):
    """Values of types that are not allowed (``names``), or are and cannot be made (``unmade``)."""

    def __init__(self, names: Iterable[str], unmade: Iterable[str] = ()) -> None:
        self.names = set(names)
        self.unmade = set(unmade)
        super().__init__(", ".join(sorted(self.names | self.unmade)))


# -- values ----------------------------------------------------------------------------------------


_OPTIONS = ormsgpack.OPT_NON_STR_KEYS

#: What no class is made as: then there is only what was to make the object.
_BUILTIN = frozenset({dict, list, tuple, str, int, float, bool, bytes, type(None)})

#: Bytes of stored objects that are held, about, to be had again.
MADE = 32 * 1024 * 1024

#: What is not read, and why.
_NOT_READ = {"pickle": "a pickle, which can run any code when it is read, and is not read here"}
_ENCRYPTED = "encrypted, and the import has no key"


class _Reader(JsonPlusSerializer):
    """LangGraph's serialiser, which notes what it did not make, and makes what is the same once.

    Where a class is not allowed, not there or does not take what was stored, LangGraph gives a dict
    or None in place of the object, also within another one. That is noted here.

    The messages of a list that grows are in every checkpoint; those that are the same object need
    neither be made nor looked at again.
    """

    def __init__(self, allowed: Iterable[tuple[str, ...]]) -> None:
        allowed = list(allowed)
        # Before it had MessagePack, LangGraph wrote JSON, in which a type is named otherwise.
        json_names = [(*module.split("."), name) for module, name in allowed]
        super().__init__(
            allowed_msgpack_modules=allowed or None, allowed_json_modules=json_names or None
        )
        self.blocked: set[str] = set()
        self.unmade: set[str] = set()
        self.forget()
        make = self._unpack_ext_hook

        def hook(code: int, data: bytes) -> Any:
            if (code, data) in self._made:
                return self._made[code, data]
            made = make(code, data)
            if not self.blocked:
                self.unmade |= self._unmade(code, data, made)
            if not self.blocked and not self.unmade:
                self._size += len(data)
                if self._size > MADE:
                    self.forget()
                self._made[code, data] = made
            return made

        self._unpack_ext_hook = hook

    def _unmade(self, code: int, data: bytes, made: Any) -> set[str]:
        """What is stored and is not in what was *made* of it."""
        stored = _classes(ormsgpack.packb(ormsgpack.Ext(code, data)))
        if made.__class__ in _BUILTIN:
            return set(stored) or {"numpy:ndarray"}
        # Of LangGraph's own and LangChain's, some are rightly left out by a newer version.
        own = stored.keys() - {":".join(pair) for pair in SAFE_MSGPACK_TYPES}
        if not own:
            return set()
        again = _classes(self.dumps_typed(made)[1])
        # By their number: a class may have another name by now.
        gone = {name for name in own if again[name] < stored[name]}
        return gone if again.total() < stored.total() else set()

    def forget(self) -> None:
        """Let go of the objects."""
        self._made: dict[tuple[int, bytes], Any] = {}
        self._size = 0


class Values:
    """Stored values, by LangGraph's serialiser: only what is *allowed* becomes an object."""

    def __init__(self, allowed: Iterable[tuple[str, ...]] = ()) -> None:
        self.allowed = list(allowed)
        self.serde = _Reader(self.allowed)

    def load(self, kind: str | None, data: bytes | str | None, what: str) -> Any:
        """The value of a row's two columns; *what* it is, for the error if it is none."""
        if kind is None or (data is None and kind != "null"):
            raise Damaged(f"{what} {'has no type' if kind is None else 'is NULL'}.")
        if kind == "pickle" or "+" in kind:
            raise Damaged(f"{what} is {_NOT_READ.get(kind, _ENCRYPTED)}.")
        data = data.encode() if isinstance(data, str) else data or b""
        value, serde = None, self.serde
        serde.blocked.clear()
        serde.unmade.clear()
        stop = register_serde_event_listener(
            lambda event: serde.blocked.add(f"{event['module']}:{event['name']}")
        )
        try:
            value = serde.loads_typed((kind, data))
        except Exception as error:
            if not serde.blocked:
                why = f"{type(error).__name__}: {error}"
                raise Damaged(f"{what} cannot be decoded ({why}).") from error
        finally:
            stop()
        if kind == "json":
            serde.blocked.update(_constructors(value))
        if serde.blocked or serde.unmade:
            raise NotAllowed(serde.blocked, serde.unmade)
        return value

    def canonical(self, value: Any) -> tuple[str, bytes]:
        """*value* as the serialiser writes it, and the same for sets of another order."""
        kind, data = self.serde.dumps_typed(value)
        if kind == "msgpack" and b"builtins" in data:
            # A set may be a key's part, which cannot be packed like this: then its order counts.
            with suppress(ormsgpack.MsgpackEncodeError):
                data = ormsgpack.packb(_sorted_sets(data), option=_OPTIONS)
        return kind, bytes(data)


def _sorted_sets(data: bytes) -> Any:
    """What MessagePack says, with its extensions as they are, but sets in order."""

    def hook(code: int, inner: bytes) -> Any:
        found = _sorted_sets(inner)
        if code == EXT_CONSTRUCTOR_SINGLE_ARG and found[0] == "builtins":
            found[2] = sorted(found[2], key=lambda item: ormsgpack.packb(item, option=_OPTIONS))
        return ormsgpack.Ext(code, ormsgpack.packb(found, option=_OPTIONS))

    return ormsgpack.unpackb(data, ext_hook=hook, option=_OPTIONS)


def _classes(data: bytes) -> Counter[str]:
    """How often MessagePack names each class."""
    names: Counter[str] = Counter()

    def hook(code: int, inner: bytes) -> int:
        found = ormsgpack.unpackb(inner, ext_hook=hook, option=_OPTIONS)
        if code not in (EXT_NUMPY_ARRAY, EXT_DELTA_SNAPSHOT):
            names[f"{found[0]}:{found[1]}"] += 1
        return 0  # which may be a key

    ormsgpack.unpackb(data, ext_hook=hook, option=_OPTIONS)
    return names


def _constructors(value: Any) -> Iterator[str]:
    """The types that old JSON names and that were not made."""
    if isinstance(value, list):
        for item in value:
            yield from _constructors(item)
    elif isinstance(value, dict):
        if value.get("lc") == 2 and isinstance(value.get("id"), list):  # noqa: PLR2004 - its format
            *module, name = value["id"]
            yield f"{'.'.join(module)}:{name}"
        for item in value.values():
            yield from _constructors(item)


# -- what every source has -------------------------------------------------------------------------


class Thread(ABC):
    """One thread of a source, as it was when its reading began."""

    def __init__(self, id_: str, values: Values) -> None:
        self.id = id_
        self.values = values

    @abstractmethod
    def places(self) -> Iterator[Place]:
        """Its checkpoints, in the order in which they were made."""

    @abstractmethod
    def newest_places(self) -> list[Place]:
        """The newest checkpoint of each namespace."""

    @abstractmethod
    def counts(self) -> tuple[int, int, str]:
        """How many checkpoints and writes it has, and the id of the newest checkpoint."""

    @abstractmethod
    def read(self, place: Place) -> Stored:
        """A checkpoint. `Damaged` or `NotAllowed` if it cannot be had."""

    def _writes(self, rows: Iterable[Any], place: Place) -> list[Write]:
        """The writes of a checkpoint: path, task, index, channel, type and value of each."""
        found = [
            Write(
                path,
                task,
                idx,
                channel,
                self.values.load(kind, value, f"Write {idx} of task {task} on {place}"),
            )
            for path, task, idx, channel, kind, value in rows
        ]
        return sorted(found, key=lambda write: writes_sort_key(write.path, write.task, write.idx))

    def kept(self) -> list[Place]:
        """What to import where only the newest is wanted.

        That is the newest checkpoint of the thread and of the subgraphs it has called: not of those
        that earlier checkpoints called, which are over. What a `DeltaChannel` is rebuilt from
        belongs to it.
        """
        heads = {place.ns: place for place in self.newest_places()}
        root = heads.get("")
        found = set(heads.values())
        known = {place for place in self.places() if not place.ns}
        for ns, place in heads.items():
            if ":" not in ns or root is None:  # others outlive a call
                continue
            try:
                caller = self.read(place).metadata.get("parents", {}).get("")
            except (Damaged, NotAllowed):
                continue  # it is named when it is to be imported
            if caller != root.id and Place(caller or "", "") in known:
                found.discard(place)
        for place in list(found):
            found |= self._needed(place)
        return sorted(found)

    def _needed(self, place: Place) -> set[Place]:
        """The ancestors that a checkpoint's delta channels are rebuilt from."""
        found: set[Place] = set()
        try:
            stored = self.read(place)
            channels = set(stored.metadata.get("counters_since_delta_snapshot", ()))
            channels &= stored.checkpoint["channel_versions"].keys()
            channels -= stored.checkpoint["channel_values"].keys()
            while channels and stored.parent:
                before = Place(stored.parent, place.ns)
                if before in found:
                    break
                stored = self.read(before)
                found.add(before)
                channels -= stored.checkpoint["channel_values"].keys()
        except (Damaged, NotAllowed, LookupError):
            pass  # it is named when it is to be imported
        return found


class Source(ABC):
    """A database of checkpoints. *url* is as it may be shown."""

    def __init__(self, url: str, values: Values) -> None:
        self.url = url
        self.values = values

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    @abstractmethod
    def size(self) -> int:
        """How many bytes it takes: its file, or its tables with their indexes."""

    @abstractmethod
    def total(self) -> tuple[int, int]:
        """How many threads and checkpoints there are."""

    @abstractmethod
    def threads(self) -> Iterator[str]:
        """The ids of its threads, in order."""

    @abstractmethod
    def thread(self, id_: str) -> AbstractContextManager[Thread]:
        """One thread, in a transaction."""


def open_source(name: str, allowed: Iterable[tuple[str, ...]] = ()) -> Source:
    """The database *name*: a file of SqliteSaver's, or the URL of PostgresSaver's."""
    values = Values(allowed)
    scheme, colon, rest = name.partition(":")
    if colon and scheme in ("postgresql", "postgres"):
        return PostgresSource(name, values)
    if colon and scheme == "sqlite":
        name = rest.removeprefix("//")
    if not name:
        raise NotImportable(
            "Name the database: langgraph:checkpoints.sqlite, or "
            "langgraph:postgresql://user@host/database."
        )
    return SqliteSource(name, values)


def _metadata(data: Any, place: Place) -> dict[str, Any]:
    if data is None:
        return {}
    try:
        found = json.loads(data)
    except ValueError as error:
        raise Damaged(f"The metadata of {place} is not JSON ({error}).") from error
    if not isinstance(found, dict):
        raise Damaged(f"The metadata of {place} is not an object.")
    return _kept_metadata(found)


def _kept_metadata(found: dict[str, Any]) -> dict[str, Any]:
    """What is kept of metadata: old versions of LangGraph put all writes of a step there too."""
    found.pop("writes", None)
    return found


def _checked(checkpoint: Any, place: Place) -> dict[str, Any]:
    """*checkpoint*, if it is one."""
    if isinstance(checkpoint, dict) and checkpoint.get("id") == place.id:
        values, versions, seen = (
            checkpoint.get(key) for key in ("channel_values", "channel_versions", "versions_seen")
        )
        if (
            {"v", "ts"} <= checkpoint.keys()
            and isinstance(values, dict)
            and isinstance(seen, dict)
            and all(_are_versions(one) for one in (versions, *seen.values()))
        ):
            return checkpoint
    raise Damaged(f"What is stored as {place} is not that checkpoint.")


def _are_versions(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(name, str) and isinstance(version, (str, int, float))
        for name, version in found.items()
    )


# -- SqliteSaver -----------------------------------------------------------------------------------


class SqliteSource(Source):
    """A file that SqliteSaver or AsyncSqliteSaver has written."""

    def __init__(self, path: str, values: Values) -> None:
        super().__init__(path, values)
        self.path = os.path.abspath(os.path.expanduser(path))
        if not os.path.isfile(self.path):
            raise StoreNotFound(f"There is no file {path}.")
        with self.translated():
            self.connection = apsw.Connection(
                readonly_uri(self.path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            )
            self.connection.set_busy_timeout(30_000)
        columns = {row[1] for row in self.rows("PRAGMA table_info(checkpoints)")}
        #: Of its table of writes, which the first versions had not.
        self.columns = {row[1] for row in self.rows("PRAGMA table_info(writes)")}
        if not columns >= {"thread_id", "checkpoint_ns", "checkpoint_id", "type", "checkpoint"}:
            self.close()
            raise NotImportable(
                f"{path} has no table of checkpoints that LangGraph's SqliteSaver has written."
            )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except UnicodeDecodeError as error:
            raise Damaged(f"It has text that is no text ({error.reason}).") from error
        except apsw.Error as error:
            raise translate(error, self.path) from error

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """All rows of a query."""
        with self.translated():
            return self.connection.execute(query, values).fetchall()

    def close(self) -> None:
        self.connection.close()

    def size(self) -> int:
        names = (self.path, f"{self.path}-wal")
        return sum(os.path.getsize(name) for name in names if os.path.exists(name))

    def total(self) -> tuple[int, int]:
        query = "SELECT count(DISTINCT thread_id), count(*) FROM checkpoints"
        ((threads, checkpoints),) = self.rows(query)
        return threads, checkpoints

    def threads(self) -> Iterator[str]:
        # One after the other: no transaction stays open between them.
        query = "SELECT min(thread_id) FROM checkpoints"
        ((id_,),) = self.rows(query)
        while id_ is not None:
            yield id_
            ((id_,),) = self.rows(f"{query} WHERE thread_id > ?", (id_,))

    @contextmanager
    def thread(self, id_: str) -> Iterator[Thread]:
        with self.translated():
            self.connection.execute("BEGIN")
        try:
            yield _SqliteThread(id_, self.values, self)
        finally:
            with self.translated():
                self.connection.execute("ROLLBACK")


class _SqliteThread(Thread):
    def __init__(self, id_: str, values: Values, source: SqliteSource) -> None:
        super().__init__(id_, values)
        self._source = source

    def places(self) -> Iterator[Place]:
        with self._source.translated():
            found: Any = self._source.connection.execute(
                "SELECT checkpoint_id, checkpoint_ns FROM checkpoints WHERE thread_id = ? "
                "ORDER BY checkpoint_id, checkpoint_ns",
                (self.id,),
            )
            for row in found:
                yield Place(*row)

    def newest_places(self) -> list[Place]:
        rows = self._source.rows(
            "SELECT max(checkpoint_id), checkpoint_ns FROM checkpoints WHERE thread_id = ? "
            "GROUP BY checkpoint_ns",
            (self.id,),
        )
        return [Place(*row) for row in rows]

    def counts(self) -> tuple[int, int, str]:
        ((checkpoints, newest),) = self._source.rows(
            "SELECT count(*), max(checkpoint_id) FROM checkpoints WHERE thread_id = ?", (self.id,)
        )
        writes = 0
        if self._source.columns:
            query = "SELECT count(*) FROM writes WHERE thread_id = ?"
            ((writes,),) = self._source.rows(query, (self.id,))
        return checkpoints, writes, newest or ""

    def read(self, place: Place) -> Stored:
        key = (self.id, place.ns, place.id)
        ((parent, kind, data, metadata),) = self._source.rows(
            "SELECT parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            key,
        )
        rows: list[Any] = []
        if self._source.columns:
            path = "task_path" if "task_path" in self._source.columns else "''"
            rows = self._source.rows(
                f"SELECT {path}, task_id, idx, channel, type, value FROM writes "  # noqa: S608 - as above
                "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
                key,
            )
        checkpoint = self.values.load(kind, data, f"The row of {place}")
        return Stored(
            parent or None,
            _checked(checkpoint, place),
            _metadata(metadata, place),
            self._writes(rows, place),
        )


# -- PostgresSaver ---------------------------------------------------------------------------------


def _driver() -> ModuleType:
    try:
        import psycopg  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra.of(
            "Importing from PostgreSQL", "psycopg", "postgres", "'psycopg[binary]'"
        ) from error
    return psycopg


class PostgresSource(Source):
    """The tables of PostgresSaver, AsyncPostgresSaver or their shallow kind."""

    def __init__(self, url: str, values: Values) -> None:
        super().__init__(safe_url(url), values)
        self._psycopg = _driver()
        with self.translated():
            self._connection: psycopg.Connection[Any] = self._psycopg.connect(url)
        self._connection.read_only = True
        self._connection.isolation_level = self._psycopg.IsolationLevel.REPEATABLE_READ
        with self.translated(), self._connection.transaction():
            self._columns: Mapping[str, set[str]] = {
                table: {
                    name
                    for (name,) in self._connection.execute(
                        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) "
                        "AND attnum > 0 AND NOT attisdropped",
                        (table,),
                    )
                }
                for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
            }
        if not all({"thread_id", "checkpoint_ns"} <= found for found in self._columns.values()):
            self.close()
            raise NotImportable(
                f"{self.url} has no tables of LangGraph's PostgresSaver (checkpoints, "
                "checkpoint_blobs, checkpoint_writes). If they are in a schema, add it: "
                "?options=-csearch_path%3DNAME"
            )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the driver's errors into ours."""
        try:
            yield
        except self._psycopg.Error as error:
            text = str(error).strip() or type(error).__name__
            raise StoreUnavailable(f"{self.url} cannot be read: {text}") from error

    def close(self) -> None:
        self._connection.close()

    def _one(self, query: str, values: Iterable[Any] = ()) -> tuple[Any, ...]:
        with self.translated(), self._connection.transaction():
            found = self._connection.execute(query, tuple(values)).fetchone()
        return tuple(found or ())

    def size(self) -> int:
        tables = ", ".join(f"('{name}')" for name in self._columns)
        query = f"SELECT sum(pg_total_relation_size(name::regclass)) FROM (VALUES {tables}) t(name)"  # noqa: S608
        return int(self._one(query)[0])

    def total(self) -> tuple[int, int]:
        return self._one("SELECT count(DISTINCT thread_id), count(*) FROM checkpoints")

    def threads(self) -> Iterator[str]:
        # One after the other: no transaction stays open between them.
        query = "SELECT min(thread_id) FROM checkpoints"
        (id_,) = self._one(query)
        while id_ is not None:
            yield id_
            (id_,) = self._one(f"{query} WHERE thread_id > %s", (id_,))

    @contextmanager
    def thread(self, id_: str) -> Iterator[Thread]:
        with self.translated(), self._connection.transaction():
            yield _PostgresThread(id_, self.values, self, self._connection, self._columns)


class _PostgresThread(Thread):
    def __init__(
        self,
        id_: str,
        values: Values,
        source: PostgresSource,
        connection: psycopg.Connection[Any],
        columns: Mapping[str, set[str]],
    ) -> None:
        super().__init__(id_, values)
        self._source = source
        self._connection = connection
        # The shallow saver has one checkpoint of a namespace, which says its own id.
        self._shallow = "checkpoint_id" not in columns["checkpoints"]
        self._id = "checkpoint->>'id'" if self._shallow else "checkpoint_id"
        self._path = "task_path" if "task_path" in columns["checkpoint_writes"] else "''"

    def _all(self, query: str, *values: Any) -> list[Any]:
        with self._source.translated():
            return self._connection.execute(query, values).fetchall()

    def places(self) -> Iterator[Place]:
        with self._source.translated(), self._connection.cursor("places") as cursor:
            cursor.execute(
                f'SELECT {self._id} COLLATE "C" AS id, checkpoint_ns COLLATE "C" AS ns '  # noqa: S608
                "FROM checkpoints WHERE thread_id = %s ORDER BY id, ns",
                (self.id,),
            )
            for row in cursor:
                yield Place(*row)

    def newest_places(self) -> list[Place]:
        return [
            Place(*row)
            for row in self._all(
                f'SELECT max({self._id} COLLATE "C"), checkpoint_ns FROM checkpoints '  # noqa: S608
                "WHERE thread_id = %s GROUP BY checkpoint_ns",
                self.id,
            )
        ]

    def counts(self) -> tuple[int, int, str]:
        ((checkpoints, newest),) = self._all(
            f'SELECT count(*), max({self._id} COLLATE "C") FROM checkpoints WHERE thread_id = %s',  # noqa: S608
            self.id,
        )
        ((writes,),) = self._all(
            "SELECT count(*) FROM checkpoint_writes WHERE thread_id = %s", self.id
        )
        return checkpoints, writes, newest or ""

    def read(self, place: Place) -> Stored:
        key = (self.id, place.ns, place.id)
        parent = "NULL" if self._shallow else "parent_checkpoint_id"
        ((parent, checkpoint, metadata),) = self._all(
            f"SELECT {parent}, checkpoint, metadata FROM checkpoints "  # noqa: S608
            f"WHERE thread_id = %s AND checkpoint_ns = %s AND {self._id} = %s",
            *key,
        )
        checkpoint.setdefault("channel_values", {})
        checkpoint = _checked(checkpoint, place)
        versions = checkpoint["channel_versions"]
        same = "" if self._shallow else " AND b.version = v.version"
        blobs = self._all(
            "SELECT b.channel, b.type, b.blob FROM checkpoint_blobs b "  # noqa: S608
            "JOIN unnest(%s::text[], %s::text[]) AS v(channel, version) ON b.channel = v.channel"
            f"{same} WHERE b.thread_id = %s AND b.checkpoint_ns = %s",
            list(versions),
            [str(version) for version in versions.values()],
            self.id,
            place.ns,
        )
        for channel, kind, blob in blobs:
            if kind != "empty":
                what = f"Channel {channel!r} of {place}"
                checkpoint["channel_values"][channel] = self.values.load(kind, blob, what)
        writes = self._all(
            f"SELECT {self._path}, task_id, idx, channel, type, blob FROM checkpoint_writes "  # noqa: S608
            "WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
            *key,
        )
        if self._shallow or (checkpoint.get("v", 0) < 4 and parent):  # noqa: PLR2004 - since then a channel
            self._add_sends(checkpoint, parent, place)
        return Stored(
            parent or None, checkpoint, _kept_metadata(metadata or {}), self._writes(writes, place)
        )

    def _add_sends(self, checkpoint: dict[str, Any], parent: str | None, place: Place) -> None:
        """What an old checkpoint was to send next, as the saver puts it in when it is read."""
        where, of = "checkpoint_ns = %s", place.ns
        if not self._shallow:
            where, of = "checkpoint_id = %s", parent or ""
        rows = self._all(
            "SELECT type, blob FROM checkpoint_writes "  # noqa: S608
            f"WHERE thread_id = %s AND {where} AND channel = '{TASKS}' "
            f"ORDER BY {self._path}, task_id, idx",
            self.id,
            of,
        )
        sends = [self.values.load(kind, blob, f"A task of {place}") for kind, blob in rows]
        if self._shallow:
            checkpoint["pending_sends"] = sends
        elif sends:
            checkpoint["channel_values"][TASKS] = sends
            versions = checkpoint["channel_versions"]
            versions[TASKS] = max(versions.values(), default=f"{1:032}.{0:016}")
