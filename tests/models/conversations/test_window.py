"""The window: the newest messages that fit, in order, with nothing in it that a model refuses."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import limpet
from limpet import Store
from limpet.backends.contract import Append, Appended, Backend, Record
from limpet.conversations import window as _window
from limpet.errors import BrokenHistory, StoreReadOnly, WindowTooSmall
from limpet.llm import tokens
from limpet.llm.messages import to_anthropic
from limpet.llm.messages.repair import repair
from limpet.llm.messages.shape import binds_next, calls_of, results_of, role_of
from limpet.testing.providers import check_anthropic, check_chat, check_responses
from tests.support import stores
from tests.support.stores import Place, bot, call, result, system, user

place, store = stores.place, stores.store

Message = dict[str, Any]

# -- random histories, as each provider has them ---------------------------------------------------

# Some are too large for most budgets.
texts = (st.integers(1, 60) | st.integers(300, 900)).map(lambda length: "x" * length)


class Chat:
    """Messages of OpenAI's Chat Completions."""

    name = "chat"

    def check(self, messages: list[Message]) -> None:
        """Whether the provider takes them."""
        check_chat(messages)

    def said(self, text: str, number: int) -> list[Message]:
        """What the model says."""
        return [bot(text)]

    def calls(self, ids: list[str], number: int) -> list[Message]:
        """The model calls tools, all at once."""
        return [call(*ids)]

    def results(self, ids: list[str], text: str) -> list[Message]:
        """What they returned."""
        return [result(id_, text) for id_ in ids]


class Responses(Chat):
    """Items of OpenAI's Responses, with a thought before what the model does."""

    name = "responses"

    def check(self, messages: list[Message]) -> None:
        """By its own rules."""
        check_responses(messages)

    def said(self, text: str, number: int) -> list[Message]:
        """Every second time it has thought before."""
        thought = {"type": "reasoning", "id": f"rs_{number}", "summary": []}
        part = {"type": "output_text", "text": text}
        said = {"type": "message", "role": "assistant", "id": f"msg_{number}", "content": [part]}
        return [thought, said] if number % 2 else [said]

    def calls(self, ids: list[str], number: int) -> list[Message]:
        """It may say something first; each call is an item."""
        said = self.said("Let me see.", number) if number % 3 else []
        return [
            *said,
            *(
                {"type": "function_call", "call_id": id_, "name": "look_up", "arguments": "{}"}
                for id_ in ids
            ),
        ]

    def results(self, ids: list[str], text: str) -> list[Message]:
        """Each is an item."""
        return [{"type": "function_call_output", "call_id": id_, "output": text} for id_ in ids]


class Anthropic(Chat):
    """Messages of Anthropic's: results are blocks in what the user says."""

    name = "anthropic"

    def check(self, messages: list[Message]) -> None:
        """The system's words go beside the messages there; nothing else is left to be done."""
        sent = to_anthropic(messages)
        assert sent.repairs == []
        assert bool(sent.system) == any(m["role"] == "system" for m in messages)
        check_anthropic(sent.messages)

    def calls(self, ids: list[str], number: int) -> list[Message]:
        """Blocks beside what is said."""
        uses = [{"type": "tool_use", "id": id_, "name": "look_up", "input": {}} for id_ in ids]
        return [{"role": "assistant", "content": [{"type": "text", "text": "Hm."}, *uses]}]

    def results(self, ids: list[str], text: str) -> list[Message]:
        """Blocks in one message."""
        if not ids:
            return []
        blocks = [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_ in ids]
        return [{"role": "user", "content": blocks}]


SHAPES = [Chat(), Responses(), Anthropic()]
KINDS = ["user", "user", "bot", "tools", "tools", "unfinished", "lost", "late"]


@st.composite
def turns(draw: st.DrawFn, shape: Chat, numbers: Iterator[int]) -> list[Message]:
    """A few messages that belong together: what was said, or tools that were called."""
    kind, text = draw(st.sampled_from(KINDS)), draw(texts)
    if kind == "user":
        return [user(text)]
    if kind == "bot":
        return shape.said(text, next(numbers))
    if kind == "lost":  # a result whose call was never stored
        return shape.results([f"call-{next(numbers)}"], text)
    ids = [f"call-{next(numbers)}" for _ in range(draw(st.integers(1, 3)))]
    calls = shape.calls(ids, next(numbers))
    answers = draw(st.permutations(ids))
    if kind == "unfinished":  # the process died before all tools had answered
        return calls + shape.results(answers[: draw(st.integers(0, len(ids) - 1))], text)
    if kind == "late":  # somebody spoke while the tools ran
        return [*calls, user("Well?"), *shape.results(answers, text)]
    return calls + shape.results(answers, text)


@st.composite
def histories(draw: st.DrawFn, shape: Chat) -> list[Message]:
    """A conversation with system messages in front."""
    numbers = itertools.count()
    opening = draw(st.lists(texts.map(system), max_size=2))
    found = draw(st.lists(turns(shape, numbers), max_size=12))
    return opening + [message for turn in found for message in turn]


@st.composite
def conversations(draw: st.DrawFn, shape: Chat) -> list[list[Message]]:
    """A history cut into appends of one or several messages."""
    left, appends = draw(histories(shape)), []
    while left:
        size = draw(st.integers(1, 4))
        appends.append(left[:size])
        left = left[size:]
    return appends


budgets = st.fixed_dictionaries(
    {}, optional={"max_tokens": st.integers(0, 300), "max_messages": st.integers(0, 20)}
)
rules = st.sampled_from(["stub", "drop"])
shapes = st.sampled_from(SHAPES)
cases = shapes.flatmap(lambda shape: st.tuples(st.just(shape), conversations(shape)))


# -- the plain way: read everything, see where it can be cut, take from the end --------------------


def spans(messages: list[Message]) -> Iterator[tuple[int, int]]:
    """First and last of what must not be parted."""
    for last, message in enumerate(messages):
        for id_ in results_of(message):
            before = within_reach(messages, last)
            calls = (first for first in before if id_ in calls_of(messages[first]))
            yield next(calls, last), last
        if binds_next(message):
            own = itertools.takewhile(of_model, messages[last + 1 :])
            yield last, last + len(list(own))


def within_reach(messages: list[Message], last: int) -> Iterator[int]:
    """The places before *last* where the call of a result may be, the nearest first."""
    left = _window.REACH
    for place in range(last - 1, -1, -1):
        yield place
        message, newer = messages[place], messages[place + 1]
        if not (results_of(message) or (calls_of(message) and calls_of(newer))):
            left -= 1
        if left < 0:
            return


def of_model(message: Message) -> bool:
    """Whether it is an item that a model of Responses has made."""
    return "type" in message and role_of(message) == "assistant"


def units(messages: list[Message]) -> list[list[Message]]:
    """*messages* in units that go together."""
    joined = {place for first, last in spans(messages) for place in range(first + 1, last + 1)}
    found: list[list[Message]] = []
    for place, message in enumerate(messages):
        if place in joined:
            found[-1].append(message)
        else:
            found.append([message])
    return found


def apart(unit: list[Message]) -> tuple[list[Message], list[Message]]:
    """The calls and results of a unit, with what a thought led to; what was said meanwhile."""
    thought = any(map(binds_next, unit))

    def is_bound(message: Message) -> bool:
        called = bool(calls_of(message) or results_of(message) or binds_next(message))
        return called or (thought and of_model(message))

    return [m for m in unit if is_bound(m)], [m for m in unit if not is_bound(m)]


def is_lost(message: Message, among: list[Message]) -> bool:
    """Whether it is nothing but results without a call."""
    place = next(n for n, other in enumerate(among) if other is message)
    made = {id_ for other in among[:place] for id_ in calls_of(other)}
    return role_of(message) == "tool" and not made.intersection(results_of(message))


def omission(unit: list[Message], history: list[Message]) -> Message:
    """What stands in place of *unit*."""
    first, last = (next(n for n, m in enumerate(history, 1) if m is unit[at]) for at in (0, -1))
    what = f"{len(unit)} messages (positions {first} to {last}) were"
    what = f"a message (position {first}) was" if len(unit) == 1 else what
    return user(f"[limpet: {what} left out here, being too large to be shown with the rest.]")


def plainly(  # noqa: C901 - the rules of a window, all on one page
    history: list[Message],
    rule: Any = "stub",
    max_tokens: int | None = None,
    max_messages: int | None = None,
) -> list[Message] | None:
    """What the window is; None if what must be in it does not fit."""

    def fits(messages: list[Message]) -> bool:
        size = sum(map(tokens.estimate, messages)) + tokens.PRIMING
        return (max_tokens is None or size <= max_tokens) and (
            max_messages is None or len(messages) <= max_messages
        )

    made: list[Message] = []
    opening = list(itertools.takewhile(lambda m: m.get("role") == "system", history))
    if opening and not fits(opening):
        return None
    rest = history[len(opening) :]
    taken: list[tuple[int, list[Message]]] = []  # each with its place
    left_out = itertools.count(1)

    def shown() -> list[Message]:
        return [m for _, part in taken for m in part if m in made or not is_lost(m, rest)]

    def take(unit: list[Message]) -> bool:
        """Take *unit*, or what stands in its place; False if that is the end."""
        before, place = shown(), next(n for n, m in enumerate(rest) if m is unit[0])
        if fits(opening + [m for m in unit if not is_lost(m, rest)] + before):
            taken.append((place, unit))
            return True
        calls, meanwhile = apart(unit)
        if calls and meanwhile:
            return take(calls) and all(take([m]) for m in reversed(meanwhile))
        if not before:
            raise WindowTooSmall
        # Neither is the window half full, so this unit is large: it is left out, and said to be.
        marker = omission(unit, history)
        if next(left_out) > _window.OMITTED or not (
            fits(opening + before + before) and fits([*opening, marker, *before])
        ):
            return False
        made.append(marker)
        taken.append((place, [marker]))
        return True

    try:
        all(take(unit) for unit in reversed(units(rest)))
    except WindowTooSmall:
        return None
    while True:
        tail = [m for _, part in sorted(taken, key=lambda found: found[0]) for m in part]
        found = repair(opening + tail, rule, keep_open=True).messages
        if fits(found) or not history:
            return found
        taken.pop()
        if not shown():
            return None


# -- properties ------------------------------------------------------------------------------------


def windowed(appends: list[list[Message]], budget: dict[str, Any]) -> list[Message] | None:
    """The window of a conversation made of *appends*; None if the budget is too small."""
    with limpet.open("memory:") as opened:
        chat = opened.conversation("alice")
        for messages in appends:
            chat.append(*messages)
        try:
            found = chat.window(**budget)
            assert chat.window(**budget) == found  # though repairs were recorded meanwhile
        except WindowTooSmall:
            return None
        return found


@pytest.mark.slow
@settings(max_examples=400)
@given(cases, budgets, rules)
def test_it_is_what_reading_everything_would_give(
    case: tuple[Chat, list[list[Message]]], budget: dict[str, int], rule: str
) -> None:
    """Reading from the end, and no further than needed, changes nothing."""
    _, appends = case
    history = [message for messages in appends for message in messages]
    assert windowed(appends, {**budget, "repair": rule}) == plainly(history, rule, **budget)


@pytest.mark.slow
@settings(max_examples=400)
@given(cases, budgets, rules)
def test_it_fits_and_its_provider_takes_it(
    case: tuple[Chat, list[list[Message]]], budget: dict[str, int], rule: str
) -> None:
    """Whatever a crash has left: once the user speaks again there is something to send."""
    shape, appends = case
    appends = [*appends, [user("Go on.")]]
    found = windowed(appends, {**budget, "repair": rule, "shape": shape.name})
    assume(found is not None)
    assert found is not None
    shape.check(found)
    assert found[-1] == user("Go on.")
    assert len(found) <= budget.get("max_messages", len(found))
    if "max_tokens" in budget:
        assert sum(map(tokens.estimate, found)) + tokens.PRIMING <= budget["max_tokens"]


@pytest.mark.slow
@settings(max_examples=300)
@given(cases, budgets)
def test_it_is_in_order_and_has_tool_calls_whole(
    case: tuple[Chat, list[list[Message]]], budget: dict[str, int]
) -> None:
    """A call is never shown without a result that is there, and nothing changes places."""
    _, appends = case
    history = [message for messages in appends for message in messages]
    found = windowed(appends, budget)
    assume(found is not None)
    assert found is not None
    opening = list(itertools.takewhile(lambda m: m.get("role") == "system", history))
    assert found[: len(opening)] == opening
    spoken = [m for m in found if not calls_of(m) and not results_of(m) and m in history]
    assert is_subsequence(spoken, history)
    shown = {id_ for m in found for id_ in results_of(m)}
    for message in found:
        for id_ in calls_of(message):
            stored = any(id_ in results_of(m) for m in history)
            assert id_ in shown or not stored


def is_subsequence(some: list[Message], all_: list[Message]) -> bool:
    """Whether *some* are among *all_*, in the same order."""
    left = iter(all_)
    return all(any(message == other for other in left) for message in some)


@pytest.mark.slow
@settings(max_examples=200)
@given(conversations(Chat()), budgets, st.integers(1, 5))
def test_no_call_is_looked_for_beyond_reach(
    appends: list[list[Message]], budget: dict[str, int], reach: int
) -> None:
    """A result whose call is not near is one without a call, to the window and to the plain way."""
    history = [message for messages in appends for message in messages]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_window, "REACH", reach)
        rest = list(itertools.dropwhile(lambda m: m["role"] == "system", history))
        numbered = list(enumerate(rest, 1))
        found = _window.Units()
        parts = [unit for item in reversed(numbered) for unit in found.feed(item)]
        parts += found.rest()
        assert [[m for _, m in reversed(unit)] for unit in reversed(parts)] == units(rest)
    assert windowed(appends, budget) == plainly(history, **budget)


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


def quarter(message: Mapping[str, Any]) -> int:
    """Four characters to a token."""
    return len(message["content"]) // 4


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
    assert chat.window(max_messages=2)[1:] == [bot("Fine.")]
    assert chat.window(max_messages=4) == [call("a", "b"), result("a"), result("b"), bot("Fine.")]


def test_calls_that_wait_for_results_are_shown_while_they_are_the_newest(store: Store) -> None:
    """The agent died in the middle of its tools: it sees which ones, and goes on."""
    chat = store.conversation("alice")
    chat.append(user("Weather and time?"), call("a", "b"), result("a"))
    assert chat.window() == chat.messages()


def test_a_call_that_nobody_answered_is_answered_once_something_else_was_said(
    store: Store,
) -> None:
    """The agent died in the middle of its tools, and the user just goes on talking."""
    chat = store.conversation("alice")
    chat.append(user("Weather and time?"), call("a", "b"), result("a"))
    chat.append(user("Are you there?"))
    found = chat.window()
    check_chat(found)
    assert [found[0], found[-1]] == [user("Weather and time?"), user("Are you there?")]
    assert found[2] == result("a")
    assert "interrupted" in found[3]["content"]
    assert chat.window(repair="drop")[2:] == [result("a"), user("Are you there?")]
    assert chat.messages()[1:3] == [call("a", "b"), result("a")]
    assert chat.messages(repair="stub") == found
    with pytest.raises(BrokenHistory, match="'b' to look_up has no result"):
        chat.window(repair="raise")


def test_a_result_that_came_late_goes_to_its_call(store: Store) -> None:
    """The user spoke while the tool ran: both are kept, in an order that a provider takes."""
    chat = store.conversation("alice")
    chat.append(user("Weather?"), call("a"))
    chat.append(user("Hurry!"))
    chat.append(result("a"))
    assert chat.window() == [user("Weather?"), call("a"), result("a"), user("Hurry!")]
    assert chat.window(max_messages=3) == [call("a"), result("a"), user("Hurry!")]


LATE = {
    "chat": (call("a"), result("a")),
    "responses": (
        {"type": "function_call", "call_id": "a", "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "found"},
    ),
    "anthropic": (
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "x", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "f"}]},
    ),
}


@pytest.mark.parametrize("shape", LATE)
@pytest.mark.parametrize("rule", ["stub", "drop", "raise"])
@pytest.mark.parametrize("newest", [True, False])
def test_a_result_that_came_very_late_hides_nothing_that_was_said_meanwhile(
    shape: str, rule: Any, *, newest: bool
) -> None:
    """It is shown with its call, and before what fits of all that was said while it ran."""
    calling, answer = LATE[shape]
    said = [turn(f"{number}") for number in range(30) for turn in (user, bot)]
    ending = [] if newest else [user("And now?")]
    with limpet.open("memory:") as opened:
        chat = opened.conversation("alice")
        chat.append(user("Weather?"), calling, *said, answer, *ending)
        found = chat.window(max_messages=10, repair=rule)
        begun = found[1:] if shape == "anthropic" else found  # there, the user begins
        size = len(begun) - 2 - len(ending)
        assert begun == [calling, answer, *said[-size:], *ending]
        assert len(found) == 10
        assert chat.repairs() == []  # nothing is damaged


def test_a_result_that_is_late_and_large_is_left_out_without_what_was_said_meanwhile(
    store: Store,
) -> None:
    """The words in its place stand where the call was."""
    chat = store.conversation("alice")
    chat.append(user("Weather?"), call("a"), user("Hurry!"), bot("Soon."))
    chat.append(result("a", "w " * 5_000), user("And?"))
    too_large = "being too large to be shown with the rest"
    assert [m["content"] for m in chat.window(max_tokens=300)] == [
        "Weather?",
        f"[limpet: 2 messages (positions 2 to 5) were left out here, {too_large}.]",
        "Hurry!",
        "Soon.",
        "And?",
    ]


def test_a_result_whose_call_is_gone_is_left_out(store: Store) -> None:
    """The conversation was cleared while the tool ran."""
    chat = store.conversation("alice")
    chat.append(user("Weather?"), call("a"))
    chat.clear()
    chat.append(result("a", "x" * 10_000))
    assert chat.window(max_tokens=100) == []
    chat.append(user("Hello?"))
    assert chat.window(max_tokens=100) == [user("Hello?")]


def test_what_was_repaired_is_recorded_once(place: Place, store: Store) -> None:
    """Nothing is mended in silence, and asking again adds nothing."""
    chat = store.conversation("alice")
    assert chat.repairs() == []
    chat.append(user("Weather?"), call("a"))
    chat.append(result("lost"), user("Hello?"))
    chat.window()
    position = chat.info().position
    for again in (chat, place.open().conversation("alice")):
        again.window()
        again.window(max_tokens=1000)
        again.messages(repair="drop")
    assert chat.info().position == position
    found = [(repair.position, repair.kind, repair.call_id) for repair in chat.repairs()]
    assert found == [(2, "unanswered_call", "a"), (3, "orphan_result", "lost")]
    (first, _) = chat.repairs()
    assert (first.rule, first.name) == ("stub", "look_up")
    assert "'a' to look_up has no result" in first.what
    assert first.at is not None
    assert chat.length() == 4


def test_a_whole_conversation_is_read_and_not_written(store: Store) -> None:
    """A window of what needs no repair moves no position that a writer may expect."""
    chat = store.conversation("alice")
    position = chat.append(user("Weather?"), call("a"), result("a"), bot("Fine."))
    assert chat.window() == chat.messages(repair="raise") == chat.messages()
    assert chat.append(user("Thanks."), expect=position) == position + 1


def test_a_store_that_cannot_be_written_still_gives_windows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then repairs are not recorded, but made."""
    chat = store.conversation("alice")
    chat.append(call("a"), user("Hello?"))

    def refuse(request: Append) -> Appended:
        raise StoreReadOnly("It is read-only.")

    async def refuse_async(request: Append) -> Appended:
        return refuse(request)

    monkeypatch.setattr(store.backend, "append", refuse)
    monkeypatch.setattr(store.backend, "append_async", refuse_async)
    check_chat(chat.window())
    assert chat.repairs() == []


def test_a_window_of_anthropics_shape_begins_with_the_user(store: Store) -> None:
    """It takes no other beginning; what stands in for the rest says so, and is in the budget."""
    anthropic = Anthropic()
    chat = store.conversation("alice")
    chat.append(user("Go."))
    for n in range(20):
        chat.append(*anthropic.calls([f"c{n}"], n), *anthropic.results([f"c{n}"], "x" * 40))
    found = chat.window(max_tokens=300)
    check_anthropic(found)
    assert "beginning" in found[0]["content"]
    assert sum(map(tokens.estimate, found)) + tokens.PRIMING <= 300
    assert chat.repairs() == []


def test_where_a_window_is_cut_is_no_damage(store: Store) -> None:
    """Not even to those who want damage to be an error."""
    chat = store.conversation("alice")
    for n in range(6):
        chat.append(user(str(n)), bot(f"{n}. "))
    for most in (4, 5):
        found = chat.window(max_messages=most, repair="raise", shape="anthropic")
        check_anthropic(found)
        assert found[-2:] == [user("5"), bot("5.")]


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


def test_one_large_message_does_not_hide_what_was_said_before_it(store: Store) -> None:
    """A pasted log, or what a tool returned: it alone is left out, and its place says so."""
    chat = store.conversation("alice")
    facts = [user(f"Fact {n}.") for n in range(5)]
    chat.append(system("s"), *facts)
    chat.append(user("log " * 2_000))
    chat.append(call("a"), result("a", "w " * 5_000), bot("I have read it."))
    chat.append(user("What were my facts?"))
    found = chat.window(max_tokens=800, reserve=500, repair="raise")
    check_chat(found)
    assert found[:6] == [system("s"), *facts]
    assert "a message (position 7) was left out" in found[6]["content"]
    assert "2 messages (positions 8 to 9) were left out" in found[7]["content"]
    assert found[8:] == [bot("I have read it."), user("What were my facts?")]
    assert chat.window() == chat.messages()
    assert chat.repairs() == []
    shorter = chat.window(max_tokens=800, compact="outputs")
    assert [*shorter[:7], *shorter[9:]] == [*found[:7], *found[8:]]
    assert [len(m["content"] or "") < 300 for m in shorter[7:9]] == [True, True]


def test_a_window_that_is_half_full_ends_at_what_does_not_fit(store: Store) -> None:
    """As what is newest matters most; nothing is said of what is merely older."""
    chat = store.conversation("alice")
    chat.append(user("old"), user("x" * 300), user("y" * 300), bot("z" * 300))
    assert chat.window(max_tokens=270) == [user("y" * 300), bot("z" * 300)]


def test_it_does_not_look_far_past_what_is_too_large(store: Store) -> None:
    """Each costs a read for nothing; a history of nothing else is not read to its beginning."""
    chat = store.conversation("alice")
    for n in range(100):
        chat.append(user(f"{n} " * 3_000))
    chat.append(user("Hello?"))
    counting = Counting(store.backend)
    found = chat.window(max_tokens=1_000)
    assert len(found) == _window.OMITTED + 1
    assert found[-1] == user("Hello?")
    assert counting.records <= 2 * _window.OMITTED + 8


def test_what_is_pinned_stays_though_it_is_amid_what_is_too_large(store: Store) -> None:
    """The user spoke while a tool ran, and what that returned does not fit."""
    chat = store.conversation("alice")
    chat.append(user("Weather?"), call("a"))
    chat.append(user("My name is Ann."), pin=True)
    chat.append(result("a", "w " * 5_000), bot("Fine."), user("And?"))
    found = chat.window(max_tokens=300)
    check_chat(found)
    assert [m["content"] for m in found if "left out" not in m["content"]] == [
        "Weather?",
        "My name is Ann.",
        "Fine.",
        "And?",
    ]


def test_an_opening_that_does_not_fit_is_an_error(store: Store) -> None:
    """The system message is never dropped silently."""
    chat = store.conversation("alice")
    chat.append(system("x" * 4000), user("1"))
    with pytest.raises(WindowTooSmall, match="system message does not fit 500 tokens"):
        chat.window(max_tokens=500)


@pytest.mark.parametrize("name", ["max_tokens", "max_messages", "reserve"])
@pytest.mark.parametrize("value", [-1, "8000", 1.5])
def test_a_budget_is_a_number(store: Store, name: str, value: Any) -> None:
    """The error names what was wrong with which."""
    store.conversation("alice").append(user("1"))
    with pytest.raises(ValueError, match=f"{name}=.*a number from 0 up"):
        store.conversation("alice").window(**{name: value})


def test_a_rule_and_a_shape_are_among_those_that_there_are(store: Store) -> None:
    """Whether there is anything to repair or not: a slip of the pen is found the first time."""
    chat = store.conversation("alice")
    wrong: Any = "openai"
    for _ in range(2):
        with pytest.raises(ValueError, match=r"shape='openai': .*\"responses\" or \"anthropic\""):
            chat.window(shape=wrong)
        with pytest.raises(ValueError, match=r"repair='openai': .*\"stub\", \"drop\" or \"raise\""):
            chat.window(repair=wrong)
        chat.append(user("1"))


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


# -- what stays, and what is set aside -------------------------------------------------------------


def test_pinned_messages_stay(store: Store) -> None:
    """In front of the newest, in their order; and in their place if they are among those."""
    chat = store.conversation("alice")
    chat.append(system("s"), user("1"))
    assert chat.append(user("My name is Ann."), pin=True) == 4
    chat.append(*(user(str(n)) for n in range(2, 20)))
    chat.pin(2)
    kept = [system("s"), user("1"), user("My name is Ann.")]
    assert chat.window(max_messages=5) == [*kept, user("18"), user("19")]
    assert chat.window() == chat.messages()
    assert chat.pinned() == [(2, user("1")), (4, user("My name is Ann."))]
    chat.unpin(2, 99)
    assert chat.window(max_messages=3) == [system("s"), user("My name is Ann."), user("19")]
    with pytest.raises(WindowTooSmall, match="A pinned message does not fit 1 messages"):
        chat.window(max_messages=1)
    with pytest.raises(WindowTooSmall, match="newest message"):
        chat.window(max_messages=2)


def test_a_pinned_message_counts_once(store: Store) -> None:
    """Whether it is in front or among the newest."""
    chat = store.conversation("alice")
    chat.append(user("1"), user("2"), user("3"))
    chat.pin(2)
    assert chat.window(max_messages=3) == [user("1"), user("2"), user("3")]
    assert chat.window(max_messages=2) == [user("2"), user("3")]


def test_system_messages_need_not_stay(store: Store) -> None:
    """Some frameworks send their own beside the history."""
    chat = store.conversation("alice")
    chat.append(system("s"), user("1"), user("2"))
    assert chat.window(max_messages=2) == [system("s"), user("2")]
    assert chat.window(max_messages=2, keep_system=False) == [user("1"), user("2")]
    assert chat.window(keep_system=False) == chat.messages()


def test_a_pinned_system_message_stays_in_any_case(store: Store) -> None:
    """And is there once."""
    chat = store.conversation("alice")
    chat.append(system("s"), pin=True)
    chat.append(*(user(str(n)) for n in range(10)))
    for keep in (True, False):
        assert chat.window(max_messages=2, keep_system=keep) == [system("s"), user("9")]
        assert chat.window(keep_system=keep) == chat.messages()


def test_room_is_left_for_the_reply_and_the_tools(store: Store) -> None:
    """A window that fills the context leaves none for an answer."""
    chat = store.conversation("alice")
    chat.append(*(user("x" * 40) for _ in range(100)))
    each = tokens.estimate(user("x" * 40))
    tool = {"type": "function", "function": {"name": "look_up", "description": "y" * 400}}
    full = len(chat.window(max_tokens=1000))
    assert full == (1000 - tokens.PRIMING) // each
    assert len(chat.window(max_tokens=1000, reserve=500)) == (500 - tokens.PRIMING) // each
    left = 1000 - tokens.PRIMING - tokens.estimate.tools([tool])
    assert len(chat.window(max_tokens=1000, tools=[tool])) == left // each
    with pytest.raises(WindowTooSmall, match=r"1,000 tokens \(of which 9\d\d are set aside\)"):
        chat.window(max_tokens=1000, reserve=990)


def test_a_model_is_named_to_count_as_it_does(store: Store) -> None:
    """With the package that has its vocabulary, exactly."""
    chat = store.conversation("alice")
    chat.append(*(user("Hello, world!") for _ in range(50)))
    each = tokens.counter("gpt-5", exact=True)(user("Hello, world!"))
    assert each == 8
    assert len(chat.window(max_tokens=100, count="gpt-5")) == (100 - tokens.PRIMING) // each


def test_a_huge_message_is_not_counted_to_its_end(store: Store) -> None:
    """To know that it does not fit, its beginning is enough."""
    chat = store.conversation("alice")
    chat.append(user("word " * 1_000_000), user("Hello."))
    seen: list[int] = []
    counter = tokens.counter("gpt-5")
    exact = counter._text

    def text(text: str) -> int:
        seen.append(len(text))
        return exact(text)

    counter._text = text
    assert chat.window(max_tokens=1000, count=counter)[1:] == [user("Hello.")]
    assert max(seen) < 20_000


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


@pytest.mark.slow
def test_it_reads_no_more_of_a_long_conversation_than_of_a_short_one(store: Store) -> None:
    """Cost follows the window, not the history."""
    reads = []
    for length in (100, 2000):
        chat = store.conversation(f"of-{length}")
        chat.append(system("s"))
        for start in range(0, length, 2):
            chat.append(user(f"{start:08}" * 20), bot(f"{start + 1:08}" * 20))
        counting = Counting(store.backend)
        assert len(chat.window(max_tokens=750, count=quarter)) == 1 + 18
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


@pytest.mark.slow
def test_pins_and_a_summary_cost_a_read_each(store: Store) -> None:
    """However far back they are."""
    reads = []
    for length in (200, 3000):
        chat = store.conversation(f"of-{length}")
        chat.append(system("s"), user("first"), pin=True)
        for start in range(0, length, 2):
            chat.append(user(f"{start:08}" * 20), bot(f"{start + 1:08}" * 20))
        chat.compact(lambda found: f"{len(found)} messages", keep_tokens=6_000, count=quarter)
        chat.append(*(user(f"{n:08}" * 20) for n in range(10)), pin=True)
        for start in range(0, length, 2):
            chat.append(user(f"{start:08}" * 20), bot(f"{start + 1:08}" * 20))
        counting = Counting(store.backend)
        found = chat.window(max_tokens=1_500, count=quarter)
        assert "messages" in found[1]["content"]
        assert user("first") in found
        reads.append((counting.calls, counting.records))
    assert reads[0][0] == reads[1][0] <= 6
    assert max(records for _, records in reads) <= 40


def test_what_stands_in_front_is_read_once(place: Place, store: Store) -> None:
    """A conversation that is held on to knows it; and notices when it is something else."""
    chat, other = store.conversation("alice"), place.open().conversation("alice")
    chat.append(system("s"))
    assert chat.window() == [system("s")]
    other.append(system("t"), user("1"))
    chat.append(*(user(str(n)) for n in range(2, 60)))
    assert chat.window(max_messages=3) == [system("s"), system("t"), user("59")]
    counting = Counting(store.backend)
    found = chat.window(max_messages=3)
    assert counting.calls == 1
    found[0]["content"] = "changed by its caller"
    assert chat.window(max_messages=3)[0] == system("s")
    other.pin(3)
    assert chat.window(max_messages=4)[2] == user("1")
    other.delete()
    other.append(system("u"), user("new"))
    assert chat.window() == [system("u"), user("new")]
    for _ in range(2):
        other.pop()
    other.append(user("newer"))
    assert chat.window() == [user("newer")]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_calls_that_are_made_at_once_stay_together_however_many(shape: Chat) -> None:
    """No result of a hundred is taken for one without a call, nor summed up without it."""
    ids = [f"call-{n}" for n in range(100)]
    turn = [user("Go."), *shape.calls(ids, 3), *shape.results(ids, "found")]
    summed: list[Message] = []

    def summarise(messages: list[Message]) -> str:
        summed.extend(messages)
        return "All of it."

    with limpet.open("memory:") as store:
        chat = store.conversation("alice")
        chat.append(*turn, bot("Done."), user("Next."))
        assert chat.window(max_messages=2) == [bot("Done."), user("Next.")]
        assert chat.repairs() == []
        chat.compact(summarise, keep_tokens=100)
    assert summed == turn


def test_a_result_without_a_call_is_looked_for_once(store: Store) -> None:
    """And not far; afterwards it is known."""
    chat = store.conversation("alice")
    for n in range(1000):
        chat.append(user(str(n)))
    chat.append(result("lost"), user("Hello?"))
    counting = Counting(store.backend)
    assert chat.window(max_messages=4) == [user("997"), user("998"), user("999"), user("Hello?")]
    assert counting.records <= 8 + 2 * _window.REACH
    counting = Counting(store.backend)
    assert chat.window(max_messages=4) == [user("997"), user("998"), user("999"), user("Hello?")]
    assert counting.records <= 20
