"""Memory across tasks: remember, recall, forget. See `Memory`."""

from limpet.memory.memory import KIND, AsyncMemory, Memory
from limpet.memory.results import MemoryHit, Receipt, Remembered, Stats, Why

__all__ = ["KIND", "AsyncMemory", "Memory", "MemoryHit", "Receipt", "Remembered", "Stats", "Why"]
