"""1. Run an agent. It knows what was said; when its process ends, nobody does.

::

    python run.py
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from played import PlayedModel  # type: ignore[import-not-found] # it is beside this file


async def main() -> None:
    """Two questions, one memory."""
    model = PlayedModel("Ticket 7 is open.", "You have asked me {asked} things.")
    agent = AssistantAgent("support", model, system_message="You help with tickets.")
    for question in ("What about ticket 7?", "What have I asked?"):
        result = await agent.run(task=question)
        print(f"{question} {result.messages[-1].to_text()}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
