"""A thread of LangGraph's as a journal, and what is known of it from its entries.

Each checkpoint and each set of pending writes is one entry. A checkpoint says what changed since
its parent: versions, what each node has seen, metadata, and of a channel that is a list (messages
above all) the elements that came, changed or went. So a checkpoint costs what is new in it, and
those of a fork share with the others what they have in common.

What an entry holds is in its ``parts``, each a value as `values` writes it. Where a value is
needed, a part stands for it: ``{"$": 2}`` is the third of this entry, ``{"$": [41, 0]}`` the first
of entry 41. What is small stands there itself. The bodies of entries::

    checkpoint  {id, ns?, up?, whole?, ts, at?, versions?, gone?, seen?, saw?, meta?, unmeta?, v?,
                 updated?, more?, put?, list?, add?, patch?, none?, parts?, thread?}
    writes      {ns?, cp?, task, path?, writes: [[channel, value]], parts?}
    dropped     {ids: [[ns, id]], before}

What is as it was in the parent, or as is to be expected, is left out: ``ns`` where it is "", ``up``
and ``cp`` where they are the last checkpoint of their namespace (``cp`` is the number of its entry,
or its id), a step that is one more than the parent's, ``updated`` where it is all channels that
have a new value. ``ts`` is how many microseconds after its id a checkpoint was made, or the time
itself. ``at`` is the new version of all channels that changed, ``versions`` of some; ``put`` has
their values, ``list`` and ``add`` elements of lists, ``patch`` other changes of lists (as
`limpet.core.deltas` writes them), ``none`` channels that are empty now. ``path`` is a text, or how
many others came before it. With ``whole``, nothing is as in the parent.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from operator import is_
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from limpet.backends.contract import from_micros
from limpet.core import deltas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from limpet.backends.contract import Head
    from limpet.core.journal import Entry
    from limpet.integrations.langgraph.reading import Readable
    from limpet.integrations.langgraph.values import Values

__all__ = [
    "CHECKPOINT",
    "DROPPED",
    "EFFECTS",
    "INTERRUPTED",
    "KIND",
    "WRITES",
    "WRITTEN_OUT",
    "Draft",
    "Node",
    "ThreadLog",
    "Write",
    "encode",
]

#: The kind of journal that a thread is.
KIND = "thread"

#: The kind of the journals with the effects of threads, which have the threads' ids.
EFFECTS = "thread-effects"

#: What the journal's id begins with of a thread whose own id cannot be one.
WRITTEN_OUT = "thread-id:"

#: The status of a thread that waits for an answer; others have none.
INTERRUPTED = "interrupted"

# Types of entries.
CHECKPOINT = "checkpoint"
WRITES = "writes"
DROPPED = "dropped"

#: What is shorter than this stands where it is used: to name a part takes as much room.
SHORT = 48

#: So many of a list's newest elements are compared by what they are stored as, even where they are
#: the same objects as before: a node may have changed one in its place. Further back nobody looks.
LOOKED_AT = 16

_MICROSECOND = timedelta(microseconds=1)

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

# Channels of LangGraph's own: what a task asks, and the answer, which is of all tasks if it is
# written by this one.
_INTERRUPT, _RESUME = "__interrupt__", "__resume__"
_NO_TASK = "00000000-0000-0000-0000-000000000000"

#: The keys of a checkpoint that have a place of their own in an entry.
_KNOWN = {
    "v",
    "id",
    "ts",
    "channel_values",
    "channel_versions",
    "versions_seen",
    "updated_channels",
}


class Part(Struct, eq=False, gc=False):
    """A stored value: the JSON of it, and where it is."""

    data: bytes
    seq: int
    number: int | None  # None: it stands where it is used


class One:
    """The value of a channel that is no list: JSON in which parts stand for themselves."""

    __slots__ = ("shape",)

    def __init__(self, shape: Any) -> None:
        self.shape = shape


class Listed:
    """The value of a channel that is a list: the first *length* of some parts.

    The versions of a list that only grows share its parts, and the objects that are known of them:
    those that LangGraph was given last, made of what is stored, or that it has put. The latter are
    only compared with: what is stored may be read as something else, a tuple as a list.
    """

    __slots__ = ("length", "made", "objects", "parts")

    def __init__(
        self,
        parts: list[Part],
        objects: Sequence[Any] | None = None,
        made: list[bool] | None = None,
    ) -> None:
        self.parts = parts
        self.length = len(parts)
        self.objects = list(objects or [UNSET] * self.length)
        self.made = made or [False] * self.length  # whether it was made of what is stored

    def added(self, new: list[Part], objects: Sequence[Any] | None = None) -> Listed:
        """The list with *new* parts at its end, of which there are the *objects*."""
        longer = Listed.__new__(Listed)
        longer.parts, longer.objects, longer.made = self.parts, self.objects, self.made
        if len(self.parts) != self.length:  # another line has gone on from here
            longer.parts = self.parts[: self.length]
            longer.objects = self.objects[: self.length]
            longer.made = self.made[: self.length]
        longer.parts += new
        longer.objects += objects or [UNSET] * len(new)
        longer.made += [False] * len(new)
        longer.length = len(longer.parts)
        return longer

    def patched(
        self, at: list[tuple[int, Part]], cut: list[tuple[int, int, list[Part]]], now: Sequence[Any]
    ) -> Listed:
        """The list with other parts where they changed; *now* are its objects, or none."""
        parts, objects = self.parts[: self.length], self.objects[: self.length]
        made = self.made[: self.length]
        for index, part in at:
            parts[index], objects[index], made[index] = part, UNSET, False
        for index, count, new in cut:
            parts[index : index + count] = new
            objects[index : index + count] = [UNSET] * len(new)
            made[index : index + count] = [False] * len(new)
        if now:
            pairs = zip(objects, now, strict=True)
            objects = [given if known is UNSET else known for known, given in pairs]
        return Listed(parts, objects, made)


#: A channel that has a version, and no value.
NONE = One(UNSET)


class Write(Struct, eq=False, gc=False):
    """One pending write of a task, upon a checkpoint."""

    seq: int
    ns: str
    checkpoint: str
    task: str
    path: str
    index: int
    channel: str
    shape: Any

    @property
    def order(self) -> tuple[str, str, int]:
        """As LangGraph applies the writes of a step."""
        return self.path, self.task, self.index


class Node(Struct, eq=False, gc=False):
    """A checkpoint: its place in the thread, what it says of itself, and its channels' values."""

    seq: int
    ns: str
    id: str
    parent: str | None
    about: bytes  # what LangGraph calls checkpoint and metadata, without the values
    values: dict[str, tuple[Any, One | Listed]]  # by channel: the version, and the value


class Draft(Struct):
    """An entry that is about to be written, and what it will mean."""

    kind: str
    body: dict[str, Any]
    objects: dict[str, list[Any]] = {}  # by channel, those of the elements that came
    status: str | UnsetType | None = UNSET  # which the thread has from then on, if another one


class ThreadLog:
    """What the entries of one thread's journal say, as far as they have been read.

    >>> from limpet.integrations.langgraph.values import StrictSerializer, Values
    >>> log = ThreadLog(Values(StrictSerializer()))
    >>> log.newest("") is None
    True
    """

    def __init__(self, values: Values | Readable, *, seq: int = 0, explicit: bool = False) -> None:
        self.values = values
        self._explicit = explicit  # what is drafted names its parents: it may be all that is left
        self.incarnation: str | None = None
        self.seq = seq
        self.size = 0  # bytes of what is held
        self.thread: str | None = None  # its id, where the journal's is not
        self.nodes: dict[str, dict[str, Node]] = {}  # by namespace and id, in the order of entries
        self.children: dict[tuple[str, str | None], list[Node]] = {}
        self._newest: dict[str, str] = {}  # by namespace: the greatest id
        self._last: dict[str, str] = {}  # by namespace: that of the last entry
        self._writes: dict[tuple[str, str], list[Write]] = {}
        self._parts: dict[bytes, Part] = {}  # by their JSON: what is stored already
        self._placed: dict[tuple[int, int], Part] = {}
        self._at: dict[int, Node] = {}  # by the numbers of their entries
        self._paths: dict[str, int] = {}  # of tasks: how many others came before

    # -- what there is ---------------------------------------------------------------------------

    @property
    def place(self) -> tuple[str | None, int]:
        """Up to where the journal is known: which one it is, and the number."""
        return self.incarnation, self.seq

    def is_before(self, head: Head | None) -> bool:
        """Whether the journal is at *head*, or was when that was read, from which this goes on."""
        if head is None:
            return self.incarnation is None
        return head.incarnation == self.incarnation and head.seq >= self.seq

    def node(self, ns: str, id_: str | None) -> Node | None:
        """The checkpoint *id_* of a namespace; without an id, the newest."""
        if id_ is None:
            return self.newest(ns)
        return self.nodes.get(ns, {}).get(id_)

    def newest(self, ns: str) -> Node | None:
        """The newest checkpoint of a namespace: the one with the greatest id."""
        id_ = self._newest.get(ns)
        return None if id_ is None else self.nodes[ns][id_]

    def all_nodes(self, ns: str | None = None) -> list[Node]:
        """The checkpoints, of one namespace or of all, newest first."""
        spaces = self.nodes.values() if ns is None else [self.nodes.get(ns, {})]
        return sorted((node for space in spaces for node in space.values()), key=_id, reverse=True)

    def ancestors(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """Each checkpoint before *node* on its line, nearest first, with the next on that line."""
        while node.parent is not None:
            before = self.node(node.ns, node.parent)
            if before is None:
                return
            yield before, node
            node = before

    def pending(self, node: Node) -> list[Write]:
        """The writes that wait on a checkpoint, as LangGraph would apply them."""
        first: dict[tuple[str, int], Write] = {}
        for write in self._writes.get((node.ns, node.id), ()):
            key = write.task, write.index
            if write.index < 0 or key not in first:
                first[key] = write
        return sorted(first.values(), key=_order)

    def asked(self, node: Node) -> list[Write]:
        """Those of the writes on a checkpoint that ask somebody who has not answered yet."""
        return _unanswered(self._writes.get((node.ns, node.id), ()))

    @property
    def status(self) -> str | None:
        """That of the thread: whether its newest checkpoint waits for an answer."""
        newest = self.newest("")
        return INTERRUPTED if newest is not None and self.asked(newest) else None

    def _status_after(self, id_: str, task: str = "", channels: Sequence[str] = ()) -> Any:
        """The status once *task* has written to *channels* on checkpoint *id_*, if it changes."""
        if id_ < self._newest.get("", ""):
            return UNSET
        new = [Write(self.seq + 1, "", id_, task, "", 0, name, None) for name in channels]
        known = self._writes.get(("", id_), ())
        after = INTERRUPTED if (new or known) and _unanswered([*known, *new]) else None
        return UNSET if after == self.status else after

    def consumed(self, node: Node, by: Node) -> list[Write]:
        """Those of the writes on *node* that its child *by* was made of.

        What was written before another of its children was there is that one's: a fork must not
        replay what another line has written.
        """
        children = self.children[node.ns, node.id]
        writes = self._writes.get((node.ns, node.id), [])
        if len(children) > 1:
            at = children.index(by)
            low = children[at - 1].seq if at else 0
            high = by.seq if at < len(children) - 1 else self.seq
            writes = [write for write in writes if low < write.seq <= high]
        first = {(write.task, write.index): write for write in reversed(writes)}
        return sorted(first.values(), key=_order)

    def story(self, nodes: Iterable[Node]) -> list[Node | list[Write]]:
        """*nodes* and the sets of writes upon them, in the order in which they were stored."""
        found: dict[int, Node | list[Write]] = {}
        for node in nodes:
            found[node.seq] = node
            for write in self._writes.get((node.ns, node.id), ()):
                together = found.setdefault(write.seq, [])
                if isinstance(together, list):
                    together.append(write)
        return [found[seq] for seq in sorted(found)]

    def about(self, node: Node) -> dict[str, Any]:
        """What a checkpoint says of itself: a fresh copy of ``checkpoint`` and ``metadata``."""
        about: dict[str, Any] = _decode(node.about)
        for key, data in about.pop("more", {}).items():
            about["checkpoint"][key] = self.values.load(encode(data))
        about["metadata"] = {
            key: self.values.load(encode(data)) if data.__class__ in (dict, list) else data
            for key, data in about["metadata"].items()
        }
        return about

    def value(self, value: One | Listed) -> Any:
        """The value of a channel, as LangGraph is given it.

        The list is a new one. Its elements are new, too, but for those far from its end, which are
        made once and shared: treat them as what they are, a record.
        """
        if isinstance(value, One):
            return self.load(value.shape)
        objects, made, load = value.objects, value.made, self.values.load
        fresh = max(0, value.length - LOOKED_AT)
        if False in made[:fresh]:
            for at in range(fresh):
                if not made[at]:
                    objects[at], made[at] = load(value.parts[at].data), True
        objects[fresh : value.length] = [
            load(part.data) for part in value.parts[fresh : value.length]
        ]
        made[fresh : value.length] = [True] * (value.length - fresh)
        return objects[: value.length]

    def load(self, shape: Any) -> Any:
        """The value of a *shape*."""
        return self.values.load(encode(_whole(shape)))

    # -- what is to be written -------------------------------------------------------------------

    def checkpoint(
        self,
        ns: str,
        parent: str | None,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> Draft:
        """The entry for a checkpoint of LangGraph's whose parent is *parent*."""
        before = self.node(ns, parent) if parent is not None else None
        parts = _Parts(self)
        body: dict[str, Any] = {"id": checkpoint["id"], "ts": checkpoint["ts"]}
        if ns:
            body["ns"] = ns
        if self._explicit or parent != self._last.get(ns):
            body["up"] = parent
            if before is None and parent is not None:
                body["whole"] = True
        objects: dict[str, list[Any]] = {}
        versions = checkpoint["channel_versions"]
        changed = _Changes()
        for channel, value in checkpoint["channel_values"].items():
            known = None if before is None else before.values.get(channel)
            if channel not in new_versions and known and known[0] == versions.get(channel):
                continue
            if value.__class__ is list:
                earlier = known[1] if known and isinstance(known[1], Listed) else None
                how, stored, objects[channel] = self._listed(earlier, value, parts)
                changed[how][channel] = stored
            else:
                changed["put"][channel] = parts.shape(self.values.dump(value))
        empty = [name for name in new_versions if name not in checkpoint["channel_values"]]
        body |= self._about(before, checkpoint, metadata, changed.names, empty)
        body |= {how: stored for how, stored in changed.items() if stored}
        if empty:
            body["none"] = empty
        if parts.new:
            body["parts"] = [msgspec.Raw(data) for data in parts.new]
        if self.thread is not None:
            body["thread"] = self.thread
        status = UNSET if ns else self._status_after(checkpoint["id"])
        return Draft(CHECKPOINT, body, objects, status)

    def _about(
        self,
        before: Node | None,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        changed: Sequence[str],
        empty: Sequence[str],
    ) -> dict[str, Any]:
        """What a checkpoint says of itself otherwise than is to be expected after *before*.

        *changed* are the channels of which it has a new value, *empty* those that have none any
        more.
        """
        old = _about_nothing() if before is None else _decode(before.about)
        was, dump = old["checkpoint"], self.values.dump
        body: dict[str, Any] = {"ts": _short_time(checkpoint["id"], checkpoint["ts"])}
        if checkpoint["v"] != was.get("v"):
            body["v"] = checkpoint["v"]
        versions, gone = _changes(was["channel_versions"], checkpoint["channel_versions"])
        same = {encode(version) for version in versions.values()}
        if len(same) == 1 and set(versions) == {*changed, *empty}:
            body["at"] = next(iter(versions.values()))
        else:
            body["versions"] = versions
        seen, some_are_gone = _seen(was["versions_seen"], checkpoint["versions_seen"])
        if some_are_gone:
            body["saw"] = checkpoint["versions_seen"]
        else:
            body["seen"] = seen
        meta = {key: dump(value) for key, value in metadata.items()}
        body["meta"], body["unmeta"] = _changes(_expected(old["metadata"]), meta)
        body["gone"] = gone
        body = {key: value for key, value in body.items() if value or key in ("at", "ts", "v")}
        updated = checkpoint.get("updated_channels", UNSET)
        if updated is UNSET:
            body["updated"] = False
        elif updated is None or list(updated) != sorted(changed):
            body["updated"] = updated
        more = {key: dump(value) for key, value in checkpoint.items() if key not in _KNOWN}
        if more != old.get("more", {}):
            body["more"] = more
        return body

    def _listed(
        self, earlier: Listed | None, value: list[Any], parts: _Parts
    ) -> tuple[str, Any, list[Any]]:
        """How a list is stored, what is stored of it, and the objects of the elements that came."""
        if earlier is None:
            return "list", [parts.element(self._encoded(item)) for item in value], value[:]
        length = earlier.length
        same = self._same(earlier, value)
        if same == length:
            new = value[same:]
            return "add", [parts.element(self._encoded(item)) for item in new], new
        # Elements by what they are stored as; those that are objects of before need no encoding.
        far = max(same, length - LOOKED_AT)
        pairs = zip(earlier.objects[same:far], earlier.parts[same:far], strict=True)
        known = {id(made): part.data for made, part in pairs if made is not UNSET}
        tokens: dict[bytes, int] = {}

        def token(data: bytes) -> int:
            return tokens.setdefault(data, len(tokens))

        old = [token(part.data) for part in earlier.parts[same:length]]
        new = [token(known.get(id(item)) or self._encoded(item)) for item in value[same:]]
        patch = deltas.diff(old, new)
        if patch is None or "add" in patch:  # other objects, but the same elements
            known_as = list(tokens)
            came = [known_as[number] for number in new[len(old) :]]
            return "add", [parts.element(data) for data in came], value[length:]
        elements = [parts.element(data) for data in tokens]
        at = [[same + at, elements[inner["put"]]] for at, inner in patch.get("at", ())]
        cut = [
            [same + at, count, [elements[number] for number in items]]
            for at, count, items in patch.get("cut", ())
        ]
        return "patch", {"at": at, "cut": cut}, value[:]

    def _same(self, earlier: Listed, value: list[Any]) -> int:
        """With how many elements of *earlier* the list *value* begins."""
        most = min(earlier.length, len(value))
        far = max(0, min(earlier.length - LOOKED_AT, most))
        if not all(map(is_, earlier.objects[:far], value)):
            pairs = zip(earlier.objects, value, strict=False)
            return next(at for at, (was, now) in enumerate(pairs) if was is not now)
        for at in range(far, most):
            if self._encoded(value[at]) != earlier.parts[at].data:
                return at
        return most

    def _encoded(self, item: Any) -> bytes:
        return encode(self.values.dump(item))

    def writes(
        self,
        ns: str,
        checkpoint: str,
        writes: Iterable[tuple[int, str, Any]],
        task: str,
        path: str,
    ) -> Draft | None:
        """The entry for a task's *writes* (index, channel, value) on a checkpoint.

        None, if all of them are there: a task that is run again writes nothing anew. An index under
        0 is for what counts by its last value.
        """
        node = self.node(ns, checkpoint)
        children = self.children.get((ns, checkpoint), []) if node is not None else []
        since = children[-1].seq if children else 0
        known = {
            (write.task, write.index)
            for write in self._writes.get((ns, checkpoint), ())
            if write.seq > since
        }
        parts = _Parts(self)
        new = [
            [channel, parts.shape(self.values.dump(value)), index]
            for index, channel, value in writes
            if index < 0 or (task, index) not in known
        ]
        if not new:
            return None
        for position, write in enumerate(new):
            if write[2] == position:
                del write[2]
        body: dict[str, Any] = {"task": task, "writes": new}
        if ns:
            body["ns"] = ns
        if node is None or self._explicit:
            body["cp"] = checkpoint
        elif checkpoint != self._last.get(ns):
            body["cp"] = node.seq
        if path:
            body["path"] = path if self._explicit else self._paths.get(path, path)
        if parts.new:
            body["parts"] = [msgspec.Raw(data) for data in parts.new]
        status: Any = UNSET
        asks = [write[0] for write in new if write[0] in (_INTERRUPT, _RESUME)]
        if asks and node is not None and not ns:  # before its checkpoint, it counts with that
            status = self._status_after(checkpoint, task, asks)
        return Draft(WRITES, body, status=status)

    # -- what was written ------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Let an entry count that was read."""
        self._count(entry.seq, entry.type, entry.body, {})

    def took(self, seq: int, draft: Draft) -> None:
        """Let a draft count that was written as entry *seq*."""
        self._count(seq, draft.kind, draft.body, draft.objects)

    def _count(self, seq: int, kind: str, body: Any, objects: dict[str, list[Any]]) -> None:
        take = _TAKE.get(kind)
        if take is not None:  # others are of a newer release, or of other parts of this one
            resolve = self._resolver(seq, body)
            take(self, seq, body, resolve, objects)
        self.seq = seq

    def _resolver(self, seq: int, body: dict[str, Any]) -> Callable[[Any], Any]:
        """What puts parts into the shapes of an entry; the new ones are found from now on."""
        placed = self._placed
        for number, value in enumerate(body.get("parts", ())):
            data = bytes(value) if isinstance(value, msgspec.Raw) else encode(value)
            part = Part(data, seq, number)
            placed[seq, number] = self._parts[data] = part
            self.size += 200 + len(data)

        def resolve(shape: Any) -> Any:
            kind = shape.__class__
            if kind is list:
                return [resolve(item) for item in shape]
            if kind is not dict:
                return shape
            at = shape.get("$")
            if at is None:
                return {key: resolve(item) for key, item in shape.items()}
            return placed[(seq, at) if at.__class__ is int else (at[0], at[1])]

        return resolve

    def _take_checkpoint(
        self,
        seq: int,
        body: dict[str, Any],
        resolve: Callable[[Any], Any],
        objects: dict[str, list[Any]],
    ) -> None:
        ns, id_ = body.get("ns", ""), body["id"]
        parent = body["up"] if "up" in body else self._last.get(ns)
        alone = parent is None or body.get("whole")
        before = None if alone else self.node(ns, parent)
        old = _about_nothing() if before is None else _decode(before.about)
        was = old["checkpoint"]
        new = _new_values(body, {} if before is None else before.values, resolve, objects)
        versions = was["channel_versions"]
        changed = dict.fromkeys(new, body["at"]) if "at" in body else body.get("versions", {})
        versions = _changed(versions, changed, body.get("gone", ()))
        seen = body.get("saw")
        if seen is None:
            seen = was["versions_seen"]
            for name, noticed in body.get("seen", {}).items():
                seen[name] = {**seen.get(name, {}), **noticed}
        checkpoint = {
            "v": body.get("v", was.get("v")),
            "id": id_,
            "ts": _long_time(id_, body["ts"]),
            "channel_versions": versions,
            "versions_seen": seen,
        }
        expected = sorted(name for name, value in new.items() if value is not NONE)
        updated = body.get("updated", expected)
        if updated is not False:
            checkpoint["updated_channels"] = updated
        meta = _changed(_expected(old["metadata"]), body.get("meta", {}), body.get("unmeta", ()))
        about = {"checkpoint": checkpoint, "metadata": meta}
        more = body.get("more", old.get("more"))
        if more:
            about["more"] = more
        values = {
            channel: known
            for channel, known in ({} if before is None else before.values).items()
            if channel in versions and versions[channel] == known[0]
        }
        values.update((name, (versions.get(name), value)) for name, value in new.items())
        self.thread = body.get("thread", self.thread)
        again = self.node(ns, id_)
        if again is not None:
            self.children[ns, again.parent].remove(again)
        node = Node(seq, ns, id_, parent, encode(about), values)
        self.size += len(node.about) + 300
        self._at[seq] = node
        self.nodes.setdefault(ns, {})[id_] = node
        self.children.setdefault((ns, parent), []).append(node)
        self._last[ns] = id_
        self._newest[ns] = max(id_, self._newest.get(ns, ""))

    def _take_writes(
        self,
        seq: int,
        body: dict[str, Any],
        resolve: Callable[[Any], Any],
        _objects: dict[str, list[Any]],
    ) -> None:
        ns = body.get("ns", "")
        checkpoint = body["cp"] if "cp" in body else self._last[ns]
        if checkpoint.__class__ is int:
            checkpoint = self._at[checkpoint].id
        path = body.get("path", "")
        if path.__class__ is int:
            path = next(islice(self._paths, path, None))
        elif path:
            self._paths.setdefault(path, len(self._paths))
        found = self._writes.setdefault((ns, checkpoint), [])
        for position, (channel, stored, *other) in enumerate(body["writes"]):
            index, shape = other[0] if other else position, resolve(stored)
            found.append(Write(seq, ns, checkpoint, body["task"], path, index, channel, shape))
            self.size += 200

    def _take_dropped(
        self,
        _seq: int,
        body: dict[str, Any],
        _resolve: Callable[[Any], Any],
        _objects: dict[str, list[Any]],
    ) -> None:
        for ns, id_ in body["ids"]:
            node = self.nodes.get(ns, {}).pop(id_, None)
            self._writes.pop((ns, id_), None)
            if node is not None:
                self.children[ns, node.parent].remove(node)
        for ns in {ns for ns, _ in body["ids"]}:
            left = self.nodes.get(ns)
            if left:
                self._newest[ns] = max(left)
            else:
                for known in (self.nodes, self._newest, self._last):
                    known.pop(ns, None)
        # Nothing that is written from now on may name what is compacted away, nor count with it.
        self._paths.clear()
        for place in [place for place in self._placed if place[0] < body["before"]]:
            part = self._placed.pop(place)
            if self._parts.get(part.data) is part:
                del self._parts[part.data]


_TAKE: dict[str, Any] = {
    CHECKPOINT: ThreadLog._take_checkpoint,  # noqa: SLF001 - its own
    WRITES: ThreadLog._take_writes,  # noqa: SLF001
    DROPPED: ThreadLog._take_dropped,  # noqa: SLF001
}


def _about_nothing() -> dict[str, Any]:
    return {"checkpoint": {"channel_versions": {}, "versions_seen": {}}, "metadata": {}}


class _Parts:
    """The parts of an entry that is being made: what is stored already is named, and not stored."""

    def __init__(self, log: ThreadLog) -> None:
        self._known = log._parts  # noqa: SLF001 - a part of it
        self._numbers: dict[bytes, int] = {}
        self.new: list[bytes] = []

    def element(self, data: bytes) -> Any:
        """What stands for an element of a list that is stored as *data*."""
        if len(data) < SHORT:
            return msgspec.Raw(data)
        part = self._known.get(data)
        if part is not None:
            return {"$": [part.seq, part.number]}
        number = self._numbers.setdefault(data, len(self.new))
        if number == len(self.new):
            self.new.append(data)
        return {"$": number}

    def shape(self, tree: Any) -> Any:
        """What stands for a value: the elements of its lists, or all of it, as parts."""
        if tree.__class__ is list:
            return [self.element(encode(item)) for item in tree]
        if tree.__class__ is dict and tree and not any(key[0:1] == "$" for key in tree):
            return {key: self.shape(item) for key, item in tree.items()}
        return self.element(encode(tree))


def _new_values(
    body: dict[str, Any],
    before: Mapping[str, tuple[Any, One | Listed]],
    resolve: Callable[[Any], Any],
    objects: dict[str, list[Any]],
) -> dict[str, One | Listed]:
    """The values that a checkpoint has of its own; those of its parent are *before*."""
    found: dict[str, One | Listed] = dict.fromkeys(body.get("none", ()), NONE)
    for channel, stored in body.get("put", {}).items():
        found[channel] = One(resolve(stored))
    for channel, stored in body.get("list", {}).items():
        found[channel] = Listed(_as_parts(resolve(stored)), objects.get(channel))
    for channel, stored in body.get("add", {}).items():
        old = _list_before(before, channel)
        found[channel] = old.added(_as_parts(resolve(stored)), objects.get(channel))
    for channel, patch in body.get("patch", {}).items():
        at = [(index, _as_parts([resolve(one)])[0]) for index, one in patch["at"]]
        cut = [(index, count, _as_parts(resolve(new))) for index, count, new in patch["cut"]]
        old = _list_before(before, channel)
        found[channel] = old.patched(at, cut, objects.get(channel, ()))
    return found


def _list_before(before: Mapping[str, tuple[Any, One | Listed]], channel: str) -> Listed:
    value = before[channel][1]
    if not isinstance(value, Listed):
        raise ValueError("it changes a list that is not there")  # noqa: TRY004 - of what is stored
    return value


def _as_parts(shapes: list[Any]) -> list[Part]:
    return [
        shape if shape.__class__ is Part else Part(encode(_whole(shape)), 0, None)
        for shape in shapes
    ]


def _whole(shape: Any) -> Any:
    """A shape with what its parts stand for."""
    kind = shape.__class__
    if kind is Part:
        return msgspec.Raw(shape.data)
    if kind is list:
        return [_whole(item) for item in shape]
    if kind is dict:
        return {key: _whole(item) for key, item in shape.items()}
    return shape


class _Changes(dict[str, dict[str, Any]]):
    """How channels have changed: by the way in which that is stored, and by their names."""

    def __init__(self) -> None:
        super().__init__(put={}, list={}, add={}, patch={})

    @property
    def names(self) -> list[str]:
        return [name for stored in self.values() for name in stored]


def _expected(metadata: dict[str, Any]) -> dict[str, Any]:
    """What metadata is to be expected after *metadata*."""
    step = metadata.get("step")
    return {**metadata, "step": step + 1} if step.__class__ is int else metadata


#: The beginning of the times in ids (1582), before 1970, in tenths of microseconds.
_BEGAN = 0x01B21DD213814000


def _time_in(id_: str) -> datetime | None:
    """The time that a checkpoint's id begins with, if it is one of LangGraph's (UUID 6)."""
    digits = id_.replace("-", "")
    try:
        ticks = int(digits[:12], 16) << 12 | int(digits[13:16], 16)
        return from_micros((ticks - _BEGAN) // 10) if digits[12] == "6" else None
    except (ValueError, IndexError, OverflowError):
        return None


def _short_time(id_: str, ts: str) -> int | str:
    """*ts* as microseconds from the time in an id, if that says all of it; or as it is."""
    began = _time_in(id_)
    try:
        after = None if began is None else (datetime.fromisoformat(ts) - began) // _MICROSECOND
    except (ValueError, TypeError):
        return ts
    return ts if after is None or _long_time(id_, after) != ts else after


def _long_time(id_: str, ts: int | str) -> str:
    """The reverse."""
    began = None if isinstance(ts, str) else _time_in(id_)
    return str(ts) if began is None else (began + int(ts) * _MICROSECOND).isoformat()


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What *new* has that *old* has not, or otherwise; and which keys are gone."""
    changed = {key: v for key, v in new.items() if key not in old or encode(old[key]) != encode(v)}
    return changed, [key for key in old if key not in new]


def _changed(
    old: dict[str, Any], changed: Mapping[str, Any], gone: Iterable[str]
) -> dict[str, Any]:
    """*old* with those changes."""
    for key in gone:
        del old[key]
    old.update(changed)
    return old


def _seen(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """What nodes have seen anew, and whether something they had seen is gone."""
    found: dict[str, Any] = {}
    lost = any(name not in new for name in old)
    for name, versions in new.items():
        changed, gone = _changes(old.get(name, {}), versions)
        lost = lost or bool(gone)
        if changed or name not in old:
            found[name] = changed
    return found, lost


def _unanswered(writes: Iterable[Write]) -> list[Write]:
    """Those of *writes* on one checkpoint that ask, and nobody has answered since."""
    asked: dict[str, Write] = {}
    answered: dict[str, int] = {}
    for write in writes:
        if write.channel == _INTERRUPT:
            asked[write.task] = write
        elif write.channel == _RESUME:
            answered[write.task] = write.seq
    of_all = answered.get(_NO_TASK, 0)
    return [
        write for write in asked.values() if write.seq > max(of_all, answered.get(write.task, 0))
    ]


def _id(node: Node) -> str:
    return node.id


def _order(write: Write) -> tuple[str, str, int]:
    return write.order
