"""``limpet doctor``: whether the store is well, down to the last record."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click
from msgspec import Struct, field, structs
from rich.text import Text

from limpet import Codec, Conflict, LimpetError, StoreError
from limpet.backends.contract import from_micros
from limpet.backends.facts import Fact, human_size
from limpet.cli.errors import FAILED, said
from limpet.cli.screen import Screen
from limpet.cli.text import document, safe
from limpet.cli.where import Where, heads, store_options
from limpet.conversations import conversation
from limpet.conversations.transcript import ConversationMeta
from limpet.core.index_files import cached
from limpet.core.journal import Entry
from limpet.states import state
from limpet.states.format import SaveChecker
from limpet.tasks import task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet import Store
    from limpet.backends.contract import Backend, Head, Record

__all__ = ["doctor"]

PAGE = 500

#: Stored bytes over which a task is named, and how many of the largest are.
LARGE = 10_000
LARGEST = 10

ADVICE = (
    "Copy the store away before anything else, then restore these from a backup. "
    "Everything else can be read."
)
TAKEN = (
    "The newest save goes back to entries that a repair took out, and cannot be given. Save the "
    "state anew, or restore(position) an earlier one."
)
SLIM = (
    "Resuming a task reads all of it. Large results are kept by reference and do not count; plans, "
    "progress, decisions and many small results do. Keep those short, delete tasks that are done "
    "or give them a ttl, and let a fork go on from where it matters."
)


class Problem(Struct, frozen=True):
    """Something in a journal that is not as it was written: where, and what."""

    journal: str
    seq: int
    problem: str


class Weight(Struct, frozen=True):
    """A task that is large, and how large."""

    journal: str
    size: int


class Report(Struct):
    """What was found. ``error`` is set where the store could not even be opened."""

    store: str
    tenant: str
    ok: bool = True
    error: str | None = None
    repaired: list[str] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    journals: int = 0
    records: int = 0
    entries: int = 0
    unreadable: list[Problem] = field(default_factory=list)
    large: int = 0
    largest: list[Weight] = field(default_factory=list)


@click.command(short_help="Check that the store is well.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
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
    where = context.ensure_object(Where)
    report = Report(where.name, where.tenant)
    try:
        if repair:
            _repair(where, report)
        with where.open() as store:
            _examine(store, report, where)
    except LimpetError as error:
        report.ok, report.error = False, where.told(f"{type(error).__name__}: {said(error)}")
        if as_json:
            click.echo(document(report))
        raise
    if as_json:
        click.echo(document(report))
    else:
        _print(report, Screen())
    context.exit(0 if report.ok else FAILED)


# -- repairing -------------------------------------------------------------------------------------


def _repair(where: Where, report: Report) -> None:
    with where.open(readonly=False) as store:
        report.repaired = store.backend.repair()
        for tenant, kind in store.backend.kinds() if report.repaired else ():
            if kind == conversation.KIND:
                _recount(store.as_tenant(tenant))


def _recount(store: Store) -> None:
    """Let the heads of conversations say how many messages a repair has left."""
    for head in heads(store, conversation.KIND):
        if store.backend.lost(head.key):
            left = len(store.conversation(head.key.id).messages())
            meta = ConversationMeta.of(head).with_length(head.seq, left)
            with suppress(Conflict):  # somebody uses it meanwhile, and may be given a wrong length
                journal = store.journal(conversation.KIND, head.key.id)
                journal.append(expect=head.expect, meta=meta.encode())


# -- looking ---------------------------------------------------------------------------------------


def _examine(store: Store, report: Report, where: Where) -> None:
    facts = store.backend.facts(deep=True)
    report.facts = [structs.replace(fact, advice=where.told(fact.advice)) for fact in facts]
    report.facts += _cache()
    for kind in _kinds(store, report):
        try:
            for head in heads(store, kind):
                report.journals += 1
                _weigh(head, report)
                report.unreadable += _check(store.backend, head, report)
        except StoreError as error:
            report.unreadable.append(Problem(f"{kind}/…", 0, f"They cannot be listed: {error}"))
    report.ok = all(fact.ok for fact in report.facts) and not report.unreadable


def _cache() -> Iterator[Fact]:
    """What this user has on this machine of any store, beside the store itself."""
    found = cached()
    if found is not None:
        indexes = "1 index" if found.indexes == 1 else f"{found.indexes:,} indexes"
        stores = "1 store" if found.stores == 1 else f"{found.stores:,} stores"
        told = f"{found.directory}: {indexes} of {stores}, {human_size(found.size)}"
        gone = f"; {found.gone:,} of them gone, which the next new index removes"
        yield Fact("search cache", told + (gone if found.gone else ""))


def _weigh(head: Head, report: Report) -> None:
    """Note a task that is large, by its head alone."""
    if head.key.kind == task.KIND and head.size > LARGE:
        report.large += 1
        found = [*report.largest, Weight(f"{task.KIND}/{head.key.id}", head.size)]
        report.largest = sorted(found, key=lambda weight: -weight.size)[:LARGEST]


def _kinds(store: Store, report: Report) -> list[str]:
    try:
        return [kind for tenant, kind in store.backend.kinds() if tenant == store.tenant]
    except StoreError as error:
        report.unreadable.append(Problem("…", 0, f"They cannot be listed: {error}"))
        return []


def _check(backend: Backend, head: Head, report: Report) -> list[Problem]:
    """What is wrong with one journal, if it was left alone while we looked."""
    found = list(_problems(backend, head, report))
    if not found:
        return []
    now = backend.head(head.key)
    if now is None or (now.created, (now.first - 1)) != (head.created, (head.first - 1)):
        return [] if now is None else list(_problems(backend, now, report))
    return found


def _problems(backend: Backend, head: Head, report: Report) -> Iterator[Problem]:
    """What is missing or unreadable among a journal's records, up to where it stood."""
    name = f"{head.key.kind}/{head.key.id}"
    is_state = head.key.kind == state.KIND
    codec, saves = Codec(), SaveChecker()
    last = head.first - 1

    def missing(upto: int, what: str) -> Iterator[Problem]:
        known = (last + 1, upto) in gone  # a repair took them out, and said so
        if last < upto:
            saves.lose(reported=not known)
        if last < upto and not known:
            yield Problem(name, last + 1, what)

    try:
        gone = backend.lost(head.key)
        for record in _records(backend, head):
            report.records += 1
            report.entries += record.count
            first = record.seq - record.count + 1
            yield from missing(first - 1, "Entries are missing here.")
            last = record.seq
            entries, trouble = _entries(codec, record)
            if trouble:
                saves.lose(reported=True)
                yield Problem(name, first, trouble)
            for entry in entries if is_state else ():
                if trouble := saves.problem(entry):
                    yield Problem(name, entry.seq, trouble)
        yield from missing(head.seq, "Entries are missing from here on.")
    except StoreError as error:
        yield Problem(name, last + 1, str(error))
    if is_state and saves.unreported:
        yield Problem(name, head.seq, TAKEN)


def _records(backend: Backend, head: Head) -> Iterator[Record]:
    after = head.first - 1
    while page := backend.read(head.key, after=after, upto=head.seq, limit=PAGE):
        yield from page
        after = page[-1].seq


def _entries(codec: Codec, record: Record) -> tuple[list[Entry], str | None]:
    """What *record* holds, or why it cannot be read."""
    try:
        found = codec.decode(record.body)
    except Exception as error:  # noqa: BLE001 - whatever it is, this record is what it is about
        return [], str(error)
    if len(found) != record.count:
        return [], f"It should hold {record.count} entries, and holds {len(found)}."
    at, first = from_micros(record.at), record.seq - record.count + 1
    return [Entry(seq, at, *entry) for seq, entry in enumerate(found, first)], None


# -- telling ---------------------------------------------------------------------------------------


def _print(report: Report, screen: Screen) -> None:
    done = [Fact("repaired", text) for text in report.repaired]
    facts = [*done, *report.facts, *_records_facts(report)]
    notes = list(_notes(report))
    width = max(len(fact.name) for fact in [*facts, *notes])
    for fact in facts:
        _line(screen, fact, width)
        if not fact.ok:
            screen.block(fact.advice, indent=4, first="  →", style="yellow")
    for note in notes:
        _line(screen, note, width, ("! ", "yellow"))
        screen.block(note.advice, indent=4, first="  →", style="yellow")
    bad = sum(not fact.ok for fact in facts)
    if bad:
        screen.line((f"{bad} of {len(facts)} checks found a problem.", "bold red"))
    else:
        screen.line(("All is well.", "bold green"))


def _line(screen: Screen, fact: Fact, width: int, mark: tuple[str, str] = ("✓ ", "green")) -> None:
    mark = mark if fact.ok else ("✗ ", "bold red")
    text = Text.assemble(mark, (f"{fact.name:<{width}}  ", "dim"), safe(fact.value))
    screen.hanging(text, indent=2 if screen.narrow else width + 4)


def _records_facts(report: Report) -> Iterator[Fact]:
    """What was found out about the records, in the form of the other facts."""
    counted = f"{report.records:,} in {report.journals:,} journals of tenant {report.tenant!r}"
    if not report.unreadable:
        yield Fact("records", f"{counted}, all readable")
    for problem in report.unreadable:
        where = f"{problem.journal} at {problem.seq}"
        yield Fact("unreadable", f"{where}: {problem.problem}", ok=False, advice=ADVICE)


def _notes(report: Report) -> Iterator[Fact]:
    """What is no fault, and worth knowing."""
    if report.large:
        names = ", ".join(f"{one.journal} ({human_size(one.size)})" for one in report.largest)
        more = ", …" if report.large > len(report.largest) else ""
        value = f"{report.large:,} over {human_size(LARGE)}: {names}{more}"
        yield Fact("large tasks", value, advice=SLIM)
