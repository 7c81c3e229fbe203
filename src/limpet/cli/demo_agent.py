"""The agent that ``limpet demo`` kills: a scripted model, a conversation, a task of six steps.

It runs in a process of its own, ``python -m limpet.cli.demo_agent STORE LOG``, and does not know
that it will be killed: a first run and a resumed one are the same code. On standard output it
reports to the demo what happens, as JSON Lines. It appends each execution of a step to the file
LOG, outside the store, so that executions can be counted without taking the store's word.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

import limpet

if TYPE_CHECKING:
    from limpet import Conversation, Step, Task

__all__ = ["ANSWER", "CHAT", "GOAL", "SCRIPT", "TASK"]

TASK = "slow-checkout"
CHAT = "on-call"
GOAL = "Find out why the checkout is slow, put it right, and tell the team."
ANSWER = "Prices 2.8.1 dropped its cache; rolled back at 14:31, fast again since."

#: Seconds. The dead process's lease lasts this long at the most; on this machine its successor does
#: not wait for that.
LEASE = 5


class Turn(Struct, frozen=True):
    """One step as the script has it: which tool the model calls, and what comes back."""

    step: str
    tool: str
    arguments: dict[str, str]
    result: str
    discovery: str | None = None
    decision: tuple[str, str] | None = None


SCRIPT = (
    Turn("alerts", "read_alerts", {"service": "checkout"}, "p95 is 4.1 s since 14:02, was 0.3 s"),
    Turn(
        "logs",
        "search_logs",
        {"text": "timeout", "since": "14:00"},
        "312 timeouts, all of them calls to prices",
        discovery="the checkout waits for the service prices",
    ),
    Turn(
        "deploys", "list_deploys", {"since": "13:30"}, "prices 2.8.1 at 14:01, by the release bot"
    ),
    Turn(
        "compare",
        "compare",
        {"service": "prices", "old": "2.8.0", "new": "2.8.1"},
        "2.8.1 no longer caches price lists",
        discovery="prices 2.8.1 no longer caches price lists",
        decision=("roll prices back to 2.8.0", "the cache is gone in 2.8.1"),
    ),
    Turn(
        "roll-back",
        "roll_back",
        {"service": "prices", "to": "2.8.0"},
        "done at 14:31; p95 is 0.3 s again",
    ),
    Turn("tell", "post", {"channel": "#checkout", "text": ANSWER}, "posted"),
)


class World:
    """What is outside the store: the file of executions, and the demo behind a pipe."""

    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str, step: str = "") -> None:
        """Append a line to the file. It is there even if the next instruction is never run."""
        os.write(self._log, f"{what} {step}\n".encode())

    def report(self, event: str, **details: Any) -> None:
        """Let the demo know."""
        sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
        sys.stdout.flush()

    def use_tool(self, turn: Turn) -> str:
        """Wait, as for any slow tool, until the demo lets it answer (or kills us meanwhile)."""
        self.report("waiting", step=turn.step)
        if not sys.stdin.readline():
            sys.exit("The demo has gone.")
        return turn.result


class Agent:
    """Works on the task, and keeps the conversation."""

    def __init__(self, task: Task, chat: Conversation, world: World) -> None:
        self.task = task
        self.chat = chat
        self.world = world

    def work(self) -> None:
        """Do what is left to do: all of it, or what a killed process did not get to."""
        self.say("goal", {"role": "user", "content": GOAL})
        self.task.plan(self.make_plan)
        for step in self.task.remaining():
            step.run(self.execute, step)
            self.world.report("done", step=step.name)
        self.say("answer", {"role": "assistant", "content": ANSWER})
        self.world.report("answer", text=self.task.finish(ANSWER))

    def make_plan(self) -> list[str]:
        """The model's plan. Called once, ever."""
        self.world.note("planned")
        return [turn.step for turn in SCRIPT]

    def execute(self, step: Step) -> str:
        """One step: the model asks for a tool, the tool answers."""
        self.world.note("began", step.name)
        self.world.report("began", step=step.name)
        turn = next(turn for turn in SCRIPT if turn.step == step.name)
        call = {"name": turn.tool, "arguments": json.dumps(turn.arguments)}
        calls = [{"id": turn.step, "type": "function", "function": call}]
        self.say(f"{turn.step}-call", {"role": "assistant", "content": None, "tool_calls": calls})
        result = self.world.use_tool(turn)
        self.say(
            f"{turn.step}-result", {"role": "tool", "tool_call_id": turn.step, "content": result}
        )
        if turn.discovery:
            self.task.discover(turn.discovery)
        if turn.decision:
            self.task.decide(turn.decision[0], because=turn.decision[1])
        self.world.note("ended", step.name)
        return result

    def say(self, id_: str, message: dict[str, Any]) -> None:
        """Add to the conversation; what a killed run has said already is not said twice."""
        position = self.chat.append(message, id=id_)
        self.world.report("message", position=position, message=message)


def main() -> None:
    """Open the store, take the task, work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the demo, which ends us itself
    url, log = sys.argv[1:]
    world = World(log)
    with limpet.open(url) as store:
        began = time.monotonic()
        with store.task(TASK, GOAL, agent="demo-agent", lease=LEASE, wait=2 * LEASE) as task:
            took = time.monotonic() - began
            world.report("opened", done=list(task.results), took=round(took, 3))
            Agent(task, store.conversation(CHAT), world).work()


if __name__ == "__main__":
    main()
