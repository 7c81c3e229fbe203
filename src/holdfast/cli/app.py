"""The command itself: its groups, its global options, and how it ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

import holdfast
from holdfast.cli.copy import copy
from holdfast.cli.demo import demo
from holdfast.cli.doctor import doctor
from holdfast.cli.errors import Failure, translated
from holdfast.cli.export import export
from holdfast.cli.history import diff, history
from holdfast.cli.importing import import_
from holdfast.cli.listing import ls
from holdfast.cli.mcp import mcp
from holdfast.cli.memory import memory
from holdfast.cli.migrate import migrate
from holdfast.cli.removing import delete, expire, sweep
from holdfast.cli.search import search
from holdfast.cli.show import show
from holdfast.cli.tail import tail
from holdfast.cli.tasks import COMMANDS
from holdfast.cli.where import Where, store_options
from holdfast.cli.work import work

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
    except (holdfast.HoldfastError, OSError) as error:
        raise translated(error) from error


@click.group(
    cls=Commands,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@store_options
@click.version_option(
    holdfast.__version__,
    message="%(prog)s %(version)s",
    help="Print the version and exit.",
)
def main() -> None:
    """Look into a Holdfast store: what agents have said, done, and left to do.

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
