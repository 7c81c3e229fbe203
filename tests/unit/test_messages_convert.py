"""Tests of conversion: the same conversation in three shapes, and the way back."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import anthropic.types as anthropic_types
import openai.types.chat as chat_types
import openai.types.responses as responses_types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from limpet.errors import BrokenHistory
from limpet.llm.messages import to_anthropic, to_chat, to_responses
from limpet.testing.providers import check_anthropic, check_chat, check_responses
from tests.support import histories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.llm.messages import Converted
    from limpet.llm.messages.shape import Shape

    Message = dict[str, Any]

TO: dict[Shape, Callable[..., Converted]] = {
    "chat": to_chat,
    "responses": to_responses,
    "anthropic": to_anthropic,
}
CHECKS: dict[Shape, Callable[[Any], None]] = {
    "chat": check_chat,
    "responses": check_responses,
    "anthropic": check_anthropic,
}
WRITTEN: dict[Shape, Callable[[list[histories.Said]], list[Message]]] = {
    "chat": histories.chat,
    "responses": histories.responses,
    "anthropic": histories.anthropic,
}
TYPES: dict[Shape, TypeAdapter[Any]] = {
    "chat": TypeAdapter(chat_types.ChatCompletionMessageParam),
    "responses": TypeAdapter(responses_types.ResponseInputItemParam),
    "anthropic": TypeAdapter(anthropic_types.MessageParam),
}
SHAPES = list(TO)
PAIRS = [(one, other) for one in SHAPES for other in SHAPES]
ASKED = {"role": "user", "content": "What is the time?"}


def told(messages: list[Message]) -> list[Any]:
    """What a model reads in *messages*: who says what, shows what, calls what and gets what."""
    return [event for message in messages for event in _events(message)]


def _events(message: Message) -> Iterator[Any]:
    kind = message.get("type")
    if kind == "function_call":
        yield "call", message["call_id"], message["name"], json.loads(message["arguments"])
    elif kind == "function_call_output":
        yield "result", message["call_id"], message["output"]
    elif message.get("role") == "tool":
        yield "result", message["tool_call_id"], message["content"]
    elif kind in (None, "message"):
        content = message.get("content")
        for part in (
            [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
        ):
            yield from _part(message["role"], part)
        for call in message.get("tool_calls", ()):
            function = call["function"]
            yield "call", call["id"], function["name"], json.loads(function["arguments"])


def _part(role: str, part: Message) -> Iterator[Any]:
    kind = part["type"]
    if kind in ("text", "input_text", "output_text"):
        yield role, part["text"]
    elif kind == "tool_use":
        yield "call", part["id"], part["name"], part["input"]
    elif kind == "tool_result":
        yield "result", part["tool_use_id"], part["content"]
    elif kind == "image":
        source = part["source"]
        yield role, source.get("url") or f"data:{source['media_type']};base64,{source['data']}"
    elif kind == "image_url":
        yield role, part["image_url"]["url"]
    elif kind == "input_image":
        yield role, part["image_url"]


# -- all conversations -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), PAIRS)
@settings(max_examples=60)
@given(turns=histories.spoken())
def test_every_shape_says_the_same(one: Shape, other: Shape, turns: list[histories.Said]) -> None:
    """Text, images, calls and results go from any shape to any other, and a provider takes them."""
    messages = WRITTEN[one](turns)
    given_ = copy.deepcopy(messages)
    done = TO[other](messages)
    assert messages == given_
    CHECKS[other](done.messages)
    assert told(done.messages) == told(messages)
    assert done.repairs == []
    thoughts = [turn for turn in turns if turn.thought and one not in ("chat", other)]
    assert [left.kind for left in done.left_out] == [
        {"responses": "reasoning", "anthropic": "thinking"}[one] for _ in thoughts
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), PAIRS)
@settings(max_examples=60)
@given(turns=histories.spoken(histories.KINDS))
def test_the_way_back_restores_every_message(
    one: Shape, other: Shape, turns: list[histories.Said]
) -> None:
    """Reasoning, ids, shells and screenshots: what the other could not say is there again."""
    messages = WRITTEN[one](turns)
    done = TO[other](messages)
    CHECKS[other](done.messages)
    assert done.restore() == messages
    assert done.restore([*done.messages, ASKED]) == [*messages, ASKED]


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [pair for pair in PAIRS if pair[0] != pair[1]])
@settings(max_examples=60)
@given(turns=histories.spoken())
def test_there_and_back_without_help_loses_only_thoughts(
    one: Shape, other: Shape, turns: list[histories.Said]
) -> None:
    """A process that has only the other shape can still go on in the first."""
    for turn in turns:
        turn.thought = ""
    messages = WRITTEN[one](turns)
    back = TO[one](TO[other](messages).messages)
    assert told(back.messages) == told(messages)
    assert back.left_out == []
    CHECKS[one](back.messages)


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), PAIRS)
@settings(max_examples=60)
@given(data=st.data(), rule=st.sampled_from(["stub", "drop"]))
def test_what_a_crash_left_can_be_converted(
    one: Shape, other: Shape, data: st.DataObject, rule: Any
) -> None:
    """Conversion is where a damaged history first meets another provider."""
    whole = histories.spoken(histories.KINDS).map(WRITTEN[one])
    messages = data.draw(histories.damaged(whole))
    done = TO[other](messages, rule=rule)
    if done.messages:
        CHECKS[other](done.messages)


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), PAIRS)
@settings(max_examples=40)
@given(turns=histories.spoken(histories.KINDS))
def test_what_is_sent_is_what_the_sdk_declares(
    one: Shape, other: Shape, turns: list[histories.Said]
) -> None:
    """The types of the installed packages agree."""
    for message in TO[other](WRITTEN[one](turns)).messages:
        TYPES[other].validate_python(_with_required(message))


def _with_required(message: Message) -> Message:
    """The API takes an assistant's words without an id; the type of its replies does not."""
    if message.get("type") == "message" and message.get("role") == "assistant":
        return {"id": "msg_1", "status": "completed", **message}
    return message


@settings(max_examples=60)
@given(data=st.data(), target=st.sampled_from(SHAPES))
def test_a_history_of_several_shapes_becomes_one_of_one(data: st.DataObject, target: Shape) -> None:
    """Somebody changed the provider in the middle of a conversation."""
    messages: list[Message] = []
    for number, shape in enumerate(SHAPES):
        turns = data.draw(histories.spoken(most=2))
        for use in [use for turn in turns for use in turn.uses]:
            use.id = f"{use.id}_{number}"
        messages += WRITTEN[shape](turns)
    for number, item in enumerate(messages):  # ids of replies are their own
        if "id" in item:
            item["id"] = f"{item['id']}_{number}"
    done = TO[target](messages)
    CHECKS[target](done.messages)
    assert told(done.messages) == told(messages)
    assert done.restore() == messages


# -- one thing after the other ---------------------------------------------------------------------


def named(done: Converted) -> list[tuple[int, str]]:
    """What was left out, and of which message."""
    return [(left.index, left.kind) for left in done.left_out]


def test_instructions_stand_beside_anthropic_messages() -> None:
    """Anthropic takes them apart, and those amid the messages go in front, named."""
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        ASKED,
        {"role": "system", "content": "It is noon."},
    ]
    done = to_anthropic(messages)
    assert done.messages == [ASKED]
    assert [block["text"] for block in done.system or []] == [
        "Be brief.",
        "Be kind.",
        "It is noon.",
    ]
    assert named(done) == [(3, "system")]
    assert done.restore() == messages
    assert (
        done.restore([ASKED, {"role": "assistant", "content": "Noon."}])[-1]["content"] == "Noon."
    )


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_anthropic_instructions_become_the_first_message(system: Any) -> None:
    """The other two have them among the messages."""
    for shape in ("chat", "responses"):
        done = TO[shape]([ASKED], system=system)
        CHECKS[shape](done.messages)
        assert told(done.messages)[0] == ("system", "Be brief.")
        assert done.system is None
        assert done.restore() == [ASKED]
    assert to_anthropic([ASKED], system=system).system == [{"type": "text", "text": "Be brief."}]


def test_arguments_that_were_cut_are_kept_as_text() -> None:
    """Anthropic wants an object; half a JSON text is none, and is not guessed at."""
    cut = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"zone": "Eur'}
    done = to_anthropic([ASKED, cut])
    check_anthropic(done.messages)
    assert done.messages[1]["content"][0]["input"] == {"limpet_unread": '{"zone": "Eur'}
    assert named(done) == [(1, "arguments")]
    assert [repair.kind for repair in done.repairs] == ["unanswered_call"]
    back = to_chat(done.messages)
    assert back.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"zone": "Eur'


@pytest.mark.parametrize("text", ["[1]", '"x"', "NaN", "null", "{}x"])
def test_arguments_that_are_no_object_are_kept_as_text(text: str) -> None:
    """Models write all sorts of things."""
    call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": text}
    output = {"type": "function_call_output", "call_id": "c1", "output": "12:00"}
    done = to_anthropic([ASKED, call, output])
    check_anthropic(done.messages)
    back = to_responses(done.messages)
    assert back.messages[1:] == [call, output]


def test_a_custom_tool_is_custom_with_openai_and_has_one_argument_with_anthropic() -> None:
    """Its input is text, for which Anthropic has no call."""
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "sql", "input": "select 1"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "1"}
    in_chat = to_chat([ASKED, call, output])
    custom = {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    assert in_chat.messages[1]["tool_calls"] == [custom]
    assert to_responses(in_chat.messages).messages == [ASKED, call, output]
    done = to_anthropic([ASKED, call, output])
    assert done.messages[1]["content"][0]["input"] == {"input": "select 1"}
    assert named(done) == [(1, "custom tool call")]


def test_an_image_keeps_its_data_and_loses_at_most_its_detail() -> None:
    """Data, media type and address are the same everywhere."""
    url = f"data:image/png;base64,{histories.PNG}"
    image = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    message = {"role": "user", "content": [image]}
    assert to_chat(to_responses([message]).messages).messages == [message]
    done = to_anthropic([message])
    assert named(done) == [(0, "detail")]
    assert done.messages[0]["content"][0]["source"]["data"] == histories.PNG


@pytest.mark.parametrize(
    "image",
    [
        {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        {"type": "input_image", "image_url": "data:image/svg+xml;base64,AA==", "detail": "auto"},
    ],
    ids=["uploaded", "svg"],
)
def test_an_image_that_the_other_cannot_see_is_named(image: Message) -> None:
    """A file uploaded to one provider is not at the other's; a format may be unknown."""
    text = {"type": "input_text", "text": "What is this?"}
    messages = [{"type": "message", "role": "user", "content": [text, image]}]
    done = to_anthropic(messages)
    assert done.messages == [
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}]}
    ]
    assert [(left.kind, left.value) for left in done.left_out] == [("image", image)]
    assert done.restore() == messages


def test_files_go_where_files_can_go() -> None:
    """A PDF has a place in all three; an address only in two."""
    pdf = {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"}
    message = {"role": "user", "content": [{"type": "file", "file": pdf}]}
    for other in ("responses", "anthropic"):
        done = TO[other]([message])
        CHECKS[other](done.messages)
        assert done.left_out == []
        assert to_chat(done.messages).messages == [message]
    web = {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}}
    linked = {"role": "user", "content": [web]}
    assert to_anthropic(to_responses([linked]).messages).messages == [linked]
    assert named(to_chat([linked])) == [(0, "file")]


def test_a_text_document_is_a_file_of_text() -> None:
    """Plain text goes there and back by its words."""
    source = {"type": "text", "media_type": "text/plain", "data": "Grüße"}
    message = {"role": "user", "content": [{"type": "document", "source": source, "title": "hi"}]}
    for other in ("responses", "chat"):
        assert to_anthropic(TO[other]([message]).messages).messages == [message]


def test_audio_is_heard_by_openai_only() -> None:
    """And named for Anthropic, which hears nothing."""
    sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    message = {"role": "user", "content": [{"type": "text", "text": "Listen."}, sound]}
    assert to_chat(to_responses([message]).messages).messages == [message]
    assert named(to_anthropic([message])) == [(0, "audio")]


def test_a_refusal_stays_one_with_openai() -> None:
    """With Anthropic it is text, and named."""
    message = {"role": "assistant", "content": None, "refusal": "No."}
    there = to_responses([ASKED, message])
    assert there.messages[1]["content"] == [{"type": "refusal", "refusal": "No."}]
    assert to_chat(there.messages).messages == [ASKED, message]
    done = to_anthropic([ASKED, message])
    assert told(done.messages)[-1] == ("assistant", "No.")
    assert named(done) == [(1, "refusal")]


def test_a_picture_in_a_result_is_seen_where_it_can_be() -> None:
    """Chat Completions takes only text in results, and says so to the model."""
    source = {"type": "base64", "media_type": "image/png", "data": histories.PNG}
    blocks = [{"type": "text", "text": "Here:"}, {"type": "image", "source": source}]
    use = {"type": "tool_use", "id": "t1", "name": "draw", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": blocks, "is_error": True}
    messages: list[Message] = [
        ASKED,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    there = to_responses(messages)
    assert [part["type"] for part in there.messages[-1]["output"]] == ["input_text", "input_image"]
    assert named(there) == [(2, "is_error")]
    done = to_chat(messages)
    check_chat(done.messages)
    assert "cannot be shown in this form: image" in done.messages[-1]["content"][1]["text"]
    assert named(done) == [(2, "is_error"), (2, "image")]
    assert done.restore() == messages


def test_keys_of_your_own_are_kept_beside() -> None:
    """Providers refuse keys that they do not know; they come back."""
    messages = [{**ASKED, "at": "noon", "name": "alice"}]
    done = to_chat(messages)
    assert done.messages == [{**ASKED, "name": "alice"}]
    assert [(left.kind, left.value) for left in done.left_out] == [("at", "noon")]
    assert named(to_responses(messages)) == [(0, "at"), (0, "name")]
    assert done.restore() == messages


def test_a_reply_of_anthropics_is_sent_back_as_a_message() -> None:
    """The SDK's object has more in it than a request may have."""
    block = anthropic_types.TextBlock(type="text", text="Noon.", citations=None)
    usage = anthropic_types.Usage(input_tokens=1, output_tokens=1)
    reply = anthropic_types.Message(
        id="msg_1",
        type="message",
        role="assistant",
        model="claude-opus-4-8",
        content=[block],
        stop_reason="end_turn",
        usage=usage,
    ).model_dump()
    for shape in SHAPES:
        done = TO[shape]([ASKED, reply])
        CHECKS[shape](done.messages)
        assert told(done.messages) == [("user", ASKED["content"]), ("assistant", "Noon.")]
        assert done.left_out == []


def test_a_reply_of_chat_completions_is_sent_back_as_a_message() -> None:
    """Keys without a value are not sent."""
    function = {"name": "now", "arguments": "{}"}
    call = {"id": "c1", "type": "function", "function": function}
    reply = chat_types.ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [call]}
    ).model_dump()
    result = {"role": "tool", "tool_call_id": "c1", "content": "12:00"}
    for shape in SHAPES:
        done = TO[shape]([ASKED, reply, result])
        CHECKS[shape](done.messages)
        assert ("call", "c1", "now", {}) in told(done.messages)


def test_functions_of_before_there_were_ids_get_one() -> None:
    """Old logs are still in stores."""
    messages: list[Message] = [
        ASKED,
        {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}},
        {"role": "function", "name": "now", "content": "12:00"},
    ]
    for shape in ("responses", "anthropic"):
        done = TO[shape](messages)
        CHECKS[shape](done.messages)
        assert [event[0] for event in told(done.messages)] == ["user", "call", "result"]


def test_ids_are_made_such_that_the_other_takes_them() -> None:
    """Numbers used again in each turn, and signs that Anthropic does not know."""
    function = {"name": "now", "arguments": "{}"}
    call = {"id": "functions.now:0", "type": "function", "function": function}
    turn: list[Message] = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.now:0", "content": "12:00"},
    ]
    done = to_anthropic([*turn, *turn])
    check_anthropic(done.messages)
    assert [repair.kind for repair in done.repairs] == ["renamed_call"] * 2
    assert done.restore() == [*turn, *turn]


def test_results_that_came_late_are_where_the_other_looks_for_them() -> None:
    """Responses takes them anywhere behind the call; the others do not."""
    call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "12:00"}
    messages = [ASKED, call, ASKED, output]
    check_responses(to_responses(messages).messages)
    for shape in ("chat", "anthropic"):
        done = TO[shape](messages)
        CHECKS[shape](done.messages)
        assert [repair.kind for repair in done.repairs] == ["moved_result"]
        assert [repair.index for repair in done.repairs] == [3]
        assert done.restore() == messages


def test_a_broken_history_can_be_refused() -> None:
    """The rules of repair hold for conversion too."""
    call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
    with pytest.raises(BrokenHistory, match="'c1' to now has no result"):
        to_chat([ASKED, call], rule="raise")
    assert to_chat([ASKED, call], keep_open=True).repairs == []


def test_part_of_a_conversation_restores_that_part() -> None:
    """After a window has cut the front, only the rest comes back."""
    messages = [{**ASKED, "at": number, "content": f"{number}?"} for number in range(5)]
    done = to_chat(messages)
    assert done.restore(done.messages[3:]) == messages[3:]


def test_what_was_said_is_not_in_a_repr() -> None:
    """Logs show names and numbers, never what people wrote."""
    done = to_anthropic([{**ASKED, "at": "secret"}])
    assert "secret" not in repr(done)
    assert "What is the time" not in repr(done)
    assert repr(done.left_out[0]) == "LeftOut(0, 'at', \"'at' has no place in this shape\")"
