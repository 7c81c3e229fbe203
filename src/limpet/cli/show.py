"""``limpet show``: one journal as it is, by its kind.

Each kind's rendering has its own file: `show_chat`, `show_state`, `show_task`, and `show_journal`
for any other.
"""

from __future__ import annotations

import click

from limpet import memory
from limpet.cli.ls import facts_of
from limpet.cli.options import StoreOptions, audited, find, pass_store, store_options
from limpet.cli.output import Screen
from limpet.cli.show_chat import ChatView, ConversationView, TeamView, ThreadView
from limpet.cli.show_journal import JournalView
from limpet.cli.show_state import MemoryView, StateView
from limpet.cli.show_task import TaskView
from limpet.conversations import conversation
from limpet.integrations.langgraph import thread
from limpet.integrations.openai_agents import record as run
from limpet.states import state
from limpet.tasks import task
from limpet.views.text import json_document, safe
from limpet.views.transcript import is_chat

__all__ = ["show"]

_VIEWS: dict[str, type[JournalView]] = {
    thread.KIND: ThreadView,
    conversation.KIND: ConversationView,
    run.KIND: ChatView,
    task.KIND: TaskView,
    state.KIND: StateView,
    memory.KIND: MemoryView,
}


@click.command(short_help="Show a conversation, task, state, memory or thread.")
@click.argument("id_", metavar="ID")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the N newest messages, memories or, with --json, checkpoints.",
)
@click.option(
    "--context", is_flag=True, help="The text that a model resumes the task from, and only that."
)
@click.option(
    "--of",
    "source",
    metavar="NAME",
    help="Of a team or a thread, the messages of one agent or channel.",
)
@click.option("--document", is_flag=True, help="The JSON document of an agent or a team.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, nothing shortened.")
@store_options
@pass_store
@audited("opened", "id_")
def show(
    options: StoreOptions,
    *,
    id_: str,
    last: int | None,
    context: bool,
    source: str | None,
    document: bool,
    as_json: bool,
) -> None:
    """Show a conversation as chat, a task with its plan, results and decisions, or a saved state.

    Of an agent or a team of AutoGen, too, who said what, with tools and their results; other states
    are documents. Of a thread of LangGraph, also the other values of its newest checkpoint, what is
    next and what it asks, its forks and the subgraphs in it. Of a memory, by its namespace, all
    that counts now; `limpet memory show` has more of it. ID is an id, or KIND/ID where a
    conversation and a task have the same id.
    """
    with options.open() as store:
        head = find(store, id_)
        kind = head.key.kind
        if context and kind != task.KIND:
            raise click.UsageError(f"--context is for tasks, and {id_!r} is a {kind}.")
        team = kind == state.KIND and is_chat(head) and not document
        if last and (kind == task.KIND or (kind == state.KIND and not team)):
            what = "document" if document else kind
            msg = f"--last is for messages, memories and entries, and {id_!r} is a {what}."
            raise click.UsageError(msg)
        view = (TeamView if team else _VIEWS.get(kind, JournalView))(options, store, head, last)
        if source is not None:
            if not isinstance(view, ChatView):
                raise click.UsageError(f"--of is for teams and threads, and {id_!r} is a {kind}.")
            view.source = source
        if as_json:
            extra = {"context": view.context()} if context else {}
            in_doubt = {"in_doubt": {one.call.id: one.call for one in view.in_doubt()}}
            click.echo(json_document(facts_of(head) | in_doubt | view.data() | extra))
        elif context:
            click.echo(safe(view.context()))
        else:
            screen = Screen()
            view.print_heading(screen)
            view.print_in_doubt(screen)
            view.print(screen)
