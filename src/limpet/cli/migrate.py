"""``limpet migrate``: bring all saved states of a store to the newest version there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from limpet import Conflict, LimpetError
from limpet.cli.options import (
    FAILED,
    Failure,
    Missing,
    StoreOptions,
    heads,
    json_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen, progress_bar
from limpet.cli.work import import_module
from limpet.core.ids import check_prefix
from limpet.errors import Unreadable
from limpet.states import state
from limpet.states.migrations import Migrations, migrations
from limpet.views.text import count, json_document, safe

if TYPE_CHECKING:
    from limpet import State, StateVersion, Store

__all__ = ["migrate"]

MIGRATED = "migrated"
CURRENT = "current"  # there is nothing newer to bring it to
FORGOTTEN = "forgotten"  # the saves of older versions
OTHER = "other"  # of another type than those asked for
FAILED_TO = "failed"


class Outcome(Struct, frozen=True):
    """What became of one state: its versions before and after, or why it stayed as it was."""

    id: str
    outcome: str
    since: int | None = None
    to: int | None = None
    saves: int = 0
    why: str = ""


@click.command(short_help="Bring saved states to the newest version.")
@click.argument("app", metavar="MODULE")
@click.option("--prefix", default="", metavar="TEXT", help="Only states whose ids begin so.")
@click.option(
    "--type",
    "types",
    metavar="NAME",
    multiple=True,
    help="Only states of this type; give it again for more. [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Run the migrations, and write nothing.")
@click.option(
    "--confirm",
    is_flag=True,
    help="Forget the saves of older versions, of states that were migrated before.",
)
@json_option
@store_options
@pass_store
@click.pass_context
def migrate(
    context: click.Context,
    options: StoreOptions,
    *,
    app: str,
    prefix: str,
    types: tuple[str, ...],
    dry_run: bool,
    confirm: bool,
    as_json: bool,
) -> None:
    """Run the migrations of MODULE over all saved states, and save what they make.

    MODULE is where the functions with @limpet.migration are, as in app.migrations, or with a
    name behind it, as in app:ours, a limpet.Migrations in it; it is looked for in this directory
    first. Each state goes to the highest version that they lead to from its own.

    What was saved before stays in the history of each state until --confirm: run that when the new
    version has proved itself. The command may be interrupted and run again; states that agents
    save meanwhile are named, and the exit code is 1. So it is where a migration fails: that state
    stays as it was, and the others go on.
    """
    known = migrations_of(app)
    report = Report(dry_run=dry_run)
    with options.open(readonly=dry_run) as store:
        # By their heads, and not store.states(), which ends at the first meta that is damaged.
        ids = [head.key.id for head in heads(store, state.KIND, prefix=check_prefix(prefix))]
        if not ids:
            which = f"whose ids begin with {prefix!r} " if prefix else ""
            raise Missing(f"There are no states {which}for tenant {store.tenant!r}.")
        columns = (
            TextColumn("{task.completed:,} of {task.total:,} states"),
            BarColumn(bar_width=None),
            TimeRemainingColumn(compact=True),
        )
        with progress_bar(*columns) as bar:
            job = bar.add_task("", total=len(ids))
            for id_ in ids:
                done = outcome_of(store, id_, known, types, confirm=confirm, dry_run=dry_run)
                report.outcomes.append(done)
                bar.advance(job)
    if not dry_run:
        options.record("migrated", state.KIND, about={"states": len(ids)})
    if as_json:
        click.echo(json_document(report.data()))
    else:
        report.print(Screen())
    context.exit(FAILED if report.of(FAILED_TO) else 0)


def migrations_of(app: str) -> Migrations:
    """What *app* names, as module:name; without a name, all that its module registers."""
    module, _, name = app.partition(":")
    found = getattr(import_module(module), name or "migrations", None)
    if isinstance(found, Migrations):
        return found
    if name:
        kind = "nothing of that name" if found is None else f"a {type(found).__name__}"
        msg = (
            f"{module}:{name} is {kind}, and this needs a limpet.Migrations. For functions with "
            f"@limpet.migration the module is enough: limpet migrate {module}"
        )
        raise Failure(msg)
    if not list(migrations):
        msg = (
            f"The module {module} registers no migrations. They are functions with "
            "@limpet.migration(NAME, FROM, TO), in it or in what it imports."
        )
        raise Failure(msg)
    return migrations


def outcome_of(
    store: Store,
    id_: str,
    known: Migrations,
    types: tuple[str, ...],
    *,
    confirm: bool,
    dry_run: bool,
) -> Outcome:
    """Migrate the state *id_*, or *confirm* that; whatever is wrong with it, the others go on."""
    since: int | None = None
    try:
        saved: State = store.state(id_)
        found: list[StateVersion] = saved.history(last=1)
        if not found:
            msg = (
                "There is no save in it that this release knows. If a newer one wrote it, upgrade."
            )
            raise Unreadable(msg)
        newest = found[-1]
        if newest.damaged:
            saved.at(newest.position, migrate=False)  # which says what is wrong with it
        if types and newest.type not in types:
            return Outcome(id_, OTHER)
        since = newest.version
        names = (id_, newest.type) if newest.type else (id_,)
        opened = store.state(id_, version=known.newest(names, since), migrations=known)
        if confirm:
            return forget_older(store, newest, opened, dry_run=dry_run)
        return migrate_one(newest, opened, dry_run=dry_run)
    except LimpetError as error:
        return Outcome(id_, FAILED_TO, since, why=f"{type(error).__name__}: {error}")


def migrate_one(newest: StateVersion, opened: State, *, dry_run: bool) -> Outcome:
    """Save the newest document again, at the version that *opened* is of."""
    if newest.version == opened.version:
        return Outcome(opened.id, CURRENT, newest.version, newest.version)
    made = opened.load()
    if not dry_run:
        note = f"migrated from version {newest.version}"
        try:
            opened.save(made, note=note, expect=newest.position)
        except Conflict:
            if opened.info().version != opened.version:
                raise
            return Outcome(opened.id, CURRENT, opened.version, opened.version)  # by somebody else
    return Outcome(opened.id, MIGRATED, newest.version, opened.version)


def forget_older(store: Store, newest: StateVersion, opened: State, *, dry_run: bool) -> Outcome:
    """Let go of the saves before the first of the newest version, if that can be read."""
    if newest.version != opened.version:
        why = f"it is still at version {newest.version}: migrate it first"
        return Outcome(opened.id, FAILED_TO, newest.version, why=why)
    opened.load()
    history: list[StateVersion] = opened.history()
    older = [one.position for one in history if one.version < newest.version]
    if not older:
        return Outcome(opened.id, CURRENT, newest.version, newest.version)
    # The first save of a version is a whole copy.
    gone = [one for one in history if one.position <= max(older)]
    if not dry_run:
        store.journal(state.KIND, opened.id).compact(max(older) + 1)
    return Outcome(opened.id, FORGOTTEN, gone[0].version, newest.version, saves=len(gone))


class Report:
    """What became of all of them."""

    def __init__(self, *, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.outcomes: list[Outcome] = []

    def of(self, what: str) -> list[Outcome]:
        """Those that ended so."""
        return [one for one in self.outcomes if one.outcome == what]

    def data(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "dry_run": self.dry_run,
            "ok": not self.of(FAILED_TO),
            "states": [one for one in self.outcomes if one.outcome != OTHER],
        }

    def print(self, screen: Screen) -> None:
        """All of it in words."""
        for one in self.of(MIGRATED):
            screen.line(safe(one.id), (f"  {one.since} → {one.to}", "bold"))
        for one in self.of(FORGOTTEN):
            saves = count(one.saves, "save")
            screen.line(safe(one.id), (f"  {saves} before version {one.to}", "bold"))
        for one in self.of(FAILED_TO):
            since = "" if one.since is None else f", version {one.since}"
            screen.line((f"{safe(one.id)}{since}", "bold red"))
            screen.block(one.why)
        would = "would be " if self.dry_run else ""
        counts = []
        for outcome, words in (
            (MIGRATED, f"{would}migrated"),
            (FORGOTTEN, f"{would}rid of older versions"),
            (CURRENT, "as they are"),
            (OTHER, "of other types"),
            (FAILED_TO, "failed"),
        ):
            number = len(self.of(outcome))
            if number or (outcome == CURRENT and len(self.outcomes) == number):
                counts.append(f"{number:,} {words}")
        screen.line("states: " + ", ".join(counts) + ".")
        if self.of(MIGRATED) and not self.dry_run:
            screen.line(
                "What was saved before is kept until you run this with --confirm.", cut=True
            )
        elif self.dry_run:
            screen.line("Nothing was written.")
