"""``limpet delete``, ``expire`` and ``sweep``: what is to go, at once or later."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from limpet.backends.contract import from_micros
from limpet.backends.facts import human_size
from limpet.cli.ls import entries, facts_of, holder
from limpet.cli.options import (
    AGE,
    KINDS,
    Failure,
    Missing,
    StoreOptions,
    audited,
    find,
    heads,
    json_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen
from limpet.conversations import conversation
from limpet.core.leases import is_dead
from limpet.integrations.langgraph import thread
from limpet.memory import KIND as MEMORY
from limpet.states import state
from limpet.tasks import task
from limpet.views.text import json_document, safe, timestamp

if TYPE_CHECKING:
    from limpet import Store
    from limpet.backends.contract import Head

__all__ = ["delete", "expire", "sweep"]


def model_of(store: Store, head: Head) -> Any:
    """What *head* is of, as programs have it."""
    models: dict[str, Any] = {
        conversation.KIND: store.conversation,
        task.KIND: store.task,
        state.KIND: store.state,
    }
    model = models.get(head.key.kind)
    return model(head.key.id) if model else store.journal(head.key.kind, head.key.id)


def name_of(head: Head) -> str:
    return safe(f"{head.key.kind}/{head.key.id}")


# -- delete ----------------------------------------------------------------------------------------


@click.command(short_help="Remove conversations, tasks, states and threads.")
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@click.option("--yes", "-y", "sure", is_flag=True, help="Do not ask.")
@json_option
@store_options
@pass_store
@audited("deleted", "names")
def delete(options: StoreOptions, *, names: tuple[str, ...], sure: bool, as_json: bool) -> None:
    """Remove what is under ID..., for good, after asking.

    ID is an id, or KIND/ID where several things have the same one. With --yes, 'order-*' means
    every conversation, task, state and thread whose id begins so. If one of them is not there, or
    is one that somebody works on, nothing goes at all. A thread takes along what is recorded
    of its effects. Memories go by `limpet memory forget`, and then memory/NAMESPACE can.
    """
    with options.open(readonly=False) as store:
        found = {head.key: head for name in names for head in matching(store, name, sure=sure)}
        for key in [key for key in found if key.kind == thread.KIND]:
            effects = store.backend.head(key._replace(kind=thread.EFFECTS))
            if effects is not None:  # what a thread has done goes with it
                found[effects.key] = effects
        for head in found.values():
            check_removable(head)
        facts = {key: f"{entries(head)}, {human_size(head.size)}" for key, head in found.items()}
        if not sure:
            lines = [f"{name_of(head)} ({facts[key]})" for key, head in found.items()]
            question = (
                f"Remove {lines[0]} for good?"
                if len(lines) == 1
                else "\n".join([*lines, f"Remove these {len(lines):,} for good?"])
            )
            click.confirm(question, abort=True, err=True)
        gone = [head for head in found.values() if model_of(store, head).delete()]
    if as_json:
        click.echo(json_document([facts_of(head) for head in gone]))
        return
    screen = Screen()
    for key, head in found.items():
        if head in gone:
            screen.line("removed ", (name_of(head), "bold"), (f" ({facts[key]})", "dim"))
        else:
            screen.line((name_of(head), "bold"), " was gone already")


def matching(store: Store, name: str, *, sure: bool) -> list[Head]:
    """What *name* means; if it ends in ``*``, all whose ids begin so."""
    try:
        return [find(store, name)]
    except Missing:
        if not name.endswith("*"):
            raise
        if not sure:
            msg = f"{name!r} may be many things. Look at them with ls --prefix, then say --yes."
            raise click.UsageError(msg) from None
        kind, slash, rest = name[:-1].partition("/")
        named = slash and kind in KINDS
        kinds, prefix = ((kind,), rest) if named else (KINDS, name[:-1])
        found = [head for one in kinds for head in heads(store, one, prefix=prefix)]
        if not found:
            raise
        return found


def check_removable(head: Head) -> None:
    """Refuse memories, which are forgotten another way, and what somebody works on."""
    if head.key.kind == MEMORY and head.seq >= head.first:
        msg = f"Memories go by `limpet memory forget {shlex.quote(head.key.id)} --all`."
        raise Failure(f"{name_of(head)} is a namespace of memories. {msg} Nothing was removed.")
    if head.lease and not is_dead(head.lease.holder):
        msg = (
            f"{name_of(head)} is worked on by {holder(head)}, until "
            f"{timestamp(from_micros(head.lease.until))} at least, and nothing was removed."
        )
        if head.key.kind == thread.KIND:
            raise Failure(msg, "LeaseHeld")
        stop = f"`limpet task cancel {shlex.quote(head.key.id)}` stops it before its next step."
        raise Failure(f"{msg} {stop}", "TaskHeld")


# -- expire ----------------------------------------------------------------------------------------


class TimeToLive(click.ParamType[float | None]):
    """How long, or never."""

    name = "AGE|never"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        """Seconds; None for never."""
        seconds = None if value == "never" else AGE.convert(value, param, ctx)
        if seconds == 0:
            self.fail("What is to go at once is for `limpet delete`.", param, ctx)
        return seconds


@click.command(short_help="Let something end by itself, or never.")
@click.argument("name", metavar="ID")
@click.argument("ttl", metavar="AGE|never", type=TimeToLive())
@json_option
@store_options
@pass_store
@audited("changed the expiry", "name")
def expire(options: StoreOptions, *, name: str, ttl: float | None, as_json: bool) -> None:
    """Let what is under ID end so long from now, and from each time that it is added to.

    AGE|never is 30d, 12h, 90min and the like, or the word never. ID is an id, or KIND/ID where
    several things have the same one. A task does not end while somebody works on it.
    """
    with options.open(readonly=False) as store:
        head = find(store, name)
        if head.key.kind in KINDS:
            model_of(store, head).expire(ttl)
        else:
            store.journal(head.key.kind, head.key.id).append(ttl=ttl)
        after = store.backend.head(head.key)
    if as_json:
        click.echo(json_document(None if after is None else facts_of(after)))
        return
    if after is None:
        end = "has expired, and is gone"
    elif after.expires_at is None:
        end = "never expires"
    else:
        end = f"expires at {timestamp(after.expires_at)}, unless it is added to"
    Screen().line((name_of(head), "bold"), f" {end}")


# -- sweep -----------------------------------------------------------------------------------------


@click.command(short_help="Free the room of what has expired.")
@json_option
@store_options
@pass_store
@audited("swept")
def sweep(options: StoreOptions, *, as_json: bool) -> None:
    """Free the room of what has expired, of all tenants.

    It is gone for readers already; servers with a time to live of their own free much of it by
    themselves. Run it now and then, from cron for instance.
    """
    with options.open(readonly=False) as store:
        swept = store.sweep()
    if as_json:
        click.echo(json_document({"swept": swept}))
    else:
        click.echo(f"Freed the room of {swept:,} that had expired." if swept else "Nothing to do.")
