"""``limpet import langgraph:…``: the databases of LangGraph's own checkpointers."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from limpet.backends.facts import human_size
from limpet.cli.options import FAILED, Failure
from limpet.cli.output import Screen, progress_bar
from limpet.cli.work import import_module
from limpet.errors import StoreBusy, StoreFull, StoreUnavailable
from limpet.views.text import count, json_document

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from limpet.integrations.langgraph.importing import ImportedThread
    from limpet.store import Store

__all__ = ["import_langgraph"]


def import_langgraph(
    database: str,
    opened: AbstractContextManager[Store],
    *,
    newest: bool,
    allowed: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import the threads of a *database* into a store, and say what became of them."""
    from limpet.integrations.langgraph.importing import import_threads  # noqa: PLC0415 - an extra
    from limpet.integrations.langgraph.sources import open_source  # noqa: PLC0415 - as above

    columns = (
        TextColumn("{task.fields[threads]:,} of {task.fields[all]:,} threads"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True),
    )
    with open_source(database, [named_class(name) for name in allowed]) as source, opened as store:
        report = Report(source.url, store.backend.url, dry_run=dry_run)
        try:
            with progress_bar(*columns) as bar:
                threads, checkpoints = (0, 0) if bar.disable else source.total()
                job = bar.add_task("", total=3 * checkpoints, threads=0, all=threads)
                imported = import_threads(
                    source,
                    store,
                    newest=newest,
                    dry_run=dry_run,
                    progress=lambda steps: bar.advance(job, steps),
                )
                with closing(imported):
                    for number, thread in enumerate(imported, 1):
                        report.add(thread)
                        bar.update(job, threads=number)
        except (StoreUnavailable, StoreBusy, StoreFull) as error:
            again = "What has been imported is safe. Run the same command again to go on."
            raise Failure(f"{error}\n{again}", type(error).__name__) from error
        report.source_size = source.size()
    if as_json:
        click.echo(json_document(report.data()))
    else:
        report.print(Screen())
    click.get_current_context().exit(FAILED if report.problems else 0)


def named_class(text: str) -> tuple[str, str]:
    """The module and name of a class that ``--allow`` names, if it is there."""
    module, colon, name = text.partition(":")
    if not colon or not name:
        raise click.UsageError(f"--allow names a class as MODULE:NAME, and not {text!r}.")
    if not isinstance(getattr(import_module(module), name, None), type):
        raise Failure(f"The module {module} has no class {name!r}.")
    return module, name


class Report:
    """What became of the threads of a checkpointer."""

    def __init__(self, source: str, target: str, *, dry_run: bool) -> None:
        self.source = source
        self.target = target
        self.dry_run = dry_run
        self.source_size = 0
        self.outcomes: Counter[str] = Counter()
        self.checkpoints = self.writes = self.verified = self.size = 0
        self.continued: list[str] = []
        self.problems: list[ImportedThread] = []

    def add(self, thread: ImportedThread) -> None:
        """Count one more thread."""
        self.outcomes[thread.outcome] += 1
        self.checkpoints += thread.checkpoints
        self.writes += thread.writes
        self.verified += thread.verified
        self.size += thread.size
        if thread.outcome == "continued":
            self.continued.append(thread.id)
        if not thread.ok:
            self.problems.append(thread)

    @property
    def not_allowed(self) -> list[str]:
        """The types that were not."""
        return sorted({name for thread in self.problems for name in thread.not_allowed})

    def data(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "from": self.source,
            "to": self.target,
            "dry_run": self.dry_run,
            "ok": not self.problems,
            "threads": dict(self.outcomes),
            "checkpoints": self.checkpoints,
            "writes": self.writes,
            "verified": self.verified,
            "bytes": {"from": self.source_size, "to": self.size},
            "continued": self.continued,
            "not_allowed": self.not_allowed,
            "problems": [
                {
                    "thread": one.id,
                    "outcome": one.outcome,
                    "why": one.why,
                    "not_allowed": one.not_allowed,
                    "damaged": one.damaged,
                }
                for one in self.problems
            ],
        }

    def print(self, screen: Screen) -> None:
        """All of it in words."""
        would = "would be " if self.dry_run else ""
        counts = [
            f"{self.outcomes[outcome]:,} {words}"
            for outcome, words in (
                ("new", f"{would}imported"),
                ("finished", f"{would}finished"),
                ("same", "there already"),
                ("continued", "there already, and continued since"),
                ("differs", "left alone"),
                ("failed", "not imported"),
            )
            if self.outcomes[outcome]
        ]
        amount = f"{count(self.checkpoints, 'checkpoint')}, {count(self.writes, 'pending write')}"
        if self.dry_run:
            rest = f"That is {amount}. Nothing was written."
        else:
            rest = f"{amount} stored; {count(self.verified, 'checkpoint')} verified."
        screen.line(f"threads: {', '.join(counts) or 'none'}. {rest}")
        if self.size and not self.dry_run:
            times = self.source_size / self.size
            # Where threads were left out, there is more in the source than here.
            smaller = times > 1 and not self.problems
            by = f", {times:,.{0 if times >= 10 else 1}f} times smaller" if smaller else ""  # noqa: PLR2004
            sizes = f"{human_size(self.source_size)} there, {human_size(self.size)} of records here"
            screen.line(f"size: {sizes}{by}.")
        for title, style, lines in (
            (
                "Continued here since they were imported, and left alone:",
                "bold",
                [f"thread/{id_}" for id_ in self.continued],
            ),
            (
                "Left alone; to have one imported anew, delete it here:",
                "bold red",
                [f"thread/{one.id}: {one.why}" for one in self._which("differs") if one.why],
            ),
            (
                "Not imported:",
                "bold red",
                [f"thread/{one.id}: {one.why}" for one in self._which("failed") if one.why],
            ),
            (
                "Left out; these cannot be read:",
                "bold red",
                [f"thread/{one.id}: {why}" for one in self.problems for why in one.damaged],
            ),
            (
                "Not imported; they have values of types that are not allowed:",
                "bold red",
                [
                    f"thread/{one.id}: {', '.join(one.not_allowed)}"
                    for one in self.problems
                    if one.not_allowed
                ],
            ),
        ):
            if lines:
                screen.line((title, style))
            for line in lines:
                screen.block(line)
        if self.not_allowed:
            screen.line("If it does no harm to make objects of them, run it again with")
            screen.verbatim("  " + " ".join(f"--allow {name}" for name in self.not_allowed))

    def _which(self, outcome: str) -> list[ImportedThread]:
        return [one for one in self.problems if one.outcome == outcome]
