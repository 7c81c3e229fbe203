"""A LangGraph agent that waits for a person, is killed as it pays, and pays once.

    $ python langgraph_agent.py ask
    The agent asks: Pay back 40 euros for order 17?
    $ python langgraph_agent.py yes --crash
    paying 40 euros for order 17
    Killed
    $ python langgraph_agent.py go-on
    asked whether that was paid: yes
    The agent says: 40 euros are on their way.

Each of the three is a process of its own: all that they share is agents.db. The second one dies
when the money is on its way and nobody has recorded that: the worst moment there is. The third runs
the tool again, as LangGraph does, but not the payment: `limpet.effect` has recorded that it began,
and asks. `limpet show alice` prints who said what, in between, too.

The model is scripted, so that this runs without a key: give the agent a model of yours.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

import limpet
from limpet.integrations.langgraph import LimpetSaver

BANK = Path("bank.jsonl")  # stands for the bank
ALICE: Any = {"configurable": {"thread_id": "alice"}}


class Scripted(BaseChatModel):
    """A model that knows what to say."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """It knows its tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        if isinstance(messages[-1], ToolMessage):
            said = AIMessage(str(messages[-1].content))
        else:
            call = {"name": "refund", "args": {"order": 17, "euros": 40}, "id": "call-1"}
            said = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=said)])


def was_paid(key: str) -> str | None:
    """What the bank knows of a payment, None if nothing. Asked only when that is in doubt."""
    lines = BANK.read_text().splitlines() if BANK.exists() else []
    found = next((line for line in map(json.loads, lines) if line["key"] == key), None)
    print(f"asked whether that was paid: {'yes' if found else 'no'}", flush=True)
    return found and found["receipt"]


@limpet.effect(in_doubt="verify", verify=was_paid)
def pay(order: int, euros: int) -> str:
    """Pay, once for each time that the agent wants to."""
    print(f"paying {euros} euros for order {order}", flush=True)
    receipt = f"{euros} euros are on their way."
    with BANK.open("a") as bank:
        bank.write(json.dumps({"key": limpet.current_step().idempotency_key, "receipt": receipt}))
        bank.write("\n")
    if "--crash" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt


@tool
def refund(order: int, euros: int) -> str:
    """Pay back what an order has cost, if somebody says yes."""
    if interrupt(f"Pay back {euros} euros for order {order}?") != "yes":
        return "Somebody has said no."
    return pay(order, euros)


def main(word: str) -> None:
    """Ask, answer, or go on with what was cut off."""
    question = {"messages": [("user", "Order 17 arrived broken. I would like my money back.")]}
    inputs: dict[str, Any] = {"ask": question, "go-on": None}
    with LimpetSaver("agents.db") as saver:
        agent = create_agent(Scripted(), [refund], checkpointer=saver)
        result = agent.invoke(inputs.get(word, Command(resume=word)), ALICE)
        asked = result.get("__interrupt__")
        print("The agent asks:" if asked else "The agent says:", end=" ")
        print(asked[0].value if asked else result["messages"][-1].content)


if __name__ == "__main__":
    main(sys.argv[1])
