"""What the adapter needs of the SDK, fetched when it is used, and of a store: its async face."""

from __future__ import annotations

import copy
import importlib
from typing import TYPE_CHECKING, Any

from holdfast._faces import HopPort
from holdfast.errors import MissingExtra
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
    # The same tenant, codec and keeper of leases: only the way to the backend is another.
    twin = copy.copy(store._core)  # noqa: SLF001 - its own other half
    twin._port = HopPort(twin.backend)  # noqa: SLF001
    twin._show = lambda opened: opened  # noqa: SLF001
    return twin
