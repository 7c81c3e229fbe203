"""Tests of the validators: what each provider refuses, and that they refuse nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.testing.providers import Refused, check_anthropic, check_chat, check_responses
from tests.support import histories

if TYPE_CHECKING:
    from collections.abc import Callable

Message = dict[str, Any]

ASKED: Message = {"role": "user", "content": "What is the time?"}
SAID: Message = {"role": "assistant", "content": "Noon."}


def calls(*ids: str, **more: Any) -> Message:
    """A message of Chat Completions that calls tools."""
    function = {"name": "now", "arguments": "{}"}
    made = [{"id": id_, "type": "function", "function": function} for id_ in ids]
    return {"role": "assistant", "content": None, "tool_calls": made, **more}


def answer(id_: str) -> Message:
    """Its answer."""
    return {"role": "tool", "tool_call_id": id_, "content": "12:00"}


def function_call(id_: str, **more: Any) -> Message:
    """A call as Responses has it."""
    return {"type": "function_call", "call_id": id_, "name": "now", "arguments": "{}", **more}


def output(id_: str, **more: Any) -> Message:
    """Its answer."""
    return {"type": "function_call_output", "call_id": id_, "output": "12:00", **more}


THOUGHT: Message = {"type": "reasoning", "id": "rs_1", "summary": []}


def said(*blocks: Message) -> Message:
    """A message of Anthropic's assistant."""
    return {"role": "assistant", "content": list(blocks)}


def told(*blocks: Message) -> Message:
    """A message of its user."""
    return {"role": "user", "content": list(blocks)}


def use(id_: str, **more: Any) -> Message:
    """A call as Anthropic has it."""
    return {"type": "tool_use", "id": id_, "name": "now", "input": {}, **more}


def result(id_: str, **more: Any) -> Message:
    """Its answer."""
    return {"type": "tool_result", "tool_use_id": id_, "content": "12:00", **more}


def text(words: str) -> Message:
    """A block of text."""
    return {"type": "text", "text": words}


SEARCH: Message = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
FOUND: Message = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
THINKING: Message = {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}


@pytest.mark.slow
@given(turns=histories.spoken(histories.KINDS))
def test_what_went_well_is_taken(turns: list[histories.Said]) -> None:
    """A validator that refuses good histories proves nothing about repairs."""
    check_chat(histories.chat(turns))
    check_responses(histories.responses(turns))
    check_anthropic(histories.anthropic(turns))


@pytest.mark.parametrize(
    ("check", "messages"),
    [
        (check_chat, [ASKED, calls("a", "b"), answer("b"), answer("a"), SAID]),
        (check_chat, [ASKED, calls("a"), answer("a"), calls("a"), answer("a")]),
        (check_chat, [{"role": "developer", "content": "Be brief."}, ASKED, SAID, SAID]),
        (check_responses, [function_call("a"), SAID, ASKED, output("a")]),
        (check_responses, [ASKED, THOUGHT, function_call("a"), output("a")]),
        (check_responses, [ASKED, THOUGHT, {"type": "web_search_call", "id": "ws_1"}, SAID]),
        (check_anthropic, [ASKED, ASKED, said(use("a")), told(result("a"), text("So?"))]),
        (check_anthropic, [ASKED, said(use("a"), use("b")), told(result("b")), told(result("a"))]),
        (check_anthropic, [ASKED, said(SEARCH, FOUND, text("Here."))]),
        (check_anthropic, [ASKED, said(SEARCH)]),
        (check_anthropic, [ASKED, {"role": "system", "content": "Be brief."}, SAID]),
    ],
)
def test_what_is_odd_but_allowed_is_taken(
    check: Callable[[Any], None], messages: list[Message]
) -> None:
    """Providers are strict, and not stricter than they are."""
    check(messages)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "at least one"),
        ([{"content": "x"}], "None is no role"),
        ([ASKED, answer("a")], r"messages\[1\]: a tool message must follow the call"),
        ([ASKED, calls("a"), answer("b")], "'b' is no call"),
        ([ASKED, calls("a"), answer("a"), answer("a")], "must follow the call"),
        ([ASKED, calls("a", "b"), answer("a"), answer("a")], "still unanswered"),
        ([ASKED, calls("a"), ASKED], r"messages\[1\]: the calls a must be answered"),
        ([ASKED, calls("a", "b"), answer("a")], "the calls b must be answered"),
        ([ASKED, calls("a", "a"), answer("a")], "duplicate id 'a'"),
        ([ASKED, calls() | {"content": ""}], "a list with something in"),
        ([ASKED, calls("a" * 41), answer("a" * 41)], "up to 40"),
        ([{**ASKED, "at": 1}], "unknown keys at"),
        ([ASKED, {"role": "assistant", "content": None}], "content is missing"),
        ([{"role": "user", "content": []}], "empty list"),
        ([{"role": "user", "content": [{"type": "input_text", "text": ""}]}], "no input_text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "an object"),
    ],
)
def test_chat_completions_refuses(messages: list[Message], why: str) -> None:
    """Each with the rule and the place."""
    with pytest.raises(Refused, match=why):
        check_chat(messages)


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([], "at least one"),
        ([{"type": "odd"}], "'odd' is no type"),
        ([ASKED, function_call("a")], "no output found for the call 'a'"),
        ([ASKED, output("a")], r"input\[1\]: no tool call found"),
        ([output("a"), function_call("a")], "no tool call found"),
        ([function_call("a"), output("a"), output("a")], "a second output"),
        ([function_call("a"), function_call("a"), output("a")], "duplicate call"),
        ([{**function_call("a"), "type": "custom_tool_call"}], "missing input"),
        ([function_call("a"), {**output("a"), "type": "custom_tool_call_output"}], "no tool call"),
        ([function_call(""), output("")], "not empty"),
        ([function_call("a", id="call_1"), output("a")], "begins with 'fc'"),
        ([function_call("a", parsed_arguments={}), output("a")], "unknown keys parsed_arguments"),
        ([THOUGHT, ASKED], r"input\[0\]: a reasoning item without"),
        ([ASKED, THOUGHT], "a reasoning item without"),
        ([THOUGHT, SAID, THOUGHT, SAID], "duplicate item"),
        (
            [{"role": "assistant", "content": [{"type": "input_text", "text": ""}]}],
            "input_text is not supported here",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": ""}]}], "text is not supported"),
    ],
)
def test_responses_refuses(items: list[Message], why: str) -> None:
    """Each with the rule and the place."""
    with pytest.raises(Refused, match=why):
        check_responses(items)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "at least one"),
        ([SAID], "must use the user role"),
        ([{"role": "tool", "content": "x"}], "'tool' is no role"),
        ([ASKED, said(use("a"))], "tool_use without tool_result"),
        ([ASKED, said(use("a")), ASKED], "tool_use without tool_result just after: a"),
        ([ASKED, said(use("a"), use("b")), told(result("a"))], "just after: b"),
        ([ASKED, told(result("a"))], "unexpected tool_use_id 'a'"),
        ([ASKED, said(use("a")), told(result("a")), SAID, told(result("a"))], "unexpected"),
        ([ASKED, said(use("a")), told(text("So?"), result("a"))], "must come first"),
        ([ASKED, said(use("a")), told(result("a"), result("a"))], "a single result"),
        (
            [ASKED, said(use("a")), told(result("a")), said(use("a")), told(result("a"))],
            "ids must be unique",
        ),
        ([ASKED, said(use("a.b")), told(result("a.b"))], "cannot be an id"),
        ([ASKED, said(use("a", input="{")), told(result("a"))], "input must be an object"),
        ([told(use("a"))], "no tool_use block in a message of the user"),
        ([ASKED, said(result("a"))], "no tool_result block in a message of the assistant"),
        ([ASKED, said(SEARCH), ASKED], "tool use without result: s1"),
        ([ASKED, said(FOUND)], "without its tool use"),
        ([told(text(" "))], "must not be empty"),
        ([told()], "content must not be empty"),
        ([{"role": "user", "content": ""}], "must not be empty"),
        ([ASKED, {"role": "assistant", "content": "Noon. "}], "ends with whitespace"),
        ([ASKED, said(THINKING)], "cannot be thinking"),
        ([ASKED, said({**THINKING, "signature": ""}, text("x"))], "signature"),
        ([{**ASKED, "id": "x"}], "unknown keys id"),
        ([{"role": "system", "content": "x"}, ASKED], "must use the user role"),
        ([ASKED, SAID, {"role": "system", "content": "x"}], "must follow a user's"),
        (
            [told({"type": "image", "source": {"type": "base64", "media_type": "image/svg+xml"}})],
            "media_type",
        ),
    ],
)
def test_anthropic_refuses(messages: list[Message], why: str) -> None:
    """Each with the rule and the place."""
    with pytest.raises(Refused, match=why):
        check_anthropic(messages)


def test_a_refusal_is_an_assertion_and_a_value_error() -> None:
    """A test fails by it, and a program can catch it."""
    assert issubclass(Refused, AssertionError)
    assert issubclass(Refused, ValueError)


HARM: dict[str, Callable[[list[histories.Said]], list[Message]]] = {
    "chat": histories.chat,
    "responses": histories.responses,
    "anthropic": histories.anthropic,
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", list(HARM))
@given(data=st.data())
def test_a_call_without_its_result_is_always_noticed(shape: str, data: st.DataObject) -> None:
    """Whatever else is in the history."""
    turns = data.draw(histories.spoken().filter(lambda turns: any(turn.uses for turn in turns)))
    lost = data.draw(st.sampled_from([use.id for turn in turns for use in turn.uses]))
    messages = [_without(message, lost) for message in HARM[shape](turns)]
    check = {"chat": check_chat, "responses": check_responses, "anthropic": check_anthropic}[shape]
    with pytest.raises(Refused):
        check([message for message in messages if message])


def _without(message: Message, id_: str) -> Message:
    if message.get("tool_call_id") == id_ or (
        message.get("type") == "function_call_output" and message["call_id"] == id_
    ):
        return {}
    content = message.get("content")
    if not isinstance(content, list):
        return message
    kept = [part for part in content if part.get("tool_use_id") != id_]
    return {**message, "content": kept} if kept else {}
