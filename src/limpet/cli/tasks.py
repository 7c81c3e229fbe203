"""``limpet task``, ``in-doubt`` and ``resolve``: what people do about tasks and calls in doubt."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from limpet.cli.options import (
    JSON,
    Ambiguous,
    Commands,
    Failure,
    Missing,
    StoreOptions,
    audited,
    find,
    head_of,
    json_option,
    kinds_of,
    pass_store,
    store_options,
    user_name,
)
from limpet.cli.output import Screen
from limpet.core.calls import calls_in_doubt
from limpet.errors import Unreadable
from limpet.tasks.task import KIND
from limpet.views.text import json_document, one_line, safe, shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet import Store, Task
    from limpet.backends.contract import Head
    from limpet.core.calls import Call

__all__ = ["in_doubt", "print_call", "resolve", "task"]

#: Characters of the error that a call in doubt ended with; ``--json`` has all of it.
ERROR = 160

task_argument = click.argument("id_", metavar="TASK")
because_option = click.option("--because", metavar="TEXT", help="Why; it is recorded.")


@click.group(cls=Commands, short_help="Submit tasks, and say things to them.")
def task() -> None:
    """Submit a task, send it signals, resolve what is in doubt, pause, cancel and resume it.

    None of this needs the task to be free: who works on it finds out before its next step.
    """


def task_id(store: Store, name: str) -> str:
    """The id of the task that *name* means: an id, or task/ID, as other commands take it."""
    for id_ in (name, name.removeprefix(f"{KIND}/")):
        if head_of(store, KIND, id_) is not None:
            return id_
    msg = (
        f"There is no task {name!r} for tenant {store.tenant!r} (or it has expired). "
        "`limpet ls tasks` lists what there is."
    )
    raise Missing(msg)


@task.command(short_help="Submit a task to workers.")
@click.argument("kind", metavar="KIND")
@click.argument("id_", metavar="ID")
@click.option("--goal", metavar="TEXT", required=True, help="What the task is for.")
@click.option("--input", "input_", type=JSON, metavar="JSON", help="What it gets to work on.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long it has; after that it fails.",
)
@store_options
@pass_store
@audited("submitted", "id_", kind="task")
def submit(
    options: StoreOptions, *, kind: str, id_: str, goal: str, input_: Any, deadline: float | None
) -> None:
    """Create the task ID, to be run by a worker that has a function for KIND.

    The same once more does nothing. The store is created if need be.
    """
    with options.open(create=True, readonly=False) as store:
        info = store.submit(kind, id_, goal, input=input_, deadline=deadline)
    Screen().block(f"{info.id} is {info.status}, for a worker that runs {kind!r}.", indent=0)


@task.command(short_help="Send a signal to a task.")
@task_argument
@click.argument("name", metavar="NAME")
@click.argument("payload", type=JSON, metavar="[JSON]", required=False)
@click.option("--id", "once", metavar="TEXT", help="With the same one again, it is sent once.")
@click.option("--any", "any_", is_flag=True, help="Also if the task waits for something else.")
@store_options
@pass_store
@audited("signalled", "id_", kind="task")
def signal(
    options: StoreOptions, *, id_: str, name: str, payload: Any, once: str | None, any_: bool
) -> None:
    """Send the signal NAME to TASK, which may wait for it by task.wait_for(NAME).

    What it waits for, `limpet show` says; while it waits for something else, NAME is refused. JSON
    is what wait_for returns there. A task that does not wait yet finds it when it does.
    """
    with options.open(readonly=False) as store:
        id_ = task_id(store, id_)
        asked: Task = store.task(id_)
        asked.checkpoint()
        state = asked._state  # noqa: SLF001 - what a checkpoint leaves out
        awaited = state.signals_awaited()
        waits = awaited or (list(state.waits) if state.status == "waiting" else [])
        if waits and name not in awaited and not any_:
            names = ", ".join(map(repr, waits))
            msg = (
                f"Task {id_!r} waits for {names}, and not for a signal {name!r}, which was not "
                "sent. To send it all the same, for a later wait, add --any."
            )
            raise Failure(msg)
        store.signal(id_, name, payload, id=once)
    later = "" if name in awaited else " It does not wait for that now."
    Screen().block(f"Sent {name!r} to {id_}.{later}", indent=0)


@task.command(short_help="Cancel a task.")
@task_argument
@because_option
@store_options
@pass_store
@audited("cancelled", "id_", kind="task")
def cancel(options: StoreOptions, *, id_: str, because: str | None) -> None:
    """Cancel TASK: a worker that runs it stops before its next step, and no other takes it up.

    The tasks that are steps of it are cancelled too; `limpet task resume` lets all go on.
    """
    with options.open(readonly=False) as store:
        id_ = task_id(store, id_)
        store.cancel(id_, because=because)
    Screen().block(f"Cancelled {id_}.", indent=0)


@task.command(short_help="Pause a task.")
@task_argument
@because_option
@store_options
@pass_store
@audited("paused", "id_", kind="task")
def pause(options: StoreOptions, *, id_: str, because: str | None) -> None:
    """Pause TASK: a worker that runs it stops before its next step, until `limpet task resume`."""
    with options.open(readonly=False) as store:
        id_ = task_id(store, id_)
        store.pause(id_, because=because)
    Screen().block(f"Paused {id_}.", indent=0)


@task.command(short_help="Let a paused or failed task go on.")
@task_argument
@store_options
@pass_store
@audited("resumed", "id_", kind="task")
def resume(options: StoreOptions, *, id_: str) -> None:
    """Let TASK go on, if it is paused, cancelled or failed: workers take it up again."""
    with options.open(readonly=False) as store:
        id_ = task_id(store, id_)
        store.resume(id_)
    Screen().block(f"{id_} is open again.", indent=0)


# -- calls in doubt --------------------------------------------------------------------------------


@click.command("in-doubt", short_help="List calls that may or may not have happened.")
@json_option
@store_options
@pass_store
def in_doubt(options: StoreOptions, *, as_json: bool) -> None:
    """List the calls that began, and of which nobody knows whether they happened.

    Steps of tasks, tools of conversations, calls of agents: of whatever kind, each with the
    commands that say what became of it. What somebody is just doing is not in doubt.
    """
    with options.open() as store:
        found = store.in_doubt()
    if as_json:
        click.echo(json_document(found))
        return
    if not found:
        screen = Screen(stderr=True)
        screen.line(f"Nothing is in doubt in {options.name} for tenant {options.tenant!r}.")
    screen = Screen()
    for one in found:
        print_call(options, screen, one.kind, one.id, one.call)


def print_call(options: StoreOptions, screen: Screen, kind: str, id_: str, call: Call) -> None:
    """A call in doubt, and the commands by which a person says what became of it.

    They can be pasted. JSON stands for what the call returned; left as it is, it is refused.
    """
    facts = [f"by {call.agent}" if call.agent else "", call.policy]
    facts += [f"attempt {call.attempt}" if call.attempt > 1 else ""]
    facts += [f"it ended with {shorten(one_line(call.error), ERROR)}" if call.error else ""]
    known = " · ".join(safe(fact) for fact in facts if fact)
    name = (f"{kind}/", "dim"), (safe(id_), "bold")
    screen.line(*name, f"  {safe(call.title)}", (f"  {known}" if known else "", "dim"))
    words = shlex.join([f"{kind}/{id_}", call.id])
    for answer in ("done --result JSON", "retry", "skip"):
        screen.verbatim(f"  {options.command(f'resolve {words} {answer}')}")


def resolve_options(command: Callable[..., None]) -> Callable[..., None]:
    """The answer that a person gives, and who gives it."""
    for add in (
        click.option("--by", metavar="NAME", help="Who says so. [default: your login]"),
        click.option("--result", type=JSON, metavar="JSON", help="With done: what it returned."),
        click.argument(
            "how", metavar="done|retry|skip", type=click.Choice(["done", "retry", "skip"])
        ),
    ):
        command = add(command)
    return command


def resolved(
    store: Store, kind: str, id_: str, call: str, *, how: str, result: Any, by: str | None
) -> None:
    """Record what became of a *call* in doubt, by default in the name of whoever is logged in."""
    if result is not None and how != "done":
        raise click.UsageError(f"--result is for done: with {how!r} there is none.")
    store.resolve(id_, call, how, result=result, by=by or user_name(), kind=kind)


def find_in_doubt(store: Store, name: str, call: str) -> Head:
    """The head of what *name* means to whoever resolves *call*: of what has that call in doubt.

    If nothing has, *name* means what it does to other commands; an id alone may be of any kind.
    """

    def is_in_doubt(head: Head) -> bool:
        with suppress(Unreadable):
            return any(one.id == call for one in calls_in_doubt(head))
        return False

    kind, slash, rest = name.partition("/")
    if slash and (named := head_of(store, kind, rest)) is not None and is_in_doubt(named):
        return named
    found = [head for kind in kinds_of(store) if (head := head_of(store, kind, name)) is not None]
    doubtful = [head for head in found if is_in_doubt(head)]
    if len(doubtful) > 1:
        raise Ambiguous(name, [head.key.kind for head in doubtful])
    if doubtful:
        return doubtful[0]
    return found[0] if len(found) == 1 and not slash else find(store, name)


@click.command(short_help="Say what became of a call in doubt.")
@click.argument("name", metavar="ID")
@click.argument("call", metavar="CALL")
@resolve_options
@store_options
@pass_store
@audited("resolved", "name")
def resolve(options: StoreOptions, /, *, name: str, call: str, **answer: Any) -> None:
    """Say what became of CALL of ID, which may or may not have happened before a crash.

    `limpet in-doubt` lists the calls there are. ID is an id, or KIND/ID.

    done|retry|skip: it happened, and --result is what it returned; or it did not, make it; or go on
    without it.
    """
    with options.open(readonly=False) as store:
        head = find_in_doubt(store, name, call)
        resolved(store, head.key.kind, head.key.id, call, **answer)
    text = f"Call {call!r} of {head.key.kind}/{head.key.id}: {answer['how']}."
    Screen().block(text, indent=0)


@task.command("resolve", short_help="Say what became of a step in doubt.")
@task_argument
@click.argument("step", metavar="STEP")
@resolve_options
@store_options
@pass_store
@audited("resolved", "id_", kind="task")
def resolve_step(options: StoreOptions, /, *, id_: str, step: str, **answer: Any) -> None:
    """Say what became of STEP of TASK, which may or may not have happened before a crash.

    done|retry|skip: it happened, and --result is what it returned; or it did not, run it; or go on
    without it. `limpet resolve` does the same for calls of any kind.
    """
    with options.open(readonly=False) as store:
        id_ = task_id(store, id_)
        resolved(store, KIND, id_, step, **answer)
    Screen().block(f"Step {step!r} of {id_}: {answer['how']}.", indent=0)
