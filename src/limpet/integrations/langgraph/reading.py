"""Threads for people and tools: read without LangGraph, and without any class that is in them.

A `ThreadLog` with `Readable` values gives every value as what JSON has: of an object its fields,
with its class under ``$type``. Nothing is made, so nothing has to be allowed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from limpet.integrations.langgraph.thread import NONE, Listed, ThreadLog, encode
from limpet.llm.messages.shape import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal
    from limpet.integrations.langgraph.thread import Node, One, Write

__all__ = [
    "Asked",
    "Readable",
    "ThreadCheckpoint",
    "asked_of",
    "checkpoints_of",
    "delta_channels",
    "errors_of",
    "is_own",
    "message_of",
    "messages_in",
    "name_of",
    "next_of",
    "node_of",
    "read_thread",
    "readable",
    "state_of",
    "values_of",
]

_decode = msgspec.json.Decoder().decode

# How LangGraph's serialiser marks objects: by what their class is called with.
_ONE_ARGUMENT, _ARGUMENTS, _METHOD = 0, 1, 3
_FIELDS = (2, 4, 5)
_ARRAY, _SNAPSHOT = 6, 7

#: Who speaks in messages of LangChain's, by their type.
_ROLES = {
    "human": "user",
    "HumanMessageChunk": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "SystemMessageChunk": "system",
    "tool": "tool",
    "ToolMessageChunk": "tool",
    "function": "function",
    "FunctionMessageChunk": "function",
}

# Channels of LangGraph's own that name the node they lead to, or have what it is sent.
_BRANCH, _JOIN, _SENDS, _START = "branch:to:", "join:", "__pregel_tasks", "__start__"

_NOTHING: dict[str, Any] = {}


# -- values ----------------------------------------------------------------------------------------


class Readable:
    """Values as what JSON has, for a `ThreadLog` that is only read."""

    def load(self, data: bytes) -> Any:
        """The value that is stored as *data*."""
        return readable(_decode(data))

    def dump(self, value: Any) -> Any:
        """Refused: what is readable is not what is stored."""
        raise TypeError(f"A thread is written through a LimpetSaver, and {value!r} is not stored.")


def readable(tree: Any) -> Any:
    """What *tree*, a value as it is stored, says.

    >>> readable({"$ext": [0, ["builtins", "set", ["a", "b"]]]})
    ['a', 'b']
    """
    kind = tree.__class__
    if kind is list:
        return [readable(item) for item in tree]
    if kind is not dict:
        return tree
    if len(tree) == 1:
        ((key, value),) = tree.items()
        if key == "$ext":
            return _object(*value)
        if key == "$map":
            return {_key(readable(name)): readable(item) for name, item in value}
        if key == "$float":
            return value
    return {key: readable(item) for key, item in tree.items()}


def _key(key: Any) -> str:
    return key if isinstance(key, str) else encode(key).decode()


def _object(code: int, inner: Any) -> Any:  # noqa: PLR0911 - one line for each way
    if code == _SNAPSHOT:
        return readable(inner)
    if code == _ARRAY:
        return {"$type": "numpy.ndarray", "dtype": inner[0], "shape": readable(inner[1])}
    module, name, given = inner[:3]
    type_ = f"{module}.{name}"
    if code in (_ONE_ARGUMENT, _METHOD):
        # A secret is stored, but nobody expects to see it.
        return "**********" if name.startswith("Secret") else readable(given)
    fields = readable(given)
    if code in _FIELDS and fields.__class__ is dict:
        return {"$type": type_, **fields}
    if code == _ARGUMENTS and type_ == "datetime.date":
        return "{:04}-{:02}-{:02}".format(*fields)
    if code == _ARGUMENTS and module.startswith("pathlib"):
        return "/".join(fields).replace("//", "/", 1)
    return {"$type": type_, "args": fields}


def message_of(value: Any) -> dict[str, Any] | None:
    """A readable *value* as a message in the shape of OpenAI's chat; None if it is none."""
    if value.__class__ is not dict:
        return None
    if isinstance(value.get("role"), str) and value.keys() & {"content", "tool_calls", "parts"}:
        return {key: item for key, item in value.items() if key != "$type"}
    data = value["data"] if value.get("data").__class__ is dict else value
    role = _ROLES.get(str(value.get("type")))
    if role is None or "content" not in data:
        return None
    message: dict[str, Any] = {"role": role, "content": data["content"]}
    calls = data.get("tool_calls")
    if role == "assistant" and isinstance(calls, list) and calls:
        if isinstance(data["content"], list):  # where Anthropic's messages have the calls again
            again = [piece for piece in data["content"] if kind_of(piece) not in _CALLS]
            message["content"] = again
        message["content"] = message["content"] or None
        message["tool_calls"] = [_call(call) for call in calls if isinstance(call, dict)]
    names = ("name", "tool_call_id", "id")
    message.update((key, data[key]) for key in names if data.get(key) is not None)
    return message


_CALLS = ("tool_use", "function_call", "input_json_delta")


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(call.get("args"), ensure_ascii=False)
    function = {"name": call.get("name"), "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": function}


def messages_in(value: Any) -> list[dict[str, Any]] | None:
    """The messages that a readable *value* is a list of; None if it is something else."""
    if value.__class__ is not list or not value:
        return None
    found = [message_of(item) for item in value]
    messages = [message for message in found if message is not None]
    return messages if len(messages) == len(found) else None


# -- a thread --------------------------------------------------------------------------------------


async def read_thread(journal: AsyncJournal, head: Head) -> ThreadLog:
    """The thread in a *journal*, as it was at *head*, with values that people can read."""
    log = ThreadLog(Readable())
    log.incarnation = head.incarnation
    async for page in journal.pages(after=head.first - 1, upto=head.seq):
        for entry in page:
            journal.understand(entry, log.take)
    return log


def name_of(log: ThreadLog, head: Head) -> str:
    """What LangGraph calls the thread."""
    return head.key.id if log.thread is None else log.thread


def is_own(channel: str) -> bool:
    """Whether a channel is LangGraph's own, and not of the graph's state."""
    return channel.startswith(("__", _BRANCH, _JOIN))


def delta_channels(about: Mapping[str, Any]) -> list[str]:
    """The channels whose values are in what was written since some earlier checkpoint."""
    counted = about["metadata"].get("counters_since_delta_snapshot")
    return list(counted) if isinstance(counted, dict) else []


def values_of(log: ThreadLog, node: Node) -> dict[str, Any]:
    """The readable values of the graph's channels at a checkpoint, by their names.

    Of a `DeltaChannel` nobody can know the value without the graph. Where lists were written, they
    are put together, messages by their ids.
    """
    found = {
        name: log.value(value)
        for name, (_, value) in node.values.items()
        if value is not NONE and not is_own(name)
    }
    for name in delta_channels(log.about(node)):
        if name not in found and not is_own(name):
            found[name] = _gathered(log, node, name)
    return found


def _gathered(log: ThreadLog, node: Node, channel: str) -> Any:
    written: list[Any] = []
    seed: Any = []
    for before, after in log.ancestors(node):
        writes = [write for write in log.consumed(before, after) if write.channel == channel]
        written += [log.load(write.shape) for write in reversed(writes)]
        known = before.values.get(channel)
        if known is not None and known[1] is not NONE:
            seed = log.value(known[1])
            break
    if not all(isinstance(item, list) for item in (seed, *written)):
        return {"written": [seed, *reversed(written)]}
    found: list[Any] = []
    places: dict[str, int] = {}
    for item in [*seed, *(item for items in reversed(written) for item in items)]:
        id_ = item.get("id") if message_of(item) else None
        if id_ is not None and id_ in places:
            found[places[id_]] = item
            continue
        if id_ is not None:
            places[id_] = len(found)
        found.append(item)
    return found


def next_of(log: ThreadLog, node: Node) -> list[str]:
    """The nodes of the graph that would run next, as far as the checkpoint itself says so."""
    seen = log.about(node)["checkpoint"]["versions_seen"]
    found: list[str] = []
    for channel, (version, value) in node.values.items():
        if value is NONE:
            continue
        name = ""
        if channel == _START:
            name = _START
        elif channel.startswith(_BRANCH):
            name = channel.removeprefix(_BRANCH)
        elif channel.startswith(_JOIN):
            awaited, _, name = channel.removeprefix(_JOIN).rpartition(":")
            arrived = log.value(value)
            name = name if set(arrived or ()) == set(awaited.split("+")) else ""
        elif channel == _SENDS:
            sends = log.value(value)
            found += [str(send["args"][0]) for send in sends or () if "args" in send]
        if name and seen.get(name, _NOTHING).get(channel) != version:
            found.append(name)
    return list(dict.fromkeys(found))


class Asked(Struct, frozen=True):
    """What a node has asked, and nobody has answered yet."""

    node: str
    id: str | None
    value: Any


def asked_of(log: ThreadLog, node: Node) -> list[Asked]:
    """What is asked at a checkpoint."""
    found = []
    for write in log.asked(node):
        stored = log.load(write.shape)
        for one in stored if isinstance(stored, list) else [stored]:
            is_one = one.__class__ is dict and "value" in one
            id_, value = (one.get("id"), one["value"]) if is_one else (None, one)
            found.append(Asked(_node_in(write), id_, value))
    return found


def errors_of(log: ThreadLog, node: Node) -> list[tuple[str, str]]:
    """The nodes that failed at a checkpoint, and with what."""
    return [
        (_node_in(write), str(log.load(write.shape)))
        for write in log.pending(node)
        if write.channel == "__error__"
    ]


def _node_in(write: Write) -> str:
    """The node that a task runs, where its path says so."""
    _, _, name = write.path.partition("__pregel_pull, ")
    return name.partition(",")[0]


class ThreadCheckpoint(Struct, frozen=True):
    """A checkpoint, without its values."""

    number: int  # of its entry in the journal
    id: str
    namespace: str
    parent: int | None
    #: 0 for the line that the newest of the namespace is on, else a number for each fork.
    line: int
    step: int | None
    source: str | None
    at: str
    nodes: list[str]  # that ran before it
    changes: dict[str, str]  # by channel, what they changed
    metadata: dict[str, Any]


def checkpoints_of(log: ThreadLog) -> list[ThreadCheckpoint]:
    """All checkpoints, in the order in which they were stored."""
    main = set()
    for ns in log.nodes:
        newest = log.newest(ns)
        if newest is not None:
            main |= {newest.seq, *(before.seq for before, _ in log.ancestors(newest))}
    lines: dict[int, int] = dict.fromkeys(main, 0)
    gone_on: set[int] = set()  # checkpoints whose line has gone on
    found, forks = [], 0
    for node in sorted(log.all_nodes(), key=_seq):
        parent = log.node(node.ns, node.parent) if node.parent is not None else None
        if node.seq not in main:
            is_on = parent is not None and lines[parent.seq] and parent.seq not in gone_on
            forks += not is_on
            lines[node.seq] = lines[parent.seq] if parent is not None and is_on else forks
            if parent is not None:
                gone_on.add(parent.seq)
        found.append(_checkpoint(log, node, parent, lines[node.seq]))
    return found


def _seq(node: Node) -> int:
    return node.seq


def _checkpoint(log: ThreadLog, node: Node, parent: Node | None, line: int) -> ThreadCheckpoint:
    about = log.about(node)
    metadata = about["metadata"]
    seen = about["checkpoint"]["versions_seen"]
    before, deltas = _NOTHING, delta_channels(about)
    changes: dict[str, str] = {}
    if parent is not None:
        old = log.about(parent)
        before, deltas = old["checkpoint"]["versions_seen"], [*deltas, *delta_channels(old)]
        for write in log.consumed(parent, node):
            if write.channel in deltas and not is_own(write.channel):
                written = log.load(write.shape)
                length = len(written) if isinstance(written, list) else 1
                earlier = int(changes.get(write.channel, 0))
                changes[write.channel] = f"{earlier + length:+}"
    values = _changes(log, {} if parent is None else parent.values, node.values)
    changes |= {channel: how for channel, how in values if channel not in deltas}
    nodes = [
        name
        for name, versions in seen.items()
        if not name.startswith("__") and before.get(name) != versions
    ]
    return ThreadCheckpoint(
        number=node.seq,
        id=node.id,
        namespace=node.ns,
        parent=None if parent is None else parent.seq,
        line=line,
        step=metadata.get("step"),
        source=metadata.get("source"),
        at=about["checkpoint"]["ts"],
        nodes=nodes,
        changes=dict(sorted(changes.items())),
        metadata=metadata,
    )


def _changes(
    log: ThreadLog,
    old: Mapping[str, tuple[Any, One | Listed]],
    new: Mapping[str, tuple[Any, One | Listed]],
) -> Iterator[tuple[str, str]]:
    """The graph's channels that are otherwise than before, and how."""
    for channel in sorted({*old, *new}):
        was = old.get(channel, (None, NONE))[1]
        now = new.get(channel, (None, NONE))[1]
        if is_own(channel) or now is was:
            continue
        if now is NONE:
            yield channel, "emptied"
        elif isinstance(now, Listed):
            more = now.length - (was.length if isinstance(was, Listed) else 0)
            if more or not isinstance(was, Listed):
                yield channel, f"{more:+}"
            elif [part.data for part in was.parts[: was.length]] != [
                part.data for part in now.parts[: now.length]
            ]:
                yield channel, "changed"
        elif was is NONE:
            yield channel, "set"
        elif log.value(was) != log.value(now):
            yield channel, "changed"


def node_of(log: ThreadLog, which: str) -> Node:
    """The checkpoint that *which* means: its number, its id, or what only its id begins with.

    `LookupError`, if there is none, or several.
    """
    nodes = log.all_nodes()
    found = [node for node in nodes if which.isdecimal() and node.seq == int(which)]
    found = found or [node for node in nodes if node.id == which]
    found = found or [node for node in nodes if which and node.id.startswith(which)]
    if len(found) == 1:
        return found[0]
    if found:
        raise LookupError(f"{len(found):,} checkpoints have an id that begins with {which!r}.")
    raise LookupError(f"There is no checkpoint {which!r}.")


def state_of(log: ThreadLog, head: Head) -> dict[str, Any]:
    """All that people read of a thread: its newest values, what is next, and its checkpoints."""
    newest = log.newest("")
    every = [log.newest(ns) for ns in log.nodes if ns]
    inner = {node.ns: values_of(log, node) for node in every if node is not None}
    found: dict[str, Any] = {"thread": name_of(log, head), "checkpoint": None}
    if newest is not None:
        found["checkpoint"] = newest.id
        found["values"] = values_of(log, newest)
        found["next"] = next_of(log, newest)
        found["asked"] = asked_of(log, newest)
        found["errors"] = dict(errors_of(log, newest))
    found["namespaces"] = inner
    found["checkpoints"] = checkpoints_of(log)
    return found
