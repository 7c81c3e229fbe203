"""What people do to tasks: ``limpet submit``, ``signal``, ``resolve``, ``cancel`` and so on."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Any, NoReturn

import click

from limpet.cli.errors import Missing
from limpet.cli.screen import Screen
from limpet.cli.where import Where, pass_where, store_options
from limpet.core.ids import make_key
from limpet.errors import InvalidId
from limpet.tasks import task

if TYPE_CHECKING:
    from limpet import Store

__all__ = ["COMMANDS"]


class Json(click.ParamType[Any]):
    """A value as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What the text means."""
        try:
            return json.loads(value, parse_constant=_refused)
        except ValueError as error:
            quoted = json.dumps(value, ensure_ascii=False)
            self.fail(f"{value!r} is not JSON ({error}). For a text, write '{quoted}'.", param, ctx)


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


because = click.option("--because", metavar="TEXT", help="Why; it is recorded.")


def _id(store: Store, name: str) -> str:
    """The id that *name* means: an id, or task/ID, as other commands take it."""
    ids = (name, name.removeprefix(f"{task.KIND}/"))
    for id_ in ids:
        try:
            if store.backend.head(make_key(store.tenant, task.KIND, id_)) is not None:
                return id_
        except InvalidId:  # what cannot be an id is not there
            continue
    msg = (
        f"There is no task {name!r} for tenant {store.tenant!r} (or it has expired). "
        "`limpet ls tasks` lists what there is."
    )
    raise Missing(msg)


def _open(where: Where, *, create: bool = False) -> Store:
    return where.open(create=create, readonly=False)


def _say(text: str) -> None:
    Screen().block(text, indent=0)


@click.command(short_help="Submit a task to workers.")
@click.argument("kind", metavar="KIND")
@click.argument("id_", metavar="ID")
@click.option("--goal", metavar="TEXT", required=True, help="What the task is for.")
@click.option("--input", "input_", type=Json(), metavar="JSON", help="What it gets to work on.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long it has; after that it fails.",
)
@store_options
@pass_where
def submit(
    where: Where, *, kind: str, id_: str, goal: str, input_: Any, deadline: float | None
) -> None:
    """Create the task ID, to be run by a worker that has a function for KIND.

    The same once more does nothing. The store is created if need be.
    """
    with _open(where, create=True) as store:
        info = store.submit(kind, id_, goal, input=input_, deadline=deadline)
    _say(f"{info.id} is {info.status}, for a worker that runs {kind!r}.")


@click.command(short_help="Send a signal to a task.")
@click.argument("id_", metavar="TASK")
@click.argument("name", metavar="NAME")
@click.argument("payload", type=Json(), metavar="[JSON]", required=False)
@click.option("--id", "once", metavar="TEXT", help="With the same one again, it is sent once.")
@store_options
@pass_where
def signal(where: Where, *, id_: str, name: str, payload: Any, once: str | None) -> None:
    """Send the signal NAME to TASK, which may wait for it by task.wait_for(NAME).

    What it waits for, `limpet show` says. JSON is what wait_for returns there.
    """
    with _open(where) as store:
        id_ = _id(store, id_)
        store.signal(id_, name, payload, id=once)
    _say(f"Sent {name!r} to {id_}.")


@click.command(short_help="Say what became of a step in doubt.")
@click.argument("id_", metavar="TASK")
@click.argument("step", metavar="STEP")
@click.argument("how", metavar="done|retry|skip", type=click.Choice(["done", "retry", "skip"]))
@click.option("--result", type=Json(), metavar="JSON", help="With done: what the step returned.")
@click.option("--by", metavar="NAME", help="Who says so. [default: your login]")
@store_options
@pass_where
def resolve(where: Where, *, id_: str, step: str, how: str, result: Any, by: str | None) -> None:
    """Say what became of STEP of TASK, which may or may not have happened before a crash.

    done|retry|skip: it happened, and --result is what it returned; or it did not, run it; or go on
    without it.
    """
    if result is not None and how != "done":
        raise click.UsageError(f"--result is for done: a step under {how!r} has none.")
    with _open(where) as store:
        id_ = _id(store, id_)
        store.resolve(id_, step, how, result=result, by=by or _login())
    _say(f"Step {step!r} of {id_}: {how}.")


def _login() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return None


@click.command(short_help="Cancel a task.")
@click.argument("id_", metavar="TASK")
@because
@store_options
@pass_where
def cancel(where: Where, *, id_: str, because: str | None) -> None:
    """Cancel TASK: a worker that runs it stops before its next step, and no other takes it up."""
    with _open(where) as store:
        id_ = _id(store, id_)
        store.cancel(id_, because=because)
    _say(f"Cancelled {id_}.")


@click.command(short_help="Pause a task.")
@click.argument("id_", metavar="TASK")
@because
@store_options
@pass_where
def pause(where: Where, *, id_: str, because: str | None) -> None:
    """Pause TASK: a worker that runs it stops before its next step, until `limpet resume`."""
    with _open(where) as store:
        id_ = _id(store, id_)
        store.pause(id_, because=because)
    _say(f"Paused {id_}.")


@click.command(short_help="Let a paused or failed task go on.")
@click.argument("id_", metavar="TASK")
@store_options
@pass_where
def resume(where: Where, *, id_: str) -> None:
    """Let TASK go on, if it is paused, cancelled or failed: workers take it up again."""
    with _open(where) as store:
        id_ = _id(store, id_)
        store.resume(id_)
    _say(f"{id_} is open again.")


COMMANDS = (submit, signal, resolve, cancel, pause, resume)
