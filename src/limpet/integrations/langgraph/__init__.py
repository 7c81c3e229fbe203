"""LangGraph, kept in a store: its long-term memory."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from limpet.errors import MissingExtra

if TYPE_CHECKING:
    from limpet.integrations.langgraph.store import LimpetStore

__all__ = ["LimpetStore"]

#: What is made of classes of LangGraph's, and where that is.
_MODULES = {"LimpetStore": "store"}


def __getattr__(name: str) -> Any:
    """What is made of a class of LangGraph's, when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("langgraph"):
            raise
        raise MissingExtra.of("LangGraph", "langgraph", "langgraph") from error
    return getattr(module, name)
