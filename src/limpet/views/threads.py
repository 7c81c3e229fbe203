"""Threads of LangGraph's in words; none of this needs LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.errors import NotFound, Unreadable
from limpet.integrations.langgraph import reading
from limpet.integrations.langgraph.thread import KIND, NONE, Listed, Node, ThreadLog
from limpet.views.chat import Stored, usage_in
from limpet.views.messages import parts, role
from limpet.views.text import count, json_line, one_line, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from limpet import Entry
    from limpet.backends.contract import Head
    from limpet.core.scope import Scope
    from limpet.integrations.langgraph.reading import Asked, ThreadCheckpoint

__all__ = [
    "Thread",
    "ThreadView",
    "Threads",
    "asked_line",
    "changes_line",
    "checkpoint_line",
    "comparable",
    "facts",
    "facts_line",
    "fold",
    "messages",
    "messages_at",
    "read",
    "state",
    "step_line",
    "view_of",
]

#: Characters of what is asked, and of a channel's value; ``--json`` has all of it.
VALUE = 200

#: What threads are held that were read, in bytes as their logs count them.
MOST_BYTES = 64 * 1024 * 1024


async def read(scope: Scope, head: Head) -> ThreadLog:
    """The thread of *head*, as it was then."""
    return await reading.read_thread(scope.journal(KIND, head.key.id), head)


class Thread:
    """A thread that was read, and when each of its entries was stored."""

    def __init__(self, incarnation: str) -> None:
        self.log = ThreadLog(reading.Readable())
        self.log.incarnation = incarnation
        self.times: dict[int, datetime] = {}
        self._checkpoints: list[ThreadCheckpoint] | None = None

    def take(self, entry: Entry) -> None:
        """Let the next entry count."""
        self.log.take(entry)
        self.times[entry.seq] = entry.at
        self._checkpoints = None

    def checkpoints(self) -> list[ThreadCheckpoint]:
        """What is known of each; made once for all pages, until more is read."""
        if self._checkpoints is None:
            self._checkpoints = reading.checkpoints_of(self.log)
        return self._checkpoints


class Threads:
    """Threads that were read, for those who show one again and again: then only news are read.

    A thread is out of here while somebody has it: its values are made when they are asked for.
    """

    def __init__(self) -> None:
        self._known: dict[str, Thread] = {}

    async def take(self, scope: Scope, head: Head) -> Thread:
        """The thread of *head*, as it was then, or is by now; give it back by `put`."""
        thread = self._known.pop(head.key.id, None)
        log = None if thread is None else thread.log
        if thread is None or log is None or not log.is_before(head) or log.seq < head.first - 1:
            thread = Thread(head.incarnation)
        journal = scope.journal(KIND, head.key.id)
        after = max(thread.log.seq, head.first - 1)
        if after >= head.seq:
            return thread
        async for page in journal.pages(after=after, upto=head.seq):
            for entry in page:
                journal.understand(entry, thread.take)
        return thread

    def put(self, head: Head, thread: Thread) -> None:
        """Keep *thread* for the next time, if it is not too large; the others that are."""
        self._known[head.key.id] = thread
        while sum(one.log.size for one in self._known.values()) > MOST_BYTES:
            del self._known[next(iter(self._known))]


def fold() -> Callable[[Entry], None]:
    """What is given the entries of a thread in their order, and fails at one that is none."""
    return ThreadLog(reading.Readable()).take


async def state(scope: Scope, head: Head) -> dict[str, Any]:
    """What people read of a thread."""
    return reading.state_of(await read(scope, head), head)


class ThreadView(Struct, frozen=True):
    """A thread at one checkpoint: its channels of messages, and what else is known."""

    node: Node | None
    channels: list[tuple[str, int]]
    sections: list[tuple[str, list[str], str]]  # title, lines and tone
    notes: list[str]


def view_of(thread: Thread, head: Head, at: int | None = None) -> ThreadView:
    """*thread* at its newest checkpoint, or at that in entry *at*; `NotFound` if that is none."""
    log = thread.log
    node = log.newest("")
    if at is not None:
        node = next((one for one in log.all_nodes() if one.seq == at), None)
        if node is None:
            raise NotFound(f"Entry {at} of thread {head.key.id!r} is no checkpoint.")
    if node is None:
        return ThreadView(None, [], [], ["It has no checkpoints."])
    channels, others = _channels(log, node)
    sections = [*_sections(thread, head, node), ("Other values", others, "")]
    return ThreadView(node, channels, [section for section in sections if section[1]], [])


def _channels(log: ThreadLog, node: Node) -> tuple[list[tuple[str, int]], list[str]]:
    """The channels of messages, each with how many there are, and the others in a line each."""
    channels: list[tuple[str, int]] = []
    others: list[str] = []
    deltas = reading.delta_channels(log.about(node))
    unknown = [name for name in deltas if name not in node.values]
    gathered = reading.values_of(log, node) if unknown else {}
    for name in [*node.values, *unknown]:
        _, value = node.values.get(name, (None, None))
        if value is NONE or reading.is_own(name):
            continue
        if isinstance(value, Listed) and _is_of_messages(log, value):
            channels.append((name, value.length))
            continue
        found = gathered.get(name) if value is None else log.value(value)
        messages = reading.messages_in(found)
        if messages is None:
            others.append(f"{one_line(name)}  {value_line(found)}")
        else:
            channels.append((name, len(messages)))
    return sorted(channels, key=lambda channel: channel[0] != "messages"), others


def _is_of_messages(log: ThreadLog, value: Listed) -> bool:
    """Whether a list is one of messages, by its first and its last: there may be very many."""
    if not value.length:
        return False
    ends = {0: value.parts[0], 1: value.parts[value.length - 1]}
    return all(reading.message_of(log.values.load(part.data)) for part in ends.values())


def messages_at(
    thread: Thread, node: Node | None, channel: str, low: int, high: int
) -> list[Stored]:
    """The messages from *low* to *high* of a *channel* at a checkpoint."""
    if node is None:
        return []
    log = thread.log
    _, value = node.values.get(channel, (None, NONE))
    if isinstance(value, Listed):
        parts = value.parts[: value.length][low:high]
        return [
            _stored(log.values.load(part.data), number, thread.times.get(part.seq), part.seq)
            for number, part in enumerate(parts, low + 1)
        ]
    values = reading.values_of(log, node).get(channel) or []
    return [_stored(one, number) for number, one in enumerate(values[low:high], low + 1)]


def _stored(
    value: Any, number: int, at: datetime | None = None, entry: int | None = None
) -> Stored:
    message = reading.message_of(value)
    if message is None:
        message = {"role": "message", "content": value}
    data = value if isinstance(value, dict) else {}
    data = data["data"] if isinstance(data.get("data"), dict) else data
    failed = data.get("status") == "error"
    usage = usage_in(data)
    return Stored(number, message, at, usage=usage, failed=failed, entry=entry)


def _sections(thread: Thread, head: Head, node: Node) -> Iterator[tuple[str, list[str], str]]:
    """What is known of a thread at a checkpoint beside its values."""
    log, every = thread.log, thread.checkpoints()
    at = next(one for one in every if one.number == node.seq)
    of = [one for one in every if one.namespace == node.ns]
    which = "the newest of" if node is log.newest(node.ns) else "one of"
    name = reading.name_of(log, head)
    if name != head.key.id:
        yield "Name", [f"LangGraph calls it {name!r}"], ""
    yield "Checkpoint", [f"{node.id}, {step_line(at)}, {which} {len(of):,}"], ""
    yield (
        "Asks, and waits for an answer",
        [asked_line(one) for one in reading.asked_of(log, node)],
        "warn",
    )
    errors = reading.errors_of(log, node)
    yield "Failed", [f"{name}: {text}".removeprefix(": ") for name, text in errors], "bad"
    yield "Next", reading.next_of(log, node), ""
    yield "Forks", list(_forks(every)), ""
    yield "Subgraphs", [_subgraph(every, ns) for ns in log.nodes if ns], ""


def _forks(checkpoints: list[ThreadCheckpoint]) -> Iterator[str]:
    """Where other lines begin, and how far they went."""
    lines: dict[int, list[ThreadCheckpoint]] = {}
    for one in checkpoints:
        if one.line:
            lines.setdefault(one.line, []).append(one)
    for number, line in lines.items():
        begin = line[0].parent
        where = "from the beginning" if begin is None else f"from {begin}"
        last = f"to {line[-1].number} ({step_line(line[-1])})"
        inner = f" in {line[0].namespace}" if line[0].namespace else ""
        yield f"fork {number}{inner}: {where} {last}, {count(len(line), 'checkpoint')}"


def _subgraph(checkpoints: list[ThreadCheckpoint], ns: str) -> str:
    """How far a subgraph is."""
    every = [one for one in checkpoints if one.namespace == ns]
    return f"{ns}: {count(len(every), 'checkpoint')}, {step_line(every[-1])}"


async def messages(scope: Scope, head: Head) -> list[dict[str, Any]]:
    """What was said in a thread: the channel ``messages``, or the first one that has some."""
    log = await read(scope, head)
    newest = log.newest("")
    values = {} if newest is None else reading.values_of(log, newest)
    said = [reading.messages_in(values.get("messages")), *map(reading.messages_in, values.values())]
    return next((found for found in said if found), [])


async def facts(scope: Scope, head: Head) -> dict[str, Any]:
    """What a list says of a thread: nothing of one that cannot be read."""
    try:
        log = await read(scope, head)
        newest = log.newest("")
        found: dict[str, Any] = {
            "thread": reading.name_of(log, head),
            "checkpoints": len(log.all_nodes()),
        }
        if newest is not None:
            found["checkpoint"] = newest.id
            found["step"] = log.about(newest)["metadata"].get("step")
            found["next"] = reading.next_of(log, newest)
            found["asked"] = reading.asked_of(log, newest)
    except Unreadable:
        return {}
    return found


def facts_line(found: dict[str, Any]) -> str:
    """The same in words."""
    if not found:
        return "damaged: see limpet doctor"
    words = [count(found["checkpoints"], "checkpoint")]
    if found.get("step") is not None:
        words.append(f"step {found['step']}")
    asked: list[Asked] = found.get("asked", [])
    if asked:
        words += [f"asks {asked_line(one)}" for one in asked]
    elif found.get("next"):
        words.append(f"next: {', '.join(found['next'])}")
    return "; ".join(words)


def asked_line(asked: Asked) -> str:
    """What a node asks."""
    text = shorten(one_line(asked.value), VALUE)
    return f"{asked.node}: {text}" if asked.node else text


def step_line(checkpoint: ThreadCheckpoint) -> str:
    """At which step a checkpoint was made, and by what."""
    known = "" if checkpoint.step is None else f"step {checkpoint.step}"
    source = checkpoint.source if checkpoint.source not in (None, "loop") else ""
    return " ".join(word for word in (known, source) if word)


def changes_line(checkpoint: ThreadCheckpoint) -> str:
    """Which nodes ran before a checkpoint, and what they changed."""
    changes = ", ".join(f"{channel} {how}" for channel, how in checkpoint.changes.items())
    return ": ".join(words for words in (", ".join(checkpoint.nodes), changes) if words)


def checkpoint_line(checkpoint: ThreadCheckpoint, *, begins: bool) -> str:
    """A checkpoint in a line; *begins*: it is the first one of its fork."""
    marks = [f"in {checkpoint.namespace}" if checkpoint.namespace else ""]
    if checkpoint.line:
        source = "" if checkpoint.parent is None else f" from {checkpoint.parent}"
        marks.append(f"fork {checkpoint.line}{source if begins else ''}")
    known = ", ".join(mark for mark in marks if mark)
    step, changes = step_line(checkpoint), changes_line(checkpoint)
    what = [f"[{known}]" if known else "", f"{step}, {changes}" if changes else step]
    return "  ".join(words for words in (*what, checkpoint.id) if words)


def comparable(log: ThreadLog, node: Node) -> dict[str, Any]:
    """The values at a checkpoint, with its messages in words, and what it asks."""
    found: dict[str, Any] = {}
    for channel, value in reading.values_of(log, node).items():
        messages = reading.messages_in(value)
        found[channel] = value if messages is None else [said(one) for one in messages]
    asked = [asked_line(one) for one in reading.asked_of(log, node)]
    return {**found, "asks": asked} if asked else found


def said(message: dict[str, Any]) -> str:
    """Who said what, on one line."""
    return one_line(f"{role(message)}: " + " ".join(p.mark + p.text for p in parts(message)))


def value_line(value: Any) -> str:
    """A value, short."""
    return shorten(one_line(value if isinstance(value, str) else json_line(value)), VALUE)
