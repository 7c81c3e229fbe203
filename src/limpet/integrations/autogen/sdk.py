"""The way to AutoGen, which is optional: nothing of it is imported before it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from limpet.errors import MissingExtra

__all__ = ["sdk"]


def sdk(name: str = "autogen_agentchat") -> Any:
    """One of AutoGen's modules; `MissingExtra` if it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("autogen"):
            raise
        raise MissingExtra.of("AutoGen", "autogen-agentchat", "autogen") from error
