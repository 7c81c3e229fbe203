"""One agent or team of every kind that AutoGen has, with a model that is played.

No model is asked: `Played` stands on AutoGen's replay client, and what it says is a function of
what it was asked, so that a process that goes on is told what the one before it would have been.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import (
    AssistantAgent,
    MessageFilterAgent,
    MessageFilterConfig,
    PerSourceFilter,
    SocietyOfMindAgent,
    UserProxyAgent,
)
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_core import FunctionCall
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import CreateResult, ModelFamily, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Answer = Callable[[Sequence[Any], Any], str | list[FunctionCall]]

INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=False,
)


class Played(ReplayChatCompletionClient):
    """A model that says what *answer* makes of the messages it is sent, and the tools."""

    def __init__(self, answer: Answer) -> None:
        super().__init__([], model_info=INFO)
        self.answer = answer
        self.asked = 0

    async def create(self, messages: Sequence[Any], **options: Any) -> CreateResult:
        """What is said to *messages*."""
        self.asked += 1
        said = self.answer(messages, options.get("tools", ()))
        if not isinstance(said, str):
            usage = RequestUsage(prompt_tokens=0, completion_tokens=1)
            return CreateResult(
                finish_reason="function_calls", content=said, usage=usage, cached=False
            )
        self.chat_completions, self._current_index = [said], 0
        return await super().create(messages, **options)


def talk(messages: Sequence[Any], tools: Any = ()) -> str:
    """How long the conversation is, and what was said last: any turn lost or doubled shows."""
    last = str(messages[-1].content)
    return f"{len(messages)} after {last[-24:]!r}"


def played(answer: Answer = talk) -> Played:
    """A model."""
    return Played(answer)


def agent(name: str, answer: Answer = talk, **options: Any) -> AssistantAgent:
    """An assistant with a short prompt."""
    return AssistantAgent(name, played(answer), system_message=f"You are {name}.", **options)


# -- tools -----------------------------------------------------------------------------------------


def calling(tool: str, every: int = 2) -> Answer:
    """It calls *tool* each time it is asked anew, and talks when it has the result."""

    def answer(messages: Sequence[Any], tools: Any) -> str | list[FunctionCall]:
        if messages[-1].type == "FunctionExecutionResultMessage":
            return f"The tool says {messages[-1].content[0].content}"
        arguments = json.dumps({"text": f"n{len(messages)}"})
        return [FunctionCall(id=f"call-{len(messages)}", name=tool, arguments=arguments)]

    return answer


async def look(text: str) -> str:
    """Look something up."""
    return f"{text} found"


# -- one of each -----------------------------------------------------------------------------------


def single() -> AssistantAgent:
    """An agent by itself, with a tool and a context that forgets."""
    return agent(
        "helper",
        calling("look"),
        tools=[look],
        reflect_on_tool_use=True,
        model_context=BufferedChatCompletionContext(buffer_size=6),
    )


def round_robin() -> RoundRobinGroupChat:
    """Three in turn; one has a tool, and is asked a second time about its result."""
    members: list[Any] = [
        agent("anna"),
        agent("ben", calling("look"), tools=[look], max_tool_iterations=3),
        agent("cleo"),
    ]
    return RoundRobinGroupChat(
        members, termination_condition=MaxMessageTermination(7) | TextMentionTermination("STOP")
    )


def _select(messages: Sequence[Any], tools: Any) -> str:
    names = ("anna", "ben", "cleo")
    said = str(messages[-1].content if len(messages) == 1 else messages[0].content)
    turns = len(re.findall(r"^(?:anna|ben|cleo): ", said, re.MULTILINE))
    return names[(turns * 2 + 1) % 3]


def selector() -> SelectorGroupChat:
    """A model chooses who is next."""
    members: list[Any] = [agent("anna"), agent("ben"), agent("cleo")]
    return SelectorGroupChat(
        members,
        model_client=played(_select),
        termination_condition=MaxMessageTermination(7),
        allow_repeated_speaker=True,
        emit_team_events=True,
    )


def _hand_over(to: str) -> Answer:
    def answer(messages: Sequence[Any], tools: Any) -> list[FunctionCall]:
        return [FunctionCall(id=f"h{len(messages)}", name=f"transfer_to_{to}", arguments="{}")]

    return answer


def swarm() -> Swarm:
    """Each hands over to the next."""
    members: list[Any] = [
        agent("anna", _hand_over("ben"), handoffs=["ben"]),
        agent("ben", _hand_over("cleo"), handoffs=["cleo"]),
        agent("cleo", _hand_over("anna"), handoffs=["anna"]),
    ]
    return Swarm(members, termination_condition=MaxMessageTermination(7))


def _orchestrate(messages: Sequence[Any], tools: Any) -> str:
    asked = str(messages[-1].content)
    if "is_request_satisfied" not in asked:
        return f"In short: {talk(messages)[:60]}"
    turns = sum(1 for m in messages if getattr(m, "source", "") in ("anna", "ben", "cleo"))

    def field(answer: Any) -> dict[str, Any]:
        return {"reason": "because", "answer": answer}

    return json.dumps(
        {
            "is_request_satisfied": field(turns >= 4),
            "is_in_loop": field(answer=False),
            "is_progress_being_made": field(answer=True),
            "next_speaker": field(("cleo", "anna", "ben")[turns % 3]),
            "instruction_or_question": field(f"Do part {turns + 1}."),
        }
    )


def magentic_one() -> MagenticOneGroupChat:
    """An orchestrator that plans, keeps a ledger, and says who does what."""
    members: list[Any] = [agent("anna"), agent("ben"), agent("cleo")]
    return MagenticOneGroupChat(members, model_client=played(_orchestrate))


def graph() -> GraphFlow:
    """Two at once that a third one waits for, and a loop that ends."""

    def judge(messages: Sequence[Any], tools: Any) -> str:
        # In its own context: how often it has spoken.
        spoken = sum(1 for message in messages if message.type == "AssistantMessage")
        return f"{talk(messages)} AGAIN" if spoken < 1 else f"{talk(messages)} DONE"

    start, left, right = agent("start"), agent("left"), agent("right")
    check, end = agent("check", judge), agent("end")
    builder = DiGraphBuilder()
    for node in (start, left, right, check, end):
        builder.add_node(node)
    builder.add_edge(start, left).add_edge(start, right)
    builder.add_edge(left, check).add_edge(right, check)
    builder.add_edge(check, left, condition="AGAIN", activation_group="again")
    builder.add_edge(check, right, condition="AGAIN", activation_group="again")
    builder.add_edge(check, end, condition="DONE")
    builder.set_entry_point(start)
    return GraphFlow(
        builder.get_participants(),
        graph=builder.build(),
        termination_condition=MaxMessageTermination(12),
    )


def society() -> RoundRobinGroupChat:
    """A team that looks like one agent, with a critic beside it."""
    inner = RoundRobinGroupChat(
        [agent("poet"), agent("editor")], termination_condition=MaxMessageTermination(4)
    )
    return RoundRobinGroupChat(
        [SocietyOfMindAgent("society", inner, played()), agent("critic")],
        termination_condition=MaxMessageTermination(5),
    )


def lone_society() -> SocietyOfMindAgent:
    """The same by itself."""
    inner = RoundRobinGroupChat(
        [agent("poet"), agent("editor")], termination_condition=MaxMessageTermination(5)
    )
    return SocietyOfMindAgent("society", inner, played())


def nested() -> RoundRobinGroupChat:
    """A team within a team."""
    inner = RoundRobinGroupChat(
        [agent("poet"), agent("editor", calling("look"), tools=[look])],
        name="writers",
        description="They write.",
        termination_condition=MaxMessageTermination(4),
    )
    return RoundRobinGroupChat(
        [inner, agent("critic")], termination_condition=MaxMessageTermination(9)
    )


def with_a_person() -> RoundRobinGroupChat:
    """A person in the team, who is asked by a function; and one who hears only a part."""
    filtered = MessageFilterAgent(
        "filtered",
        agent("hidden"),
        MessageFilterConfig(
            per_source=[PerSourceFilter(source="person", position="last", count=1)]
        ),
    )
    person = UserProxyAgent("person", input_func=lambda prompt: f"yes to {prompt[:5]}")
    return RoundRobinGroupChat(
        [agent("anna"), person, filtered], termination_condition=MaxMessageTermination(7)
    )


KINDS: dict[str, Callable[[], Any]] = {
    "single": single,
    "round robin": round_robin,
    "selector": selector,
    "swarm": swarm,
    "magentic one": magentic_one,
    "graph": graph,
    "society": society,
    "lone society": lone_society,
    "nested": nested,
    "person": with_a_person,
}
