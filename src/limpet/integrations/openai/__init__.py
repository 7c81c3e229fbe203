"""A chat on the OpenAI SDK that survives its process; see `Chat`."""

from limpet.errors import CallsInDoubt
from limpet.integrations.openai.apis import ModelFailed, ToolCall
from limpet.integrations.openai.chat import AsyncChat, Chat, TooManyRounds
from limpet.integrations.openai.reply import (
    AsyncReplyStream,
    Reply,
    ReplyStream,
    Request,
    StreamCut,
    Usage,
)
from limpet.integrations.openai.tools import Tool, tool

__all__ = [
    "AsyncChat",
    "AsyncReplyStream",
    "CallsInDoubt",
    "Chat",
    "ModelFailed",
    "Reply",
    "ReplyStream",
    "Request",
    "StreamCut",
    "TooManyRounds",
    "Tool",
    "ToolCall",
    "Usage",
    "tool",
]
