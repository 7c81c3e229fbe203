"""``limpet migrate``: bring all saved states of a store to the newest version there is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from limpet import Conflict, LimpetError, Unreadable
from limpet.cli.errors import FAILED, Failure, Missing
from limpet.cli.screen import Screen
from limpet.cli.text import document, safe
from limpet.cli.where import Where, pass_where, store_options
from limpet.cli.work import imported
from limpet.states import state
from limpet.states.migrations import Migrations, migrations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@store_options
@pass_where
@click.pass_context
def migrate(
    context: click.Context,
    where: Where,
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
    known = _migrations(app)
    report = Report(dry_run=dry_run, confirm=confirm)
    with where.open(readonly=dry_run) as store:
        ids = [info.id for info in store.states(prefix=prefix)]
        if not ids:
            which = f"whose ids begin with {prefix!r} " if prefix else ""
            raise Missing(f"There are no states {which}for tenant {store.tenant!r}.")
        act = _forget if confirm else _migrate
        with _progress(len(ids)) as advance:
            for id_ in ids:
                report.add(_one(store, id_, known, types, lambda *one: act(*one, dry_run=dry_run)))
                advance()
    if as_json:
        click.echo(document(report.data()))
    else:
        report.print(Screen())
    context.exit(FAILED if report.of(FAILED_TO) else 0)


def _migrations(app: str) -> Migrations:
    """What *app* names, as module:name; without a name, all that its module registers."""
    module, _, name = app.partition(":")
    found = getattr(imported(module), name or "migrations", None)
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


def _one(
    store: Store,
    id_: str,
    known: Migrations,
    types: tuple[str, ...],
    act: Callable[[Store, StateVersion, State], Outcome],
) -> Outcome:
    """What becomes of the state *id_*; whatever is wrong with it, the others go on."""
    since: int | None = None
    try:
        newest = _newest(store.state(id_))
        if types and newest.type not in types:
            return Outcome(id_, OTHER)
        since = newest.version
        names = (id_, newest.type) if newest.type else (id_,)
        to = known.newest(names, since)
        return act(store, newest, store.state(id_, version=to, migrations=known))
    except LimpetError as error:
        return Outcome(id_, FAILED_TO, since, why=f"{type(error).__name__}: {error}")


def _newest(saved: State) -> StateVersion:
    """The newest save; an error that says what is wrong with it if it cannot be had."""
    found: list[StateVersion] = saved.history(last=1)
    if not found:
        msg = "There is no save in it that this release knows. If a newer one wrote it, upgrade."
        raise Unreadable(msg)
    if found[-1].damaged:
        saved.at(found[-1].position, migrate=False)
    return found[-1]


def _migrate(_store: Store, newest: StateVersion, opened: State, *, dry_run: bool) -> Outcome:
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


def _forget(store: Store, newest: StateVersion, opened: State, *, dry_run: bool) -> Outcome:
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


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], object]]:
    """What to call for each state that is done: a bar, if somebody is watching."""
    screen = Screen(stderr=True)
    if not screen.terminal:
        yield lambda: None
        return
    columns = (
        TextColumn("{task.completed:,} of {task.total:,} states"),
        BarColumn(bar_width=None),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=screen.console, transient=True, expand=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


class Report:
    """What became of all of them."""

    def __init__(self, *, dry_run: bool, confirm: bool) -> None:
        self.dry_run = dry_run
        self.confirm = confirm
        self.outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """One more."""
        self.outcomes.append(outcome)

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
            saves = "1 save" if one.saves == 1 else f"{one.saves:,} saves"
            screen.line(safe(one.id), (f"  {saves} before version {one.to}", "bold"))
        for one in self.of(FAILED_TO):
            since = "" if one.since is None else f", version {one.since}"
            screen.line((f"{safe(one.id)}{since}", "bold red"))
            screen.block(one.why)
        screen.line("states: " + ", ".join(self._counts()) + ".")
        if self.of(MIGRATED) and not self.dry_run:
            screen.line(
                "What was saved before is kept until you run this with --confirm.", cut=True
            )
        elif self.dry_run:
            screen.line("Nothing was written.")

    def _counts(self) -> Iterator[str]:
        would = "would be " if self.dry_run else ""
        for outcome, words in (
            (MIGRATED, f"{would}migrated"),
            (FORGOTTEN, f"{would}rid of older versions"),
            (CURRENT, "as they are"),
            (OTHER, "of other types"),
            (FAILED_TO, "failed"),
        ):
            count = len(self.of(outcome))
            if count or (outcome == CURRENT and len(self.outcomes) == count):
                yield f"{count:,} {words}"
