"""What the adapter needs of the SDK, fetched when it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from limpet.errors import MissingExtra

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["sdk"]


def sdk(module: str = "agents") -> ModuleType:
    """A module of the SDK; `MissingExtra` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra.of("The OpenAI Agents SDK", "openai-agents", "openai-agents") from error
