"""A long conversation read: all of it, and the window that fits a model."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import limpet
from bench._measure import (
    Bench,
    Contest,
    Raw,
    Row,
    fill_raw,
    fill_store,
    make_turns,
    milliseconds,
    timed,
)
from limpet.transfer.imports import put, understand

if TYPE_CHECKING:
    from pathlib import Path

    from limpet.backends.contract import Record

LONG, SHORT = 5_000, 100
TOKENS = 8_000
AT_ONCE = 1_000


def measure_load(bench: Bench) -> list[Row]:
    """All messages of 5,000 turns, against a SELECT that decodes the same bytes to the same."""
    turns = make_turns(LONG)
    ours, floor = bench.path("limpet"), bench.path("raw")
    fill_store(ours, ["chat"], turns)
    fill_raw(floor, ["chat"], turns)
    warm, cold = Contest(), Contest()
    with closing(Raw(floor)) as raw, limpet.open(ours) as store:
        chat = store.conversation("chat")
        if chat.messages() != raw.load("chat"):
            msg = "the two ways to load do not give the same"
            raise AssertionError(msg)
        for _ in bench.rounds(20, quick=4):
            warm.round(
                {
                    "raw": timed(partial(raw.load, "chat")),
                    "limpet": timed(chat.messages),
                },
                calls=6,
            )
            cold.round({"raw": partial(_raw_cold, floor), "limpet": partial(_ours_cold, ours)})
    return [
        Row(
            name=f"load {LONG:,} turns",
            value=warm.ratio("limpet", to="raw"),
            at_most=1.4,
            note=f"{milliseconds(warm.typical('limpet'))},"
            f" raw {milliseconds(warm.typical('raw'))}; {warm.cpu('limpet', to='raw')};"
            f" the first time after opening {cold.ratio('limpet', to='raw'):.2f}",
        )
    ]


def _raw_cold(path: Path) -> float:
    with closing(Raw(path)) as raw:
        return timed(partial(raw.load, "chat"))()


def _ours_cold(path: Path) -> float:
    with limpet.open(path) as store:
        return timed(store.conversation("chat").messages)()


def measure_window(bench: Bench) -> list[Row]:
    """The newest 8,000 tokens of 5,000 turns, against those of 100 turns."""
    contest = Contest()
    long, short = bench.path("long"), bench.path("short")
    fill_store(long, ["chat"], make_turns(LONG))
    fill_store(short, ["chat"], make_turns(LONG)[-SHORT:])
    with limpet.open(long) as long_store, limpet.open(short) as short_store:
        chats = {LONG: long_store.conversation("chat"), SHORT: short_store.conversation("chat")}
        read = {LONG: _records_read(long_store), SHORT: _records_read(short_store)}
        contestants = {
            str(length): timed(partial(chat.window, max_tokens=TOKENS))
            for length, chat in chats.items()
        }
        Contest().round(contestants, calls=20)  # to warm up
        for _ in bench.rounds(20, quick=4):
            contest.round(contestants, calls=50)
    return [
        Row(
            name=f"a window of {TOKENS:,} tokens, {LONG:,} turns to {SHORT}",
            value=contest.ratio(str(LONG), to=str(SHORT)),
            at_most=1.2,
            note=f"{milliseconds(contest.typical(str(LONG)))};"
            f" {read[LONG]} of {LONG:,} records read, {read[SHORT]} of {SHORT}",
        ),
        *_measure_ways(bench),
    ]


def _measure_ways(bench: Bench) -> list[Row]:
    """A window of as many messages, whichever way they came in."""
    contest = Contest()
    messages = [message for turn in make_turns(LONG) for message in turn]
    with limpet.open(bench.path("ways"), durability="normal") as store:
        one_by_one, at_once = store.conversation("one by one"), store.conversation("at once")
        for message in messages:
            one_by_one.append(message)
        for start in range(0, len(messages), AT_ONCE):
            at_once.append(*messages[start : start + AT_ONCE])
        (item,) = understand(messages, name="imported")
        put(store, item)
        chats = (one_by_one, at_once, store.conversation("imported"), one_by_one.fork("forked"))
        contestants = {
            chat.id: timed(partial(chat.window, max_tokens=TOKENS // 2)) for chat in chats
        }
        Contest().round(contestants, calls=20)  # to warm up
        for _ in range(4 if bench.quick else 20):
            contest.round(contestants, calls=30)
    return [
        Row(
            name=f"a window of {TOKENS // 2:,} tokens of {len(messages):,} messages, {way},"
            " to one by one",
            value=contest.ratio(id_, to="one by one"),
            at_most=1.2,
            note=f"{milliseconds(contest.typical(id_))}; {contest.cpu(id_, to='one by one')}",
        )
        for id_, way in (
            ("at once", f"{AT_ONCE:,} at a time"),
            ("imported", "imported"),
            ("forked", "forked"),
        )
    ]


def _records_read(store: limpet.Store) -> int:
    """How many records one window takes from the backend."""
    read, total = store.backend.read, 0

    def count(*args: Any, **kwargs: Any) -> list[Record]:
        nonlocal total
        found = read(*args, **kwargs)
        total += len(found)
        return found

    with mock.patch.object(store.backend, "read", count):
        store.conversation("chat").window(max_tokens=TOKENS)
    return total
