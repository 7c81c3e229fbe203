"""What providers refuse: whether a model may be asked with a history, as functions.

`check_chat`, `check_responses` and `check_anthropic` hold a list of messages against the rules that
OpenAI and Anthropic enforce with a 400, and raise `Refused` with the rule that is broken and where.
They share nothing with `limpet.llm.messages`, which they are there to judge::

    check_chat([{"role": "tool", "tool_call_id": "c1", "content": "12:00"}])
    # Refused: messages[0]: a tool message must follow the call it answers.
"""

from __future__ import annotations

from limpet.testing.providers.anthropic import check_anthropic
from limpet.testing.providers.checks import Refused
from limpet.testing.providers.openai import check_chat, check_responses

__all__ = ["Refused", "check_anthropic", "check_chat", "check_responses"]
