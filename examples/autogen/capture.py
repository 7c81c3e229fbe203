"""2. Capture what an agent knows, at a moment of your choice.

Kill it when it has saved, and let another process go on::

    python capture.py
    python restore.py

``state.save`` takes any object with ``save_state``, and stores what changed since the last save.
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from played import PlayedModel  # type: ignore[import-not-found] # it is beside this file

import limpet


async def main() -> None:
    """Ask, then save."""
    model = PlayedModel("Ticket 7 is open.", "You have asked me {asked} things.")
    agent = AssistantAgent("support", model, system_message="You help with tickets.")
    async with limpet.open_async() as store:
        state = store.state("captured")
        result = await agent.run(task="What about ticket 7?")
        print(result.messages[-1].to_text(), flush=True)
        position = await state.save(agent)
        saved = (await state.history(last=1))[0]
        print(f"saved at {position}: {saved.total:,} bytes of {saved.type}", flush=True)
        await asyncio.sleep(60)  # it is safe to kill it now


if __name__ == "__main__":
    asyncio.run(main())
