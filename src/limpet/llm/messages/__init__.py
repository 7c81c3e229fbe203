"""Messages in the shapes of OpenAI and Anthropic: what they mean, conversion, repair."""

from typing import TYPE_CHECKING, Any

from limpet.llm.messages.repair import Repair, Repaired, repair
from limpet.llm.messages.shape import calls_of, results_of, shape_of

if TYPE_CHECKING:
    from limpet.llm.messages.convert import Converted, LeftOut, to_anthropic, to_chat, to_responses

__all__ = [
    "Converted",
    "LeftOut",
    "Repair",
    "Repaired",
    "calls_of",
    "repair",
    "results_of",
    "shape_of",
    "to_anthropic",
    "to_chat",
    "to_responses",
]


def __getattr__(name: str) -> Any:
    # Conversations need the rest of this package; converters only those who convert.
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from limpet.llm.messages import convert  # noqa: PLC0415 - as above

    return getattr(convert, name)
