"""Memory across tasks: remember, recall, forget. See `Memory`."""

from holdfast.memory.hits import Hit, Receipt, Remembered, Stats, Why
from holdfast.memory.noun import KIND, AsyncMemory, Memory

__all__ = ["KIND", "AsyncMemory", "Hit", "Memory", "Receipt", "Remembered", "Stats", "Why"]
