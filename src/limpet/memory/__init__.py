"""Memory across tasks: remember, recall, forget. See `Memory`."""

from limpet.memory.hits import MemoryHit, Receipt, Remembered, Stats, Why
from limpet.memory.memory import KIND, AsyncMemory, Memory

__all__ = ["KIND", "AsyncMemory", "Memory", "MemoryHit", "Receipt", "Remembered", "Stats", "Why"]
