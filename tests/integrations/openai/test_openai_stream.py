"""Streams of an OpenAI chat: pieces as they come, and what is kept if their end never does."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from openai import APIConnectionError, AsyncOpenAI, InternalServerError

import limpet
from limpet import LeaseHeld
from limpet.integrations.openai import (
    AsyncChat,
    StreamCut,
    tool,
)
from limpet.integrations.openai import reply as _openai_reply
from limpet.testing.providers import check_chat, check_responses
from tests.support import openai_rig
from tests.support.openai_rig import HELLO, LONG, Rig, Till, paying, texts
from tests.support.openai_server import Answer, Server, Trouble
from tests.support.stores import Place

if TYPE_CHECKING:
    from pathlib import Path

rig, one_by_one = openai_rig.rig, openai_rig.one_by_one

# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_gives_pieces_and_then_the_reply(rig: Rig) -> None:
    """Over tool calls, too."""
    till = Till()
    with Server(brain=paying) as server:
        chat = rig.chat(server, tools=[till.pay])
        assert "".join(chat.stream("Pay bills 1 and 2.")) == "Done: paid 1; paid 2."
    assert till.paid == [1, 2]
    assert texts(rig.messages())[-1] == "assistant: Done: paid 1; paid 2."
    assert rig.chat(server).usage().requests == 2
    (check_chat if rig.api == "chat" else check_responses)(rig.messages())


def test_a_stream_stores_what_the_whole_reply_would(rig: Rig) -> None:
    """Put together from its pieces, it is the same message."""
    till = Till()
    with Server(brain=paying) as server:
        list(rig.chat(server, tools=[till.pay]).stream(HELLO))
        whole = rig.chat(server, "bob", tools=[till.pay])
        whole.send(HELLO)
        streamed, sent = rig.messages(), whole.conversation.messages()

    def same(messages: list[dict[str, Any]]) -> str:
        return re.sub(r"(call|rs|fc|msg)_\d+", r"\1_n", json.dumps(messages, sort_keys=True))

    assert same(streamed) == same(sent)


def test_a_stream_that_is_whole_leaves_no_pieces_behind_it(rig: Rig) -> None:
    """A short one never stores any."""
    with Server(Answer(LONG)) as server:
        chat = rig.chat(server)
        list(chat.stream(HELLO))
        assert chat.partial() is None
    assert rig.entries() == ["message", "message", "request"]


def test_pieces_are_stored_by_size(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each by itself: a token must not cost a write."""
    monkeypatch.setattr(_openai_reply, "PIECE_CHARACTERS", 30)
    with Server(Answer(LONG)) as server:
        list(rig.chat(server).stream(HELLO))
    assert rig.entries().count("piece") == 2


def test_pieces_are_stored_by_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow model's words are not lost for being few."""
    monkeypatch.setattr(_openai_reply, "PIECE_SECONDS", 0.01)
    with Server(Answer(LONG, pause=0.02)) as server:
        list(rig.chat(server).stream(HELLO))
    assert rig.entries().count("piece") >= 3


def test_what_came_of_a_dropped_stream_is_kept_and_resume_asks_again(rig: Rig) -> None:
    """The whole reply then takes its place."""
    with Server(Answer(LONG, dropped=3), Answer(LONG)) as server:
        chat = rig.chat(server)
        heard: list[str] = []
        with pytest.raises(APIConnectionError):
            heard.extend(chat.stream(HELLO))
        assert rig.chat(server).partial() == LONG[:24]
        assert texts(rig.messages()) == [f"user: {HELLO}"]
        assert rig.chat(server).resume().text == LONG
        assert rig.chat(server).partial() is None
    assert texts(rig.messages()) == [f"user: {HELLO}", f"assistant: {LONG}"]


def test_a_stream_that_just_ends_is_not_taken_for_a_reply(rig: Rig) -> None:
    """Somebody in between may close a connection politely."""
    with Server(Answer(LONG, dropped=2, quietly=True), Answer(LONG)) as server:
        with pytest.raises(StreamCut, match="resume"):
            list(rig.chat(server).stream(HELLO))
        assert rig.chat(server).partial() == LONG[:16]
        assert "".join(rig.chat(server).stream(HELLO)) == LONG
    assert texts(rig.messages()) == [f"user: {HELLO}", f"assistant: {LONG}"]


def test_when_the_user_goes_on_the_partial_reply_is_sent_with_a_mark(rig: Rig) -> None:
    """The model sees what the user saw, and that it was cut off."""
    with Server(Answer(LONG, dropped=2), Answer("Sure.")) as server:
        with pytest.raises(APIConnectionError):
            list(rig.chat(server).stream(HELLO))
        rig.chat(server).send("Go on.")
    sent = texts(server.requests[1].history)
    assert sent[0] == f"user: {HELLO}"
    assert sent[1] == f"assistant: {LONG[:16]}\n\n[limpet: this reply was cut off here.]"
    assert sent[2] == "user: Go on."
    assert server.refused == []


def test_only_the_last_attempt_counts_as_partial(rig: Rig) -> None:
    """Two beginnings are not one."""
    with Server(Answer(LONG, dropped=2), Answer(LONG, dropped=1)) as server:
        for _ in range(2):
            with pytest.raises(APIConnectionError):
                list(rig.chat(server).stream(HELLO))
        assert rig.chat(server).partial() == LONG[:8]


def test_a_stream_without_words_goes_on_with_what_is_unanswered(rig: Rig) -> None:
    """`resume` in pieces."""
    with Server(Trouble(500), Answer(LONG)) as server:
        with pytest.raises(InternalServerError):
            rig.chat(server).send(HELLO)
        assert "".join(rig.chat(server).stream()) == LONG
        assert list(rig.chat(server).stream()) == []


def test_a_character_that_comes_in_halves_is_made_whole(rig: Rig) -> None:
    """There are servers that cut an emoji in two; half of one alone is replaced, not an error."""
    with Server(brain=lambda _: Answer("1234567\ud83d\ude00, \ud83d!")) as server:
        chat = rig.chat(server)
        assert "".join(chat.stream(HELLO)) == chat.send("And?").text == "1234567😀, \ufffd!"
    assert texts(rig.messages())[1::2] == ["assistant: 1234567😀, \ufffd!"] * 2


def test_under_an_id_a_stream_gives_the_stored_reply(rig: Rig) -> None:
    """In one piece, and without asking the model."""
    with Server(Answer(LONG)) as server:
        assert "".join(rig.chat(server).stream(HELLO, id="m1")) == LONG
        assert list(rig.chat(server).stream(HELLO, id="m1")) == [LONG]
    assert len(server.requests) == 1


def test_a_sync_stream_that_is_left_lets_go_at_once(one_by_one: Rig) -> None:
    """What had come is kept, and the next may speak."""
    with Server(Answer(LONG), Answer("Yes.")) as server:
        for piece in one_by_one.chat(server).stream(HELLO):
            assert piece == LONG[:8]
            break
        chat = one_by_one.chat(server, wait=0)
        assert chat.partial() == LONG[:8]
        assert chat.send("And?").text == "Yes."


def test_a_stream_that_is_still_open_is_named_at_once_to_who_reads_it(one_by_one: Rig) -> None:
    """It is his own: he would wait for it in vain, for as long as he allows for others."""
    with Server(Answer(LONG), Answer("Yes.")) as server:
        chat = one_by_one.chat(server, wait=3_600)
        pieces = chat.stream(HELLO)
        next(pieces)
        with pytest.raises(LeaseHeld, match=r"stream of this chat in 'alice' is still open.*close"):
            chat.send("And?")
        with pytest.raises(LeaseHeld, match="is held by a chat"):
            one_by_one.chat(server, wait=0).send("And?")
        pieces.close()
        assert chat.send("And?").text == "Yes."


def test_who_does_not_read_a_stream_waits_for_its_end(one_by_one: Rig) -> None:
    """Another thread of the same program goes on with it."""
    with Server(Answer(LONG), Answer("Yes.")) as server:
        chat = one_by_one.chat(server, wait=3_600)
        pieces = chat.stream(HELLO)
        next(pieces)
        replies: list[str] = []
        other = threading.Thread(target=lambda: replies.append(chat.send("And?").text))
        other.start()
        assert "".join(pieces) == LONG[8:]
        other.join()
        assert replies == ["Yes."]


@pytest.mark.slow
def test_an_async_stream_that_is_held_is_named_and_one_that_nobody_holds_is_waited_for(
    tmp_path: Path,
) -> None:
    """A loop was left: the event loop is about to close the stream, if nobody else will."""

    async def leave(chat: AsyncChat) -> str:
        pieces = chat.stream(HELLO)
        await anext(pieces)
        with pytest.raises(LeaseHeld, match="stream of this chat in 'alice' is still open"):
            await chat.send("And?")
        other = asyncio.create_task(chat.send("And?"))
        await asyncio.sleep(0)
        await pieces.close()
        assert (await other).text == "Yes."
        async for _ in chat.stream(HELLO):
            break
        return (await chat.send("And then?")).text

    place = Place("memory", "async", tmp_path)
    answers = Answer(LONG), Answer("Yes."), Answer(LONG), Answer("No.")
    with Server(*answers) as server:
        rig = Rig(place, "chat")
        chat = rig.chat(server, wait=3_600)._core
        assert place._loop.run_until_complete(leave(chat)) == "No."
        rig.close()


def test_a_tool_that_speaks_in_its_own_chat_is_told_at_once(rig: Rig) -> None:
    """It would wait for its own end."""

    def ask(question: str) -> str:
        """Ask somebody."""
        return str(chat.send(question).text)

    async def ask_async(question: str) -> str:
        """Ask somebody."""
        return str((await chat._core.send(question)).text)

    asking = tool(ask_async if rig.place.is_async else ask, name="ask")
    question = Answer(calls=(("ask", {"question": "Why?"}),))
    with Server(question, Answer("I see."), question, Answer("So what?")) as server:
        chat = rig.chat(server, wait=3_600, tools=[asking])
        assert chat.send(HELLO).text == "I see."
        assert "".join(chat.stream("Again.")) == "So what?"
    assert ["another conversation" in told for told in rig.results()] == [True, True]


def test_a_reply_that_was_popped_does_not_come_back_as_a_partial_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces are still in the journal; its end had come."""
    monkeypatch.setattr(_openai_reply, "PIECE_CHARACTERS", 30)
    with Server(Answer(LONG), Answer("Yes.")) as server:
        list(rig.chat(server).stream(HELLO))
        rig.place.open().conversation("alice").pop()
        assert rig.chat(server).partial() is None
        rig.chat(server).send("And?")
    assert texts(server.requests[1].history) == [f"user: {HELLO}", "user: And?"]


def test_a_sync_stream_has_its_reply_at_the_end(one_by_one: Rig) -> None:
    """And none before."""
    with Server(Answer(LONG)) as server, one_by_one.chat(server).stream(HELLO) as pieces:
        assert next(pieces) == LONG[:8]
        early = pieces.reply
        list(pieces)
        assert (early, pieces.reply.text) == (None, LONG)


@pytest.mark.slow
def test_an_async_stream_that_is_left_lets_go(tmp_path: Path) -> None:
    """By being closed, or by itself as soon as nobody holds it."""

    async def main(server: Server) -> None:
        async with (
            limpet.open_async(tmp_path / "agents.db") as store,
            AsyncOpenAI(base_url=server.url, api_key="none") as client,
        ):
            chat = AsyncChat(client, store.conversation("alice"), model="gpt-5", wait=5)
            async with chat.stream(HELLO) as pieces:
                assert await anext(pieces) == LONG[:8]
            assert await chat.partial() == LONG[:8]
            async for _ in chat.stream():
                break
            gc.collect()
            reply = await chat.resume()
            assert reply is not None
            assert reply.text == "Yes."

    with Server(Answer(LONG), Answer(LONG), Answer("Yes.")) as server:
        asyncio.run(main(server))


def test_a_cancelled_stream_keeps_what_had_come(tmp_path: Path) -> None:
    """A web server cancels the handler of a browser that is gone."""

    async def main(server: Server) -> None:
        async with (
            limpet.open_async(tmp_path / "agents.db") as store,
            AsyncOpenAI(base_url=server.url, api_key="none") as client,
        ):
            chat = AsyncChat(client, store.conversation("alice"), model="gpt-5")
            begun = asyncio.Event()

            async def listen() -> None:
                async for _ in chat.stream(HELLO):
                    begun.set()

            listening = asyncio.ensure_future(listen())
            await begun.wait()
            listening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await listening
            assert (await chat.partial() or "").startswith(LONG[:8])

    with Server(Answer(LONG, pause=0.2)) as server:
        asyncio.run(main(server))
