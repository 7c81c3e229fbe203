"""Tests of repair: whatever a crash has done to a history, a provider takes it again."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.errors import BrokenHistory
from limpet.llm.messages import to_anthropic, to_chat, to_responses
from limpet.llm.messages.repair import repair
from limpet.testing.providers import check_anthropic, check_chat, check_responses
from tests.support import histories

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.llm.messages.shape import Shape

    Message = dict[str, Any]

CHECKS: dict[Shape, Callable[[Any], None]] = {
    "chat": check_chat,
    "responses": check_responses,
    "anthropic": check_anthropic,
}
WHOLE: dict[Shape, st.SearchStrategy[list[Message]]] = {
    "chat": histories.spoken(("function_call", "custom_tool_call")).map(histories.chat),
    "responses": histories.spoken(histories.KINDS).map(histories.responses),
    "anthropic": histories.spoken().map(histories.anthropic),
}
SHAPES = list(CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=100)
@given(data=st.data())
def test_what_is_whole_is_left_as_it_is(shape: Shape, data: st.DataObject) -> None:
    """Repair is not a habit: without damage the very same messages come back."""
    messages = data.draw(WHOLE[shape])
    CHECKS[shape](messages)
    done = repair(messages, shape=shape)
    assert done.repairs == []
    assert all(one is other for one, other in zip(done.messages, messages, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=300)
@given(data=st.data(), rule=st.sampled_from(["stub", "drop"]))
def test_what_a_crash_left_is_taken_by_the_provider(
    shape: Shape, data: st.DataObject, rule: Any
) -> None:
    """Deleted, doubled, swapped, cut: no history stays bricked; the given one is not touched."""
    messages = data.draw(histories.damaged(WHOLE[shape]))
    given_ = copy.deepcopy(messages)
    done = repair(messages, rule, shape=shape)
    assert messages == given_
    if done.messages:
        CHECKS[shape](done.messages)
    if done.messages != messages:
        assert done.repairs
    again = repair(done.messages, rule, shape=shape)
    assert again.messages == done.messages
    assert again.repairs == []


# -- one kind of damage after the other ------------------------------------------------------------

ASKED = {"role": "user", "content": "What is the time, and what is the weather?"}


def chat_calls(*ids: str, content: str | None = None) -> Message:
    """A message that calls tools, as Chat Completions has it."""
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": id_, "type": "function", "function": function} for id_ in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def chat_result(id_: str, content: str = "12:00") -> Message:
    """Its answer."""
    return {"role": "tool", "tool_call_id": id_, "content": content}


def uses(*ids: str, text: str = "") -> Message:
    """A message that calls tools, as Anthropic has it."""
    blocks: list[Message] = [{"type": "text", "text": text}] if text else []
    blocks += [{"type": "tool_use", "id": id_, "name": "look", "input": {}} for id_ in ids]
    return {"role": "assistant", "content": blocks}


def result(id_: str, content: str = "12:00") -> Message:
    """Its answer, a block."""
    return {"type": "tool_result", "tool_use_id": id_, "content": content}


def call(id_: str) -> Message:
    """A call, as Responses has it."""
    return {"type": "function_call", "call_id": id_, "name": "look", "arguments": "{}"}


def output(id_: str, text: str = "12:00") -> Message:
    """Its answer."""
    return {"type": "function_call_output", "call_id": id_, "output": text}


def kinds(messages: list[Message], rule: Any = "stub", **options: Any) -> list[tuple[int, str]]:
    """Where repair found something, and what."""
    return [(r.index, r.kind) for r in repair(messages, rule, **options).repairs]


def test_a_call_that_was_cut_off_is_answered_as_interrupted() -> None:
    """The model is told that nobody knows, not that it failed, and not that it was done."""
    done = repair([ASKED, chat_calls("a", content="I shall look.")])
    assert [message["role"] for message in done.messages] == ["user", "assistant", "tool"]
    assert "not known whether it took effect" in done.messages[-1]["content"]
    (found,) = done.repairs
    assert (found.index, found.kind, found.call_id, found.name) == (
        1,
        "unanswered_call",
        "a",
        "look",
    )
    assert found.what == "the call 'a' to look has no result; answered as interrupted"


def test_dropping_a_call_keeps_what_was_said_beside_it() -> None:
    """Only the call is in doubt."""
    done = repair([ASKED, chat_calls("a", content="I shall look.")], "drop")
    assert done.messages == [ASKED, {"role": "assistant", "content": "I shall look."}]
    assert repair([ASKED, chat_calls("a")], "drop").messages == [ASKED]


def test_raising_names_each_thing_that_is_wrong() -> None:
    """Whoever wants no repair is told what to repair."""
    with pytest.raises(BrokenHistory, match="the call 'b' to look") as caught:
        repair([ASKED, chat_calls("a", "b"), chat_result("a"), chat_result("x")], "raise")
    assert [found.call_id for found in caught.value.repairs] == ["b", "x"]
    assert str(caught.value).splitlines() == [
        "No provider would take these messages as they are:",
        "- message 1: the call 'b' to look has no result; answered as interrupted",
        "- message 3: the result of 'x' answers no call; left out",
        'repair="stub" or repair="drop" makes them whole; neither changes what is stored.',
    ]


NOON = {"role": "assistant", "content": "Noon."}


@pytest.mark.parametrize(
    ("kind", "shape", "messages"),
    [
        ("headless", "anthropic", [NOON, ASKED]),
        ("trailing_space", "anthropic", [ASKED, NOON | {"content": "Noon. "}]),
        ("empty_message", "anthropic", [ASKED, NOON | {"content": ""}, ASKED]),
        ("empty_message", "chat", [ASKED, NOON | {"content": None}, ASKED]),
        (
            "orphan_reasoning",
            "responses",
            [ASKED, {"type": "reasoning", "id": "rs_1", "summary": []}, ASKED],
        ),
    ],
)
def test_raising_is_for_damage_only(kind: str, shape: Shape, messages: list[Message]) -> None:
    """Where a window was cut, and what the model did not say, nobody can put right."""
    done = repair(messages, "raise", shape=shape)
    CHECKS[shape](done.messages)
    assert [r.kind for r in done.repairs] == [kind]
    convert = {"chat": to_chat, "responses": to_responses, "anthropic": to_anthropic}[shape]
    CHECKS[shape](convert(messages, rule="raise").messages)


def test_raising_names_only_what_is_damage() -> None:
    """The rest would lead astray."""
    with pytest.raises(BrokenHistory) as caught:
        repair([NOON, ASKED, uses("a"), ASKED], "raise")
    assert [found.kind for found in caught.value.repairs] == ["unanswered_call"]


def test_a_rule_that_does_not_exist_is_refused() -> None:
    """A typing error must not mean "leave it broken"."""
    with pytest.raises(ValueError, match='"stub", "drop" or "raise"'):
        repair([ASKED], "guess")  # type: ignore[arg-type]


@pytest.mark.parametrize("answered", [["a"], ["b"], ["c", "a"]], ids="-".join)
def test_parallel_calls_of_which_some_are_answered(answered: list[str]) -> None:
    """A crash between two results is the commonest of all."""
    messages = [ASKED, chat_calls("a", "b", "c"), *map(chat_result, answered)]
    done = repair(messages)
    check_chat(done.messages)
    assert done.messages[: len(messages)] == messages
    assert [r.call_id for r in done.repairs] == [i for i in "abc" if i not in answered]


def test_an_orphan_amid_the_history_is_found() -> None:
    """The crash may have been long ago."""
    messages = [ASKED, chat_calls("a"), ASKED, {"role": "assistant", "content": "Noon."}]
    done = repair(messages)
    check_chat(done.messages)
    assert [m["role"] for m in done.messages] == ["user", "assistant", "tool", "user", "assistant"]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([ASKED, chat_result("a")], [(1, "orphan_result")]),
        (
            [ASKED, chat_calls("a"), chat_result("a"), chat_result("a", "13:00")],
            [(3, "duplicate_result")],
        ),
        ([ASKED, chat_calls("a"), ASKED, chat_result("a")], [(3, "moved_result")]),
        ([ASKED, chat_result("a"), chat_calls("a")], [(1, "moved_result")]),
        ([ASKED, chat_calls("a"), chat_calls("a"), chat_result("a")], [(1, "repeated_call")]),
        ([ASKED, chat_calls("a", "a"), chat_result("a")], [(1, "repeated_call")]),
        (
            [ASKED, {"role": "assistant", "content": "Hm.", "tool_calls": []}],
            [(1, "empty_message")],
        ),
        ([ASKED, {"role": "assistant", "content": None}], [(1, "empty_message")]),
    ],
)
def test_each_damage_to_a_chat_has_its_name(
    messages: list[Message], expected: list[tuple[int, str]]
) -> None:
    """A repair that is not recorded is a silent one."""
    done = repair(messages, shape="chat")
    check_chat(done.messages)
    assert [(r.index, r.kind) for r in done.repairs] == expected


def test_ids_that_a_model_uses_anew_in_each_turn_are_no_damage() -> None:
    """Some number their calls from 0 every time; Chat Completions takes that."""
    turn = [chat_calls("call_0"), chat_result("call_0")]
    assert repair([ASKED, *turn, ASKED, *turn, *turn]).repairs == []


def test_a_result_goes_to_the_newest_call_of_its_id() -> None:
    """An old orphan must not take the answer of a new call."""
    messages = [ASKED, chat_calls("call_0"), ASKED, chat_calls("call_0"), chat_result("call_0")]
    done = repair(messages)
    check_chat(done.messages)
    assert done.messages[-1] == chat_result("call_0")
    assert [(r.index, r.kind) for r in done.repairs] == [(1, "unanswered_call")]


def test_ids_that_are_used_twice_become_two_where_they_must() -> None:
    """Anthropic and Responses want every id once in the whole history."""
    turn = [call("a"), output("a")]
    done = repair([ASKED, *turn, ASKED, *turn])
    check_responses(done.messages)
    assert [m.get("call_id") for m in done.messages] == [None, "a", "a", None, "a_2", "a_2"]
    both = [uses("a"), {"role": "user", "content": [result("a")]}]
    done = repair([ASKED, *both, {"role": "assistant", "content": "Noon."}, ASKED, *both])
    check_anthropic(done.messages)
    assert [r.kind for r in done.repairs] == ["renamed_call"]


def test_a_thought_without_what_it_led_to_is_left_out() -> None:
    """Responses refuses it, wherever it stands."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert kinds([ASKED, thought]) == [(1, "orphan_reasoning")]
    assert kinds([ASKED, thought, ASKED]) == [(1, "orphan_reasoning")]


def test_a_thought_goes_with_the_call_it_led_to() -> None:
    """And stays when a sibling of the call stays."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert repair([ASKED, thought, call("a")], "drop").messages == [ASKED]
    kept = [ASKED, thought, call("b"), output("b")]
    assert repair([ASKED, thought, call("a"), call("b"), output("b")], "drop").messages == kept


def test_a_screenshot_cannot_be_made_up() -> None:
    """A computer call without its picture is left out even when others are answered."""
    action = {"type": "screenshot"}
    shot = {"type": "computer_call", "id": "cu_1", "call_id": "a", "action": action}
    shot |= {"pending_safety_checks": [], "status": "completed"}
    assert repair([ASKED, shot]).messages == [ASKED]


def test_an_approval_that_nobody_gave_is_not_given() -> None:
    """Interrupted means no."""
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "rm", "arguments": "{}"}
    done = repair([ASKED, request | {"server_label": "files"}])
    check_responses(done.messages)
    assert done.messages[-1]["approve"] is False


@pytest.mark.parametrize("kind", [kind for kind in histories.KINDS if kind != "computer_call"])
def test_every_kind_of_item_can_be_answered_as_interrupted(kind: str) -> None:
    """Shells and patches are interrupted like functions."""
    use = histories.Use("c1", "look", {}, "12:00", kind)
    done = repair([ASKED, histories.CALLS[kind](use)])
    check_responses(done.messages)
    assert [r.kind for r in done.repairs] == ["unanswered_call"]
    assert "interrupted" in str(done.messages[-1]) or kind == "tool_search_call"


def test_anthropic_results_are_put_before_what_the_user_says() -> None:
    """A user's message may hold both, and the results come first."""
    hello = {"type": "text", "text": "Well?"}
    messages = [ASKED, uses("a", "b"), {"role": "user", "content": [hello, result("b")]}]
    done = repair(messages)
    check_anthropic(done.messages)
    assert [(r.index, r.kind) for r in done.repairs] == [
        (1, "unanswered_call"),
        (2, "moved_result"),
    ]
    assert done.messages[-1] == {"role": "user", "content": [hello]}


def test_anthropic_results_in_two_messages_are_no_damage() -> None:
    """What one role says in a row is one message to Anthropic."""
    answers = [{"role": "user", "content": [result(id_)]} for id_ in "ab"]
    assert repair([ASKED, uses("a", "b"), *answers, ASKED]).repairs == []


def test_anthropic_needs_a_user_who_begins() -> None:
    """A beginning that was lost is stood in for; what is left stays."""
    done = repair([uses("a"), {"role": "user", "content": [result("a")]}])
    check_anthropic(done.messages)
    assert [r.kind for r in done.repairs] == ["headless"]
    assert "beginning of this conversation is not here" in done.messages[0]["content"]


def test_thinking_that_led_nowhere_goes_with_the_call() -> None:
    """Anthropic refuses a turn that ends in a thought."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}
    message = uses("a")
    message["content"].insert(0, thought)
    assert repair([ASKED, message], "drop").messages == [ASKED]
    assert len(repair([ASKED, message], "stub").messages[1]["content"]) == 2


def test_a_stream_that_was_cut_in_the_arguments_is_kept_as_it_was() -> None:
    """What had arrived is data; it is not completed by guessing."""
    message = uses("a")
    message["content"][0]["input"] = '{"city": "Ber'
    done = repair([ASKED, message])
    check_anthropic(done.messages)
    assert done.messages[1]["content"][0]["input"] == {"limpet_unread": '{"city": "Ber'}


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ({"role": "assistant", "content": "Noon.\n"}, "trailing_space"),
        ({"role": "assistant", "content": [{"type": "text", "text": "Noon. "}]}, "trailing_space"),
        ({"role": "assistant", "content": " "}, "empty_message"),
        (
            {
                "role": "assistant",
                "content": [{"type": "text", "text": ""}, {"type": "text", "text": "Noon."}],
            },
            "empty_text",
        ),
    ],
)
def test_what_anthropic_does_not_read_is_cut(last: Message, kind: str) -> None:
    """A stream that was killed ends anywhere."""
    done = repair([ASKED, last], shape="anthropic")
    check_anthropic(done.messages)
    assert [r.kind for r in done.repairs] == [kind]


def test_a_provider_goes_on_with_its_own_tool() -> None:
    """A turn that Anthropic paused ends in a call that is not ours to answer."""
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    paused = {"role": "assistant", "content": [search]}
    assert repair([ASKED, paused], shape="anthropic").repairs == []
    done = repair([ASKED, paused, ASKED])
    check_anthropic(done.messages)
    assert [r.kind for r in done.repairs] == ["unanswered_call"]


def test_calls_at_the_end_may_wait_for_their_results() -> None:
    """In a tool loop the results are on their way."""
    messages = [ASKED, chat_calls("a", "b"), chat_result("a")]
    assert repair(messages, keep_open=True).repairs == []
    assert kinds([*messages, ASKED], keep_open=True) == [(1, "unanswered_call")]
    anthropic = [ASKED, uses("a", "b"), {"role": "user", "content": [result("a")]}]
    assert repair(anthropic, keep_open=True).messages == anthropic


def test_ids_that_a_provider_does_not_take_are_changed() -> None:
    """Histories move between providers, and ids with them."""
    long = "x" * 80
    done = repair([ASKED, chat_calls(long), chat_result(long)])
    check_chat(done.messages)
    assert [r.kind for r in done.repairs] == ["renamed_call"]
    done = repair([ASKED, uses("a.b:1"), {"role": "user", "content": [result("a.b:1")]}])
    check_anthropic(done.messages)


def test_messages_of_no_known_kind_are_left_alone() -> None:
    """Repair knows what it knows."""
    odd: list[Message] = [{"role": "narrator", "content": 7}, {"type": "event", "data": [1]}, {}]
    assert repair(odd[:2]).messages == odd[:2]


@pytest.mark.parametrize("shape", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("last", ["text", 5, None])
def test_a_content_that_no_provider_has_does_not_stop_it(shape: Shape, last: Any) -> None:
    """Somebody once stored it, and the rest of the conversation is wanted."""
    odd = {"role": "assistant", "content": [{"type": "text", "text": "Hm."}, last]}
    user = {"role": "user", "content": "Hello"}
    assert repair([user, odd], shape=shape).messages == [user, odd]
