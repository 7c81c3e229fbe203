"""Next: a whole team with one checkpoint. Killed in any turn, it goes on with the right speaker.

::

    PACE=1 python team.py    # kill -9 it after a turn or two
    python team.py

What is saved is whole: all agents, whose turn it is, what is still to be heard, and how far the
termination condition has counted, which AutoGen by itself begins anew.
"""

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from played import PlayedModel  # type: ignore[import-not-found] # it is beside this file

import limpet
from limpet.integrations import autogen

TASK = "Write a haiku about the sea."


def team() -> RoundRobinGroupChat:
    """A poet, a critic and an editor; six turns."""
    replies = {
        "poet": ("Waves write on the sand.", "The tide reads it, and is gone."),
        "critic": ("Whose hand?", "Better."),
        "editor": ("Keep the first line.", "Print it."),
    }
    agents: list[Any] = [AssistantAgent(name, PlayedModel(*said)) for name, said in replies.items()]
    return RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(7))


async def main() -> None:
    """Begin, or go on."""
    async with limpet.open_async() as store:
        chat = await autogen.keep(team(), store, "haiku")
        if autogen.kept(chat).unfinished:
            print("goes on", flush=True)
        async for message in chat.run_stream(task=TASK):
            if isinstance(message, TaskResult):
                print(f"the end: {message.stop_reason}", flush=True)
            else:
                print(f"{message.source}: {message.to_text()}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
