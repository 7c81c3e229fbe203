"""See `FileBackend`."""

from limpet.backends.file.backend import FileBackend

__all__ = ["FileBackend"]
