"""Next: the prompt and the tools have changed, and agents of the old version go on in the new one.

::

    python new_version.py 1    # kill -9 it, if you like
    python new_version.py 2

Version 1 had a tool ``find_ticket``; in version 2 it is called ``search``, and the history says so.
"""

import asyncio
import sys
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core import FunctionCall
from played import PlayedModel  # type: ignore[import-not-found] # it is beside this file

import limpet
from limpet.integrations import autogen
from limpet.states.state import FingerprintChange


async def find_ticket(number: int) -> str:
    """Find a ticket."""
    return f"Ticket {number} is open."


async def search(number: int) -> str:
    """Find a ticket."""
    return f"Ticket {number} is open, and Alice has it."


@limpet.migration("tickets", 1, 2)
def tool_was_renamed(document: dict[str, Any]) -> dict[str, Any]:
    """The document is AutoGen's own state: every call in it is of the tool's new name."""
    for message in document["llm_context"]["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part.get("name") == "find_ticket":
                part["name"] = "search"
    return document


def agent(version: int) -> AssistantAgent:
    """The agent as it was, and as it is."""
    tool = {1: find_ticket, 2: search}[version]
    call = [FunctionCall(id="call-1", name=tool.__name__, arguments='{"number": 7}')]
    model = PlayedModel(call, f"Version {version} at your service: {{asked}} questions.")
    prompt = {1: "You help with tickets.", 2: "You help with tickets. Be brief."}[version]
    return AssistantAgent("support", model, tools=[tool], system_message=prompt)


def on_change(change: FingerprintChange, document: Any) -> Any:
    """What is another now; the document may be changed here too."""
    print(f"changed: {change}", flush=True)
    return document


async def main(version: int) -> None:
    """One question, by the agent of that version."""
    async with limpet.open_async() as store:
        kept = await autogen.keep(
            agent(version), store, "tickets", version=version, on_change=on_change
        )
        result = await kept.run(task="What about ticket 7?")
        print(result.messages[-1].to_text(), flush=True)
        for message in await kept.model_context.get_messages():
            if message.type == "AssistantMessage" and not isinstance(message.content, str):
                print(f"the history calls {message.content[0].name}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
