"""What memory takes when there is much of it: recalling, remembering, making the index anew."""

from __future__ import annotations

import random
from itertools import accumulate, islice
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import limpet
from bench._measure import Bench, Contest, Row, milliseconds, settle, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from limpet.memory import Memory

#: Words of the made-up language, drawn as those of a real one are: few often, most hardly ever.
VOCABULARY = 20_000
QUERY_LIMITS = {10_000: 0.002, 100_000: 0.025}
REBUILD_LIMIT = 20_000
BATCH = 1_000


def measure(bench: Bench) -> list[Row]:
    """Rows for each size, the write, and the rebuild."""
    rows = []
    for size, limit in QUERY_LIMITS.items():
        count = size // 10 if bench.quick else size
        for _ in bench.rounds(1, 1):
            rows += _at(
                bench, count, None if bench.quick else limit, last=size == max(QUERY_LIMITS)
            )
    for _ in bench.rounds(1, 1):
        rows.append(_with_vectors(bench, 1_000 if bench.quick else 10_000))
    rows.append(_write(bench))
    return rows


def _at(bench: Bench, count: int, limit: float | None, *, last: bool) -> list[Row]:
    with limpet.open(bench.path("memory"), durability="normal") as store:
        memory = store.memory("bench")
        fill(memory, count)
        rows = [_query(memory, f"recall among {count:,} memories, full text", limit)]
        if last:
            began = perf_counter()
            memory.reindex()
            rate = count / (perf_counter() - began)
            rows.append(
                Row(
                    name="the index made anew from the journal, without embedding",
                    value=rate / 1_000,
                    unit="thousand/s",
                    at_least=REBUILD_LIMIT / 1_000,
                    note=f"{count:,} memories",
                )
            )
    return rows


def _query(memory: Memory, name: str, limit: float | None) -> Row:
    memory.recall("warm up")
    took = []
    for question in islice(_questions(), 200):
        began = perf_counter()
        memory.recall(question, k=10)
        took.append(perf_counter() - began)
    slow = quantiles(took, n=20)[-1]
    return Row(
        name=name,
        value=median(took) * 1e3,
        unit="ms",
        at_most=None if limit is None else limit * 1e3,
        note=f"median of {len(took)} questions of 6 words; 95 % within {milliseconds(slow)}",
    )


def _with_vectors(bench: Bench, count: int) -> Row:
    """The same with vectors; random ones, because here only their number counts."""
    draw = np.random.default_rng(1)

    def embed(texts: Sequence[str]) -> Any:
        return draw.standard_normal((len(texts), 384), dtype=np.float32)

    with limpet.open(bench.path("vectors"), durability="normal") as store:
        memory = store.memory("bench", embed=embed)
        fill(memory, count)
        memory.embed()
        return _query(memory, f"recall among {count:,} memories, with vectors", None)


def _write(bench: Bench) -> Row:
    """One memory against one append of the same text to a journal."""
    contest = Contest()
    count = 1_000 if bench.quick else 10_000
    with limpet.open(bench.path("write")) as store:
        memory, plain = store.memory("bench"), store.journal("plain", "bench")
        fill(memory, count)
        memory.recall("warm up")
        settle(store)
        texts = _texts(2)
        for _ in bench.rounds(10, 2):
            contest.round(
                {
                    "append": timed(lambda: plain.append(("said", {"text": next(texts)}))),
                    "remember": timed(lambda: memory.remember(next(texts))),
                },
                calls=100,
            )
    return Row(
        name=f"remember with {count:,} memories there, against a plain append",
        value=contest.ratio("remember", to="append"),
        at_most=1.5,
        note=f"append {milliseconds(contest.typical('append'))}, "
        f"remember {milliseconds(contest.typical('remember'))}",
    )


def fill(memory: Memory, count: int) -> None:
    """Remember *count* texts, a thousand at a time."""
    texts = islice(_texts(1), count)
    while part := list(islice(texts, BATCH)):
        memory.remember_all(part)


def _texts(seed: int) -> Iterator[str]:
    say = _speaker(seed)
    while True:
        yield say(14)


def _questions() -> Iterator[str]:
    say = _speaker(3)
    while True:
        yield say(6)


def _speaker(seed: int) -> Callable[[int], str]:
    draw = random.Random(seed)
    words = [_word(number) for number in range(VOCABULARY)]
    weights = list(accumulate(1 / (number + 10) for number in range(VOCABULARY)))

    def say(length: int) -> str:
        return " ".join(draw.choices(words, cum_weights=weights, k=length))

    return say


def _word(number: int) -> str:
    """A word of its own for each number, in syllables."""
    parts = []
    number += 100
    while number:
        number, rest = divmod(number, 75)
        parts.append("bdfgklmnprstvwz"[rest // 5] + "aeiou"[rest % 5])
    return "".join(parts)
