"""What fits a model, out of a long conversation: read from the end, or all of it and then cut."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import limpet
from bench._measure import Bench, Contest, Row, fill_store, make_turns, milliseconds, timed
from limpet.llm import tokens

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS = 5_000
TOKENS = 8_000
MODEL = "gpt-5"

Messages = list[dict[str, Any]]


def measure(bench: Bench) -> list[Row]:
    """The newest 8,000 tokens of 5,000 turns, against loading and trimming everything."""
    path = bench.path("window")
    fill_store(path, ["chat"], make_turns(TURNS))
    with limpet.open(path) as store:
        chat = store.conversation("chat")
        return [
            _row(bench, chat, tokens.estimate, "estimated"),
            _row(bench, chat, tokens.counter(MODEL, exact=True), f"as {MODEL} counts"),
        ]


def _row(bench: Bench, chat: limpet.Conversation, count: tokens.Counter, how: str) -> Row:
    ours: Callable[[], Messages] = partial(chat.window, max_tokens=TOKENS, count=count)
    plainly = partial(load_and_trim, chat, count)
    if ours() != plainly():  # and both are warm
        msg = "the two ways do not give the same"
        raise AssertionError(msg)
    contest = Contest()
    for _ in bench.rounds(20, quick=4):
        contest.round({"window": timed(ours), "plainly": timed(plainly)}, calls=4)
    return Row(
        name=f"{TOKENS:,} tokens of {TURNS:,} turns, {how}: trimming all to a window",
        value=contest.ratio("plainly", to="window"),
        at_least=20,
        note=f"{milliseconds(contest.typical('window'))},"
        f" loaded and trimmed {milliseconds(contest.typical('plainly'))}",
    )


def load_and_trim(chat: limpet.Conversation, count: tokens.Counter) -> Messages:
    """What everybody writes first: all messages, then as many from the end as fit."""
    messages: Messages = chat.messages()
    left = TOKENS - count.priming
    start = len(messages)
    while start and (left := left - count(messages[start - 1])) >= 0:
        start -= 1
    return messages[start:]
