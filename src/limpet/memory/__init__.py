"""Memory across tasks: remember, recall, forget. See `Memory`."""

from limpet.memory.memory import KIND, AsyncMemory, Memory
from limpet.memory.results import MemoryHit, MemoryPage, Receipt, Remembered, Stats, Why

__all__ = [
    "KIND",
    "AsyncMemory",
    "Memory",
    "MemoryHit",
    "MemoryPage",
    "Receipt",
    "Remembered",
    "Stats",
    "Why",
]
