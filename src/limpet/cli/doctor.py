"""``limpet doctor``: whether the store is well, down to the last record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec import structs
from rich.text import Text

from limpet import LimpetError
from limpet.cli.options import FAILED, StoreOptions, heads, json_option, message_of, store_options
from limpet.cli.output import Screen
from limpet.conversations import conversation
from limpet.tasks import task
from limpet.tasks.entries import PAUSED
from limpet.transfer.salvage import pause, recount
from limpet.views.doctor import Report, check_journals, diagnosis, index_facts
from limpet.views.text import json_document, safe

if TYPE_CHECKING:
    from limpet import Store

__all__ = ["doctor"]


@click.command(short_help="Check that the store is well.")
@json_option
@click.option(
    "--repair",
    is_flag=True,
    help="First move what is damaged to files beside the journals, and keep the rest. For file: "
    "stores, of all tenants.",
)
@store_options
@click.pass_context
def doctor(context: click.Context, *, as_json: bool, repair: bool) -> None:
    """Check the store: engine, durability, integrity, sizes, and that every record can be read.

    Reads everything and, without --repair, changes nothing. Exit code 1 if anything is not as it
    should be; the advice says what to do. Records are those of one tenant. Tasks over 10 KB are
    named: that is no fault, but most need less.
    """
    options = context.ensure_object(StoreOptions)
    report = Report(options.name, options.tenant)
    try:
        if repair:
            with options.open(readonly=False) as store:
                report.repaired = repair_store(store)
            if report.repaired:
                options.record("repaired", about={"repairs": len(report.repaired)})
        with options.open() as store:
            facts = store.backend.facts(deep=True)
            report.facts = [
                structs.replace(fact, advice=options.in_commands(fact.advice)) for fact in facts
            ]
            check_journals(store, report)
    except LimpetError as error:
        text = f"{type(error).__name__}: {message_of(error)}"
        report.ok, report.error = False, options.in_commands(text)
        if as_json:
            click.echo(json_document(report))
        raise
    report.facts += index_facts()
    report.ok = all(fact.ok for fact in report.facts) and not report.unreadable
    if as_json:
        click.echo(json_document(report))
    else:
        print_report(report, Screen())
    context.exit(0 if report.ok else FAILED)


def repair_store(store: Store) -> list[str]:
    """Repair what the backend can; what was done."""
    repaired = store.backend.repair()
    for tenant, kind in store.backend.kinds() if repaired else ():
        if kind not in (conversation.KIND, task.KIND):
            continue
        theirs = store.as_tenant(tenant)
        for head in heads(theirs, kind):
            lost = store.backend.lost(head.key)
            if not lost:
                continue
            if kind == conversation.KIND:
                # Let its head say how many messages the repair has left.
                recount(theirs, head.key.id)
            elif not was_paused(theirs, head.key.id, lost[-1][1]):
                pause(theirs, head.key.id, lost)
                resume = theirs.scope.command("task", "resume", head.key.id)
                repaired.append(
                    f"Task {head.key.id!r} is paused: a step that was done may run again. Look at "
                    f"what it has, then let it go on: {resume}."
                )
    return repaired


def was_paused(store: Store, id_: str, after: int) -> bool:
    """Whether somebody has looked at what an earlier repair has left of a task."""
    entries = store.journal(task.KIND, id_).read(after=after)
    return any(entry.type == PAUSED for entry in entries)


# -- printing --------------------------------------------------------------------------------------

#: How a line begins, and its style; and the style of the last one.
_MARKS = {"well": ("✓ ", "green"), "wrong": ("✗ ", "bold red"), "note": ("! ", "yellow")}
_VERDICTS = {"well": "bold green", "wrong": "bold red", "note": "bold yellow"}


def print_report(report: Report, screen: Screen) -> None:
    """A line for each thing that was looked at; below what is not well, what to do."""
    found = diagnosis(report)
    width = max(len(one.name) for one in found.findings)
    for one in found.findings:
        text = Text.assemble(_MARKS[one.mark], (f"{one.name:<{width}}  ", "dim"), safe(one.value))
        screen.hanging(text, indent=2 if screen.narrow else width + 4)
        if one.mark != "well":
            screen.block(one.advice, indent=4, first="  →", style="yellow")
    screen.line((found.verdict, _VERDICTS[found.mark]))
