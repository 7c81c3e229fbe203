"""Agents and teams of AutoGen, killed around every write, go on as if nothing had been."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.messages import TextMessage

import limpet
from limpet.integrations import autogen
from limpet.testing.boundaries import Boundaries
from tests.support.autogen_teams import KINDS
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    async with limpet.open_async(url) as store:
        boundaries = Boundaries(store.backend, kill_at)
        it = await autogen.keep(KINDS[kind](), store, id, idempotent=["look"])
        said = await (_asked(it) if kind == "single" else _run(it, plainly=plainly))
        kept = autogen.kept(it)
        assert not kept.unfinished
        assert not kept.repairs
        outcome = {"said": said, "state": bare(await autogen.export(store, id))}
        assert bare(await it.save_state()) == outcome["state"]
        beside = (await kept.state.load())["limpet"].get("extra")
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


async def plain(kind: str) -> Any:
    """What AutoGen does by itself."""
    it = KINDS[kind]()
    if kind == "single":
        results = [await it.run(task=f"Go {number}.") for number in range(TURNS)]
        said: Any = [bare(message.dump()) for message in results[-1].messages]
    else:
        result = await it.run(task="Go.")
        said = [[bare(message.dump()) for message in result.messages], result.stop_reason]
    return {"said": said, "state": bare(await it.save_state())}


def killed_everywhere(url: str, kind: str) -> int:
    """Kill it at every boundary, each time one that is new; how many there were."""
    # Here, and as processes have it: what is slow the first time every child then finds done.
    expected = as_told(asyncio.run(plain(kind)))
    outcome, beside, passed = as_told(asyncio.run(run(url, f"{kind} 0", kind, None, plainly=False)))
    assert outcome == expected

    def process(number: int, kill_at: int | None, *, plainly: bool = False) -> tuple[int, Any]:
        id_ = f"{kind} {number}"
        return in_a_process(lambda: asyncio.run(run(url, id_, kind, kill_at, plainly=plainly)))

    with frozen():
        for number, moment in enumerate(passed, 1):
            code, _ = process(number, number)
            assert code == signal.SIGKILL, f"{moment} was not reached"
            _, (outcome, known, _) = process(number, None, plainly=bool(number % 2))
            assert outcome == expected, f"killed {moment} ({number} of {len(passed)})"
            assert known == beside, f"killed {moment} ({number} of {len(passed)})"
    return len(passed)


def as_told(found: Any) -> Any:
    """What a process would tell of it, which is JSON."""
    return json.loads(json.dumps(found))


@contextmanager
def frozen() -> Iterator[None]:
    """Nothing that is here now is looked at for garbage: a child would have to copy all of it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_killed_at_every_write_it_goes_on_as_if_nothing_had_been(kind: str, tmp_path: Path) -> None:
    """No speaker is skipped, no turn is doubled, and every agent knows what it would have known."""
    # What a process has written outlives it whether the disk has it or not.
    url = f"sqlite:{tmp_path}/agents.db?durability=normal"
    assert killed_everywhere(url, kind) >= TURNS
