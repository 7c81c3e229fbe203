"""Results that stand in for those that a crash has taken. They say so, and claim nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.llm.messages.pairs import CHAT, TOOL_USE

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.llm.messages.pairs import Call

__all__ = ["BEGINNING", "INTERRUPTED", "can_stub", "stub"]

#: What a model reads in place of a result.
INTERRUPTED = (
    "[limpet: this call was interrupted, and no result of it was recorded. "
    "It is not known whether it took effect.]"
)
#: And in place of the beginning, where a conversation has to begin with the user.
BEGINNING = "[limpet: the beginning of this conversation is not here.]"


def can_stub(family: str) -> bool:
    """Whether there is a result of this *family* that can say nothing.

    A computer's is a screenshot, and a provider's own tools are answered by the provider.
    """
    return family in _STUBS


def stub(call: Call, id_: str) -> dict[str, Any]:
    """The result, message or block, that stands in for the one of *call*, known as *id_*."""
    return _STUBS[call.family](id_)


def _text_output(kind: str) -> Callable[[str], dict[str, Any]]:
    return lambda id_: {"type": kind, "call_id": id_, "output": INTERRUPTED}


def _shell(id_: str) -> dict[str, Any]:
    # It has to end somehow: a code that no command has, and the words where a model reads them.
    outcome = {"type": "exit", "exit_code": -1}
    output = [{"stdout": "", "stderr": INTERRUPTED, "outcome": outcome}]
    return {"type": "shell_call_output", "call_id": id_, "output": output}


_STUBS: dict[str, Callable[[str], dict[str, Any]]] = {
    CHAT: lambda id_: {"role": "tool", "tool_call_id": id_, "content": INTERRUPTED},
    TOOL_USE: lambda id_: {
        "type": "tool_result",
        "tool_use_id": id_,
        "content": INTERRUPTED,
        "is_error": True,
    },
    "function_call": _text_output("function_call_output"),
    "custom_tool_call": _text_output("custom_tool_call_output"),
    "local_shell_call": lambda id_: {
        "type": "local_shell_call_output",
        "id": id_,
        "output": INTERRUPTED,
        "status": "incomplete",
    },
    "shell_call": _shell,
    "apply_patch_call": lambda id_: {
        "type": "apply_patch_call_output",
        "call_id": id_,
        "status": "failed",
        "output": INTERRUPTED,
    },
    "tool_search_call": lambda id_: {
        "type": "tool_search_output",
        "call_id": id_,
        "tools": [],
        "status": "incomplete",
    },
    # Nobody has said yes, and what nobody approved is not done.
    "mcp_approval_request": lambda id_: {
        "type": "mcp_approval_response",
        "approval_request_id": id_,
        "approve": False,
        "reason": INTERRUPTED,
    },
}
