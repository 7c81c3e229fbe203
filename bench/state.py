"""An AutoGen agent saved after each turn: what that takes, and what it leaves on the disk."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import holdfast
from bench._measure import Bench, Contest, Contestant, Row, make_turns, milliseconds, settle
from holdfast._faces import drive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LENGTHS = (10, 100, 1_000, 5_000)
#: Saved one by one, to see what becomes of the disk.
GROWN, QUICKLY = 5_000, 300
CALLS, ROUNDS = 20, 8

TURNS = make_turns(LENGTHS[-1] + 2 * CALLS * (ROUNDS + 2))


def measure(bench: Bench) -> list[Row]:
    """Save at all lengths in turn, ours and a dump; then let one agent grow."""
    calls, rounds = (5, 2) if bench.quick else (CALLS, ROUNDS)
    contest = Contest()
    with ExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        for length in LENGTHS:
            contestants |= stack.enter_context(_place(bench.path(f"agent-{length}"), length))
        Contest().round(contestants, 2)  # to warm up
        for _ in bench.rounds(rounds, quick=rounds):
            contest.round(contestants, calls)
    rows = [_row(contest, length) for length in LENGTHS]
    return [*rows, *_grown(bench.path("grown"), QUICKLY if bench.quick else GROWN)]


def _row(contest: Contest, length: int) -> Row:
    dump, ours = f"dump {length}", f"holdfast {length}"
    own = contest.ratio(f"dump and save_state {length}", to=f"holdfast and save_state {length}")
    return Row(
        name=f"save an agent of {length:,} turns: a dump, atomic and fsynced, against ours",
        value=contest.ratio(dump, to=ours),
        at_least=5 if length == 1_000 else None,
        note=(
            f"{milliseconds(contest.typical(ours))}, dump {milliseconds(contest.typical(dump))};"
            f" with AutoGen's own save_state() in both {own:.1f}"
        ),
        figures={
            "turns": length,
            "dump_ms": contest.typical(dump) * 1e3,
            "holdfast_ms": contest.typical(ours) * 1e3,
            "with_save_state": own,
        },
    )


def _grown(path: Path, turns: int) -> list[Row]:
    """An agent saved after each of its *turns*: the bytes of each save."""
    agent = _Agent(0)
    with holdfast.open(path, durability="normal") as store:
        state = store.state("agent")
        for _ in range(turns):
            agent.turn()
            state.save(agent.document())
        history = state.history()
    last = [one.total for one in history if one.full][-1]
    dumps = history[-1].total / 1e6
    stored = sum(one.bytes for one in history)
    said = [len(one["content"].encode()) for turn in TURNS[:turns] for one in turn]
    text = sum(said)
    half, later = turns // 2, sum(said[turns:])
    late = sum(one.bytes for one in history[half:]) / later
    dumped = sum(one.total for one in history)
    return [
        Row(
            name=f"bytes written a turn, of {turns:,}, to the new text",
            value=stored / text,
            at_most=3,
            note=f"{stored / turns:,.0f} B; a dump writes {dumped / turns:,.0f} B a turn",
            figures={"turns": turns, "bytes": stored, "text": text, "dumped": dumped},
        ),
        Row(
            name="the same in the later half of them",
            value=late,
            at_most=3,
            note=f"patches of {_median([one.bytes for one in history if not one.full]):,} B",
        ),
        Row(
            name="all saves stored, to twice the last whole copy and all text",
            value=stored / (2 * last + text),
            at_most=1,
            note=f"{stored / 1e6:.2f} MB with all history; the last dump alone {dumps:.2f} MB",
        ),
    ]


def _median(sizes: list[int]) -> int:
    return sorted(sizes)[len(sizes) // 2]


@contextmanager
def _place(path: Path, length: int) -> Iterator[dict[str, Contestant]]:
    """Four ways to save: ours and a dump, of a document in hand, and with AutoGen's part of it."""
    file = path.with_suffix(".json")
    in_hand, whole = _Agent(length), _Agent(length)
    with holdfast.open(path) as store:
        settle(store)
        first, second = store.state("in hand"), store.state("whole")
        first.save(in_hand.document())
        second.save(whole.document())

        def ours() -> float:
            in_hand.turn()
            document = in_hand.document()
            began = perf_counter()
            first.save(document)
            return perf_counter() - began

        def dump() -> float:
            document = in_hand.document()
            began = perf_counter()
            _dump(document, file)
            return perf_counter() - began

        def ours_and_state() -> float:
            whole.turn()
            began = perf_counter()
            second.save(whole.document())
            return perf_counter() - began

        def dump_and_state() -> float:
            began = perf_counter()
            _dump(whole.document(), file)
            return perf_counter() - began

        yield {
            f"holdfast {length}": ours,
            f"dump {length}": dump,
            f"holdfast and save_state {length}": ours_and_state,
            f"dump and save_state {length}": dump_and_state,
        }


def _dump(document: Any, file: Path) -> None:
    """What people write today, in the way that survives a crash."""
    beside = file.with_suffix(".tmp")
    with beside.open("w", encoding="utf-8") as opened:
        json.dump(document, opened)
        opened.flush()
        os.fsync(opened.fileno())
    beside.replace(file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class _Agent:
    """A real AssistantAgent, which has seen so many turns."""

    def __init__(self, length: int) -> None:
        from autogen_agentchat.agents import AssistantAgent  # noqa: PLC0415 - slow to import
        from autogen_core.model_context import UnboundedChatCompletionContext  # noqa: PLC0415
        from autogen_ext.models.replay import ReplayChatCompletionClient  # noqa: PLC0415

        self._context = UnboundedChatCompletionContext()
        client = ReplayChatCompletionClient(["Sunny."])
        self._agent = AssistantAgent("support", client, model_context=self._context)
        self._seen = 0
        for _ in range(length):
            self.turn()

    def turn(self) -> None:
        """One more."""
        from autogen_core.models import AssistantMessage, UserMessage  # noqa: PLC0415 - as above

        asked, answered = TURNS[self._seen]
        self._seen += 1
        for message in (
            UserMessage(content=asked["content"], source="user"),
            AssistantMessage(content=answered["content"], source="support"),
        ):
            drive(self._context.add_message(message))  # none of it waits for anything

    def document(self) -> dict[str, Any]:
        """Its state, as AutoGen gives it."""
        return dict(drive(self._agent.save_state()))
