"""Next: memory. What was learned for one customer, or by another agent, comes when it is needed.

What fits a question is shown to the model with it, as data, and with no other one: nothing piles up
in the context, and none of it is saved with the agent. Kill it and run it again::

    python recall.py
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import MemoryQueryEvent, TextMessage
from played import PlayedModel  # type: ignore[import-not-found] # it is beside this file

import limpet
from limpet.integrations import autogen

QUESTIONS = ("How do we reach Ada?", "May I refund 700?", "How do we reach Ada, again?")
REPLIES = ("By e-mail.", "Ask a manager.", "By e-mail, as I said.")


async def main() -> None:
    """Ask all that was not answered, and show what came to mind."""
    async with limpet.open_async() as store:
        recall = autogen.Recall(store, "support", k=1)
        # The same words again are the same memory: it does no harm to run this twice.
        await recall.memory.remember("Reach Ada by e-mail, not by phone.", source="ticket-7")
        await recall.memory.remember("To refund over 500, ask a manager.", source="ticket-8")
        agent = AssistantAgent("support", PlayedModel(*REPLIES), memory=[recall])
        agent = await autogen.keep(agent, store, "support-recalls")
        known = (await agent.save_state())["llm_context"]["messages"]
        for question in QUESTIONS[len(known) // 2 :]:
            # An id of your own: if the answer is there already, it is not asked for again.
            result = await agent.run(task=TextMessage(content=question, source="user", id=question))
            print(f"{question} {result.messages[-1].to_text()}", flush=True)
            for message in result.messages:
                if isinstance(message, MemoryQueryEvent):
                    memory = await recall.memory.get(str(message.content[0].content))
                    print(f"  remembered from {memory.source}: {memory.text}", flush=True)
        saved = (await agent.save_state())["llm_context"]["messages"]
        print(f"{len(saved)} messages are saved, and no memory among them", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
