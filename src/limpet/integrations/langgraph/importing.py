"""The threads of LangGraph's own checkpointers, taken over into a store.

    with open_source("checkpoints.sqlite") as source, limpet.open("agents.db") as store:
        for thread in import_threads(source, store):
            print(thread.id, thread.outcome, thread.why)

A thread is read to its end first, to know that all of it can be read, and how it stands to what the
store has of it. Then it is written; then everything is read back from the store and compared. So
nothing of a thread that cannot be had is written. One that is done is marked by a label of its
journal, and the next run need not look at it again.
"""

from __future__ import annotations

import hashlib
import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import WRITES_IDX_MAP
from msgspec import Struct, field

from limpet.backends.contract import Append
from limpet.core.ids import make_key, written_out
from limpet.errors import NotStorable, StoreCorrupt, TooLarge
from limpet.integrations.langgraph.saver import KIND, WRITTEN_OUT, LimpetSaver
from limpet.integrations.langgraph.sources import Damaged, NotAllowed, Place, Stored, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from limpet.backends.contract import Head
    from limpet.integrations.langgraph.sources import Source, Thread, Values
    from limpet.store import Store

__all__ = [
    "CONTINUED",
    "DIFFERS",
    "FAILED",
    "FINISHED",
    "NEW",
    "SAME",
    "ImportedThread",
    "import_threads",
]

# What became of a thread.
NEW = "new"
FINISHED = "finished"  # what was missing of it: an import was cut short, or the source has gone on
SAME = "same"  # all of it was there
CONTINUED = "continued"  # all of it was there, and a graph has gone on with it in the store
DIFFERS = "differs"  # the store has another thread of that id, which was left alone
FAILED = "failed"  # it cannot be read, or not be stored

#: The label of a journal that says up to where its thread was imported.
LABEL = "imported"

#: Bytes of the digest of a checkpoint.
DIGEST = 16


class ImportedThread(Struct):
    """What became of one thread.

    ``checkpoints`` and ``writes`` were stored (in a dry run: would be), ``verified`` checkpoints
    were read back and compared, ``size`` bytes is what the thread takes in the store. ``damaged``
    are the checkpoints that were left out, and why; ``not_allowed`` types that were not, as
    ``--allow`` has them.
    """

    id: str
    outcome: str = SAME
    why: str = ""
    checkpoints: int = 0
    writes: int = 0
    verified: int = 0
    size: int = 0
    damaged: list[str] = field(default_factory=list)
    not_allowed: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all of it is in the store now."""
        return self.outcome not in (DIFFERS, FAILED) and not self.damaged


def import_threads(
    source: Source,
    store: Store,
    *,
    newest: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], object] = lambda _steps: None,
) -> Generator[ImportedThread]:
    """Take over every thread of *source*, one after the other, and say what became of each.

    *newest*: only the newest checkpoint of each thread and of the subgraphs that it has called.
    *dry_run*: write nothing. *progress* is called with how many more checkpoints have been read,
    written or verified: of each there are three such steps.
    """
    for id_ in source.threads():
        # One for each thread: it holds in memory what it has seen.
        saver = LimpetSaver(store, allow=source.values.allowed, forks="allow")
        with source.thread(id_) as thread:
            work = _Import(thread, _Target(store, saver, id_), progress, dry_run=dry_run)
            try:
                work.run(newest=newest)
            except (Damaged, NotStorable, StoreCorrupt, TooLarge) as error:
                begun = " What comes before that is there." if work.target.head() else ""
                work.done.outcome, work.done.why = FAILED, f"{error}{begun}"
        source.values.serde.forget()
        yield work.done


class _Target:
    """The thread of that id in the store."""

    def __init__(self, store: Store, saver: LimpetSaver, id_: str) -> None:
        self.id = id_
        self.saver = saver
        self.backend = store.backend
        self.key = make_key(store.tenant, KIND, written_out(id_, WRITTEN_OUT))

    def head(self) -> Head | None:
        return self.backend.head(self.key)

    def config(self, ns: str, checkpoint: str | None) -> Any:
        named = {} if checkpoint is None else {"checkpoint_id": checkpoint}
        return {"configurable": {"thread_id": self.id, "checkpoint_ns": ns, **named}}

    def places(self) -> set[Place]:
        """The checkpoints that it has."""
        if self.head() is None:
            return set()
        everywhere: Any = {"configurable": {"thread_id": self.id}}
        found = (tuple_.config["configurable"] for tuple_ in self.saver.list(everywhere))
        return {Place(str(conf["checkpoint_id"]), conf["checkpoint_ns"]) for conf in found}

    def get(self, place: Place) -> Stored | None:
        """A checkpoint, as the source has it; but nothing says the paths of the writes."""
        found: Any = self.saver.get_tuple(self.config(place.ns, place.id))
        if found is None:
            return None
        config, pending = found.parent_config, found.pending_writes or ()
        return Stored(
            None if config is None else str(config["configurable"]["checkpoint_id"]),
            found.checkpoint,
            found.metadata,
            [Write("", task, 0, channel, value) for task, channel, value in pending],
        )

    def put(self, place: Place, stored: Stored, new_versions: dict[str, Any]) -> None:
        checkpoint: Any = stored.checkpoint
        metadata: Any = stored.metadata
        self.saver.put(self.config(place.ns, stored.parent), checkpoint, metadata, new_versions)
        self.put_writes(place, stored.writes)

    def put_writes(self, place: Place, writes: Iterable[Write]) -> None:
        for (path, task), group in groupby(writes, key=lambda write: write[:2]):
            self.saver.put_writes(self.config(place.ns, place.id), _in_slots(group), task, path)

    def mark(self) -> tuple[str, bool]:
        """What was imported last, and whether the thread has gone on since."""
        head = self.head()
        text = head.labels.get(LABEL, "") if head is not None else ""
        what, _, seq = text.rpartition(" ")
        return what, head is not None and str(head.seq) != seq

    def set_mark(self, what: str) -> None:
        head = self.head()
        if head is not None:
            self.backend.append(Append(key=self.key, labels={LABEL: f"{what} {head.seq}"}))


def _in_slots(writes: Iterable[Write]) -> list[tuple[str, Any]]:
    """A task's writes as it made them, so that each gets the index that it had.

    Its errors, interrupts and the like have an index under 0, and leave a gap where they were.
    """
    writes = list(writes)
    special = [(write.channel, write.value) for write in writes if write.idx < 0]
    regular = {write.idx: (write.channel, write.value) for write in writes if write.idx >= 0}
    if not special:
        return [regular[index] for index in sorted(regular)]
    count = max(regular, default=-1) + 1
    # Where several would be stored under one index, one is; so one may stand in several gaps.
    filled = [regular.get(index, special[-1]) for index in range(count)]
    return filled + special


class _Found(Struct):
    """What the source has of a thread, and how that stands to what the store has."""

    there: set[Place]  # what the store has
    own: set[Place]  # what it has, and the source has not
    places: list[Place] = field(default_factory=list)  # what can be read and is to be there
    digests: bytearray = field(default_factory=bytearray)  # of each of them
    writes: list[int] = field(default_factory=list)  # how many each of them has
    missing: int = 0  # how many of them are not there
    gap: bool = False  # whether one that is there is newer than one that is not
    late: dict[Place, list[Write]] = field(default_factory=dict)  # writes that are not there
    changed: dict[Place, list[Write]] = field(default_factory=dict)  # for which others are
    extra: bool = False  # whether there are more
    differs: list[str] = field(default_factory=list)
    not_allowed: set[str] = field(default_factory=set)
    unmade: set[str] = field(default_factory=set)


class _Compared(Struct):
    """How a checkpoint of the source stands to the one in the store."""

    late: list[Write] = field(default_factory=list)  # which are not there
    changed: list[Write] = field(default_factory=list)  # for which there are others
    extra: bool = False  # whether there are more
    differs: list[str] = field(default_factory=list)


def _replaced(write: Write) -> tuple[str, str] | None:
    """Under what a write takes the place of an earlier one; None if it does not."""
    return (write.task, write.channel) if write.channel in WRITES_IDX_MAP else None


class _Import:
    """One thread on its way from the source to the store."""

    def __init__(
        self,
        thread: Thread,
        target: _Target,
        progress: Callable[[int], object],
        *,
        dry_run: bool,
    ) -> None:
        self.thread = thread
        self.target = target
        self.dry_run = dry_run
        self.done = ImportedThread(thread.id)
        self._progress = progress
        self._steps = 0

    def run(self, *, newest: bool) -> None:
        checkpoints, writes, last = self.thread.counts()
        mark = f"{'newest' if newest else 'all'} {checkpoints} {writes} {last}"
        marked, gone_on = self.target.mark()
        if marked == mark:
            self.done.outcome = CONTINUED if gone_on else SAME
        else:
            found = self._look(newest=newest)
            self._judge(found)
            if self.done.outcome in (NEW, FINISHED, SAME) and not self.dry_run:
                self._write(found)
                if self._verify(found) and self.done.ok:
                    self.target.set_mark(mark)
        head = self.target.head()
        self.done.size = head.size if head is not None else 0
        self._progress(3 * checkpoints - self._steps)

    def _step(self) -> None:
        self._steps += 1
        self._progress(1)

    # -- reading, and comparing with what is there -------------------------------------------------

    def _look(self, *, newest: bool) -> _Found:
        """Read all that is to be imported, and compare it with what is there."""
        digests = _Digests(self.thread.values)
        there = self.target.places()
        found = _Found(there, there.difference(self.thread.places()) if there else set())
        for place in self.thread.kept() if newest else self.thread.places():
            self._step()
            try:
                stored = self.thread.read(place)
            except NotAllowed as error:
                found.not_allowed |= error.names
                found.unmade |= error.unmade
                continue
            except Damaged as error:
                self.done.damaged.append(str(error))
                continue
            found.places.append(place)
            found.digests += digests.of(place.ns, stored)
            found.writes.append(len(stored.writes))
            if place not in there:
                found.missing += 1
                continue
            found.gap = found.gap or found.missing > 0
            compared = self._compare(place, stored)
            found.extra = found.extra or compared.extra
            if compared.late:
                found.late[place] = compared.late
            if compared.changed:
                found.changed[place] = compared.changed
            if compared.differs:
                found.differs.append(f"{place} ({', '.join(compared.differs)})")
        return found

    def _judge(self, found: _Found) -> None:
        """What is to become of the thread."""
        done, incomplete = self.done, found.missing > 0 or bool(found.late)
        if found.not_allowed or found.unmade:
            done.outcome, done.not_allowed = FAILED, sorted(found.not_allowed)
            if found.unmade:
                done.why = (
                    f"Stored {', '.join(sorted(found.unmade))} cannot be made again: the class is "
                    "not there any more under that name, or does not take what was stored."
                )
        elif not found.places:
            done.outcome, done.why = FAILED, "None of its checkpoints can be read."
        elif found.differs:
            done.outcome, done.why = DIFFERS, f"It has another {found.differs[0]}."
        elif (found.own or found.extra) and incomplete:
            done.outcome = DIFFERS
            done.why = "It was continued there, and what the source has is not all in it."
        elif found.own or found.extra or (found.changed and not incomplete):
            done.outcome = CONTINUED
        elif found.gap:
            done.outcome = DIFFERS
            done.why = "It has newer checkpoints without the older ones (--newest, or pruned)."
        elif incomplete:
            done.outcome = FINISHED if found.there else NEW
            done.checkpoints = found.missing
            done.writes = sum(found.writes[len(found.places) - found.missing :])
            done.writes += sum(map(len, (*found.late.values(), *found.changed.values())))

    def _compare(self, place: Place, stored: Stored) -> _Compared:
        """How a checkpoint of the source stands to the one in the store."""
        found = self.target.get(place)
        if found is None:
            return _Compared(differs=["deleted meanwhile"])
        digests = _Digests(self.thread.values)
        here, there = digests.parts("", stored), digests.parts("", found)
        ours = [(write, digests.write(write)) for write in stored.writes]
        theirs = [(write, digests.write(write)) for write in found.writes]
        missing = {digest: write for write, digest in ours}
        extra = {digest: write for write, digest in theirs if missing.pop(digest, None) is None}
        # What a person answered, and the like, takes the place of what was answered before.
        replaced = {_replaced(write) for write in missing.values()} - {None}
        replaced &= {_replaced(write) for write in extra.values()}
        return _Compared(
            late=[write for write in missing.values() if _replaced(write) not in replaced],
            changed=[write for write in missing.values() if _replaced(write) in replaced],
            extra=any(_replaced(write) not in replaced for write in extra.values()),
            differs=sorted(name for name in here | there if here.get(name) != there.get(name)),
        )

    # -- writing -----------------------------------------------------------------------------------

    def _write(self, found: _Found) -> None:
        for place in found.late | found.changed:
            behind = {
                write.task for part in (found.late, found.changed) for write in part.get(place, ())
            }
            # All of a task's, so that each has the index that it had; those that are there stay.
            writes = self.thread.read(place).writes
            self.target.put_writes(place, [write for write in writes if write.task in behind])
        # By namespace: the last one's id, versions, and digests of its values.
        before: dict[str, tuple[str, dict[str, Any], dict[str, bytes]]] = {}
        digests = _Digests(self.thread.values)
        for place in found.places[len(found.places) - found.missing :]:
            self._step()
            stored = self.thread.read(place)
            versions = stored.checkpoint["channel_versions"]
            channels = stored.checkpoint["channel_values"]
            values = {name: digests.channel(place.ns, name, channels[name]) for name in channels}
            id_, old_versions, old_values = before.get(place.ns, ("", {}, {}))
            new = versions
            if id_ == stored.parent:
                # What is as in the parent need not be looked at again. Not by the version alone: a
                # node may have changed a value in its place, and the source has it as it was then.
                new = {
                    name: version
                    for name, version in versions.items()
                    if old_versions.get(name) != version or old_values.get(name) != values.get(name)
                }
            before[place.ns] = place.id, versions, values
            self.target.put(place, stored, new)

    # -- verifying ---------------------------------------------------------------------------------

    def _verify(self, found: _Found) -> bool:
        """Whether everything in the store is what was read from the source."""
        digests = _Digests(self.thread.values)
        for number, place in enumerate(found.places):
            self._step()
            stored = self.target.get(place)
            digest = bytes(found.digests[number * DIGEST : (number + 1) * DIGEST])
            if stored is None or digests.of(place.ns, stored) != digest:
                compared = self._compare(place, self.thread.read(place))
                what = compared.differs
                if compared.late or compared.changed or compared.extra:
                    what = [*what, "pending writes"]
                self.done.outcome = DIFFERS
                self.done.why = (
                    f"{str(place).capitalize()} was written, and is not the same when it is read "
                    f"back ({', '.join(what) or 'the order of pending writes'})."
                )
                return False
            self.done.verified += 1
        return True


class _Digests:
    """What tells whether two checkpoints say the same: digests of all that they say.

    Of a list that grows, only what is new is looked at, as far as its elements are the same objects
    as in the checkpoint that was looked at before. Those that only say the same are put in the
    place of the new ones, so that the saver need not hold both.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        # By namespace and channel: the elements of the last list, and their digests.
        self._lists: dict[tuple[str, str], tuple[list[Any], list[bytes]]] = {}

    def of(self, ns: str, found: Stored) -> bytes:
        """Of a checkpoint and its writes."""
        whole = hashlib.blake2b(digest_size=DIGEST)
        for name, digest in sorted(self.parts(ns, found).items()):
            whole.update(name.encode() + b"\0" + digest)
        for write in found.writes:
            whole.update(b"\0write\0" + self.write(write))
        return whole.digest()

    def parts(self, ns: str, found: Stored) -> dict[str, bytes]:
        """Of each thing that a checkpoint says."""
        parts = {"parent": self.value(found.parent)}
        for name, value in found.checkpoint.items():
            if name == "channel_values":
                parts |= {
                    f"channel {key}": self.channel(ns, key, one) for key, one in value.items()
                }
            elif name in ("channel_versions", "versions_seen"):  # whose order means nothing
                parts[name] = hashlib.blake2b(json.dumps(value, sort_keys=True).encode()).digest()
            else:
                parts[name] = self.value(value)
        return parts | {f"metadata {key}": self.value(one) for key, one in found.metadata.items()}

    def channel(self, ns: str, name: str, value: Any) -> bytes:
        """Of a channel's value."""
        if value.__class__ is not list:
            return self.value(value)
        objects, digests = self._lists.get((ns, name), ([], []))
        found: list[bytes] = []
        for at, item in enumerate(value):
            known = digests[at] if at < len(objects) else None
            if known is None or objects[at] is not item:
                digest = self.value(item)
                if digest == known:
                    value[at] = objects[at]
                known = digest
            found.append(known)
        self._lists[ns, name] = value[:], found
        return hashlib.blake2b(b"list" + b"".join(found), digest_size=DIGEST).digest()

    def write(self, write: Write) -> bytes:
        """Of a pending write."""
        return b"\0".join((write.task.encode(), write.channel.encode(), self.value(write.value)))

    def value(self, value: Any) -> bytes:
        """Of a value."""
        kind, data = self._values.canonical(value)
        return hashlib.blake2b(kind.encode() + b"\0" + data, digest_size=DIGEST).digest()
