"""The server that the OpenAI tests talk to: what the real SDK makes of it, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from openai import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    BadRequestError,
    InternalServerError,
    OpenAI,
    RateLimitError,
)

from tests.support.openai_server import Answer, Server, Trouble

HELLO: Any = [{"role": "user", "content": "Hello"}]
CALL: Any = {
    "role": "assistant",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    ],
}
NOW: Any = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
LONG = "It is twelve o'clock, and all is well."

apis = pytest.mark.parametrize("api", ["chat", "responses"])
ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def client(server: Server, **options: Any) -> OpenAI:
    """One that does not try again by itself."""
    return OpenAI(base_url=server.url, api_key="none", max_retries=0, **options)


def ask(server: Server, api: str, *, stream: bool = False, **options: Any) -> Any:
    """Say hello by *api*; the pieces are put together by the SDK itself."""
    with client(server, **options) as asking:
        if api == "chat":
            made: Any = asking.chat.completions
            if not stream:
                return made.create(model="m", messages=HELLO)
            with made.stream(model="m", messages=HELLO) as events:
                events.until_done()
                return events.get_final_completion()
        if not stream:
            return asking.responses.create(model="m", input=HELLO)
        with asking.responses.stream(model="m", input=HELLO) as pieces:
            return pieces.get_final_response()


def spoken(reply: Any) -> tuple[str | None, list[tuple[str, str]]]:
    """Text and calls of a reply by either API."""
    if hasattr(reply, "choices"):
        message = reply.choices[0].message
        calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        return message.content or None, calls
    calls = [(item.name, item.arguments) for item in reply.output if item.type == "function_call"]
    return reply.output_text or None, calls


@apis
@ways
def test_text_comes_as_it_was_given(api: str, *, stream: bool) -> None:
    """Whole, or put together from its pieces by the SDK."""
    with Server(Answer(LONG)) as server:
        reply = ask(server, api, stream=stream)
    assert spoken(reply) == (LONG, [])
    assert reply.model == "m"


@apis
@ways
def test_calls_come_as_they_were_given(api: str, *, stream: bool) -> None:
    """Several at once, each with an id of its own."""
    with Server(Answer(calls=(("now", {"zone": "UTC"}), ("now", "{")))) as server:
        reply = ask(server, api, stream=stream)
    assert spoken(reply) == (None, [("now", '{"zone": "UTC"}'), ("now", "{")])


@apis
def test_a_reply_that_was_cut_off_says_so(api: str) -> None:
    """In the words of its API."""
    with Server(Answer("It is", finish="length")) as server:
        reply = ask(server, api)
    if api == "chat":
        assert reply.choices[0].finish_reason == "length"
    else:
        assert (reply.status, reply.incomplete_details.reason) == (
            "incomplete",
            "max_output_tokens",
        )


@apis
@pytest.mark.parametrize(("status", "error"), [(429, RateLimitError), (500, InternalServerError)])
def test_trouble_is_an_error_of_the_sdk(api: str, status: int, error: type[APIStatusError]) -> None:
    """With the status that was asked for."""
    with Server(Trouble(status)) as server, pytest.raises(error):
        ask(server, api)
    assert [request.status for request in server.requests] == [status]


@apis
def test_an_answer_that_does_not_come_is_a_timeout(api: str) -> None:
    """The client gives up, not the server."""
    with Server(Trouble(hang=30)) as server, pytest.raises(APITimeoutError):
        ask(server, api, timeout=0.2)


@apis
@ways
def test_a_dropped_connection_is_an_error_of_the_sdk(api: str, *, stream: bool) -> None:
    """Before a word, or in the middle of it."""
    said = Answer(LONG, dropped=2) if stream else Trouble()
    with Server(said) as server, pytest.raises(APIConnectionError):
        ask(server, api, stream=stream)


def test_a_call_without_its_result_is_refused_by_chat_completions() -> None:
    """As the provider does: the whole history, with a 400."""
    with Server() as server, client(server) as asking, pytest.raises(BadRequestError, match="c1"):
        asking.chat.completions.create(model="m", messages=[*HELLO, CALL], tools=[NOW])
    assert (len(server.refused), server.accepted) == (1, [])


def test_a_call_without_its_result_is_refused_by_responses() -> None:
    """There it is an item of its own."""
    item: Any = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
    with Server() as server, client(server) as asking, pytest.raises(BadRequestError, match="c1"):
        asking.responses.create(model="m", input=[*HELLO, item])
    assert (len(server.refused), server.accepted) == (1, [])


def test_every_request_is_kept() -> None:
    """What was sent, in order."""
    with Server(Answer("a"), Answer("b")) as server:
        ask(server, "chat")
        ask(server, "responses")
    assert [(r.api, r.history, r.asked) for r in server.accepted] == [
        ("chat", HELLO, "Hello"),
        ("responses", HELLO, "Hello"),
    ]


def test_a_server_with_nothing_left_to_say_fails_its_test() -> None:
    """A request too many is not overlooked."""
    with pytest.raises(AssertionError, match="nothing is left"), Server() as server:  # noqa: SIM117 - the server's own end raises
        with pytest.raises(APIConnectionError):
            ask(server, "chat")
