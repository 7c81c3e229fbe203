"""3. Restore it in another process: the agent is made anew, and knows what the first one knew.

::

    python capture.py
    python restore.py
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from played import PlayedModel  # type: ignore[import-not-found] # it is beside this file

import limpet


async def main() -> None:
    """Load, then ask."""
    model = PlayedModel("Ticket 7 is open.", "You have asked me {asked} things.")
    agent = AssistantAgent("support", model, system_message="You help with tickets.")
    async with limpet.open_async() as store:
        await store.state("captured").load(into=agent)
        result = await agent.run(task="What have I asked?")
        print(result.messages[-1].to_text(), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
