"""What the adapter needs of the SDK, fetched when it is used, and of a store: its async face."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.errors import MissingExtra
from holdfast.registry import other_face
from holdfast.store import AsyncStore, Store

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["awaited", "sdk"]


def sdk(module: str = "agents") -> ModuleType:
    """A module of the SDK; `MissingExtra` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra.of("The OpenAI Agents SDK", "openai-agents", "openai-agents") from error


def awaited(store: Any) -> AsyncStore:
    """The async face of *store*: itself, or the twin of a sync one over the same backend."""
    if isinstance(store, AsyncStore):
        return store
    if not isinstance(store, Store):
        msg = (
            f"This needs a store, not a {type(store).__name__}. Open one with holdfast.open_async()"
            " or holdfast.open()."
        )
        raise TypeError(msg)
    return other_face(store._core)  # noqa: SLF001 - its own other half
