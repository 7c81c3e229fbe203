"""What a model would be sent: what window() gives, and why the rest is left out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet.conversations.conversation import KIND
from limpet.core.ids import make_key
from limpet.core.runtime import run_to_end
from limpet.errors import WindowTooSmall
from limpet.views.window import window_view
from tests.support import chats
from tests.support.filled import counted
from tests.support.histories import chat as of_chat
from tests.support.histories import damaged, spoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet import Store
    from limpet.backends.contract import Head
    from limpet.views.window import WindowView


@pytest.fixture
def store() -> Iterator[Store]:
    """One in memory."""
    with limpet.open("memory:") as opened:
        yield opened


def head_of(store: Store, id_: str) -> Head:
    """The head of a conversation."""
    found = store.scope.backend.head(make_key(store.scope.tenant, KIND, id_))
    assert found is not None
    return found


def view_of(store: Store, id_: str, **options: Any) -> WindowView:
    """What would be sent of it."""
    return run_to_end(window_view(store.scope.as_sync(), head_of(store, id_), **options))


def reasons(view: WindowView) -> list[tuple[str, int | None]]:
    """Why something is left out, and how many."""
    return [(one.why, one.count) for one in view.left_out]


def test_it_is_what_window_gives_with_each_message_explained(store: Store) -> None:
    """In order, with its tokens, where it is from, and why it is there."""
    chats.a_conversation(store)
    view = view_of(store, "alice", max_tokens=4_000, model="gpt-5")
    chat = store.conversation("alice")
    window = chat.window(max_tokens=4_000, count="gpt-5")
    assert [one.role for one in view.sent] == [message["role"] for message in window]
    assert [one.why for one in view.sent[:3]] == [
        "the system's, at the beginning",
        "the summary of 5 messages",
        "pinned",
    ]
    assert [one.positions for one in view.sent] == [[1], [], [3], [9], [11], [12], [12], [13], [17]]
    assert view.sent[6].why == "put in, so that a model accepts the rest"
    assert [mark.kind for mark in view.sent[5].marks] == ["repaired"]
    assert view.tokens == view.fixed + sum(one.tokens for one in view.sent)
    assert (view.counter, view.exact, view.total) == ("o200k_base", True, 12)
    assert reasons(view) == [("behind the summary", 5)]
    assert [line.number for line in view.left_out[0].lines] == [4, 5, 6]


def test_looking_writes_nothing(store: Store) -> None:
    """A repair is shown, and recorded only when a window is really made."""
    call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    chat = store.conversation("a")
    chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
    chat.append({"role": "user", "content": "Well?"})
    before = head_of(store, "a")
    view = view_of(store, "a", max_tokens=1_000)
    assert [mark.kind for one in view.sent for mark in one.marks] == ["repaired"]
    assert head_of(store, "a") == before
    assert chat.repairs() == []


def test_what_is_older_than_fits_is_counted_and_begins_to_be_shown(store: Store) -> None:
    """Of very many by the head alone; the newest of them are listed."""
    for length in (300, 3_000):
        chat = store.conversation(f"of {length}")
        chat.append(*({"role": "user", "content": f"message {n}"} for n in range(length)))
        view = view_of(store, chat.id, max_tokens=100)
        ((why, count),) = reasons(view)
        assert (why, count) == ("older than what fits", length - len(view.sent))
        assert view.left_out[0].lines[-1].number == view.sent[0].positions[0] - 1


def test_what_it_costs_does_not_grow_with_the_conversation(store: Store) -> None:
    """A window of a thousand times as many messages takes as many records, all of one size."""
    costs = []
    for length in (100, 1_000, 100_000):
        chat = store.conversation(f"of {length}")
        for start in range(0, length, 10):
            numbers = range(start, start + 10)
            chat.append(*({"role": "user", "content": f"Number {n:06}"} for n in numbers))
        view, cost = counted(store, partial(view_of, store, chat.id, max_tokens=300))
        assert reasons(view) == [("older than what fits", length - len(view.sent))]
        costs.append(cost)
    small, middle, large = costs
    for what in ("calls", "read"):
        assert 0 < large[what] <= 1.3 * middle[what]
        assert large[what] <= 1.3 * small[what]


def test_what_is_too_large_stands_as_words_and_is_named(store: Store) -> None:
    """One message over half of the budget is left out alone."""
    chat = store.conversation("a")
    chat.append({"role": "user", "content": "old"}, {"role": "user", "content": "word " * 2_000})
    chat.append({"role": "user", "content": "new"})
    view = view_of(store, "a", max_tokens=300)
    assert [one.why for one in view.sent] == ["", "in place of what is too large", ""]
    assert [one.positions for one in view.sent] == [[1], [], [3]]
    assert reasons(view) == [("too large to be sent with the rest", 1)]
    assert view.left_out[0].detail == "message 2"


def test_outputs_that_were_shortened_are_marked(store: Store) -> None:
    """What is sent of them is less than what is stored."""
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chat = store.conversation("a")
    chat.append(
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "long " * 2_000},
        {"role": "user", "content": "And?"},
    )
    chat.compact("outputs", keep_tokens=1)
    view = view_of(store, "a", max_tokens=1_000)
    assert [[mark.kind for mark in one.marks] for one in view.sent] == [[], ["shortened"], []]


def test_a_result_without_its_call_is_left_out_as_repaired(store: Store) -> None:
    """And it is said of which message."""
    chat = store.conversation("a")
    chat.append({"role": "tool", "tool_call_id": "c9", "content": "late"})
    chat.append({"role": "user", "content": "And?"})
    view = view_of(store, "a", max_tokens=1_000)
    assert reasons(view) == [("repaired", 1)]
    assert view.left_out[0].detail.startswith("message 1: ")


def test_what_was_replaced_is_named(store: Store) -> None:
    """Nobody wonders where it went."""
    chat = store.conversation("a")
    chat.append({"role": "user", "content": "old"})
    chat.replace({"role": "user", "content": "new"})
    assert reasons(view_of(store, "a", max_tokens=1_000)) == [("replaced or removed", None)]


def test_a_budget_that_nothing_fits_says_so(store: Store) -> None:
    """As window() does, by a sentence."""
    store.conversation("a").append({"role": "user", "content": "word " * 100})
    view = view_of(store, "a", max_tokens=10)
    assert view.sent == []
    assert "does not fit 10 tokens" in view.problem


def test_a_model_that_is_not_known_is_estimated(store: Store) -> None:
    """And the view says that it is."""
    store.conversation("a").append({"role": "user", "content": "Hello"})
    view = view_of(store, "a", max_tokens=100, model="somebody-elses")
    assert (view.counter, view.exact) == ("estimate", False)


@settings(deadline=None, max_examples=60)
@given(damaged(spoken().map(of_chat)), st.integers(20, 400), st.sampled_from(["stub", "drop"]))
def test_the_view_and_the_window_never_differ(
    messages: list[dict[str, Any]], room: int, rule: Any
) -> None:
    """Whatever was stored: each message is sent or left out, and never both."""
    with limpet.open("memory:") as store:
        chat = store.conversation("a")
        if not messages:
            return
        chat.append(*messages, check=False)
        view = view_of(store, "a", max_tokens=room, rule=rule)
        try:
            window = chat.window(max_tokens=room, repair=rule)
        except WindowTooSmall:
            assert view.problem
            return
        assert len(view.sent) == len(window)
        sent = {position for one in view.sent for position in one.positions}
        left = sum(one.count or 0 for one in view.left_out)
        assert len(sent) + left == chat.length()
