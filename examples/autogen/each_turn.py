"""4. No helpers: an agent that is kept is loaded when it is made, and saved after every turn.

Kill it wherever you like, and run it again: nothing is asked twice, nothing is forgotten::

    python each_turn.py
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from played import PlayedModel  # type: ignore[import-not-found] # it is beside this file

import limpet
from limpet.integrations import autogen

QUESTIONS = ("What about ticket 7?", "And ticket 8?", "Who has it?", "What have I asked?")
REPLIES = (
    "Ticket 7 is open.",
    "Ticket 8 is closed.",
    "Alice has it.",
    "You have asked me {asked} things.",
)


async def main() -> None:
    """Ask all that was not answered."""
    agent = AssistantAgent(
        "support", PlayedModel(*REPLIES), system_message="You help with tickets."
    )
    async with limpet.open_async() as store:
        agent = await autogen.keep(agent, store, "support")
        known = await agent.model_context.get_messages()
        asked = [message.content for message in known if message.type == "UserMessage"]
        print(f"{len(asked)} of {len(QUESTIONS)} are answered", flush=True)
        for question in QUESTIONS[len(asked) :]:
            # An id of your own: if the answer is there already, it is not asked for again.
            task = TextMessage(content=question, source="user", id=question)
            result = await agent.run(task=task)
            print(f"{question} {result.messages[-1].to_text()}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
