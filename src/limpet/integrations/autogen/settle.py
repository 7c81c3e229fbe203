"""What becomes of a turn that was cut short when nobody goes on with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
)
from autogen_core.tools import ToolResult

from limpet.integrations.autogen.parts import TeamPart
from limpet.llm.messages.repair import INTERRUPTED

if TYPE_CHECKING:
    from limpet.integrations.autogen.log import Actor, Log
    from limpet.integrations.autogen.parts import Part
    from limpet.integrations.autogen.run import Run

__all__ = ["settle"]


async def settle(part: Part, run: Run, log: Log, messages: list[Any]) -> list[Any]:
    """Tell each agent in *part* what its model said and its tools did in the turn.

    *messages* are the task of *run*. Returned are those that nobody has heard yet.
    """
    unheard = [] if run.started else messages
    for member in part:
        context = getattr(member.it, "_model_context", None)
        if isinstance(member, TeamPart) or not isinstance(context, ChatCompletionContext):
            continue
        actor = log.actor(member.path)
        if not actor.replies:
            continue
        if member is part:
            for message in unheard:
                await context.add_message(message.to_model_message())
            unheard = []
        for said in _half_turn(actor, member.it.name):
            await context.add_message(said)
    return unheard


def _half_turn(actor: Actor, name: str) -> list[Any]:
    """What a model context would have of it."""
    found: list[Any] = []
    for number, reply in enumerate(map(CreateResult.model_validate, actor.replies), 1):
        said = AssistantMessage(content=reply.content, source=name, thought=reply.thought)
        found.append(said)
        if not isinstance(reply.content, str):
            results = [_result(actor, number, call) for call in reply.content]
            found.append(FunctionExecutionResultMessage(content=results))
    return found


def _result(actor: Actor, number: int, call: Any) -> FunctionExecutionResult:
    known = actor.result(f"{number}:{call.id}")
    result = None if known is None else ToolResult.model_validate(known)
    return FunctionExecutionResult(
        content=INTERRUPTED if result is None else result.to_text(),
        name=call.name,
        call_id=call.id,
        is_error=result is None or result.is_error,
    )
