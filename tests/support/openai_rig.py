"""What the tests of OpenAI chats share: each API through each face, and a tool that pays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from limpet.integrations.openai import AsyncChat, Chat
from tests.support.openai_server import Answer, Request, Server
from tests.support.stores import Driven, Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HELLO = "Hello there"
LONG = "It is twelve o'clock, and all is well in the whole of the town."


class Rig:
    """A place for state, one of the APIs, and a client of the right kind."""

    def __init__(self, place: Place, api: str) -> None:
        self.place = place
        self.api = api
        self._clients: list[Any] = []

    def chat(self, server: Server, id: str = "alice", **options: Any) -> Any:
        """A chat in a store of its own, as in a new process; the async one is driven."""
        # There is nothing to verify, and to read the certificates takes longer than all the rest.
        told: Any = {"base_url": server.url, "api_key": "secret-key", "max_retries": 0}
        client: Any = (
            AsyncOpenAI(**told, http_client=DefaultAsyncHttpxClient(verify=False, timeout=10))
            if self.place.is_async
            else OpenAI(**told, http_client=DefaultHttpxClient(verify=False, timeout=10))
        )
        self._clients.append(client)
        conversation: Any = self.place.open().conversation(id)
        options = {"model": "gpt-5", "api": self.api, **options}
        if not self.place.is_async:
            return Chat(client, conversation, **options)
        return Driven(AsyncChat(client, conversation._core, **options), self.place._loop)

    def messages(self) -> list[dict[str, Any]]:
        """What is stored; its head says how much that is, whatever a chat writes beside it."""
        conversation = self.place.open().conversation("alice")
        messages = conversation.messages()
        assert conversation.length() == len(messages)
        return messages

    def entries(self) -> list[str]:
        """The types of what is stored, messages and all."""
        journal = self.place.open().journal("conversation", "alice")
        return [entry.type for entry in journal.read()]

    def results(self) -> list[str]:
        """What the tools said."""
        return [text for message in self.messages() for text in results_in(message)]

    def let_go(self) -> None:
        """Close the clients."""
        for client in self._clients:
            closing = client.close()
            if closing is not None:
                self.place._loop.run_until_complete(closing)

    def close(self) -> None:
        """Close everything."""
        self.let_go()
        self.place.close()


#: `make test-fast` is content with two of the four.
WAYS = [
    "chat-sync",
    pytest.param("chat-async", marks=pytest.mark.slow),
    pytest.param("responses-sync", marks=pytest.mark.slow),
    "responses-async",
]


@pytest.fixture(params=WAYS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Each API, sync and async, on a file."""
    api, _, way = request.param.partition("-")
    made = Rig(Place("sqlite", way, tmp_path), api)
    yield made
    made.close()


def results_in(message: dict[str, Any]) -> list[str]:
    """What a tool said, by either API."""
    if message.get("role") == "tool":
        return [str(message["content"])]
    return [str(message["output"])] if message.get("type") == "function_call_output" else []


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """Who said what, in any shape."""
    found = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        if message.get("role") in ("user", "assistant") and content:
            found.append(f"{message['role']}: {content}")
    return found


class Cut(BaseException):
    """Ends a process, as far as a test in one process can."""


class Till:
    """A tool with an effect, which it remembers."""

    def __init__(self, *, fails: bool = False) -> None:
        self.paid: list[int] = []
        self._fails = fails

    def pay(self, bill: int) -> str:
        """Pay a bill.

        Args:
            bill: its number
        """
        self.paid.append(bill)
        if self._fails:
            raise ValueError("no money")
        return f"paid {bill}"


def paying(request: Request) -> Answer:
    """A model that pays two bills and says so."""
    if request.results:
        return Answer(f"Done: {'; '.join(request.results)}.")
    return Answer(calls=(("pay", {"bill": 1}), ("pay", {"bill": 2})), reasoning="Two of them.")


def cut_short(rig: Rig, server: Server, till: Till, *, at: int) -> None:
    """Let the process end within the tool, when it pays bill *at*."""

    def pay(bill: int) -> str:
        """Pay a bill."""
        result = till.pay(bill)
        if bill == at:
            raise Cut
        return result

    with pytest.raises(Cut):
        rig.chat(server, tools=[pay]).send("Pay bills 1 and 2.")


@pytest.fixture
def one_by_one(tmp_path: Path) -> Iterator[Rig]:
    """The sync face, on which tools run one after the other."""
    made = Rig(Place("sqlite", "sync", tmp_path), "chat")
    yield made
    made.close()
