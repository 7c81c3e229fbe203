"""The `limpet` command."""

from limpet.cli.app import main

__all__ = ["main"]
