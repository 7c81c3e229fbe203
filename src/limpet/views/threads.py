"""Threads of LangGraph's in words; none of this needs LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.errors import Unreadable
from limpet.integrations.langgraph import reading
from limpet.integrations.langgraph.thread import KIND, ThreadLog
from limpet.views.messages import parts, role
from limpet.views.text import count, json_line, one_line, shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet import Entry
    from limpet.backends.contract import Head
    from limpet.core.scope import Scope
    from limpet.integrations.langgraph.reading import Asked, ThreadCheckpoint
    from limpet.integrations.langgraph.thread import Node

__all__ = [
    "asked_line",
    "changes_line",
    "checkpoint_line",
    "comparable",
    "facts",
    "facts_line",
    "fold",
    "messages",
    "read",
    "state",
    "step_line",
]

#: Characters of what is asked, and of a channel's value; ``--json`` has all of it.
VALUE = 200


async def read(scope: Scope, head: Head) -> ThreadLog:
    """The thread of *head*, as it was then."""
    return await reading.read_thread(scope.journal(KIND, head.key.id), head)


def fold() -> Callable[[Entry], None]:
    """What is given the entries of a thread in their order, and fails at one that is none."""
    return ThreadLog(reading.Readable()).take


async def state(scope: Scope, head: Head) -> dict[str, Any]:
    """What people read of a thread."""
    return reading.state_of(await read(scope, head), head)


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
