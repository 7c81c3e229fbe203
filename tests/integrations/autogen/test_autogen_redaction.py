"""What is redacted of agents and teams: they go on, and no tool is called with a marker."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.messages import TextMessage
from autogen_core import FunctionCall

import limpet
from limpet.integrations import autogen
from tests.support.autogen_teams import agent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autogen_agentchat.agents import AssistantAgent

MAIL = "ada.lovelace@example.org"
TASK = f"Write to {MAIL}."


def mailing(messages: Sequence[Any], tools: Any) -> str | list[FunctionCall]:
    """It writes a mail, and says what came of it."""
    del tools
    if messages[-1].type == "FunctionExecutionResultMessage":
        return f"The tool says {messages[-1].content[0].content}"
    return [FunctionCall(id="call-1", name="mail", arguments=json.dumps({"to": MAIL}))]


def writer(sent: list[str], began: asyncio.Event | None = None) -> AssistantAgent:
    """An agent that writes mails; with *began*, one that never comes to the end of it."""

    async def mail(to: str) -> str:
        """Write to somebody."""
        if began is not None:
            began.set()
            await asyncio.sleep(60)
        sent.append(to)
        return "sent"

    return agent("anna", mailing, tools=[mail], reflect_on_tool_use=True)


async def run(store: limpet.AsyncStore, task: str | None) -> tuple[list[str], Any]:
    """What was sent, and the result, of a process that goes on with what another has begun."""
    sent: list[str] = []
    began = asyncio.Event()
    first = await autogen.keep(writer(sent, began), store, "it", in_doubt="retry")
    begun = asyncio.create_task(first.run(task=TASK))
    await began.wait()
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun
    second = await autogen.keep(writer(sent), store, "it", in_doubt="retry")
    return sent, await second.run(task=task)


@pytest.mark.parametrize("task", [None, TASK])
def test_a_call_that_was_cut_short_is_not_made_with_what_was_redacted(task: str | None) -> None:
    """The model is told, and may call again; the same task again is no other task."""

    async def main() -> tuple[list[str], Any]:
        async with limpet.open_async("memory:", redact=["emails"]) as store:
            return await run(store, task)

    sent, result = asyncio.run(main())
    assert sent == []
    assert "The tool says [limpet: this call was not made" in result.messages[-1].to_text()
    said = [one for one in result.messages if isinstance(one, TextMessage) and one.source == "user"]
    assert len(said) <= 1


def test_a_call_is_made_with_what_the_model_wrote() -> None:
    """In the process that has heard it; and where nothing was redacted, in every other one."""

    async def main(redact: list[str]) -> tuple[list[str], list[str]]:
        async with limpet.open_async("memory:", redact=redact) as store:
            sent: list[str] = []
            one = await autogen.keep(writer(sent), store, "other")
            await one.run(task=TASK)
            return sent, (await run(store, None))[0]

    assert asyncio.run(main(["emails"]))[0] == [MAIL]
    assert asyncio.run(main(["cards"])) == ([MAIL], [MAIL])
