"""The command itself: its groups, its global options, and how it ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

import limpet
from limpet.cli.copy import copy
from limpet.cli.demo import demo
from limpet.cli.doctor import doctor
from limpet.cli.errors import Failure, translated
from limpet.cli.export import export
from limpet.cli.history import diff, history
from limpet.cli.importing import import_
from limpet.cli.listing import ls
from limpet.cli.mcp import mcp
from limpet.cli.memory import memory
from limpet.cli.migrate import migrate
from limpet.cli.removing import delete, expire, sweep
from limpet.cli.search import search
from limpet.cli.show import show
from limpet.cli.tail import tail
from limpet.cli.tasks import COMMANDS
from limpet.cli.where import Where, store_options
from limpet.cli.work import work

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

EXIT_CODES = """\b
Exit codes:
  0  fine
  1  an error, a problem found, something left out by copy, migrate or work
  2  usage, or an id that means several things
  3  nothing under that id
"""


class Commands(click.Group):
    """A group whose commands end with our own errors as messages, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character gets its number, not a traceback.
            getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
        where = ctx.ensure_object(Where)
        try:
            return _translating(super().invoke, ctx)
        except Failure as failure:
            failure.told = where.told
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order in which one comes to need them."""
        return list(self.commands)


def _translating(invoke: Callable[[click.Context], Any], context: click.Context) -> Any:
    try:
        return invoke(context)
    except (limpet.LimpetError, OSError) as error:
        raise translated(error) from error


@click.group(
    cls=Commands,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@store_options
@click.version_option(
    limpet.__version__,
    message="%(prog)s %(version)s",
    help="Print the version and exit.",
)
def main() -> None:
    """Look into a Limpet store: what agents have said, done, and left to do.

    demo, ls, show, search, tail, history, diff, export and doctor (without --repair) change
    nothing in a store, and create none. --store and --tenant may also follow the command.
    """


for command in (
    demo,
    ls,
    show,
    search,
    tail,
    history,
    diff,
    memory,
    *COMMANDS,
    delete,
    expire,
    sweep,
    work,
    mcp,
    doctor,
    copy,
    export,
    import_,
    migrate,
):
    main.add_command(command)
