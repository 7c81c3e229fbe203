"""The window: the newest messages that fit, in order, with nothing in it that a model refuses."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Store, WindowTooSmall, tokens
from holdfast.backends.base import Backend, Record
from tests import nouns
from tests.nouns import bot, call, result, system, user

place, store = nouns.place, nouns.store

Message = dict[str, Any]

# -- random histories ------------------------------------------------------------------------------

texts = st.integers(0, 60).map(lambda length: "x" * length)
fresh_ids = st.builds(itertools.count).map(lambda numbers: lambda: f"call-{next(numbers)}")


@st.composite
def turns(draw: st.DrawFn, new_id: Callable[[], str]) -> list[Message]:
    """A few messages that belong together: what was said, or tools that were called."""
    kind = draw(st.sampled_from(["user", "bot", "tools", "tools", "unfinished", "lost", "system"]))
    if kind == "user":
        return [user(draw(texts))]
    if kind == "bot":
        return [bot(draw(texts))]
    if kind == "system":  # somewhere in the middle it is a message like any other
        return [system(draw(texts))]
    if kind == "lost":  # a result whose call was never stored
        return [result(new_id(), draw(texts))]
    ids = [new_id() for _ in range(draw(st.integers(1, 3)))]
    answers = draw(st.permutations(ids))
    if kind == "unfinished":  # the process died before all tools had answered
        answers = answers[: draw(st.integers(0, len(ids) - 1))]
    return [call(*ids), *(result(id_, draw(texts)) for id_ in answers)]


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """A conversation with system messages in front."""
    new_id = draw(fresh_ids)
    opening = draw(st.lists(texts.map(system), max_size=2))
    return opening + [m for turn in draw(st.lists(turns(new_id), max_size=12)) for m in turn]


@st.composite
def conversations(draw: st.DrawFn) -> list[list[Message]]:
    """A history cut into appends of one or several messages."""
    left, appends = draw(histories()), []
    while left:
        size = draw(st.integers(1, 4))
        appends.append(left[:size])
        left = left[size:]
    return appends


budgets = st.fixed_dictionaries(
    {}, optional={"max_tokens": st.integers(0, 200), "max_messages": st.integers(0, 20)}
)


# -- the plain way: read everything, group it, take from the end -----------------------------------


def units(messages: list[Message]) -> list[list[Message]]:
    """*messages* in units that go together; without what cannot be sent."""
    found: list[list[Message]] = []
    complete: list[bool] = []
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        if message["role"] == "tool":
            continue
        ids = {c["id"] for c in message.get("tool_calls", ())}
        answers = list(itertools.takewhile(lambda m: m["role"] == "tool", messages[at:]))
        mine = [answer for answer in answers if answer["tool_call_id"] in ids]
        found.append([message, *mine])
        complete.append(ids == {answer["tool_call_id"] for answer in mine})
    last = len(found) - 1
    return [unit for n, unit in enumerate(found) if complete[n] or n == last]


def plainly(
    history: list[Message], max_tokens: int | None = None, max_messages: int | None = None
) -> list[Message] | None:
    """What the window is; None if what must be in it does not fit."""

    def fits(messages: list[Message]) -> bool:
        size = sum(map(tokens.estimate, messages))
        return (max_tokens is None or size <= max_tokens) and (
            max_messages is None or len(messages) <= max_messages
        )

    opening = list(itertools.takewhile(lambda m: m["role"] == "system", history))
    if not fits(opening):
        return None
    taken: list[Message] = []
    groups = units(history[len(opening) :])
    for unit in reversed(groups):
        if not fits(opening + unit + taken):
            break
        taken = unit + taken
    return None if groups and not taken else opening + taken


# -- properties ------------------------------------------------------------------------------------


def windowed(appends: list[list[Message]], budget: dict[str, Any]) -> list[Message] | None:
    """The window of a conversation made of *appends*; None if the budget is too small."""
    with holdfast.open("memory:") as opened:
        chat = opened.conversation("alice")
        for messages in appends:
            chat.append(*messages)
        try:
            return chat.window(**budget)
        except WindowTooSmall:
            return None


@settings(deadline=None, max_examples=300)
@given(conversations(), budgets)
def test_it_is_what_reading_everything_would_give(
    appends: list[list[Message]], budget: dict[str, int]
) -> None:
    """Reading from the end, and no further than needed, changes nothing."""
    history = [message for messages in appends for message in messages]
    assert windowed(appends, budget) == plainly(history, **budget)


@settings(deadline=None, max_examples=200)
@given(conversations(), budgets)
def test_it_fits_and_is_in_order_and_has_tool_calls_whole(
    appends: list[list[Message]], budget: dict[str, int]
) -> None:
    """The promises that users rely on, each by itself."""
    history = [message for messages in appends for message in messages]
    found = windowed(appends, budget)
    assume(found is not None)
    assert found is not None
    assert len(found) <= budget.get("max_messages", len(history))
    if "max_tokens" in budget:
        assert sum(map(tokens.estimate, found)) <= budget["max_tokens"]
    assert is_subsequence(found, history)
    if history:
        opening = list(itertools.takewhile(lambda m: m["role"] == "system", history))
        assert found[: len(opening)] == opening
    for at, message in enumerate(found):
        if message["role"] == "tool":
            before = next(m for m in reversed(found[:at]) if m["role"] != "tool")
            assert message["tool_call_id"] in {c["id"] for c in before["tool_calls"]}
        called = {c["id"] for c in message.get("tool_calls", ())}
        answered = {m["tool_call_id"] for m in history if m.get("tool_call_id") in called}
        assert answered <= {m.get("tool_call_id") for m in found[at:]}
        said_since = any(m["role"] != "tool" for m in found[at + 1 :])
        assert called == answered or not said_since


def is_subsequence(some: list[Message], all_: list[Message]) -> bool:
    """Whether *some* are among *all_*, in the same order."""
    left = iter(all_)
    return all(any(message == other for other in left) for message in some)


# -- by example, over backends and faces -----------------------------------------------------------


def test_newest_messages_that_fit_by_number(store: Store) -> None:
    """The opening counts, and stays."""
    chat = store.conversation("alice")
    chat.append(system("Be kind."), user("1"), bot("2"), user("3"), bot("4"))
    assert chat.window(max_messages=3) == [system("Be kind."), user("3"), bot("4")]
    assert chat.window(max_messages=5) == chat.messages() == chat.window()


def test_newest_messages_that_fit_by_the_callers_own_count(store: Store) -> None:
    """Where the exact number matters, the caller brings the tokenizer."""
    chat = store.conversation("alice")
    chat.append(user("a b c"), bot("d e"), user("f g"))
    assert chat.window(max_tokens=4, count=words) == [bot("d e"), user("f g")]


def words(message: Mapping[str, Any]) -> int:
    """How many words a message has."""
    return len(message["content"].split())


def test_each_message_is_counted_once(store: Store) -> None:
    """Exact counting is slow."""
    chat = store.conversation("alice")
    chat.append(system("s"), user("1"), call("a", "b", "c"), *map(result, "abc"), bot("2"))
    counted: list[Mapping[str, Any]] = []

    def count(message: Mapping[str, Any]) -> int:
        counted.append(message)
        return 1

    assert len(chat.window(max_tokens=100, count=count)) == len(counted) == 7


def test_a_tool_call_and_its_results_go_together(store: Store) -> None:
    """A result without its call, or the reverse, bricks the session with every provider."""
    chat = store.conversation("alice")
    chat.append(user("Weather and time?"), call("a", "b"), result("a"), result("b"), bot("Fine."))
    assert chat.window(max_messages=3) == [bot("Fine.")]
    assert chat.window(max_messages=4) == [call("a", "b"), result("a"), result("b"), bot("Fine.")]


def test_calls_that_wait_for_results_are_shown_while_they_are_the_newest(store: Store) -> None:
    """The agent died in the middle of its tools: it sees which ones, and goes on."""
    chat = store.conversation("alice")
    chat.append(user("Weather and time?"), call("a", "b"), result("a"))
    assert chat.window() == chat.messages()


def test_calls_that_nobody_answered_are_left_out_once_something_else_was_said(store: Store) -> None:
    """The agent died in the middle of its tools, and the user just goes on talking."""
    chat = store.conversation("alice")
    chat.append(user("Weather and time?"), call("a", "b"), result("a"))
    chat.append(user("Are you there?"))
    assert chat.window() == [user("Weather and time?"), user("Are you there?")]
    assert len(chat.messages()) == 4


def test_a_result_whose_call_is_gone_is_left_out(store: Store) -> None:
    """The conversation was cleared while the tool ran."""
    chat = store.conversation("alice")
    chat.append(user("Weather?"), call("a"))
    chat.clear()
    chat.append(result("a", "x" * 10_000))
    chat.append(user("Hello?"))
    assert chat.window(max_tokens=100) == [user("Hello?")]


@pytest.mark.parametrize(
    "odd",
    [
        {"role": "assistant", "tool_calls": "none"},
        {"role": "assistant", "tool_calls": ["a", {"id": ["b"]}, {}]},
        {"role": "tool"},
        {"role": "tool", "tool_call_id": ["a"]},
        {"type": "reasoning"},
    ],
)
def test_no_message_that_was_taken_in_can_break_it(store: Store, odd: Message) -> None:
    """What append accepts, window can read: a session is never bricked."""
    chat = store.conversation("alice")
    chat.append(user("1"), odd, user("2"))
    assert chat.window(max_tokens=1000)[-1] == user("2")


def test_a_newest_message_that_does_not_fit_is_an_error(store: Store) -> None:
    """An empty window would be an answer to nothing; the error says what to do."""
    chat = store.conversation("alice")
    chat.append(system("s"), user("1"), user("x" * 4000))
    with pytest.raises(WindowTooSmall, match=r"newest message.* does not fit 500 tokens\. Allow"):
        chat.window(max_tokens=500)
    with pytest.raises(WindowTooSmall, match=r"newest message.* does not fit 1 messages"):
        chat.window(max_messages=1)


def test_an_opening_that_does_not_fit_is_an_error(store: Store) -> None:
    """The system message is never dropped silently."""
    chat = store.conversation("alice")
    chat.append(system("x" * 4000), user("1"))
    with pytest.raises(WindowTooSmall, match="system message does not fit 500 tokens"):
        chat.window(max_tokens=500)


def test_nothing_gives_an_empty_window(store: Store) -> None:
    """A conversation begins with nothing to send."""
    assert store.conversation("alice").window(max_tokens=1) == []


def test_an_opening_in_a_fork_stays_in_front(store: Store) -> None:
    """A fork has what it was forked from, and the same manners."""
    chat = store.conversation("alice")
    chat.append(system("s"), *(user(str(n)) for n in range(100)))
    fork = chat.fork("other")
    assert fork.window(max_messages=2) == [system("s"), user("99")]


def test_what_was_cleared_does_not_come_back_in_front(store: Store) -> None:
    """Also not when the process died before the room was freed."""
    chat = store.conversation("alice")
    chat.append(system("old"), user("1"))
    store.backend.compact = lambda *_: 0  # type: ignore[method-assign]
    chat.clear()
    assert chat.window() == []
    chat.append(system("new"))
    chat.append(*(user(str(n)) for n in range(50)))
    assert chat.window(max_messages=2) == [system("new"), user("49")]
    assert chat.fork("other").messages()[0] == system("new")


# -- how much it reads -----------------------------------------------------------------------------


class Counting:
    """Counts the records that a backend reads."""

    def __init__(self, backend: Backend) -> None:
        self.calls = self.records = 0
        self._read = backend.read
        backend.read = self.read  # type: ignore[method-assign]

    def read(self, *args: Any, **kwargs: Any) -> list[Record]:
        """`Backend.read`, counted."""
        found = self._read(*args, **kwargs)
        self.calls += 1
        self.records += len(found)
        return found


def test_it_reads_no_more_of_a_long_conversation_than_of_a_short_one(store: Store) -> None:
    """Cost follows the window, not the history."""
    reads = []
    for length in (100, 2000):
        chat = store.conversation(f"of-{length}")
        chat.append(system("s"))
        for start in range(0, length, 2):
            chat.append(user(f"{start:08}" * 20), bot(f"{start + 1:08}" * 20))
        counting = Counting(store.backend)
        assert len(chat.window(max_tokens=800)) == 1 + 18
        reads.append((counting.calls, counting.records))
    assert reads[0] == reads[1]
    assert reads[1][1] <= 8 + 2 * 9


def test_the_last_few_messages_cost_a_page_of_them(store: Store) -> None:
    """Showing the end of a chat does not read the chat."""
    chat = store.conversation("alice")
    for n in range(300):
        chat.append(user(str(n)))
    counting = Counting(store.backend)
    assert chat.messages(last=10) == [user(str(n)) for n in range(290, 300)]
    assert counting.records <= 20
