"""Agents and teams of AutoGen, killed around every write, go on as if nothing had been."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.messages import TextMessage

import holdfast
from holdfast.adapters import autogen
from holdfast.testing.boundaries import Boundaries
from tests.autogen_teams import KINDS
from tests.matrix import in_a_process

if TYPE_CHECKING:
    from pathlib import Path

EACH_TIME = ("id", "request_id", "created_at", "full_message_id")

#: How often the agent that is by itself is asked; a team takes at least as many turns.
TURNS = 6


def bare(value: Any) -> Any:
    """*value* without what is new each time: the ids and the times of messages."""
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items() if k not in EACH_TIME}
    return [bare(item) for item in value] if isinstance(value, (list, tuple)) else value


async def run(url: str, id: str, kind: str, kill_at: int | None, *, plainly: bool) -> list[Any]:
    """All that is left to do, in one process: what came of it, and the boundaries it passed."""
    async with holdfast.open_async(url) as store:
        boundaries = Boundaries(store.backend, kill_at)
        it = await autogen.keep(KINDS[kind](), store, id, idempotent=["look"])
        said = await (_asked(it) if kind == "single" else _run(it, plainly=plainly))
        kept = autogen.kept(it)
        assert not kept.unfinished
        assert not kept.repairs
        outcome = {"said": said, "state": bare(await autogen.export(store, id))}
        assert bare(await it.save_state()) == outcome["state"]
        beside = (await kept.state.load())["holdfast"].get("beside")
        return [outcome, bare(beside), boundaries.passed]


async def _run(it: Any, *, plainly: bool) -> Any:
    task = TextMessage(content="Go.", source="user", id="task-1")
    if plainly and autogen.kept(it).unfinished:
        result = await it.run()
    else:
        result = await it.run(task=task)
    return [[bare(message.dump()) for message in result.messages], result.stop_reason]


async def _asked(it: Any) -> Any:
    """Six questions, one after the other, from the first that is not known to be answered."""
    context = (await it.save_state())["llm_context"]["messages"]
    done = sum(1 for message in context if message["type"] == "UserMessage")
    at = done if autogen.kept(it).unfinished else max(done - 1, 0)
    result = None
    for number in range(at, TURNS):
        task = TextMessage(content=f"Go {number}.", source="user", id=f"task-{number}")
        result = await it.run(task=task)
    assert result is not None
    return [bare(message.dump()) for message in result.messages]


def plain(kind: str) -> Any:
    """What AutoGen does by itself."""

    async def alone() -> Any:
        it = KINDS[kind]()
        if kind == "single":
            results = [await it.run(task=f"Go {number}.") for number in range(TURNS)]
            said: Any = [bare(message.dump()) for message in results[-1].messages]
        else:
            result = await it.run(task="Go.")
            said = [[bare(message.dump()) for message in result.messages], result.stop_reason]
        return {"said": said, "state": bare(await it.save_state())}

    return in_a_process(lambda: asyncio.run(alone()))[1]


def killed_everywhere(url: str, kind: str) -> int:
    """Kill it at every boundary, each time one that is new; how many there were."""
    expected = plain(kind)

    def process(number: int, kill_at: int | None, *, plainly: bool = False) -> tuple[int, Any]:
        id_ = f"{kind} {number}"
        return in_a_process(lambda: asyncio.run(run(url, id_, kind, kill_at, plainly=plainly)))

    holdfast.open(url).close()  # its driver is imported here, not in each process
    _, (outcome, beside, passed) = process(0, None)
    assert outcome == expected
    for number, moment in enumerate(passed, 1):
        code, _ = process(number, number)
        assert code == signal.SIGKILL, f"{moment} was not reached"
        _, (outcome, known, _) = process(number, None, plainly=bool(number % 2))
        assert outcome == expected, f"killed {moment} ({number} of {len(passed)})"
        assert known == beside, f"killed {moment} ({number} of {len(passed)})"
    return len(passed)


@pytest.mark.parametrize("kind", list(KINDS))
def test_killed_at_every_write_it_goes_on_as_if_nothing_had_been(kind: str, tmp_path: Path) -> None:
    """No speaker is skipped, no turn is doubled, and every agent knows what it would have known."""
    assert killed_everywhere(f"sqlite:{tmp_path}/agents.db", kind) >= TURNS
