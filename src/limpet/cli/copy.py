"""``limpet copy``: all of a store to another one, of the same kind or not."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from limpet.backends.facts import human_size
from limpet.backends.url import DEFAULT_TENANT, connect
from limpet.cli.errors import FAILED, Failure, Missing
from limpet.cli.screen import Screen
from limpet.cli.text import document
from limpet.cli.where import Where
from limpet.errors import StoreBusy, StoreFull, StoreNotFound, StoreUnavailable
from limpet.transfer import copy as copying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Backend, Key
    from limpet.transfer.copy import Copied

__all__ = ["copy"]


@click.command(short_help="Copy a store to another one.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--tenant",
    "tenants",
    metavar="NAME",
    multiple=True,
    help="Only this tenant's; give it again for more. [default: all]",
)
@click.option(
    "--kind",
    "kinds",
    metavar="KIND",
    multiple=True,
    help="Only this kind (conversation, task, ...); give it again for more. [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Say what would be copied, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def copy(
    context: click.Context,
    *,
    source: str,
    target: str,
    tenants: tuple[str, ...],
    kinds: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Copy everything in the store FROM to the store TO, and verify it.

    Both are a file or a URL, of any kind of store: so a program moves from SQLite to PostgreSQL,
    and back. TO is created if need be, FROM is only read. Entries keep their numbers, times and
    ids, journals their status, labels and time to live. Leases are not copied.

    It may be interrupted: the same command goes on where it was. Run it again, too, to catch up
    with what was written to FROM meanwhile. What is already in TO is never overwritten: a journal
    that is not a copy of FROM's, or has gone on by itself, is named and left alone, and the exit
    code is 1.
    """
    tenants = (*tenants, *_told_before(context))
    for url in (source, target):
        if url == "memory:":
            raise click.UsageError("A memory: store ends with its process; there is none to copy.")
    report = Report(source, target, dry_run=dry_run)
    with _opened(source, target, dry_run=dry_run) as (old, new):
        with _progress(old, tenants, kinds) as (advance, done):
            journals = copying.copy(
                old, new, tenants=tenants, kinds=kinds, dry_run=dry_run, progress=advance
            )
            with closing(journals):
                for journal in journals:
                    report.add(journal)
                    done()
        report.source, report.target = old.url, new.url if new else target
    if not report.outcomes and (tenants or kinds):
        raise Missing(f"{report.source} has nothing of that tenant or kind.")
    if as_json:
        click.echo(document(report.data()))
    else:
        report.print(Screen())
    context.exit(FAILED if report.problems else 0)


def _told_before(context: click.Context) -> tuple[str, ...]:
    """The tenant, if it was named before the command. A store cannot be."""
    where = context.ensure_object(Where)
    if where.store is not None:
        raise click.UsageError("copy takes its two stores as FROM and TO, not by --store.")
    parent = context.parent
    source = parent.get_parameter_source("tenant") if parent else None
    return (where.tenant,) if source is click.core.ParameterSource.COMMANDLINE else ()


@contextmanager
def _opened(source: str, target: str, *, dry_run: bool) -> Iterator[tuple[Backend, Backend | None]]:
    """Both stores; in a dry run, None for one that would be created."""
    try:
        old = connect(source, create=False, readonly=True)
    except StoreNotFound as error:  # whose usual hint speaks of --store
        raise Failure(str(error), type(error).__name__) from error
    try:
        new: Backend | None = None
        try:
            new = connect(target, **({"create": False, "readonly": True} if dry_run else {}))
        except StoreNotFound:
            if not dry_run:
                raise
        try:
            yield old, new
        except (StoreUnavailable, StoreBusy, StoreFull) as error:
            again = "What has been copied is safe. Run the same command again to go on."
            raise Failure(f"{error}\n{again}", type(error).__name__) from error
        finally:
            if new is not None:
                new.close()
    finally:
        old.close()


@contextmanager
def _progress(
    source: Backend, tenants: tuple[str, ...], kinds: tuple[str, ...]
) -> Iterator[tuple[Callable[[float], object] | None, Callable[[], object]]]:
    """What to tell of bytes and of journals that are done: a bar, if somebody is watching."""
    screen = Screen(stderr=True)
    if not screen.terminal:
        yield None, lambda: None
        return
    found = copying.survey(source, tenants=tenants, kinds=kinds)
    columns = (
        TextColumn("{task.fields[journals]:,} of {task.fields[all]:,} journals"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=screen.console, transient=True, expand=True) as bar:
        task = bar.add_task("", total=found.size, journals=0, all=found.journals)

        def one_more() -> None:
            bar.update(task, journals=bar.tasks[task].fields["journals"] + 1)

        yield (lambda size: bar.advance(task, size)), one_more


class Report:
    """What was copied, and what was not."""

    def __init__(self, source: str, target: str, *, dry_run: bool) -> None:
        self.source = source
        self.target = target
        self.dry_run = dry_run
        self.outcomes: Counter[str] = Counter()
        self.records = self.entries = self.size = self.verified = 0
        self.moved: list[Copied] = []
        self.held: list[Copied] = []
        self.problems: list[Copied] = []

    def add(self, journal: Copied) -> None:
        """Count one more journal."""
        self.outcomes[journal.outcome] += 1
        self.records += journal.records
        self.entries += journal.entries
        self.size += journal.size
        self.verified += journal.verified
        for journals, is_so in (
            (self.moved, journal.moved),
            (self.held, journal.held_by),
            (self.problems, not journal.ok),
        ):
            if is_so:
                journals.append(journal)

    def data(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "from": self.source,
            "to": self.target,
            "dry_run": self.dry_run,
            "ok": not self.problems,
            "journals": dict(self.outcomes),
            "records": self.records,
            "entries": self.entries,
            "size": self.size,
            "verified": self.verified,
            "moved": [_facts(one) for one in _sorted(self.moved)],
            "held": [_facts(one) | {"held_by": one.held_by} for one in _sorted(self.held)],
            "problems": [
                _facts(one) | {"outcome": one.outcome, "why": one.why}
                for one in _sorted(self.problems)
            ],
        }

    def print(self, screen: Screen) -> None:
        """All of it in words."""
        screen.line(*self._summary())
        self._list(
            screen,
            "Still written to in FROM; copy again to catch up:",
            [(_name(one.key), "") for one in _sorted(self.moved)],
        )
        self._list(
            screen,
            "Being worked on in FROM; the right to do so is not copied:",
            [(_name(one.key), f"by {one.held_by}") for one in _sorted(self.held)],
        )
        for outcome, title in (
            (
                copying.DIFFERS,
                "what TO has was left alone. To have one copied anew, delete it in TO:",
            ),
            (copying.FAILED, "could not be read, or not be written:"),
        ):
            found = [one for one in _sorted(self.problems) if one.outcome == outcome]
            rows = [(_name(one.key), one.why) for one in found]
            self._list(screen, f"Not copied; {title}", rows, style="bold red")

    def _summary(self) -> Iterator[str | tuple[str, str]]:
        said = (
            ("would be copied", "would be continued") if self.dry_run else ("copied", "continued")
        )
        counts = [
            f"{self.outcomes[outcome]:,} {words}"
            for outcome, words in (
                (copying.NEW, said[0]),
                (copying.CONTINUED, said[1]),
                (copying.SAME, "there already"),
                (copying.GONE, "gone meanwhile"),
            )
            if self.outcomes[outcome]
        ]
        yield "journals: " + (", ".join(counts) or "none") + ". "
        entries = "1 entry" if self.entries == 1 else f"{self.entries:,} entries"
        if self.dry_run:
            yield f"That is {entries}. Nothing was written."
        else:
            yield f"{entries} ({human_size(self.size)}) copied, "
            yield f"{self.verified:,} verified."

    @staticmethod
    def _list(
        screen: Screen, title: str, rows: list[tuple[str, str]], *, style: str = "bold"
    ) -> None:
        if rows:
            screen.line((title, style))
        for name, text in rows:
            screen.block(f"{name}: {text}" if text else name)


def _sorted(journals: list[Copied]) -> list[Copied]:
    return sorted(journals, key=lambda journal: journal.key)


def _facts(journal: Copied) -> dict[str, Any]:
    return dict(journal.key._asdict())


def _name(key: Key) -> str:
    name = f"{key.kind}/{key.id}"
    return name if key.tenant == DEFAULT_TENANT else f"{name} (tenant {key.tenant})"
