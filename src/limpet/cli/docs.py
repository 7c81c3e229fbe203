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

```console
$ limpet ls                       # what is there
$ limpet show report              # one of them: a conversation, a task, a state
$ limpet history report --diff    # what changed last
$ limpet in-doubt                 # what may or may not have happened before a crash
$ limpet doctor                   # whether all of it can be read
$ limpet backup monday.db         # all of it once more, also while it is in use
```

`ls`, `show`, `search`, `tail`, `history`, `in-doubt`, `export`, `backup` and `doctor` only read the
store, and create none there (but for `doctor --repair`). The demo makes a store of its own. The
other commands submit tasks, signal and run them, delete things, copy stores and fill them.
`python -m limpet` is the same command.

Output is as wide as the terminal; in a pipe it is plain text with nothing wrapped or cut off, and
`--json` gives it to programs. `NO_COLOR` is respected, and control characters in stored text are
written out (`\\e[31m`), so that they have no effect on your terminal.
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
            found = command.get_command(context, child)
            assert found is not None  # noqa: S101 - it has what it lists
            yield from _sections(found, child, context)


if __name__ == "__main__":
    click.echo(reference(), nl=False)
