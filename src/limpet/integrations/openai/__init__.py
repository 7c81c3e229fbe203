"""A chat on the OpenAI SDK that survives its process; see `Chat`."""

from limpet.integrations.openai.chat import (
    AsyncChat,
    AsyncReplyStream,
    Call,
    CallsInDoubt,
    Chat,
    Made,
    ModelFailed,
    Reply,
    ReplyStream,
    Request,
    StreamCut,
    Tool,
    TooManyRounds,
    Usage,
    tool,
)

__all__ = [
    "AsyncChat",
    "AsyncReplyStream",
    "Call",
    "CallsInDoubt",
    "Chat",
    "Made",
    "ModelFailed",
    "Reply",
    "ReplyStream",
    "Request",
    "StreamCut",
    "TooManyRounds",
    "Tool",
    "Usage",
    "tool",
]
