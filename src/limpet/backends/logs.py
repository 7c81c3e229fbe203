"""The log of the library: silent until a program asks for it."""

from __future__ import annotations

__all__ = ["warn"]


def warn(text: str, *values: object) -> None:
    """Leave a word in the log ``limpet`` about what was found, and set right or passed over."""
    import logging  # noqa: PLC0415 - rarely needed

    logger = logging.getLogger("limpet")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.warning(text, *values)
