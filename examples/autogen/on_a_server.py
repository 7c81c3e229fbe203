"""Next: several instances, and their agents in PostgreSQL or Redis. Only the URL is another.

::

    LIMPET_URL=postgresql://localhost/agents python on_a_server.py alice "What about ticket 7?"
    LIMPET_URL=redis://localhost python on_a_server.py alice "And ticket 8?"

Each user's agent is a state of its own. Two instances may serve the same user: with ``hold=True``
the second waits until the first has answered, and then knows of it.
"""

import asyncio
import sys

from autogen_agentchat.agents import AssistantAgent
from played import PlayedModel  # type: ignore[import-not-found] # it is beside this file

import limpet
from limpet.integrations import autogen


async def main(user: str, question: str) -> None:
    """Answer one question of one user."""
    model = PlayedModel("That was question {asked}.")
    agent = AssistantAgent("support", model, system_message="You help with tickets.")
    async with limpet.open_async() as store:
        agent = await autogen.keep(agent, store, f"support/{user}", hold=True)
        result = await agent.run(task=question)
        print(f"{user}: {result.messages[-1].to_text()}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
