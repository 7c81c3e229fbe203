"""5. A second process goes on with what the first has left, whatever it was killed in.

::

    PACE=1 python each_turn.py    # kill -9 it while it waits for an answer
    python second_process.py
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from each_turn import REPLIES  # type: ignore[import-not-found] # it is beside this file
from played import PlayedModel  # type: ignore[import-not-found]

import limpet
from limpet.integrations import autogen


async def main() -> None:
    """Answer what was asked and not answered, then show all of it."""
    agent = AssistantAgent(
        "support", PlayedModel(*REPLIES), system_message="You help with tickets."
    )
    async with limpet.open_async() as store:
        agent = await autogen.keep(agent, store, "support")
        kept = autogen.kept(agent)
        print("a question is unanswered" if kept.unfinished else "all is answered", flush=True)
        await kept.resume()
        for message in await agent.model_context.get_messages():
            print(f"  {message.source}: {message.content}", flush=True)  # type: ignore[union-attr]
        for saved in await kept.state.history():
            print(f"save {saved.position}: {saved.bytes:,} of {saved.total:,} bytes", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
