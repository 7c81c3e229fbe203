"""What is redacted of a chat: the store has none of it, and no tool is called with a marker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from openai import APIConnectionError, InternalServerError

from limpet import redaction
from limpet.integrations.openai import StreamCut, tool
from tests.models.test_redaction import CARD, KEY, MAIL, everything_in
from tests.support import openai_rig
from tests.support.openai_rig import Cut, Rig
from tests.support.openai_server import Answer, Request, Server, Trouble

if TYPE_CHECKING:
    from pathlib import Path

    from limpet.integrations.openai import Tool

rig = openai_rig.rig


@pytest.fixture(autouse=True)
def redact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each store that is opened here redacts."""
    monkeypatch.setenv("LIMPET_REDACT", "secrets cards emails phones")


def mailing(request: Request) -> Answer:
    """A model that writes two mails and says so."""
    if request.results:
        return Answer(f"Done: {'; '.join(request.results)}.")
    return Answer(calls=(("mail", {"to": MAIL}), ("mail", {"to": "all"})))


def test_a_tool_is_called_with_what_the_model_wrote(rig: Rig, tmp_path: Path) -> None:
    """Not with what is stored of it, in the process that has heard it."""
    sent = []

    def mail(to: str) -> str:
        """Write to somebody."""
        sent.append(to)
        return f"sent to {to}"

    with Server(brain=mailing) as server:
        rig.chat(server, tools=[mail]).send("Write to them.")
    assert sorted(sent) == sorted([MAIL, "all"])
    assert sorted(rig.results()) == ["sent to [redacted: e-mail]", "sent to all"]
    assert MAIL.encode() not in everything_in(tmp_path)


def test_the_same_words_again_go_on_though_they_are_stored_as_others(rig: Rig) -> None:
    """After an error the question is asked once more, and is not a second one."""
    with Server(Trouble(500), Answer("I will.")) as server:
        with pytest.raises(InternalServerError):
            rig.chat(server).send(f"Write to {MAIL}.")
        assert rig.chat(server).send(f"Write to {MAIL}.").text == "I will."
    said = [message for message in rig.messages() if message.get("role") == "user"]
    assert [message["content"] for message in said] == ["Write to [redacted: e-mail]."]


def cut_short(sent: list[str]) -> Tool:
    """A tool that notes to whom it has written; the process dies in its first call for `MAIL`."""

    def mail(to: str) -> str:
        """Write to somebody."""
        if not sent and to == MAIL:
            raise Cut
        sent.append(to)
        return "sent"

    return tool(mail, idempotent=True)


def test_a_call_whose_arguments_nobody_has_any_more_is_not_made(rig: Rig) -> None:
    """The process that had them is gone: the model is told, and may call again."""
    sent: list[str] = []
    idempotent = cut_short(sent)
    with Server(brain=mailing) as server:
        with pytest.raises(Cut):
            rig.chat(server, tools=[idempotent]).send("Write to them.")
        rig.chat(server, tools=[idempotent]).resume()
    assert set(sent) == {"all"}
    assert any("call the tool again with all of them" in result for result in rig.results())


def test_a_call_that_was_cut_short_is_not_made_with_what_was_forgotten(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody writes to "[forgotten]"."""
    monkeypatch.delenv("LIMPET_REDACT")
    sent: list[str] = []
    idempotent = cut_short(sent)
    with Server(brain=mailing) as server:
        with pytest.raises(Cut):
            rig.chat(server, tools=[idempotent]).send("Write to them.")
        (mention,) = rig.place.open().forget(subject=MAIL).mentions
        assert mention.stays is None
        rig.chat(server, tools=[idempotent]).resume()
    assert set(sent) == {"all"}
    assert any("call the tool again with all of them" in result for result in rig.results())


def test_no_piece_of_a_secret_is_stored_while_it_is_streamed(rig: Rig, tmp_path: Path) -> None:
    """Half of it looks like nothing; so what has come is stored when all of it has."""
    text = f"Your key is {KEY}, and the card {CARD}. " * 40
    with Server(Answer(text), Answer(text, dropped=4)) as server:
        chat = rig.chat(server)
        assert "".join(chat.stream("Which?")) == text
        assert redaction.marker("api key") in str(rig.messages()[-1]["content"])
        with pytest.raises((APIConnectionError, StreamCut)):
            list(chat.stream("Again?"))
    stored = everything_in(tmp_path)
    for hidden in (KEY, KEY[:14], CARD, CARD[:14]):
        assert hidden.encode() not in stored
