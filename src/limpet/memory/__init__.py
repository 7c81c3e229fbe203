"""Memory across tasks: remember, recall, forget. See `Memory`."""

from limpet.memory.hits import Hit, Receipt, Remembered, Stats, Why
from limpet.memory.memory import KIND, AsyncMemory, Memory

__all__ = ["KIND", "AsyncMemory", "Hit", "Memory", "Receipt", "Remembered", "Stats", "Why"]
