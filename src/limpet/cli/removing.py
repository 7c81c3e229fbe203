"""``limpet delete``, ``expire`` and ``sweep``: what is to go, at once or later."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from limpet.backends.contract import from_micros
from limpet.backends.facts import human_size
from limpet.cli.errors import Failure, Missing
from limpet.cli.listing import AGE, entries, facts_of, holder
from limpet.cli.screen import Screen
from limpet.cli.text import document, safe, stamp
from limpet.cli.where import KINDS, Where, find, heads, pass_where, store_options
from limpet.conversations import conversation
from limpet.core.leases import is_dead
from limpet.memory import KIND as MEMORY
from limpet.states import state
from limpet.tasks import task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from limpet import Store
    from limpet.backends.contract import Head

__all__ = ["delete", "expire", "sweep"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _noun(store: Store, head: Head) -> Any:
    """What *head* is of, as programs have it."""
    nouns: dict[str, Any] = {
        conversation.KIND: store.conversation,
        task.KIND: store.task,
        state.KIND: store.state,
    }
    made = nouns.get(head.key.kind)
    return made(head.key.id) if made else store.journal(head.key.kind, head.key.id)


def _name(head: Head) -> str:
    return safe(f"{head.key.kind}/{head.key.id}")


# -- delete ----------------------------------------------------------------------------------------


@click.command(short_help="Remove conversations, tasks and states.")
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@click.option("--yes", "-y", "sure", is_flag=True, help="Do not ask.")
@json_option
@store_options
@pass_where
def delete(where: Where, *, names: tuple[str, ...], sure: bool, as_json: bool) -> None:
    """Remove what is under ID..., for good, after asking.

    ID is an id, or KIND/ID where several things have the same one. With --yes, 'order-*' means
    every conversation, task and state whose id begins so. If one of them is not there, or is a task
    that somebody works on, nothing goes at all. Memories go by `limpet memory forget`, and then
    memory/NAMESPACE can.
    """
    with where.open(readonly=False) as store:
        found = {head.key: head for name in names for head in _meant(store, name, sure=sure)}
        going = list(found.values())
        _check(going)
        if not sure:
            click.confirm(_question(going), abort=True, err=True)
        gone = [head for head in going if _noun(store, head).delete()]
    if as_json:
        click.echo(document([facts_of(head) for head in gone]))
    else:
        _say_gone(going, gone, Screen())


def _meant(store: Store, name: str, *, sure: bool) -> Iterable[Head]:
    try:
        return [find(store, name)]
    except Missing:
        if not name.endswith("*"):
            raise
        if not sure:
            msg = f"{name!r} may be many things. Look at them with ls --prefix, then say --yes."
            raise click.UsageError(msg) from None
        found = list(_beginning(store, name[:-1]))
        if not found:
            raise
        return found


def _beginning(store: Store, name: str) -> Iterator[Head]:
    """All whose id begins with *name*, of one kind if it says which."""
    kind, slash, rest = name.partition("/")
    if slash and kind in KINDS:
        yield from heads(store, kind, prefix=rest)
    else:
        for noun in KINDS:
            yield from heads(store, noun, prefix=name)


def _check(going: Sequence[Head]) -> None:
    for head in going:
        if head.key.kind == MEMORY and head.seq > (head.first - 1):
            msg = f"Memories go by `limpet memory forget {shlex.quote(head.key.id)} --all`."
            raise Failure(f"{_name(head)} is a namespace of memories. {msg} Nothing was removed.")
        if head.lease and not is_dead(head.lease.holder):
            msg = (
                f"{_name(head)} is worked on by {holder(head)}, until "
                f"{stamp(from_micros(head.lease.until))} at least, and nothing was removed. "
                f"`limpet cancel {shlex.quote(head.key.id)}` stops it before its next step."
            )
            raise Failure(msg, "TaskHeld")


def _question(going: Sequence[Head]) -> str:
    told = [f"{_name(head)} ({entries(head)}, {human_size(head.size)})" for head in going]
    if len(told) == 1:
        return f"Remove {told[0]} for good?"
    return "\n".join([*told, f"Remove these {len(told):,} for good?"])


def _say_gone(going: Sequence[Head], gone: Sequence[Head], screen: Screen) -> None:
    for head in going:
        if head in gone:
            facts = f" ({entries(head)}, {human_size(head.size)})"
            screen.line("removed ", (_name(head), "bold"), (facts, "dim"))
        else:
            screen.line((_name(head), "bold"), " was gone already")


# -- expire ----------------------------------------------------------------------------------------


class _Life(click.ParamType[float | None]):
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
@click.argument("life", metavar="AGE|never", type=_Life())
@json_option
@store_options
@pass_where
def expire(where: Where, *, name: str, life: float | None, as_json: bool) -> None:
    """Let what is under ID end so long from now, and from each time that it is added to.

    AGE|never is 30d, 12h, 90min and the like, or the word never. ID is an id, or KIND/ID where
    several things have the same one. A task does not end while somebody works on it.
    """
    with where.open(readonly=False) as store:
        head = find(store, name)
        if head.key.kind in KINDS:
            _noun(store, head).expire(life)
        else:
            store.journal(head.key.kind, head.key.id).append(ttl=life)
        after = store.backend.head(head.key)
    if as_json:
        click.echo(document(None if after is None else facts_of(after)))
    else:
        Screen().line((_name(head), "bold"), f" {_end(after)}")


def _end(head: Head | None) -> str:
    if head is None:
        return "has expired, and is gone"
    if head.expires_at is None:
        return "never expires"
    return f"expires at {stamp(head.expires_at)}, unless it is added to"


# -- sweep -----------------------------------------------------------------------------------------


@click.command(short_help="Free the room of what has expired.")
@json_option
@store_options
@pass_where
def sweep(where: Where, *, as_json: bool) -> None:
    """Free the room of what has expired, of all tenants.

    It is gone for readers already; servers with a time to live of their own free much of it by
    themselves. Run it now and then, from cron for instance.
    """
    with where.open(readonly=False) as store:
        count = store.sweep()
    if as_json:
        click.echo(document({"swept": count}))
    else:
        click.echo(f"Freed the room of {count:,} that had expired." if count else "Nothing to do.")
