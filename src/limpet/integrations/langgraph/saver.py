"""A checkpointer of LangGraph's whose threads are journals in a store."""

from __future__ import annotations

import copy
import os
import random
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Self

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import maybe_add_typed_methods

from limpet.backends.contract import UNSET, Expect, UnsetType
from limpet.core.ids import check_seconds, check_ttl, written_out
from limpet.core.runtime import run_to_end
from limpet.errors import Conflict, NotDurable, StoreBusy, StoreClosed
from limpet.integrations.langgraph.effects import Effects, copy_effects
from limpet.integrations.langgraph.exclusive import RUNTIME, Exclusively, RunLeases
from limpet.integrations.langgraph.thread import (
    DROPPED,
    EFFECTS,
    INTERRUPTED,
    KIND,
    NONE,
    WRITTEN_OUT,
    Draft,
    Node,
    ThreadLog,
)
from limpet.integrations.langgraph.values import StrictSerializer, Values
from limpet.store import AsyncStore, Store, as_async, open_async

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from types import TracebackType

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        DeltaChannelHistory,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal
    from limpet.core.leases import LeaseLock
    from limpet.core.scope import Scope

__all__ = ["KIND", "LimpetSaver"]

#: Bytes of threads that are held in memory, about; the one in use always is.
HELD = 64 * 1024 * 1024

#: Namespaces of a thread that are known to have checkpoints.
HELD_NAMESPACES = 10_000

#: Seconds for which a checkpoint may be on its way to the store; and between two looks for it.
PATIENCE = 60.0
LOOK_AGAIN = 0.001

#: Entries to an append, where a thread is written anew.
BATCH = 500

#: Bytes from which on an entry is compressed, where that saves something: most have one message.
COMPRESS_OVER = 256

#: Where a checkpoint is: its id, the journal's, the namespace, and what LangGraph calls the thread.
Place = tuple[str, str, str, Any]
Places = list[Place]


class Addressed(str):
    """A checkpoint's id as we give it to one who asked for that checkpoint, and not the newest.

    LangGraph hands it back with what is put upon it. It is how a branch that is meant (time travel)
    is told from one that would be made because two wrote at the same time.
    """

    __slots__ = ()
    __hash__ = str.__hash__

    # As plain text, which leaves it to other kinds of text to say what they are equal to.
    def __eq__(self, other: object) -> bool:
        return str(self) == other

    def __ne__(self, other: object) -> bool:
        return str(self) != other


class _Thread:
    """A thread that is known: its log, and who may change it."""

    def __init__(self, log: ThreadLog, scope: Scope) -> None:
        self.log = log
        #: For what is done with the log, and not for anything that waits.
        self.mutex = threading.RLock()
        within = "A checkpoint written within the writing of another one."
        # One for each runtime: where both write, the store says who was first.
        self.sync_lock = scope.as_sync().runtime.lock(within)
        self.async_lock = scope.as_async().runtime.lock(within)
        #: Checkpoints that were there, and were not any more when the journal was read anew.
        self.lost: set[tuple[str, str | None]] = set()
        #: The namespaces of which somebody here was told that there is no checkpoint.
        self.told_empty: set[str] = set()
        #: The namespaces of graphs that were begun with this saver, the newest last.
        self.begun: dict[str, None] = {}
        #: The newest checkpoint of a namespace that could not be stored, and why.
        self.broken: dict[str, tuple[str, BaseException]] = {}

    def forget(self, incarnation: str | None = None) -> ThreadLog:
        """What is known of it is gone; the new log is that of the journal *incarnation*."""
        with self.mutex:
            self.lost |= {(node.ns, node.id) for node in self.log.all_nodes()}
            log = ThreadLog(self.log.values)
            log.thread, log.incarnation = self.log.thread, incarnation
            self.log = log
        return log

    def begin(self, ns: str) -> None:
        """A graph of the namespace *ns* begins to run."""
        with self.mutex:
            self.broken.pop(ns, None)
            self.begun.pop(ns, None)
            self.begun[ns] = None
            if len(self.begun) > HELD_NAMESPACES:
                del self.begun[next(iter(self.begun))]


class LimpetSaver(BaseCheckpointSaver[Any]):
    """A checkpointer of LangGraph's: sync and async, on every backend.

    *store*: an open store, or its URL, which `close` closes. *allow*: types of yours that may be
    made from what is stored, beside LangGraph's and LangChain's own. *serde*: another serialiser
    than LangGraph's strict one. *forks*: with "refuse", a checkpoint whose parent has another child
    is a `Conflict`, unless its writer asked for that parent by its id, as time travel does; with
    "allow" it never is. *exclusive*: one run of a thread at a time; it has a lease of *lease*
    seconds, which renews itself, and another run is refused with `LeaseHeld`, as is what would
    change the thread meanwhile. *ttl*: seconds after its last checkpoint at which a thread expires.

    It may be used from several threads, event loops and processes at once.
    """

    def __init__(
        self,
        store: AsyncStore | Store | str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        allow: Iterable[type | tuple[str, ...]] = (),
        forks: str = "refuse",
        exclusive: bool = False,
        lease: float = 60,
        ttl: float | UnsetType | None = UNSET,
    ) -> None:
        if forks not in ("refuse", "allow"):
            raise ValueError(f"forks is 'refuse' or 'allow', not {forks!r}.")
        super().__init__(serde=serde or StrictSerializer(allow))
        self._own = open_async(store) if isinstance(store, (str, os.PathLike)) else None
        self._scope = (self._own or as_async(store)).scope
        self._forks = forks
        self._ttl = check_ttl(ttl)
        self._leases = RunLeases(check_seconds(lease, "lease"), always=exclusive)
        #: What nodes and tools do to the world.
        self.effects = Effects()
        self._values = Values(self.serde, self._scope.redacted)
        self._threads: OrderedDict[str, _Thread] = OrderedDict()
        self._mutex = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._scope.backend.url!r})"

    # -- what LangGraph calls ----------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that *config* names, or the newest of its thread; None without one."""
        return run_to_end(self._get_tuple(self._sync, config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The same."""
        return await self._get_tuple(self._scope, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints of a thread, or of all, newest first.

        *filter*: metadata that they must have. *before*: only those before that one.
        """
        found = run_to_end(self._places(self._sync, config, before))
        while found and limit != 0:
            tuple_ = run_to_end(self._next(self._sync, found, filter))
            if tuple_ is not None:
                limit = None if limit is None else limit - 1
                yield tuple_

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The same."""
        found = await self._places(self._scope, config, before)
        while found and limit != 0:
            tuple_ = await self._next(self._scope, found, filter)
            if tuple_ is not None:
                limit = None if limit is None else limit - 1
                yield tuple_

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, durably; `Conflict`, if it were a branch that nobody asked for."""
        return run_to_end(self._put(self._sync, config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """The same."""
        return await self._put(self._scope, config, checkpoint, metadata, new_versions)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written upon a checkpoint, durably."""
        run_to_end(self._put_writes(self._sync, config, writes, task_id, task_path))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """The same."""
        await self._put_writes(self._scope, config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all that is in it."""
        run_to_end(self._delete(self._sync, thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """The same."""
        await self._delete(self._scope, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs have made, and what was written upon them."""
        run_to_end(self._delete_for_runs(self._sync, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """The same."""
        await self._delete_for_runs(self._scope, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread, and what was written upon them, to another one."""
        run_to_end(self._copy_thread(self._sync, source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """The same."""
        await self._copy_thread(self._scope, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete of each thread all but the newest checkpoints, or with "delete" all.

        One of each namespace stays; and where its channels are read from earlier ones
        (`DeltaChannel`), those too.
        """
        run_to_end(self._prune(self._sync, thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """The same."""
        await self._prune(self._scope, thread_ids, strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What was written to each of *channels* on the line of a checkpoint, oldest first.

        Back to the nearest checkpoint that has the channel's value, which is the ``seed``.
        """
        return run_to_end(self._delta_history(self._sync, config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The same."""
        return await self._delta_history(self._scope, config, channels)

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002 - LangGraph's
        """The version after *current*, in the manner of *current*.

        Numbers; text only where a thread was begun by another checkpointer, which has text.
        """
        if current is None:
            return 1
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{random.random():016}"  # noqa: S311
        return current + 1

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """The same checkpointer, with more types that may be made from what is stored."""
        if not hasattr(self.serde, "with_msgpack_allowlist"):
            return self
        serde = self.serde.with_msgpack_allowlist(extra_allowlist)
        if serde is self.serde:
            return self
        twin = copy.copy(self)
        twin.serde = maybe_add_typed_methods(serde)
        twin._values = Values(twin.serde, twin._scope.redacted)  # noqa: SLF001 - its own kind
        twin._threads = OrderedDict()  # noqa: SLF001 - what is known of threads has the old values
        twin._mutex = threading.Lock()  # noqa: SLF001
        return twin

    # -- the rest of its life ----------------------------------------------------------------------

    def setup(self) -> None:
        """Nothing: there is nothing to set up. Other checkpointers have it."""

    def close(self) -> None:
        """Close the store, if the saver has opened it. A second call does nothing."""
        if self._own is not None:
            self._scope.store.close()

    def __enter__(self) -> Self:
        """The saver itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    async def __aenter__(self) -> Self:
        """The saver itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        if self._own is not None:
            await self._own.close()

    # -- threads -----------------------------------------------------------------------------------

    @property
    def _sync(self) -> Scope:
        return self._scope.as_sync()

    def _journal(self, scope: Scope, thread_id: Any) -> AsyncJournal:
        if scope.backend.closed:
            msg = f"The store {scope.backend.url} is closed. Open it again, with another saver."
            raise StoreClosed(msg)
        # No redactor: the values are redacted one by one, so that what is equal is stored once.
        return scope.journal(KIND, self.journal_id(thread_id), ttl=self._ttl, redactor=None)

    async def _thread(self, journal: AsyncJournal, name: Any = None) -> _Thread:
        """A thread, as far as it is known; *name* is what LangGraph calls it."""
        id_ = journal.key.id
        with self._mutex:
            thread = self._threads.get(id_)
            if thread is None:
                held = sum(one.log.size for one in self._threads.values())
                while held > HELD:
                    _, gone = self._threads.popitem(last=False)
                    held -= gone.log.size
                thread = self._threads[id_] = _Thread(ThreadLog(self._values), self._scope)
            self._threads.move_to_end(id_)
            if name is not None and str(name) != id_:
                thread.log.thread = str(name)
        return thread

    async def _caught_up(self, journal: AsyncJournal) -> _Thread:
        """A thread, with all that is in its journal now."""
        thread = await self._thread(journal)
        await self._catch_up(journal, thread)
        return thread

    async def _catch_up(self, journal: AsyncJournal, thread: _Thread) -> None:
        """Read what is new in a thread's journal; or all of it, if it is another one by now."""
        while True:
            log, known = thread.log, thread.log.place
            head = await journal.head()
            with thread.mutex:
                if thread.log is log and log.is_before(head):
                    break
                if thread.log is log and log.place == known:
                    # Deleted, begun anew, or gone back: no other caller has read or written since.
                    log = thread.forget(None if head is None else head.incarnation)
                    break
        if head is None or head.seq == log.seq:
            return
        async for page in journal.pages(after=log.seq):
            with thread.mutex:
                for entry in page:
                    if log.seq < entry.seq:  # another caller may have read it meanwhile
                        journal.understand(entry, log.take)

    async def _write(
        self,
        scope: Scope,
        journal: AsyncJournal,
        thread: _Thread,
        make: Callable[[ThreadLog], Draft | None],
        conf: Mapping[str, Any],
    ) -> None:
        """Append what *make* makes of the thread; anew, if somebody else was first."""
        lock = thread.sync_lock if scope.is_sync else thread.async_lock
        await lock.run(self._write_alone, scope, journal, thread, make, conf)

    async def _write_alone(
        self,
        scope: Scope,
        journal: AsyncJournal,
        thread: _Thread,
        make: Callable[[ThreadLog], Draft | None],
        conf: Mapping[str, Any],
    ) -> None:
        async with self._leases.writing(scope, KIND, journal.key.id, conf) as lock:
            await self._append(journal, thread, make, lock)

    async def _append(
        self,
        journal: AsyncJournal,
        thread: _Thread,
        make: Callable[[ThreadLog], Draft | None],
        lock: LeaseLock | None,
    ) -> None:
        if thread.log.incarnation is None:
            await self._catch_up(journal, thread)
        while True:
            with thread.mutex:
                log = thread.log
                expect = Expect(log.incarnation, log.seq)
                draft = make(log)
            if draft is None:
                return
            try:
                pairs = [(draft.kind, draft.body)]
                body = journal.encode(pairs, COMPRESS_OVER)
                lease = None if lock is None else lock.lease
                done = await journal.write(
                    pairs, expect=expect, body=body, status=draft.status, lease=lease
                )
            except Conflict:
                await self._catch_up(journal, thread)
                continue
            with thread.mutex:
                if log.seq == expect.seq:
                    log.incarnation = done.incarnation
                    log.took(done.seq, draft)
            return

    def exclusively(self, thread_id: Any) -> Exclusively:
        """A block in which runs of a thread, and other changes of it, are of this block alone.

        Entered with ``with`` or ``async with``: it holds the thread's lease, and `LeaseHeld` says
        who has it, if another block does, or a run of a saver that is ``exclusive``.
        """
        return Exclusively(self._leases, self._scope, KIND, self.journal_id(thread_id))

    # -- for effects -------------------------------------------------------------------------------

    @property
    def scope(self) -> Scope:
        """The store, for code that awaits."""
        return self._scope

    @property
    def ttl(self) -> float | UnsetType | None:
        """Seconds after which a thread expires."""
        return self._ttl

    def journal_id(self, thread_id: Any) -> str:
        """The id of the journal that a thread is."""
        return written_out(str(thread_id), WRITTEN_OUT)

    async def wait_for(self, scope: Scope, conf: Mapping[str, Any]) -> None:
        """Wait until the checkpoints that a node was begun on are stored; *conf* is its config.

        With ``durability="async"`` they may be on their way. Were the process to die before they
        are there, the node would be run again on others, and not know what it has done.
        """
        journal = self._journal(scope, conf["thread_id"])
        deadline = time.monotonic() + PATIENCE
        # A function of the functional API has its caller's checkpoint, again under its caller's
        # name; that of a graph is under the graph's namespace, which comes before.
        ids = {id_: ns for ns, id_ in reversed(conf["checkpoint_map"].items())}
        for id_, ns in ids.items():
            thread = await self._thread(journal)
            while thread.log.node(ns, id_) is None:
                thread = await self._caught_up(journal)
                if thread.log.node(ns, id_) is not None:
                    break
                if ns not in thread.begun and thread.log.newest(ns) is None:
                    msg = (
                        f"An effect was called in a graph without checkpoints (in {ns!r}, of "
                        f"thread {conf['thread_id']!r}). If it were cut short, nobody could tell "
                        "what it has done. Nothing was done. Compile that graph without "
                        "checkpointer=False."
                    )
                    raise NotDurable(msg)
                broken = thread.broken.get(ns)
                if broken is not None and broken[0] <= id_:
                    raise broken[1]
                if time.monotonic() > deadline:
                    msg = (
                        f"Checkpoint {id_} of thread {conf['thread_id']!r} was not stored within "
                        f"{PATIENCE:g} seconds, and an effect that stands on it was not made. Look "
                        "for errors of the store, and run the thread again."
                    )
                    raise StoreBusy(msg)
                await scope.runtime.sleep(LOOK_AGAIN)

    # -- one body for sync and async ---------------------------------------------------------------

    async def _get_tuple(self, scope: Scope, config: RunnableConfig) -> CheckpointTuple | None:
        conf = config["configurable"]
        journal = self._journal(scope, conf["thread_id"])
        ns, id_ = conf.get("checkpoint_ns", ""), get_checkpoint_id(config)
        if RUNTIME in conf:
            await self._leases.begin(scope, KIND, journal.key.id, conf)
        thread = await self._caught_up(journal)
        if RUNTIME in conf:
            thread.begin(ns)
        with thread.mutex:
            node = thread.log.node(ns, id_ or None)
            if node is None:
                if not id_:
                    thread.told_empty.add(ns)
                return None
            return _tuple(thread.log, node, conf["thread_id"], addressed=bool(id_))

    async def _places(
        self, scope: Scope, config: RunnableConfig | None, before: RunnableConfig | None
    ) -> Places:
        """Id, journal, namespace and thread of the checkpoints in question, the newest last."""
        conf: Any = {} if config is None else config["configurable"]
        ns, id_ = conf.get("checkpoint_ns"), conf.get("checkpoint_id")
        upto = None if before is None else get_checkpoint_id(before)
        journals = []
        if config is not None:
            journals = [(self._journal(scope, conf["thread_id"]), conf["thread_id"])]
        else:
            ids = [key async for key in scope.list(KIND, _key_id)]
            journals = [(scope.journal(KIND, key), None) for key in ids]
        found = []
        for journal, given in journals:
            name = given
            thread = await self._caught_up(journal)
            with thread.mutex:
                if name is None:
                    name = journal.key.id if thread.log.thread is None else thread.log.thread
                found += [
                    (node.id, journal.key.id, node.ns, name)
                    for node in thread.log.all_nodes(ns)
                    if (not id_ or node.id == id_) and (not upto or node.id < upto)
                ]
        return sorted(found, key=_first)

    async def _next(
        self,
        scope: Scope,
        places: Places,
        filter: dict[str, Any] | None,  # noqa: A002 - LangGraph's name
    ) -> CheckpointTuple | None:
        """The last of *places*, which is taken off; None if it does not fit, or is gone."""
        id_, journal_id, ns, name = places.pop()
        journal = scope.journal(KIND, journal_id)
        thread = await self._thread(journal)
        if thread.log.incarnation is None:
            await self._catch_up(journal, thread)
        with thread.mutex:
            node = thread.log.node(ns, id_)
            if node is None:
                return None
            if filter:
                metadata = thread.log.about(node)["metadata"]
                if any(metadata.get(key) != value for key, value in filter.items()):
                    return None
            return _tuple(thread.log, node, name, addressed=True)

    async def _put(
        self,
        scope: Scope,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        conf = config["configurable"]
        name, ns = conf["thread_id"], conf.get("checkpoint_ns", "")
        journal = self._journal(scope, name)
        thread = await self._thread(journal, name)
        parent = get_checkpoint_id(config) or None
        is_meant = self._forks == "allow" or isinstance(parent, Addressed)
        # `update_state(…, as_node="__copy__")` and a replay: a second child of the same parent.
        is_meant = is_meant or metadata.get("source") == "fork"
        if parent is None:
            # Of a subgraph, which may begin anew: the graph that it is in notices another writer.
            is_meant = is_meant or bool(ns) or ns not in thread.told_empty
        parent = None if parent is None else str(parent)
        stored = get_serializable_checkpoint_metadata(config, metadata)

        def make(log: ThreadLog) -> Draft:
            _refuse_lost(thread, ns, parent, name)
            if not is_meant:
                _refuse_fork(log, ns, parent, checkpoint["id"], name)
            return log.checkpoint(ns, parent, checkpoint, stored, new_versions)

        try:
            await self._write(scope, journal, thread, make, conf)
        except BaseException as error:
            thread.broken[ns] = checkpoint["id"], error
            raise
        return _config(name, ns, checkpoint["id"])

    async def _put_writes(
        self,
        scope: Scope,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        numbered = [
            (WRITES_IDX_MAP.get(channel, number), channel, value)
            for number, (channel, value) in enumerate(writes)
        ]
        await self._put_numbered(scope, config, numbered, task_id, task_path)

    async def _put_numbered(
        self,
        scope: Scope,
        config: RunnableConfig,
        writes: Sequence[tuple[int, str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        conf = config["configurable"]
        journal = self._journal(scope, conf["thread_id"])
        ns, id_ = conf.get("checkpoint_ns", ""), str(conf["checkpoint_id"])

        thread = await self._thread(journal, conf["thread_id"])

        def make(log: ThreadLog) -> Draft | None:
            _refuse_lost(thread, ns, id_, conf["thread_id"])
            return log.writes(ns, id_, writes, task_id, task_path)

        await self._write(scope, journal, thread, make, conf)

    async def _delete(self, scope: Scope, thread_id: str) -> None:
        journal = self._journal(scope, thread_id)
        async with self._leases.writing(scope, KIND, journal.key.id, {}):
            await journal.delete()
            # Not before: a thread without its effects would have them again.
            await scope.journal(EFFECTS, journal.key.id).delete()
        (await self._thread(journal, thread_id)).forget()

    async def _delete_for_runs(self, scope: Scope, run_ids: Sequence[str]) -> None:
        runs = set(map(str, run_ids))

        def stays(log: ThreadLog, node: Node) -> bool:
            return str(log.about(node)["metadata"].get("run_id")) not in runs

        for id_ in [key async for key in scope.list(KIND, _key_id)] if runs else ():
            async with self._leases.writing(scope, KIND, id_, {}) as lock:
                await self._keep_only(scope.journal(KIND, id_, redactor=None), stays, lock)
                await self._forget_effects(scope, scope.journal(KIND, id_))

    async def _prune(self, scope: Scope, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in ("keep_latest", "delete"):
            msg = f"A strategy is 'keep_latest' or 'delete', not {strategy!r}. Nothing was deleted."
            raise ValueError(msg)
        for thread_id in thread_ids:
            if strategy == "delete":
                await self._delete(scope, thread_id)
            else:
                journal = self._journal(scope, thread_id)
                async with self._leases.writing(scope, KIND, journal.key.id, {}) as lock:
                    await self._keep_only(journal, _is_needed, lock)
                    await self._forget_effects(scope, journal)

    async def _keep_only(
        self,
        journal: AsyncJournal,
        stays: Callable[[ThreadLog, Node], bool],
        lock: LeaseLock | None,
    ) -> None:
        """Drop the checkpoints of a thread that do not stay, so that nothing of them is left.

        Those that stay are written anew, and all before them is compacted away.
        """
        while True:
            thread = await self._caught_up(journal)
            with thread.mutex:
                log = thread.log
                nodes = log.all_nodes()
                kept = [node for node in nodes if stays(log, node)]
                if len(kept) == len(nodes):
                    return
                there = {(node.ns, node.id) for node in kept}
                ids = [(node.ns, node.id) for node in nodes if (node.ns, node.id) not in there]
                expect = Expect(log.incarnation, log.seq)
                drafts = list(_written_anew(log, kept)) if kept else []
                newest = next((node for node in kept if not node.ns), None)
                status = INTERRUPTED if newest is not None and log.asked(newest) else None
            if not kept:
                await journal.delete()
                break
            begin = expect.seq + 1
            drafts.append(Draft(DROPPED, {"ids": ids, "before": begin}))
            try:
                while drafts:
                    batch, drafts = drafts[:BATCH], drafts[BATCH:]
                    pairs = [(draft.kind, draft.body) for draft in batch]
                    lease = None if lock is None else lock.lease
                    done = await journal.write(pairs, expect=expect, status=status, lease=lease)
                    expect = done.expect
            except Conflict:
                continue  # what was written anew is there twice until the next try, and no harm
            await journal.compact(begin)
            break
        with self._mutex:
            self._threads.pop(journal.key.id, None)

    async def _forget_effects(self, scope: Scope, journal: AsyncJournal) -> None:
        """Let what is known of effects go with the checkpoints that they stood on."""
        id_ = journal.key.id
        if await scope.journal(EFFECTS, id_).head() is None:
            return
        thread = await self._caught_up(journal)
        with thread.mutex:
            there = {node.id for node in thread.log.all_nodes()}
        effects = self.effects.of(scope, id_, self._ttl)
        await scope.runtime.call(effects.forget, lambda checkpoint: checkpoint not in there)

    async def _copy_thread(self, scope: Scope, source: str, target: str) -> None:
        thread = await self._caught_up(self._journal(scope, source))
        with thread.mutex:
            log = thread.log
            story = log.story(log.all_nodes())
        for one in story:
            if isinstance(one, Node):
                with thread.mutex:
                    copied = _tuple(log, one, target, addressed=True)
                parent = None if one.parent is None else Addressed(one.parent)
                config = _config(target, one.ns, parent)
                versions = copied.checkpoint["channel_versions"]
                await self._put(scope, config, copied.checkpoint, copied.metadata, versions)
            else:
                config = _config(target, one[0].ns, one[0].checkpoint)
                with thread.mutex:
                    values = [(write.index, write.channel, log.load(write.shape)) for write in one]
                await self._put_numbered(scope, config, values, one[0].task, one[0].path)
        await copy_effects(scope, self.journal_id(source), self.journal_id(target), self._ttl)

    async def _delta_history(
        self, scope: Scope, config: RunnableConfig, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        if not channels:
            return {}
        conf = config["configurable"]
        thread = await self._caught_up(self._journal(scope, conf["thread_id"]))
        found: dict[str, DeltaChannelHistory] = {name: {"writes": []} for name in channels}
        with thread.mutex:
            log = thread.log
            node = log.node(conf.get("checkpoint_ns", ""), get_checkpoint_id(config) or None)
            left = set(channels)
            for before, after in () if node is None else log.ancestors(node):
                if not left:
                    break
                for write in reversed(log.consumed(before, after)):
                    if write.channel in left:
                        value = log.load(write.shape)
                        found[write.channel]["writes"].append((write.task, write.channel, value))
                for name in [name for name in left if _has(before, name)]:
                    found[name]["seed"] = log.value(before.values[name][1])
                    left.remove(name)
        for history in found.values():
            history["writes"].reverse()
        return found


# -- what checkpoints are given as --------------------------------------------------------------


def _config(thread_id: Any, ns: str, id_: str | None) -> RunnableConfig:
    conf = {"thread_id": thread_id, "checkpoint_ns": ns}
    if id_ is not None:
        conf["checkpoint_id"] = id_
    return {"configurable": conf}


def _tuple(log: ThreadLog, node: Node, thread_id: Any, *, addressed: bool) -> CheckpointTuple:
    about = log.about(node)
    about["checkpoint"]["channel_values"] = {
        name: log.value(value) for name, (_, value) in node.values.items() if value is not NONE
    }
    id_ = Addressed(node.id) if addressed else node.id
    parent = None if node.parent is None else _config(thread_id, node.ns, node.parent)
    return CheckpointTuple(
        config=_config(thread_id, node.ns, id_),
        checkpoint=about["checkpoint"],
        metadata=about["metadata"],
        parent_config=parent,
        pending_writes=[
            (write.task, write.channel, log.load(write.shape)) for write in log.pending(node)
        ],
    )


def _refuse_lost(thread: _Thread, ns: str, id_: str | None, name: Any) -> None:
    """`Conflict`, if a checkpoint was there and is not any more: nothing is stored upon it."""
    if (ns, id_) in thread.lost and thread.log.node(ns, id_) is None:
        msg = (
            f"Thread {name!r} has checkpoint {id_} no more, and nothing was stored upon it: the "
            "thread was deleted, has expired, or its store went back, under the run. Run it again, "
            "to go on from where it is."
        )
        raise Conflict(msg)


def _refuse_fork(log: ThreadLog, ns: str, parent: str | None, id_: str, thread_id: Any) -> None:
    """`Conflict`, if a checkpoint *id_* would begin a branch, and not be the newest of its line."""
    others = [node for node in log.children.get((ns, parent), ()) if node.id != id_]
    if not others or log.node(ns, id_) is not None:
        return
    other = others[-1]
    where = "the beginning" if parent is None else f"checkpoint {parent}"
    msg = (
        f"Thread {thread_id!r} has gone on from {where} meanwhile, to {other.id}, and this "
        "checkpoint was not stored: another run, or process, works on the same thread. Run again "
        "to go on from the newest; or, for a branch of its own, name the checkpoint_id in the "
        'config, or open LimpetSaver(…, forks="allow").'
    )
    raise Conflict(msg, expected=0, actual=other.seq)


def _is_needed(log: ThreadLog, node: Node) -> bool:
    """Whether a checkpoint is the newest of its namespace, or the newest is read from it."""
    newest = log.newest(node.ns)
    if newest is None or node is newest:
        return True
    # What LangGraph counts of channels whose values are in what was written since the last of them.
    counted = log.about(newest)["metadata"].get("counters_since_delta_snapshot") or ()
    missing = {name for name in counted if not _has(newest, name)}
    for before, after in log.ancestors(newest):
        written = {write.channel for write in log.consumed(before, after)}
        if before is node:
            return bool(missing & written) or any(_has(before, name) for name in missing)
        missing -= {name for name in missing if _has(before, name)}
    return False


def _written_anew(log: ThreadLog, nodes: list[Node]) -> Iterator[Draft]:
    """The entries for *nodes* and the writes upon them, such that nothing before is needed."""
    new = ThreadLog(log.values, seq=log.seq, explicit=True)
    new.thread = log.thread
    for one in log.story(nodes):
        if isinstance(one, Node):
            tuple_ = _tuple(log, one, None, addressed=False)
            versions = tuple_.checkpoint["channel_versions"]
            draft = new.checkpoint(one.ns, one.parent, tuple_.checkpoint, tuple_.metadata, versions)
        else:
            values = [(write.index, write.channel, log.load(write.shape)) for write in one]
            at = one[0]
            made = new.writes(at.ns, at.checkpoint, values, at.task, at.path)
            if made is None:
                continue
            draft = made
        new.took(new.seq + 1, draft)
        yield draft


def _has(node: Node, channel: str) -> bool:
    return channel in node.values and node.values[channel][1] is not NONE


def _key_id(head: Head) -> str:
    return head.key.id


def _first(place: Place) -> str:
    return place[0]
