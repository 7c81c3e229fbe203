"""The reference of the command line, made from what ``--help`` says.

``python -m limpet.cli.docs > docs/cli.md`` writes it; a test fails when it has fallen behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from limpet.cli.app import main

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["reference"]

INTRODUCTION = """\
# The command line

<!-- Made by `python -m limpet.cli.docs > docs/cli.md`; a test fails when the two differ. -->

`limpet` looks into a store: `ls`, `show`, `tail`, `history`, `diff` and `doctor` only read, and
create nothing (but for `doctor --repair`; the demo makes a store of its own). The others are for
those who work with it: tasks are submitted, told things and run, things are deleted, stores are
copied and filled. `python -m limpet` is the same command.
Output is as wide as the terminal; in a pipe it is plain text with nothing wrapped or cut off, and
`--json` gives it to programs. `NO_COLOR` is respected, and control characters in stored text are
written out (`\\e[31m`), so that they cannot play with your terminal.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_sections(main, "limpet", None)])


def _sections(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=80, **command.context_settings
    )
    title = f"`{context.command_path}`"
    yield f"## {title}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            yield from _sections(command.commands[child], child, context)


if __name__ == "__main__":
    click.echo(reference(), nl=False)
