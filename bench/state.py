"""An AutoGen agent saved after each turn: what that takes, and what it leaves on the disk."""

from __future__ import annotations

import asyncio
import json
import os
import random
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

import limpet
from bench._measure import Bench, Contest, Contestant, Row, milliseconds, settle, timed
from limpet.core import deltas
from limpet.core.runtime import run_to_end
from limpet.integrations import autogen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limpet import StateVersion

LENGTHS = (10, 100, 1_000, 5_000)
#: Saved one by one, to see what becomes of the disk.
GROWN, QUICKLY = 5_000, 300
CALLS, ROUNDS = 20, 8
MEGABYTE = 1_000_000


def _make_turns(count: int) -> list[tuple[str, str]]:
    """What a user asks and an agent says, as long as elsewhere here, in words of a language.

    The turns of other benchmarks have few words; these do not compress better than what is said.
    """
    draw = random.Random(3)
    words = ["".join(draw.choices("aeioubcdfglmnprst", k=draw.randint(2, 9))) for _ in range(3_000)]

    def said(least: int, most: int) -> str:
        return " ".join(draw.choices(words, k=most // 3))[: draw.randint(least, most)]

    return [(said(100, 240), said(300, 440)) for _ in range(count)]


TURNS = _make_turns(LENGTHS[-1] + 3 * CALLS * (ROUNDS + 2))


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
    rows = [row for length in LENGTHS for row in _rows(contest, length)]
    grown = QUICKLY if bench.quick else GROWN
    return [
        *rows,
        _small_change(bench),
        *_growth("a state saved", _saved(bench.path("grown"), grown), grown),
        *_growth("an agent kept", asyncio.run(_kept(bench.path("kept"), grown)), grown),
    ]


def _rows(contest: Contest, length: int) -> Iterator[Row]:
    for name, ours, dump in (
        ("save the state of", "ours", "dump"),
        ("keep, with AutoGen's own part,", "kept", "dump of save_state"),
    ):
        one, other = f"{ours} {length}", f"{dump} {length}"
        yield Row(
            name=f"{name} an agent of {length:,} turns: a dump, atomic and fsynced, against ours",
            value=contest.ratio(other, to=one),
            at_least=8 if length == 1_000 and ours == "kept" else None,
            note=f"{milliseconds(contest.typical(one))}, {milliseconds(contest.typical(other))};"
            f" {contest.cpu(one, to=other)}",
            figures={
                "turns": length,
                "dump_ms": contest.typical(other) * 1e3,
                "limpet_ms": contest.typical(one) * 1e3,
            },
        )


def _small_change(bench: Bench) -> Row:
    """A document of a megabyte in which a number has changed; and what share of that is JSON."""
    contest = Contest()
    document = {"notes": [said for turn in TURNS for said in turn], "turn": 0}
    while len(msgspec.json.encode(document)) > MEGABYTE:
        document["notes"].pop()  # type: ignore[attr-defined]

    def save() -> float:
        document["turn"] += 1  # type: ignore[operator]
        return timed(lambda: state.save(document))()

    with limpet.open(bench.path("megabyte")) as store:
        settle(store)
        state = store.state("document")
        state.save(document)
        for _ in range(2 if bench.quick else 10):
            contest.round(
                {"save": save, "encode": timed(lambda: deltas.encode(document))}, calls=20
            )
    return Row(
        name="a document of 1 MB with a small change: what share of a save is encoding",
        value=contest.ratio("encode", to="save"),
        note=f"{milliseconds(contest.typical('save'))};"
        f" encoded {milliseconds(contest.typical('encode'))}",
    )


# -- the disk --------------------------------------------------------------------------------------


def _saved(path: Path, turns: int) -> list[StateVersion]:
    """The history of an agent whose document was saved after each of so many turns."""
    agent = _Agent(0)
    with limpet.open(path, durability="normal") as store:
        state = store.state("agent")
        for _ in range(turns):
            agent.turn()
            state.save(agent.document())
        found: list[StateVersion] = state.history()
    return found


async def _kept(path: Path, turns: int) -> list[StateVersion]:
    """The same for one that was kept, and asked so often: each question is saved, and each turn."""
    from autogen_agentchat.agents import AssistantAgent  # noqa: PLC0415 - slow to import

    async with limpet.open_async(path, durability="normal") as store:
        agent = await autogen.keep(AssistantAgent("support", _model()), store, "agent")
        for asked, _ in TURNS[:turns]:
            await agent.run(task=asked)
        return await autogen.kept(agent).state.history()


def _model() -> Any:
    """A model that says what comes next, and costs nothing."""
    from autogen_core.models import CreateResult, RequestUsage  # noqa: PLC0415 - as above
    from autogen_ext.models.replay import ReplayChatCompletionClient  # noqa: PLC0415

    answers = iter([answer for _, answer in TURNS])

    class Model(ReplayChatCompletionClient):
        async def create(self, messages: Any, **options: Any) -> CreateResult:  # noqa: ARG002 - AutoGen's
            usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
            said = next(answers)
            return CreateResult(finish_reason="stop", content=said, usage=usage, cached=False)

    return Model([])


class _Disk:
    """What was said in so many turns, and what they have left on the disk, after each of them."""

    def __init__(self, history: list[StateVersion], turns: int) -> None:
        self.each = each = len(history) // turns  # saves a turn
        self.text = [0]
        self.stored = [0]
        self.copy = [0]  # the last whole one
        self.patched: list[int] = []  # by turns that wrote none
        for number in range(turns):
            saves = history[number * each : (number + 1) * each]
            bytes_ = sum(one.bytes for one in saves)
            copies = [one.total for one in saves if one.full]
            self.text.append(self.text[-1] + sum(len(said) for said in TURNS[number]))
            self.stored.append(self.stored[-1] + bytes_)
            self.copy.append(max([self.copy[-1], *copies]))
            self.patched += [] if copies else [bytes_]

    def ratio(self, after: int, upto: int) -> float:
        """Bytes to the new text, from one turn to another."""
        return (self.stored[upto] - self.stored[after]) / (self.text[upto] - self.text[after])

    def share(self, turn: int) -> float:
        """All that was stored, to twice the last whole copy and all text."""
        return self.stored[turn] / (2 * self.copy[turn] + self.text[turn])


def _growth(what: str, history: list[StateVersion], turns: int) -> list[Row]:
    """What became of the disk, at the end and on the way there."""
    disk = _Disk(history, turns)
    stored, half = disk.stored[-1], len(disk.patched) // 2
    dumped = sum(one.total for one in history[disk.each - 1 :: disk.each])
    by_length = [f"{disk.ratio(0, n):.2f} after {n:,}" for n in LENGTHS if n <= turns]
    early, late = _median(disk.patched[:half]), _median(disk.patched[half:])
    return [
        Row(
            name=f"{what}: bytes written a turn, of {turns:,}, to the new text",
            value=disk.ratio(0, turns),
            at_most=3,
            note=(
                f"{stored / turns:,.0f} B ({', '.join(by_length)}); a dump writes"
                f" {dumped / turns:,.0f} B a turn"
            ),
            figures={"turns": turns, "bytes": stored, "text": disk.text[-1], "dumped": dumped},
        ),
        Row(
            name=f"{what}: the same in the later half of them",
            value=disk.ratio(turns // 2, turns),
            at_most=3,
            note=f"a turn without a whole copy: {early:,} B at first, {late:,} B at last",
        ),
        Row(
            name=f"{what}: all that is stored, at its most, to twice the whole copy and all text",
            value=max(map(disk.share, range(LENGTHS[0], turns + 1))),
            at_most=1,
            note=(
                f"at the end {disk.share(turns):.2f}: {stored / 1e6:.2f} MB with all history; the"
                f" last dump alone {history[-1].total / 1e6:.2f} MB"
            ),
        ),
    ]


def _median(sizes: list[int]) -> int:
    return sorted(sizes)[len(sizes) // 2]


# -- the time --------------------------------------------------------------------------------------


@contextmanager
def _place(path: Path, length: int) -> Iterator[dict[str, Contestant]]:
    """Four ways to save: ours and a dump, of a document in hand, and with AutoGen's part of it."""
    file = path.with_suffix(".json")
    in_hand, whole = _Agent(length), _Agent(length)
    with limpet.open(path) as store, asyncio.Runner() as runner:
        settle(store)
        state = store.state("in hand")
        state.save(in_hand.document())
        run = runner.get_loop().run_until_complete
        run(autogen.keep(whole.agent, store, "kept"))
        keep = autogen.kept(whole.agent).save
        run(keep())

        def ours() -> float:
            in_hand.turn()
            document = in_hand.document()
            return timed(lambda: state.save(document))()

        def dump() -> float:
            document = in_hand.document()
            return timed(lambda: _dump(document, file))()

        def kept() -> float:
            whole.turn()
            return timed(lambda: run(keep()))()

        def dump_of_state() -> float:
            return timed(lambda: _dump(in_hand.document(), file))()

        yield {
            f"ours {length}": ours,
            f"dump {length}": dump,
            f"kept {length}": kept,
            f"dump of save_state {length}": dump_of_state,
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
        self.agent = AssistantAgent("support", client, model_context=self._context)
        self._seen = 0
        for _ in range(length):
            self.turn()

    def turn(self) -> None:
        """One more."""
        from autogen_core.models import AssistantMessage, UserMessage  # noqa: PLC0415 - as above

        asked, answered = TURNS[self._seen]
        self._seen += 1
        for message in (
            UserMessage(content=asked, source="user"),
            AssistantMessage(content=answered, source="support"),
        ):
            run_to_end(self._context.add_message(message))  # none of it waits for anything

    def document(self) -> dict[str, Any]:
        """Its state, as AutoGen gives it."""
        return dict(run_to_end(self.agent.save_state()))
