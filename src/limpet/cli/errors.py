"""How a command ends when it cannot do what it was asked: one message, and an exit code."""

from __future__ import annotations

import errno
import re
from typing import IO, TYPE_CHECKING, Any, ClassVar

import click
from rich.text import Text

from limpet.cli.screen import Screen
from limpet.cli.text import safe
from limpet.errors import LimpetError, NotFound, StoreNotFound, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["FAILED", "MISSING", "USAGE", "Ambiguous", "Failure", "Missing", "said", "translated"]

FAILED = 1
USAGE = 2  # click's own
MISSING = 3

_HINTS: dict[type[LimpetError], str] = {
    StoreNotFound: "Name a store with --store or $LIMPET_URL; `limpet demo` makes one.",
    Unreadable: "`limpet doctor` lists every record that cannot be read.",
}

#: Advice to who writes Python: a command has no such arguments.
_ARGUMENT = re.compile(r"[,;] (?:or|to begin a store [a-z ]+,) open it with \w+=True")


class Failure(click.ClickException):
    """Something is wrong, and the message says what."""

    exit_code = FAILED
    title: ClassVar[str] = "Error"

    def __init__(self, message: str, title: str | None = None) -> None:
        super().__init__(message)
        self._title = title or self.title
        #: What is done to the message before it is shown: commands in it get the store's name.
        self.told: Callable[[str], str] = str

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 - click's signature
        """Print the message to standard error."""
        screen = Screen(stderr=True)
        first, *others = self.told(self.message).split("\n")
        title = Text.assemble((f"{self._title}: ", "bold red"), safe(first))
        screen.hanging(title, indent=2)
        screen.block("\n".join(others))


class Missing(Failure):
    """There is nothing under that id."""

    exit_code = MISSING
    title = "Not found"


class Ambiguous(Failure):
    """An id that could mean several things."""

    exit_code = USAGE
    title = "Ambiguous"

    def __init__(self, name: str, kinds: Sequence[str]) -> None:
        choices = " or ".join(f"{kind}/{name}" for kind in kinds)
        super().__init__(f"{name!r} is a {' and a '.join(kinds)}. Say which: {choices}")


def translated(error: LimpetError | OSError | UnicodeDecodeError) -> Failure:
    """*error* as the message that a command ends with."""
    if isinstance(error, UnicodeDecodeError):
        return Failure(f"Stored text is damaged ({error}).\n{_HINTS[Unreadable]}")
    if isinstance(error, OSError) and not isinstance(error, LimpetError):
        if error.errno == errno.EPIPE:  # the reader has gone; click ends quietly by itself
            raise error
        return Failure(str(error))
    hints = [hint for kind, hint in _HINTS.items() if isinstance(error, kind)]
    make = Missing if isinstance(error, NotFound) else Failure
    return make("\n".join([said(error), *hints]), type(error).__name__)


def said(error: LimpetError) -> str:
    """What *error* says to who has typed a command."""
    return _ARGUMENT.sub("", str(error))
