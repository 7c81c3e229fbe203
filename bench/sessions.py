"""A session of the OpenAI Agents SDK: a turn added, and all of it read, against the SDK's own."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing
from itertools import cycle
from typing import TYPE_CHECKING, Any

from agents import SQLiteSession

import limpet
from bench._measure import (
    Bench,
    Contest,
    Contestant,
    Row,
    fill_store,
    make_turns,
    milliseconds,
    settle,
    timed,
)
from limpet.integrations.openai_agents import LimpetSession

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from agents import Session

LENGTHS = (10, 100, 1_000, 5_000)


def _turn(number: int, said: Any, answer: Any) -> list[Any]:
    """A turn as the SDK's runner stores it, when a model of OpenAI's has answered."""
    text = {
        "annotations": [],
        "text": answer["content"],
        "type": "output_text",
        "logprobs": [],
    }
    message = {
        "id": f"msg_{number:048x}",
        "content": [text],
        "role": "assistant",
        "status": "completed",
        "type": "message",
    }
    return [said, message]


TURNS: Any = [_turn(number, *turn) for number, turn in enumerate(make_turns(LENGTHS[-1]))]
FILLER = TURNS * 2  # more than the log holds before it starts again at its beginning


def measure(bench: Bench) -> list[Row]:
    """Add a turn at all lengths in turn, then read them, both sessions on one event loop."""
    adding, reading = Contest(), Contest()
    calls, rounds = (10, 2) if bench.quick else (25, 12)
    with ExitStack() as stack:
        loop = stack.enter_context(closing(asyncio.new_event_loop()))
        places = [stack.enter_context(_Place(bench, length, loop)) for length in LENGTHS]
        adders = {name: add for place in places for name, add in place.adders().items()}
        readers = {name: read for place in places for name, read in place.readers().items()}
        for place in places:
            place.check()
        Contest().round(adders, calls)  # to warm up
        for _ in bench.rounds(rounds, quick=rounds):
            adding.round(adders, calls)
            reading.round(readers, calls=2)
    return [
        *(_row(f"a session's turn added to {n:,}", adding, n, at_least=1.5) for n in LENGTHS),
        *(_row(f"a session of {n:,} turns read", reading, n, at_least=2) for n in LENGTHS[-1:]),
    ]


def _row(name: str, contest: Contest, length: int, *, at_least: float) -> Row:
    ours, theirs = f"limpet {length}", f"sdk {length}"
    return Row(
        name=f"{name}, SQLiteSession to Limpet",
        value=contest.ratio(theirs, to=ours),
        at_least=at_least,
        note=f"{milliseconds(contest.typical(ours))},"
        f" SQLiteSession {milliseconds(contest.typical(theirs))};"
        f" {contest.cpu(ours, to=theirs)}",
        figures={
            "turns": length,
            "limpet_ms": contest.typical(ours) * 1e3,
            "sqlite_session_ms": contest.typical(theirs) * 1e3,
        },
    )


class _Place(ExitStack):
    """The same turns in a session of each kind; both logs have their full size."""

    def __init__(self, bench: Bench, length: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        ours, theirs = bench.path("limpet"), bench.path("sdk")
        fill_store(ours, ["chat"], TURNS[:length])
        store = self.enter_context(limpet.open(ours))
        settle(store)
        self._sessions: dict[str, Session] = {
            f"limpet {length}": LimpetSession(store, "chat"),
            f"sdk {length}": self.enter_context(closing(SQLiteSession("chat", theirs))),
        }
        self._fill(f"sdk {length}", TURNS[:length])
        with closing(SQLiteSession("filler", theirs)) as filler:
            loop.run_until_complete(filler.add_items(_items(FILLER)))

    def _fill(self, name: str, turns: Any) -> None:
        self._loop.run_until_complete(self._sessions[name].add_items(_items(turns)))

    def check(self) -> None:
        """That both give the same."""
        ours, theirs = (
            self._loop.run_until_complete(session.get_items())
            for session in self._sessions.values()
        )
        if ours != theirs:
            msg = "the two sessions do not give the same"
            raise AssertionError(msg)

    def adders(self) -> dict[str, Contestant]:
        """Each adds a turn."""
        return {name: self._timed(_adds(session)) for name, session in self._sessions.items()}

    def readers(self) -> dict[str, Contestant]:
        """Each reads everything."""
        return {name: self._timed(session.get_items) for name, session in self._sessions.items()}

    def _timed(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Contestant:
        return timed(lambda: self._loop.run_until_complete(call()))


def _adds(session: Session) -> Callable[[], Coroutine[Any, Any, Any]]:
    turns: Iterator[Any] = cycle(TURNS)
    return lambda: session.add_items(list(next(turns)))


def _items(turns: Any) -> Any:
    return [item for turn in turns for item in turn]
