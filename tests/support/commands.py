"""The command line, run in the tests' own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from limpet.cli import main

if TYPE_CHECKING:
    from click.testing import Result

__all__ = ["run"]


def run(*args: str, code: int = 0) -> Result:
    """Run the command in this process and check its exit code."""
    result = CliRunner().invoke(main, args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result
