"""One turn appended, at several lengths of the conversation."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import limpet
from bench._measure import (
    Bench,
    Contest,
    Contestant,
    Raw,
    Row,
    fill_raw,
    fill_store,
    make_bodies,
    make_turns,
    milliseconds,
    settle,
    timed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTHS = (10, 100, 1_000, 5_000)
TURNS = make_turns(LENGTHS[-1])
BODIES = make_bodies(TURNS)


def measure(bench: Bench) -> list[Row]:
    """Append at all lengths in turn, Limpet and raw; then anew after each opening."""
    calls, rounds = (40, 2) if bench.quick else (100, 12)
    steady, new, first = Contest(), Contest(), Contest()
    places = [_Place(bench, length, calls * (rounds + 1)) for length in LENGTHS]
    reopened, unseen = (_Place(bench, length, calls * rounds) for length in (1_000, 10))
    with ExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        for place in places:
            contestants |= stack.enter_context(place.open(settled=True))
        Contest().round(contestants, calls)  # to warm up
        for _ in bench.rounds(rounds, quick=rounds):
            steady.round(contestants, calls)
            with reopened.open(settled=False) as pair:
                new.round(pair, calls)
            with unseen.open(settled=True, seen=False) as pair:
                first.round(pair, calls)
    longest, shortest = f"limpet {LENGTHS[-1]}", f"limpet {LENGTHS[0]}"
    return [
        *(_row(steady, length) for length in LENGTHS),
        Row(
            name=f"append a turn to {LENGTHS[-1]:,}, processor time",
            value=steady.cpu_ratio(longest, to=f"raw {LENGTHS[-1]}"),
            at_most=1.4,
        ),
        Row(
            name=f"append a turn, to {LENGTHS[-1]:,} against to {LENGTHS[0]}",
            value=steady.ratio(longest, to=shortest),
            at_most=1.1,
        ),
        Row(
            name="append a turn to 1,000, the first 100 after opening",
            value=new.ratio("limpet 1000", to="raw 1000"),
            note=_note(new, 1_000),
        ),
        Row(
            name="append a turn to 10, the first of this process to each conversation",
            value=first.ratio("limpet 10", to="raw 10"),
            note=_note(first, 10),
        ),
    ]


def _row(contest: Contest, length: int) -> Row:
    raw, ours = f"raw {length}", f"limpet {length}"
    return Row(
        name=f"append a turn to {length:,}",
        value=contest.ratio(ours, to=raw),
        at_most=1.15,
        note=_note(contest, length),
        figures={
            "turns": length,
            "raw_ms": contest.typical(raw) * 1e3,
            "limpet_ms": contest.typical(ours) * 1e3,
        },
    )


def _note(contest: Contest, length: int) -> str:
    raw, ours = f"raw {length}", f"limpet {length}"
    return (
        f"{milliseconds(contest.typical(ours))}, raw {milliseconds(contest.typical(raw))};"
        f" {contest.cpu(ours, to=raw)};"
        f" means {contest.mean_ratio(ours, to=raw):.2f}"
    )


class _Place:
    """A store and its floor, with conversations of one length, enough for so many *calls*.

    A conversation is appended to until it is a tenth longer, then comes the next one. So places of
    all lengths hold about the same number of turns, and differ in how these are distributed.
    """

    def __init__(self, bench: Bench, length: int, calls: int) -> None:
        self._name = str(length)
        self._ours, self._floor = bench.path("limpet"), bench.path("raw")
        each = length // 10
        self._ids = [f"chat-{number}" for number in range(-(-calls // each))]
        self._targets = [iter([id_ for id_ in self._ids for _ in range(each)]) for _ in range(2)]
        fill_store(self._ours, self._ids, TURNS[:length])
        fill_raw(self._floor, self._ids, TURNS[:length])

    @contextmanager
    def open(self, *, settled: bool, seen: bool = True) -> Iterator[dict[str, Contestant]]:
        """Both ways to append, with logs that have their full size, or that are new.

        *seen*: to each conversation something was appended before, which does not count.
        """
        with closing(Raw(self._floor)) as raw, limpet.open(self._ours) as store:
            if settled:
                raw.settle()
                settle(store)
            chats = {id_: store.conversation(id_) for id_ in self._ids}
            yield {
                f"raw {self._name}": self._appends(0, raw.insert, cycle(BODIES), seen=seen),
                f"limpet {self._name}": self._appends(
                    1, lambda id_, turn: chats[id_].append(*turn), cycle(TURNS), seen=seen
                ),
            }

    def _appends(
        self, way: int, append: Callable[[str, Any], object], turns: Iterator[Any], *, seen: bool
    ) -> Contestant:
        last = ""

        def contestant() -> float:
            nonlocal last
            id_ = next(self._targets[way])
            if seen and id_ != last:
                append(id_, next(turns))
            last = id_
            return timed(partial(append, id_, next(turns)))()

        return contestant
