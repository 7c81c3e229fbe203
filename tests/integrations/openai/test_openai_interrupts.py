"""Ctrl-C in a chat, wherever it strikes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from openai import OpenAI

import limpet
from limpet.integrations.openai import Chat, turn
from tests.crash.test_interrupts import forgotten, place, strikes
from tests.support.openai_server import Answer, Server

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@forgotten
def test_a_chat_that_is_struck_leaves_its_conversation_to_the_next_turn(tmp_path: Path) -> None:
    """As it takes its lease, or gives it up."""
    with (
        limpet.open(place("sqlite", tmp_path)) as opened,
        Server(brain=lambda _: Answer("Yes.")) as server,
        OpenAI(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        chat = Chat(client, opened.conversation("alice"), model="gpt-5", wait=0)
        for strike in strikes(turn.__file__):
            with strike:
                chat.resume()
            assert opened.scope.store.leases._held == []
            chat.resume()
            assert chat._core._held == set()
        assert chat.send("Is it there?").text == "Yes."
