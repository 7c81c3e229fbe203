"""A chat on the OpenAI SDK: what is durable when, what is sent, and what comes back."""

from __future__ import annotations

import builtins
import re
import sys
import threading
from functools import partial
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, assert_type

import pytest
from openai import APITimeoutError, AsyncOpenAI, InternalServerError, OpenAI, RateLimitError

import limpet
from limpet import Conversation, LeaseHeld
from limpet.errors import IdReused, InvalidMessage, MissingExtra, StoreReadOnly, WindowTooSmall
from limpet.integrations.openai import (
    AsyncChat,
    Chat,
    ModelFailed,
    Reply,
    StreamCut,
    Usage,
    tool,
)
from limpet.llm import tokens
from limpet.llm.messages.repair import INTERRUPTED
from tests.support import openai_rig, stores
from tests.support.openai_rig import HELLO, Rig, Till, cut_short, paying, texts
from tests.support.openai_server import Answer, Request, Server, Trouble
from tests.support.stores import Place, bot, call, result, system, user

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

rig, one_by_one, everywhere = openai_rig.rig, openai_rig.one_by_one, stores.everywhere

# -- one question, one answer ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_chat_goes_on_in_the_next_process(rig: Rig) -> None:
    """The model is sent what was said before."""
    with Server(Answer("Hi Alice."), Answer("Alice.")) as server:
        assert rig.chat(server).send("I am Alice.").text == "Hi Alice."
        assert rig.chat(server).send("Who am I?").text == "Alice."
    said = ["user: I am Alice.", "assistant: Hi Alice.", "user: Who am I?"]
    assert texts(server.requests[1].history) == said
    assert texts(rig.messages()) == [*said, "assistant: Alice."]


def test_the_question_is_durable_before_the_model_is_asked(rig: Rig) -> None:
    """Whatever becomes of the request."""
    seen: list[list[str]] = []

    def brain(_: Request) -> Answer:
        with limpet.open(rig.place.url) as store:
            seen.append(texts(store.conversation("alice").messages()))
        return Answer("Yes.")

    with Server(brain=brain) as server:
        rig.chat(server).send(HELLO)
    assert seen == [[f"user: {HELLO}"]]


def test_a_store_that_cannot_be_written_is_found_out_before_the_model_is_paid(
    tmp_path: Path,
) -> None:
    """A reply that cannot be kept is not asked for."""
    limpet.open(tmp_path / "agents.db").close()
    with (
        Server() as server,
        limpet.open(tmp_path / "agents.db", readonly=True) as store,
        OpenAI(base_url=server.url, api_key="none") as client,
        pytest.raises(StoreReadOnly),
    ):
        Chat(client, store.conversation("alice"), model="gpt-5").send(HELLO)
    assert server.requests == []


def test_what_is_known_about_a_reply_is_stored_with_it(rig: Rig) -> None:
    """In the same append; and none of it is sent to the provider."""
    with Server(Answer("One two three."), Answer("Four.")) as server:
        reply = rig.chat(server).send(HELLO)
        assert (reply.model, reply.finish_reason) == ("gpt-5", "stop")
        assert reply.usage.output_tokens == 3
        assert re.fullmatch(r"req_\d+", reply.request_id)
        rig.chat(server).send("And?")
        (first, second) = rig.chat(server).requests()
    assert (first.request_id, first.usage) == (reply.request_id, reply.usage)
    assert first.seconds > 0
    assert second.at > first.at
    assert rig.chat(server).usage().output_tokens == 4
    assert rig.chat(server).usage().requests == 2
    assert rig.entries() == ["message", "message", "request", "message", "message", "request"]
    assert all("usage" not in str(request.body) for request in server.requests)


def test_parameters_go_to_the_provider(rig: Rig) -> None:
    """Those of the chat, and before them those of the call."""
    with Server(Answer("a"), Answer("b")) as server:
        chat = rig.chat(server, temperature=0.5, user="u1")
        chat.send("a")
        chat.send("b", temperature=0.9)
    assert [r.body["temperature"] for r in server.requests] == [0.5, 0.9]
    assert [r.body["user"] for r in server.requests] == ["u1", "u1"]


@pytest.mark.parametrize("name", ["stream", "messages", "input", "previous_response_id"])
def test_what_the_chat_says_itself_cannot_be_said_for_it(rig: Rig, name: str) -> None:
    """A second history, kept by the provider, would not be the same one."""
    with Server() as server, pytest.raises(TypeError, match=name):
        rig.chat(server).send(HELLO, **{name: "x"})


def test_several_replies_to_choose_from_are_refused(rig: Rig) -> None:
    """Only one of them could be stored."""
    with Server() as server, pytest.raises(TypeError, match="n by itself"):
        rig.chat(server, n=2)


def test_instructions_are_sent_and_not_stored(rig: Rig) -> None:
    """They belong to the program, which may change them."""
    with Server(Answer("Yes.")) as server:
        rig.chat(server, instructions="Be brief.").send(HELLO)
    (request,) = server.requests
    if rig.api == "chat":
        assert request.history[0] == system("Be brief.")
    else:
        assert request.body["instructions"] == "Be brief."
    assert texts(rig.messages()) == [f"user: {HELLO}", "assistant: Yes."]


def test_parts_and_whole_messages_can_be_sent(rig: Rig) -> None:
    """Text is only the simplest of them."""
    kind = "text" if rig.api == "chat" else "input_text"
    with Server(Answer("a"), Answer("b")) as server:
        chat = rig.chat(server)
        chat.send([{"type": kind, "text": "Look"}])
        chat.send({"role": "user", "content": "Look again"})
    assert texts(server.requests[1].history)[::2] == ["user: Look", "user: Look again"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [bot("I am the model"), {"text": "no role"}, {"role": "user"}, 3, None], ids=str
)
def test_only_the_user_speaks_through_a_chat(rig: Rig, content: Any) -> None:
    """What others have said can be appended to the conversation."""
    with Server() as server, pytest.raises(InvalidMessage, match="is the user's"):
        rig.chat(server).send(content)


def test_parts_that_no_provider_takes_are_refused_before_they_are_stored(one_by_one: Rig) -> None:
    """Or every later request would be refused for them."""
    with Server() as server, pytest.raises(InvalidMessage, match="part 1 is of type str"):
        one_by_one.chat(server).send(["Hello"])
    assert one_by_one.messages() == []


def test_a_refusal_is_kept_as_it_is(rig: Rig) -> None:
    """It has no text, and says why."""
    with Server(Answer(refusal="I cannot do that."), Answer("Yes.")) as server:
        reply = rig.chat(server).send(HELLO)
        assert (reply.text, reply.refusal) == ("", "I cannot do that.")
        assert rig.chat(server).send("And this?").text == "Yes."
    assert server.refused == []


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_reply_that_was_cut_off_is_kept_as_it_is(rig: Rig, reason: str) -> None:
    """It says that there is no more, and the chat goes on."""
    with Server(Answer("It is", finish=reason), Answer("Yes.")) as server:
        reply = rig.chat(server).send(HELLO)
        assert (reply.text, reply.finish_reason) == ("It is", reason)
        rig.chat(server).send("Go on.")
    assert server.refused == []


def test_a_reply_that_says_nothing_at_all_does_not_end_the_chat(rig: Rig) -> None:
    """Cut off before its first word: the provider would not take that back as it is."""
    nothing = Answer(finish="length", reasoning="I wonder")
    with Server(nothing, Answer("Yes.")) as server:
        assert rig.chat(server).send(HELLO).text == ""
        rig.chat(server).send("Go on.")
    assert server.refused == []


@pytest.mark.parametrize("how", ["send", "stream"])
def test_a_reply_without_anything_in_it_is_one_answer(rig: Rig, how: str) -> None:
    """A content filter took all of it: the model is not asked again and again."""
    with Server(Answer(finish="content_filter"), Answer("Yes.")) as server:
        chat = rig.chat(server)
        if how == "send":
            chat.send(HELLO, id="m1")
        else:
            assert list(chat.stream(HELLO, id="m1")) == []
        assert len(server.requests) == 1
        known = rig.chat(server).send(HELLO, id="m1")
        assert (known.text, known.finish_reason, known.stored) == ("", "content_filter", True)
        assert rig.chat(server).resume() is None
        assert rig.chat(server).send("And now?").text == "Yes."
    assert server.refused == []


@pytest.mark.parametrize(
    "nothing",
    [
        Answer(finish="content_filter"),
        Answer(finish="length", reasoning="I wonder"),
        Answer("", finish="stop"),
    ],
    ids=["filtered", "only-reasoning", "empty"],
)
def test_a_reply_that_says_nothing_is_no_damage(rig: Rig, nothing: Answer) -> None:
    """Whoever wants damage to be an error does not mean that."""
    with Server(nothing, Answer("Yes.")) as server:
        rig.chat(server, repair="raise").send(HELLO)
        assert rig.chat(server, repair="raise").send("Go on.").text == "Yes."
    assert server.refused == []


# -- errors, and the same thing again --------------------------------------------------------------


@pytest.mark.parametrize(("status", "error"), [(429, RateLimitError), (500, InternalServerError)])
def test_errors_of_the_provider_pass_through_and_the_question_stays(
    rig: Rig, status: int, error: type[Exception]
) -> None:
    """The same question again is the same question."""
    with Server(Trouble(status), Answer("Yes.")) as server:
        with pytest.raises(error):
            rig.chat(server).send(HELLO)
        assert texts(rig.messages()) == [f"user: {HELLO}"]
        assert rig.chat(server).send(HELLO).text == "Yes."
    assert texts(rig.messages()) == [f"user: {HELLO}", "assistant: Yes."]


@pytest.mark.slow
def test_a_timeout_passes_through_and_resume_asks_again(rig: Rig) -> None:
    """Without the question being said again."""
    with Server(Trouble(hang=30), Answer("Yes.")) as server:
        with pytest.raises(APITimeoutError):
            rig.chat(server).send(HELLO, timeout=0.2)
        assert rig.chat(server).resume().text == "Yes."
    assert texts(rig.messages()) == [f"user: {HELLO}", "assistant: Yes."]


def test_after_an_error_another_question_is_another_question(rig: Rig) -> None:
    """Both are sent, in their order."""
    with Server(Trouble(500), Answer("Yes.")) as server:
        with pytest.raises(InternalServerError):
            rig.chat(server).send(HELLO)
        rig.chat(server).send("Are you there?")
    assert texts(server.requests[1].history) == [f"user: {HELLO}", "user: Are you there?"]


def test_the_same_words_after_an_answer_are_a_new_question(rig: Rig) -> None:
    """People do repeat themselves."""
    with Server(Answer("Yes."), Answer("Still yes.")) as server:
        rig.chat(server).send(HELLO)
        assert rig.chat(server).send(HELLO).text == "Still yes."
    assert len(rig.messages()) == 4


def test_under_an_id_a_question_is_asked_and_answered_once(rig: Rig) -> None:
    """The second time the stored reply comes back, whatever was said since."""
    with Server(Answer("Yes."), Answer("No.")) as server:
        first = rig.chat(server).send(HELLO, id="m1")
        again = rig.chat(server).send(HELLO, id="m1")
        rig.chat(server).send("Sure?", id="m2")
        late = rig.chat(server).send(HELLO, id="m1")
    assert (first.stored, again.stored, late.stored) == (False, True, True)
    assert first.text == again.text == late.text == "Yes."
    assert first.usage == again.usage == late.usage
    assert first.request_id == again.request_id == late.request_id
    assert len(server.requests) == 2


def test_under_an_id_an_unanswered_question_is_answered(rig: Rig) -> None:
    """Also if another was asked in between."""
    with Server(Trouble(500), Trouble(500), Answer("Yes, both.")) as server:
        for text in ("a", "b"):
            with pytest.raises(InternalServerError):
                rig.chat(server).send(text, id=text)
        assert rig.chat(server).send("a", id="a").text == "Yes, both."
        assert rig.chat(server).send("b", id="b").stored
    assert texts(rig.messages()) == ["user: a", "user: b", "assistant: Yes, both."]


def test_under_an_id_a_reply_that_was_popped_is_no_answer(rig: Rig) -> None:
    """Somebody wanted another one; a thought that is left of the first is none either."""
    with Server(Answer("Yes.", reasoning="Hm."), Answer("No.")) as server:
        rig.chat(server).send(HELLO, id="m1")
        rig.place.open().conversation("alice").pop()
        second = rig.chat(server).send(HELLO, id="m1")
        third = rig.chat(server).send(HELLO, id="m1")
    assert (second.text, second.stored) == (third.text, not third.stored) == ("No.", False)
    assert texts(rig.messages()) == [f"user: {HELLO}", "assistant: No."]
    assert server.refused == []


@pytest.mark.parametrize("gone", ["popped", "replaced"])
def test_under_an_id_a_question_that_is_gone_is_asked_again(rig: Rig, gone: str) -> None:
    """What stands in its place now is no answer to it; and it is asked once again, not more."""
    before = [user("So far."), bot("Fine.")]
    with Server(Answer("Yes."), Answer("Yes, again.")) as server:
        conversation = rig.place.open().conversation("alice")
        conversation.append(*before)
        rig.chat(server).send(HELLO, id="m1")
        if gone == "popped":
            conversation.pop()
            conversation.pop()
        else:
            conversation.replace(*before)
        second = rig.chat(server).send(HELLO, id="m1")
        third = rig.chat(server).send(HELLO, id="m1")
    assert [second.text, third.text] == ["Yes, again."] * 2
    assert (second.stored, third.stored) == (False, True)
    assert texts(rig.messages())[2:] == [f"user: {HELLO}", "assistant: Yes, again."]
    assert server.refused == []


def test_an_id_that_was_used_for_other_words_is_an_error(rig: Rig) -> None:
    """Somebody has made a mistake, and the model is not asked to guess."""
    with Server(Answer("Yes.")) as server:
        rig.chat(server).send(HELLO, id="m1")
        with pytest.raises(IdReused):
            rig.chat(server).send("Goodbye", id="m1")


def test_there_is_nothing_to_resume_where_all_is_answered(rig: Rig) -> None:
    """Nor where nothing was ever said."""
    with Server(Answer("Yes.")) as server:
        assert rig.chat(server).resume() is None
        rig.chat(server).send(HELLO)
        assert rig.chat(server).resume() is None


def test_a_reply_that_says_itself_that_it_failed_is_an_error(tmp_path: Path) -> None:
    """The SDK takes it for a reply; a chat does not."""
    with Server(Trouble(failed="out of order"), Answer("Yes.")) as server:
        rig = Rig(Place("sqlite", "sync", tmp_path), "responses")
        with pytest.raises(ModelFailed, match="out of order"):
            rig.chat(server).send(HELLO)
        assert rig.chat(server).resume().text == "Yes."
        rig.close()


JSON, EVENTS = "application/json", "text/event-stream"
#: What a proxy, or a server that means well, may send with the status 200.
PAGES = {
    "html": ("text/html", "<html><body>Please log in.</body></html>"),
    "half": (JSON, '{"id": "r1", "choices": [{"index": 0, "mess'),
    "nothing": (JSON, ""),
    "object": (JSON, "{}"),
    "list": (JSON, "[]"),
    "number": (JSON, "3"),
    "no choice": (JSON, '{"id": "r1", "status": "completed", "choices": [], "output": null}'),
    "no message": (JSON, '{"choices": [{"message": null}], "status": "completed", "output": [3]}'),
    "odd content": (
        JSON,
        """{"id": "r1", "model": "m", "status": "completed", "choices": [{"finish_reason": "stop",
        "message": {"role": "assistant", "content": 5}}],
        "output": [{"type": "message", "role": "assistant", "content": 5}]}""",
    ),
    "odd role": (
        JSON,
        """{"id": "r1", "model": "m", "status": "completed", "choices": [{"finish_reason": "stop",
        "message": {"role": "user", "content": "Who?"}}],
        "output": [{"type": "message", "role": "user", "content": []}]}""",
    ),
    "odd calls": (
        JSON,
        """{"id": "r1", "model": "m", "status": "completed", "choices": [{"finish_reason": "stop",
        "message": {"role": "assistant", "tool_calls": [{"id": "c1"}]}}],
        "output": [{"type": "function_call", "call_id": "c1"}]}""",
    ),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_in_place_of_a_reply_is_a_typed_error_and_the_chat_goes_on(
    rig: Rig, page: str
) -> None:
    """The question is stored by then, and must not be lost over what a proxy says."""
    with Server(Trouble(page=PAGES[page]), Answer("Yes.")) as server:
        with pytest.raises(ModelFailed, match=r"resume\(\)") as caught:
            rig.chat(server).send(HELLO)
        assert caught.value.__cause__ is not None or page == "object"
        assert rig.chat(server).send(HELLO).text == "Yes."
    assert texts(rig.messages()) == [f"user: {HELLO}", "assistant: Yes."]


@pytest.mark.parametrize(
    "page",
    [
        PAGES["html"],
        PAGES["half"],
        (EVENTS, 'data: {"id": "r1", "choi\n\n'),
        (EVENTS, 'data: {"choices": [{"delta": 3}]}\n\n'),
        (EVENTS, 'event: x\ndata: {"type": "response.completed", "response": 3}\n\n'),
    ],
    ids=["html", "half", "half event", "odd chunk", "odd event"],
)
def test_a_page_in_place_of_a_stream_is_a_typed_error_and_the_chat_goes_on(
    rig: Rig, page: tuple[str, str]
) -> None:
    """Whatever comes in pieces."""
    with Server(Trouble(page=page), Answer("Yes.")) as server:
        with pytest.raises((ModelFailed, StreamCut), match=r"resume\(\)"):
            list(rig.chat(server).stream(HELLO))
        assert rig.chat(server).resume().text == "Yes."
    assert texts(rig.messages()) == [f"user: {HELLO}", "assistant: Yes."]


@pytest.mark.parametrize("repair", ["raise", "stub", "drop"])
def test_a_provider_that_gives_one_id_to_all_calls_can_be_gone_on_with(
    rig: Rig, repair: str
) -> None:
    """Each call runs once and has its own result, in one reply and in the next turns."""
    till = Till()

    def brain(request: Request) -> Answer:
        if request.results:
            return Answer(f"Done: {'; '.join(request.results)}.")
        bills = [int(word) for word in request.asked.split() if word.isdigit()]
        return Answer(calls=tuple(("pay", {"bill": bill}) for bill in bills), call_id="call_0")

    with Server(brain=brain) as server:
        questions = ("Pay 1 and 2", "Pay 3", "Pay 4 and 5")
        *_, reply = [rig.chat(server, tools=[till.pay], repair=repair).send(q) for q in questions]
        assert reply.text == "Done: paid 4; paid 5."
        assert [call.result for call in reply.calls] == ["paid 4", "paid 5"]
    assert till.paid == [1, 2, 3, 4, 5]
    assert server.refused == []
    assert len({call.id for call in reply.calls}) == 2


# -- what is sent ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_what_fits_is_sent(rig: Rig) -> None:
    """The newest of it; all of it stays stored."""
    with Server(brain=lambda _: Answer("word " * 20)) as server:
        chat = rig.chat(server, max_tokens=200, reserve=20, instructions="Be brief.")
        for number in range(10):
            chat.send(f"{number} " + "word " * 20)
    sent = texts(server.requests[-1].history)
    assert sent[-1].startswith("user: 9 ")
    assert 1 < len(sent) < 10
    assert len(rig.messages()) == 20


@pytest.mark.slow
def test_a_question_that_does_not_fit_is_refused_before_it_is_stored(rig: Rig) -> None:
    """A pasted log: what was said before is sent with the next question, as if nothing had been."""
    with Server(brain=lambda _: Answer("Yes.")) as server:
        chat = rig.chat(server, max_tokens=300, instructions="Be brief.")
        assert [chat.send(f"Fact {n}.").text for n in range(3)] == ["Yes."] * 3
        for ask in (chat.send, lambda words: list(chat.stream(words))):
            with pytest.raises(
                WindowTooSmall, match=r"not stored, does not fit 300 tokens .*short"
            ):
                ask("word " * 500)
        assert chat.resume() is None
        chat.send("What were my facts?")
        said = texts(rig.messages())
        assert texts(server.requests[-1].history) == said[:-1]
        assert len(said) == 8
        large = rig.chat(server, max_tokens=2_000)
        assert large.send("word " * 500).text == "Yes."
        chat.send("And now?")
    sent = texts(server.requests[-1].history)
    assert [said[0], "user: And now?"] == [sent[0], sent[-1]]
    assert [text for text in sent if "a message (position" in text and "left out" in text]
    assert server.refused == []


def test_tools_and_instructions_count(rig: Rig) -> None:
    """They are sent with every request."""
    with Server() as server, pytest.raises(WindowTooSmall):
        rig.chat(server, max_tokens=40, tools=[Till().pay], instructions="word " * 10).send("Hi")


def test_what_was_stored_by_the_other_api_counts_as_it_is_sent(one_by_one: Rig) -> None:
    """There it may take more."""
    counter = tokens.counter("gpt-5")
    conversation = one_by_one.place.open().conversation("alice")
    for n in range(10):
        ids = [f"{n}-{m}" for m in range(4)]
        conversation.append(user("Look."), call(*ids), *map(result, ids), bot("Done."))
    budgets = range(330, 400, 15)
    with Server(brain=lambda _: Answer("Yes.")) as server:
        for most in budgets:
            id_ = conversation.fork(f"of-{most}").id
            one_by_one.chat(server, id_, api="responses", max_tokens=most).send(HELLO)
    sizes = [counter.messages(r.history) for r in server.requests]
    assert all(most - 150 < size <= most for size, most in zip(sizes, budgets, strict=True))
    assert server.refused == []


@pytest.mark.parametrize("count", [len, "gpt-5", None], ids=["own", "named", "none"])
def test_a_chat_counts_as_it_is_told(one_by_one: Rig, count: Any) -> None:
    """By a function, by a model's name, or as its own model does."""
    with Server(Answer("Yes.")) as server:
        one_by_one.chat(server, max_tokens=50, count=count, instructions="Hm.").send(HELLO)
    assert len(server.requests) == 1


@pytest.mark.slow
def test_a_conversation_can_change_from_one_api_to_the_other(rig: Rig) -> None:
    """With all its calls and results."""
    till = Till()
    with Server(brain=paying) as server:
        rig.chat(server, tools=[till.pay]).send("Pay bills 1 and 2.")
        other = "responses" if rig.api == "chat" else "chat"
        rig.chat(server, tools=[till.pay], api=other).send("Once more.")
        rig.chat(server, tools=[till.pay]).send("And again.")
    assert server.refused == []
    assert till.paid == [1, 2] * 3
    assert len(texts(server.requests[-1].history)) >= 5


def test_a_tool_loop_that_was_cut_short_can_be_finished_by_the_other_api(one_by_one: Rig) -> None:
    """Its results have the shape of its calls."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(one_by_one, server, till, at=1)
        reply = one_by_one.chat(server, tools=[till.pay], api="responses").resume()
    assert [made.result for made in reply.calls] == [INTERRUPTED, "paid 2"]
    assert server.refused == []


def test_a_history_that_was_broken_before_is_repaired(rig: Rig) -> None:
    """The chat may be younger than the conversation."""
    rig.place.open().conversation("alice").append(user("Pay."), call("c1"), user("Hello?"))
    with Server(Answer("Yes.")) as server:
        rig.chat(server).send("Are you there?")
    assert server.refused == []


def test_a_call_that_no_model_has_made_is_an_error_that_says_where(one_by_one: Rig) -> None:
    """Somebody has put it there; it is taken back, and the chat goes on."""
    conversation = one_by_one.place.open().conversation("alice")
    conversation.append(user("Hi."))
    with Server(Answer("Hello.")) as server:
        chat = one_by_one.chat(server)
        for bad in (
            {"role": "assistant", "tool_calls": [{"id": "c1"}]},
            {"role": "assistant", "tool_calls": ["c1"]},
            {"type": "function_call", "name": "pay"},
        ):
            conversation.append(bad)
            for again in (chat.resume, partial(chat.send, "Hi?")):
                with pytest.raises(
                    InvalidMessage, match=r"^Entry \d of conversation 'alice' .*pop"
                ):
                    again()
            conversation.pop()
        assert chat.resume().text == "Hello."


# -- two who speak at the same time ----------------------------------------------------------------


def test_two_processes_take_turns(one_by_one: Rig) -> None:
    """Neither takes the other's running tool for one that was cut short."""
    till = Till()
    running, go_on = threading.Event(), threading.Event()

    def pay(bill: int) -> str:
        """Pay a bill."""
        running.set()
        assert go_on.wait(10)
        return till.pay(bill)

    with Server(brain=paying) as server:
        first, second = one_by_one.chat(server, tools=[pay]), one_by_one.chat(server, wait=20)
        replies: list[Reply] = []
        threads = [
            threading.Thread(target=lambda: replies.append(first.send("Pay."))),
            threading.Thread(target=lambda: replies.append(second.send("Hello?"))),
        ]
        threads[0].start()
        assert running.wait(10)
        with pytest.raises(LeaseHeld, match="a chat"):
            one_by_one.chat(server, wait=0).send("Me first!")
        threads[1].start()
        go_on.set()
        for thread in threads:
            thread.join()
    assert till.paid == [1, 2]
    assert len(replies) == 2
    assert server.refused == []


def test_others_may_append_at_any_time(rig: Rig) -> None:
    """What they say goes in, and what belongs together stays together."""
    till = Till()

    def pay(bill: int) -> str:
        """Pay a bill."""
        with limpet.open(rig.place.url) as store:
            store.conversation("alice").append(user(f"I see you pay {bill}."))
        return till.pay(bill)

    with Server(brain=lambda r: Answer("Good.") if "see" in r.asked else paying(r)) as server:
        rig.chat(server, tools=[pay]).send("Pay.")
        rig.chat(server, tools=[pay]).resume()
    assert till.paid == [1, 2]
    assert server.refused == []


@pytest.mark.slow
def test_a_chat_goes_on_in_any_store(everywhere: Place) -> None:
    """Ids, leases and all: what it stands on is in every backend."""
    till = Till()
    with Server(brain=paying) as server:
        rig = Rig(everywhere, "chat")
        cut_short(rig, server, till, at=1)
        text = "Pay bills 1 and 2."
        reply = rig.chat(server, tools=[till.pay], wait=5).send(text)
        assert INTERRUPTED in [made.result for made in reply.calls]
        again = rig.chat(server, tools=[till.pay]).send(text, id="once")
        assert rig.chat(server).send(text, id="once").text == again.text
        rig.let_go()
    assert max(till.paid.count(bill) for bill in till.paid) == 2
    assert server.refused == []


# -- the rest --------------------------------------------------------------------------------------


def test_a_chat_says_nothing_of_what_was_said(rig: Rig) -> None:
    """Logs are read by others."""
    till = Till()
    with Server(brain=paying) as server:
        chat = rig.chat(server, tools=[till.pay], instructions="classified")
        reply = chat.send("classified")
    core = chat._core
    shown = [repr(thing) for thing in (core, reply, *reply.calls, tool(till.pay), core._client)]
    assert [text for text in shown if "classified" in text or "bill" in text] == []
    assert "secret-key" not in repr(core)
    assert str(reply) == "Done: paid 1; paid 2."


def test_a_chat_without_a_model_is_told_so_by_its_own_name() -> None:
    """Not by that of the class behind it."""
    with limpet.open("memory:") as store, OpenAI(api_key="none") as client:
        made: Any = Chat
        with pytest.raises(TypeError, match=r"^Chat.*'model'$"):
            made(client, store.conversation("alice"))


def test_a_client_goes_with_a_store_of_its_kind(tmp_path: Path) -> None:
    """A blocking call in an event loop, or the reverse, is found out at once."""
    with limpet.open("memory:") as store:
        conversation: Any = store.conversation("alice")
        with pytest.raises(TypeError, match=r"AsyncOpenAI client use AsyncChat, .*open_async\(\)"):
            Chat(AsyncOpenAI(api_key="none"), conversation, model="m")
        with pytest.raises(
            TypeError, match=r"of an async store.*limpet\.open_async\(\).* use Chat"
        ):
            AsyncChat(AsyncOpenAI(api_key="none"), conversation, model="m")
        alice: Any = "alice"
        for kind in (Chat, AsyncChat):
            with pytest.raises(TypeError, match=r"is about a conversation: .*, not 'alice'"):
                kind(AsyncOpenAI(api_key="none"), alice, model="m")
    other: Any = limpet.open_async("memory:").conversation("alice")
    with OpenAI(api_key="none") as client:
        with pytest.raises(TypeError, match="of an async store: use AsyncChat"):
            Chat(client, other, model="m")
        with pytest.raises(TypeError, match=r"OpenAI client use Chat, .*limpet\.open\(\)"):
            AsyncChat(client, other, model="m")


@pytest.mark.parametrize(
    "option", [{"api": "completions"}, {"repair": "guess"}, {"in_doubt": "hope"}], ids=str
)
def test_options_that_mean_nothing_are_refused(option: dict[str, Any]) -> None:
    """With those that do."""
    with (
        limpet.open("memory:") as store,
        OpenAI(api_key="none") as client,
        pytest.raises(ValueError, match=r"is one of .*; not") as raised,
    ):
        Chat(client, store.conversation("alice"), model="m", **option)
    assert str(raised.value).startswith(next(iter(option)))


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the way to install it."""
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "openai":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "openai")
    monkeypatch.setattr(builtins, "__import__", missing)
    with limpet.open("memory:") as store:
        conversation = store.conversation("alice")
        with pytest.raises(MissingExtra, match=r"\[openai\].*pip install openai"):
            Chat(object(), conversation, model="m")


def test_a_chat_is_typed(tmp_path: Path) -> None:
    """Mypy reads this; each conversation has its kind of chat."""
    asynchronous = limpet.open_async("memory:").conversation("alice")
    client: Any = object()
    with limpet.open("memory:") as store:
        chat = Chat(client, store.conversation("alice"), model="m", temperature=0)
        assert_type(chat, Chat)
        assert_type(chat.conversation, Conversation)
        assert_type(chat.usage(), Usage)
        assert_type(chat.resume(), Reply | None)
        assert_type(chat.partial(), str | None)
        assert_type(AsyncChat(client, asynchronous, model="m"), AsyncChat)
        spoken: Callable[[str], Reply] = chat.send
        assert spoken is not None


def test_a_chat_shows_its_options() -> None:
    """Also to a type checker and to help(): they are those that there are."""
    assert _options(signature(Chat)) == _options(signature(AsyncChat))
    assert len(_options(signature(Chat))) > 10


def _options(of: Signature) -> list[Parameter]:
    return [option for option in of.parameters.values() if option.kind not in _BY_PLACE]


_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
