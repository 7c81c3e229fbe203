"""The command itself: its groups, its global options, and how it ends."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

import limpet
from limpet import errors
from limpet.cli.options import Commands, Failure, StoreOptions, failure_of, store_options
from limpet.cli.output import Screen
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


#: The commands in the order in which one comes to need them: each is a function in a module, which
#: is imported when the command is asked for. Most of the time a command takes is that.
_COMMANDS = {
    "demo": "demo:demo",
    "inspect": "inspect:inspect",
    "ls": "ls:ls",
    "show": "show:show",
    "search": "search:search",
    "tail": "tail:tail",
    "history": "history:history",
    "memory": "memory:memory",
    "task": "tasks:task",
    "in-doubt": "tasks:in_doubt",
    "resolve": "tasks:resolve",
    "delete": "delete:delete",
    "expire": "delete:expire",
    "sweep": "delete:sweep",
    "forget": "forget:forget",
    "retention": "forget:retention",
    "audit": "audit:audit",
    "work": "work:work",
    "mcp": "mcp:mcp",
    "doctor": "doctor:doctor",
    "keys": "keys:keys",
    "backup": "backup:backup",
    "restore": "backup:restore",
    "salvage": "backup:salvage",
    "copy": "transfer:copy",
    "export": "transfer:export",
    "import": "transfer:import_",
    "migrate": "migrate:migrate",
}


class Limpet(Commands):
    """The group of all commands, which end with our own errors as messages, not as tracebacks."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the options."""
        with _safe_messages():
            return super().make_context(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All of them, imported or not."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command that is called so."""
        module, _, function = _COMMANDS.get(cmd_name, "").partition(":")
        if not module:
            return None
        command: click.Command = getattr(import_module(f"limpet.cli.{module}"), function)
        return command

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
