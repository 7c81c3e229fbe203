"""The command itself: its groups, its global options, and how it ends."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

import limpet
from limpet import errors
from limpet.cli.backup import backup, restore, salvage
from limpet.cli.delete import delete, expire, sweep
from limpet.cli.demo import demo
from limpet.cli.doctor import doctor
from limpet.cli.history import history
from limpet.cli.inspect import inspect
from limpet.cli.ls import ls
from limpet.cli.mcp import mcp
from limpet.cli.memory import memory
from limpet.cli.migrate import migrate
from limpet.cli.options import Commands, Failure, StoreOptions, failure_of, store_options
from limpet.cli.output import Screen
from limpet.cli.search import search
from limpet.cli.show import show
from limpet.cli.tail import tail
from limpet.cli.tasks import in_doubt, resolve, task
from limpet.cli.transfer import copy, export, import_
from limpet.cli.work import work
from limpet.views.text import one_line, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main"]

EXIT_CODES = """\b
Exit codes:
  0  fine
  1  an error, a problem found, something left out by copy, salvage, migrate or work
  2  usage, or an id that means several things
  3  nothing under that id
"""


@contextmanager
def _safe_messages() -> Iterator[None]:
    """Click's own messages repeat what they were given, and that may be from anywhere."""
    try:
        yield
    except click.ClickException as error:
        error.message = safe(error.message)  # type: ignore[misc] # which nobody has seen yet
        raise


@contextmanager
def _notes() -> Iterator[None]:
    """Print warnings of ours as a line for people, without the place in our code."""
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if category.__module__ == errors.__name__:
            Screen(stderr=True).hanging(Text(f"Note: {one_line(str(message))}"), indent=2)
        else:  # of the functions that `work` runs
            show(message, category, *where, **more)

    with warnings.catch_warnings():
        warnings.showwarning = note
        yield


class Limpet(Commands):
    """The group of all commands, which end with our own errors as messages, not as tracebacks."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the options."""
        with _safe_messages():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character gets its number, not a traceback.
            getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
        store = ctx.ensure_object(StoreOptions)
        try:
            try:
                with _safe_messages(), _notes():
                    return super().invoke(ctx)
            except (limpet.LimpetError, OSError) as error:
                raise failure_of(error) from error
        except Failure as failure:
            failure.store = store
            raise


@click.group(
    cls=Limpet,
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

    demo, ls, show, search, tail, history, in-doubt, export, backup and doctor (without --repair)
    change nothing in a store, and create none. --store and --tenant may also follow the command.
    """


for command in (
    demo,
    inspect,
    ls,
    show,
    search,
    tail,
    history,
    memory,
    task,
    in_doubt,
    resolve,
    delete,
    expire,
    sweep,
    work,
    mcp,
    doctor,
    backup,
    restore,
    salvage,
    copy,
    export,
    import_,
    migrate,
):
    main.add_command(command)
