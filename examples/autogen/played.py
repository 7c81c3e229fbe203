"""A model that is played, so that the examples need neither a key nor a network.

Yours would be in its place: ``OpenAIChatCompletionClient(model="gpt-5-mini")``, for instance.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from autogen_core.models import CreateResult, ModelFamily, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autogen_core import FunctionCall

#: Seconds that it takes to answer, so that somebody can kill it meanwhile.
PACE = float(os.environ.get("PACE", "0"))

_INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    structured_output=False,
    family=ModelFamily.UNKNOWN,
)


class PlayedModel(ReplayChatCompletionClient):
    """It gives the first reply to whoever it has not answered yet, then the second, and so on.

    So it goes on where a process before it has stopped, if it is shown what was said before.
    ``{asked}`` in a reply is how many questions it was shown. A list of calls calls tools.
    """

    def __init__(self, *replies: str | list[FunctionCall]) -> None:
        super().__init__([], model_info=_INFO)
        self._replies = replies

    async def create(self, messages: Sequence[Any], **options: Any) -> CreateResult:
        """The reply for the place that the conversation has come to."""
        await asyncio.sleep(PACE)
        answered = sum(message.type == "AssistantMessage" for message in messages)
        reply = self._replies[answered % len(self._replies)]
        if isinstance(reply, list):
            usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
            return CreateResult(
                finish_reason="function_calls", content=reply, usage=usage, cached=False
            )
        asked = sum(message.type == "UserMessage" for message in messages)
        self.chat_completions, self._current_index = [reply.format(asked=asked)], 0
        return await super().create(messages, **options)
