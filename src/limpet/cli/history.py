"""``limpet history``: the versions of a task, state, conversation or thread, and what changed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from limpet.cli.options import (
    StoreOptions,
    audited,
    find,
    head_of,
    json_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen
from limpet.core.runtime import run_to_end
from limpet.errors import NotFound, Unreadable
from limpet.integrations.langgraph import thread
from limpet.views.diff import diff_lines, diff_view
from limpet.views.text import json_document, safe
from limpet.views.versions import (
    KINDS,
    Version,
    find_version,
    last_two,
    versions_page,
)

if TYPE_CHECKING:
    from limpet import Store
    from limpet.backends.contract import Head

__all__ = ["history"]

#: Versions of one page of the view, where all are printed.
PAGE = 1_000

_COLOURS = {"-": "red", "+": "green", "~": "yellow", "@": "dim"}


@click.command(short_help="Print the versions of something, or compare two.")
@click.argument("id_", metavar="ID")
@click.argument("a", metavar="[A]", required=False)
@click.argument("b", metavar="[B]", required=False)
@click.option("--diff", is_flag=True, help="Print what changed from version A to version B.")
@click.option(
    "-n", "last", type=click.IntRange(min=1), metavar="N", help="Only the N newest. [default: all]"
)
@json_option
@store_options
@pass_store
@audited("opened", "id_")
def history(
    options: StoreOptions,
    *,
    id_: str,
    a: str | None,
    b: str | None,
    diff: bool,
    last: int | None,
    as_json: bool,
) -> None:
    """Print what happened to a task, the saves of a state, or the entries of a conversation.

    One line each: number, time, what. The numbers are what --diff takes, and in a program
    task.versions.at(), .fork() and .rewind(), restore() of a state, or fork() of a conversation.
    Of a thread of LangGraph it is the checkpoints: the step, the nodes that ran, what they changed,
    and the id, which get_state() takes. What is not on the line of the newest is marked as a fork.

    With --diff, compare version A with B; without B, with the newest; without A, the last two with
    each other. What was taken away has a -, what was added a +, and what has another place in a
    plan a ~. A checkpoint may be named by its id too, or by a beginning that no other has.

    ID is an id, or KIND/ID. Where several have the same id, the task is meant, else the state, else
    the conversation.
    """
    if a is not None and not diff:
        raise click.UsageError("The numbers of versions are for --diff.")
    if last is not None and diff:
        raise click.UsageError("-n is for the list; --diff takes the numbers of two versions.")
    with options.open() as store:
        named = id_.partition("/")[0] in KINDS
        found = [] if named else [head_of(store, kind, id_) for kind in KINDS]
        head = next((one for one in found if one is not None), None) or find(store, id_)
        if head.key.kind not in KINDS:
            raise click.UsageError(f"{id_!r} is a {head.key.kind}, which has no versions.")
        if diff:
            print_diff(store, head, a, b, as_json=as_json)
        else:
            print_versions(store, head, last, as_json=as_json)


def print_versions(store: Store, head: Head, last: int | None, *, as_json: bool) -> None:
    """Each version on a line, or all as JSON; the newest last."""
    scope, found, before = store.scope.as_sync(), list[Version](), None
    while last is None or len(found) < last:
        limit = PAGE if last is None else last - len(found)
        page = run_to_end(versions_page(scope, head, before=before, limit=limit, whole=True))
        found += page.versions
        before = page.older
        if before is None:
            break
    found.reverse()
    if as_json:
        click.echo(json_document([_data(one, head.key.kind) for one in found]))
    else:
        screen = Screen()
        for one in found:
            at = "" if one.at is None else screen.time(one.at)
            screen.line((f"{one.number:>5}  {at}  ", "dim"), safe(one.what), cut=True)
    unreadable = [one.what for one in found if one.damaged and one.facts is None]
    if unreadable:
        raise Unreadable("\n".join(unreadable))


def _data(version: Version, kind: str) -> Any:
    if version.facts is not None:
        return version.facts
    if kind == thread.KIND:
        return {"number": version.number, "id": version.name, "at": version.at}
    return {"seq": version.number, "at": version.at, "what": version.what}


def print_diff(store: Store, head: Head, a: str | None, b: str | None, *, as_json: bool) -> None:
    """What changed from version *a* to version *b*; by default, between the last two."""
    scope, kind, id_ = store.scope.as_sync(), head.key.kind, head.key.id
    try:
        if a is None:
            numbers = run_to_end(last_two(scope, head, whole=True))
            if len(numbers) < 2:  # noqa: PLR2004 - it takes two to compare
                raise click.UsageError(f"{kind}/{id_} has one version only: nothing to compare.")
        else:
            numbers = [run_to_end(find_version(scope, head, a))]
            if b is not None:
                numbers.append(run_to_end(find_version(scope, head, b)))
            else:
                numbers.append(
                    run_to_end(last_two(scope, head, whole=True))[-1]
                    if kind == thread.KIND
                    else head.seq
                )
    except NotFound as error:
        listed = f"`limpet history {shlex.quote(id_)}` lists them."
        raise click.UsageError(f"{error} {listed}") from error
    found = run_to_end(diff_view(scope, head, *numbers, whole=True))
    lines = diff_lines(found)
    if as_json:
        about = {"kind": kind, "id": id_, "from": found.a, "to": found.b}
        changes = [
            {"path": one.path, "mark": one.mark, "before": one.before, "after": one.after}
            | ({"note": one.note} if one.note else {})
            for one in found.changes
        ]
        click.echo(json_document(about | {"changes": changes, "diff": "\n".join(lines)}))
        return
    screen = Screen()
    for line in safe("\n".join(lines)).split("\n"):
        indent = 4 if line.startswith("  ") else 0
        style = _COLOURS.get(line.lstrip()[:1], "" if indent else "bold")
        screen.hanging(Text(line, style), indent=indent)
