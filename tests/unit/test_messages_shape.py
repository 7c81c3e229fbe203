"""Tests of shapes: which calls a message makes and answers, and whose message it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.llm.messages import calls_of, results_of, shape_of
from limpet.llm.messages.shape import binds_next, name_of, role_of, shape_of_all
from tests.support import histories

Message = dict[str, Any]

CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c1", "name": "now", "input": {}}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}


@pytest.mark.parametrize(
    ("message", "calls", "results"),
    [
        ({"role": "user", "content": "Hello"}, [], []),
        ({"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}, ["c1"], []),
        ({"role": "tool", "tool_call_id": "c1", "content": ""}, [], ["c1"]),
        ({"role": "assistant", "function_call": {"name": "now"}}, ["function:now"], []),
        ({"role": "function", "name": "now", "content": ""}, [], ["function:now"]),
        ({"role": "assistant", "content": [USE, {**USE, "id": "c2"}]}, ["c1", "c2"], []),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]},
            [],
            ["c1"],
        ),
        ({"role": "assistant", "content": [SEARCH, FOUND, USE]}, ["c1"], []),
        ({"role": "assistant", "content": [SEARCH]}, ["s1"], []),
        ({"role": "assistant", "content": [FOUND]}, [], ["s1"]),
        ({"type": "mcp_approval_request", "id": "m1"}, ["m1"], []),
        ({"type": "mcp_approval_response", "approval_request_id": "m1"}, [], ["m1"]),
        ({"type": "mcp_call", "id": "m1", "output": "done"}, [], []),
        ({"type": "tool_search_call", "call_id": None, "arguments": {}}, [], []),
        ({"type": "local_shell_call_output", "id": "c1", "output": ""}, [], ["c1"]),
        ({"type": "program", "call_id": "p1"}, ["p1"], []),
        ({"type": "program_output", "call_id": "p1"}, [], ["p1"]),
    ],
)
def test_calls_and_results_are_known_by_their_ids(
    message: Message, calls: list[str], results: list[str]
) -> None:
    """What belongs together is found in every shape; what a message answers itself is no matter."""
    assert calls_of(message) == calls
    assert results_of(message) == results


@pytest.mark.parametrize("kind", histories.KINDS)
def test_every_kind_of_item_has_its_result(kind: str) -> None:
    """Functions, shells, patches, computers and approvals."""
    use = histories.Use("c1", "now", {}, "12:00", kind)
    assert calls_of(histories.CALLS[kind](use)) == ["c1"]
    assert results_of(histories.RESULTS[kind](use)) == ["c1"]
    assert results_of(histories.CALLS[kind](use)) == []


KEYS = st.sampled_from(
    ["role", "type", "content", "tool_calls", "function_call", "id", "call_id", "tool_use_id"]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, JSON))
def test_nothing_that_is_stored_makes_it_fail(message: Message) -> None:
    """A store holds whatever somebody once appended."""
    calls_of(message)
    results_of(message)
    shape_of(message)
    role_of(message)
    name_of(message, "c1")
    assert not binds_next(message) or message["type"] == "reasoning"


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        ({"role": "user", "content": "Hello"}, None),
        ({"role": "user", "content": [{"type": "text", "text": "Hello"}]}, None),
        ({"role": "tool", "tool_call_id": "c1", "content": ""}, "chat"),
        ({"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}, "chat"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "chat"),
        ({"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}, "responses"),
        ({"type": "message", "role": "user", "content": "Hello"}, "responses"),
        ({"type": "reasoning", "id": "rs_1", "summary": []}, "responses"),
        ({"role": "assistant", "content": [USE]}, "anthropic"),
        ({"role": "assistant", "content": [SEARCH, FOUND]}, "anthropic"),
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, "anthropic"),
        (
            {"type": "message", "role": "assistant", "content": [], "stop_reason": None},
            "anthropic",
        ),
    ],
)
def test_the_shape_of_a_message_is_known_by_what_only_it_has(
    message: Message, shape: str | None
) -> None:
    """A message that all providers take has no shape of its own."""
    assert shape_of(message) == shape


@given(turns=histories.spoken())
def test_the_shape_of_a_history_is_that_of_its_messages(turns: list[histories.Said]) -> None:
    """One that has several, or none, has no one shape."""
    used = any(turn.uses for turn in turns)
    for shape, write in {"chat": histories.chat, "anthropic": histories.anthropic}.items():
        assert not used or shape_of_all(write(turns)) == shape
    assert shape_of_all(histories.responses(turns)) == "responses"
    if used:
        both = [*histories.chat(turns), *histories.responses(turns)]
        assert shape_of_all(both) is None


def test_a_call_is_named_as_its_tool() -> None:
    """Repairs and commands name the tool, not only a number."""
    assert name_of({"role": "assistant", "tool_calls": [CHAT_CALL]}, "c1") == "now"
    assert name_of({"role": "assistant", "content": [USE]}, "c1") == "now"
    assert name_of({"type": "function_call", "call_id": "c1", "name": "now"}, "c1") == "now"
    assert name_of({"type": "shell_call", "call_id": "c1"}, "c1") == "shell"
    assert name_of({"role": "assistant", "content": [USE]}, "c2") is None


def test_items_without_a_role_have_one_all_the_same() -> None:
    """A call is the assistant's, and its output the tool's."""
    assert role_of({"type": "function_call", "call_id": "c1"}) == "assistant"
    assert role_of({"type": "function_call_output", "call_id": "c1"}) == "tool"
    assert role_of({"type": "message", "role": "user"}) == "user"
