"""The OpenAI Agents SDK: a conversation that is kept, and a refund that waits for a person.

    python agents_sdk.py ask       the customer writes, and the agent wants to pay back; --crash:
                                   then the process dies
    python agents_sdk.py list      what waits for a decision
    python agents_sdk.py approve   somebody says yes (or reject, no), and the agent goes on

Everything is in agents.db, so each may be another process. The model is scripted, so that this runs
without a key: give the agent a model of yours, and the rest stays as it is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

import limpet
from limpet.integrations.openai_agents import AsyncRuns, LimpetSession, Runs

set_tracing_disabled(disabled=True)

QUESTION = "Order 17 arrived broken. I would like my money back."


@function_tool(needs_approval=True)
def refund(order: int, euros: int) -> str:
    """Pay back what an order has cost."""
    print(f"  ({euros} euros for order {order} are on their way)")
    return "paid back"


def make_agent(*answers: Any) -> Agent[None]:
    """The agent, whose model gives these answers."""
    return Agent(name="support", model=ScriptedModel(answers), tools=[refund])


async def ask() -> None:
    """A turn that ends with a call which nobody has approved yet."""
    agent = make_agent([function_call("refund", {"order": 17, "euros": 40}, call_id="call_1")])
    async with limpet.open_async("agents.db") as store:
        session = LimpetSession(store, "alice")
        # Kept before the model is asked. After a crash, the same line does not say it twice.
        if await session.begin(QUESTION, id="message-1"):
            result = await Runner.run(agent, [], session=session)
            asks = await AsyncRuns(store).save("refund-17", result)
            print(f"The agent wants to call {asks[0].tool}.")
    if "--crash" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)


def show() -> None:
    """What a web page for those who decide would show. It needs no agent, and no event loop."""
    with limpet.open("agents.db") as store:
        runs = Runs(store)
        for run in runs.list(status="waiting"):
            for waiting in runs.asks(run.id):
                print(f"{run.id}: {waiting.tool} {waiting.arguments}")


async def decide(*, yes: bool) -> None:
    """Say yes or no, and let the agent go on."""
    answer = "Your money is on its way." if yes else "I am sorry, that was refused."
    agent = make_agent([assistant_message(answer)])
    async with limpet.open_async("agents.db") as store:
        runs = AsyncRuns(store)
        decision = runs.approve if yes else runs.reject
        await decision("refund-17", "call_1", by="maria")
        session = LimpetSession(store, "alice")
        result = await runs.resume("refund-17", agent, session=session)
        print(result.final_output)
        print(f"{len(await session.get_items())} items are kept.")


def main() -> None:
    """Do what was asked for."""
    match sys.argv[1:]:
        case ["ask", *_]:
            asyncio.run(ask())
        case ["list"]:
            show()
        case ["approve" | "reject" as said]:
            asyncio.run(decide(yes=said == "approve"))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
