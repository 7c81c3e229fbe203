"""``limpet doctor``: whether the store is well, down to the last record."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import click
from msgspec import Struct, ValidationError, field, structs
from rich.text import Text

from limpet import Codec, LimpetError, StoreError, memory
from limpet.backends.contract import from_micros
from limpet.backends.facts import Fact, human_size
from limpet.cli.options import (
    FAILED,
    StoreOptions,
    heads,
    json_option,
    kinds_of,
    message_of,
    store_options,
)
from limpet.cli.output import Screen
from limpet.conversations import conversation
from limpet.conversations.transcript import COPIED, MESSAGE, NO_MESSAGE, ConversationMeta
from limpet.core.calls import calls_in_doubt
from limpet.core.codec import LOST
from limpet.core.index_files import cached
from limpet.core.journal import Entry
from limpet.core.meta import Meta
from limpet.errors import Unreadable
from limpet.integrations.langgraph import thread
from limpet.memory.entries import MemoryEntry
from limpet.states import state
from limpet.states.format import SaveChecker, StateMeta
from limpet.tasks import task
from limpet.tasks.entries import PAUSED
from limpet.tasks.state import TaskState
from limpet.transfer.salvage import pause, recount
from limpet.views import threads
from limpet.views.text import count, json_document, safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet import Store
    from limpet.backends.contract import Backend, Head, Key, Record

__all__ = ["doctor"]

PAGE = 500

#: Stored bytes over which a task is named, and how many of the largest are.
LARGE = 10_000
LARGEST = 10

ADVICE = (
    "Everything else can be read. Copy the store away before anything else. Then go back to a "
    "backup (`limpet restore BACKUP --replace`), or write what can be read to a new store "
    "(`limpet salvage FROM NEW`)."
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
    lost: list[str] = field(default_factory=list)
    large: int = 0
    largest: list[Weight] = field(default_factory=list)


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
    # What this user has on this machine of any store, beside the store itself.
    if (cache := cached()) is not None:
        indexes, stores = count(cache.indexes, "index", "indexes"), count(cache.stores, "store")
        about = f"{cache.directory}: {indexes} of {stores}, {human_size(cache.size)}"
        gone = f"; {cache.gone:,} of them gone, which the next new index removes"
        report.facts.append(Fact("search cache", about + (gone if cache.gone else "")))
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


# -- looking ---------------------------------------------------------------------------------------

#: What the head of each model's journals has as its meta.
_METAS: dict[str, type[Meta]] = {
    conversation.KIND: ConversationMeta,
    state.KIND: StateMeta,
    task.KIND: Meta,
}


def check_journals(store: Store, report: Report) -> None:
    """Look at every journal of the tenant. Whatever is wrong with one, the others are looked at."""
    backend = store.backend
    try:
        kinds = kinds_of(store)
    except StoreError as error:
        report.unreadable.append(Problem("…", 0, f"They cannot be listed: {error}"))
        return
    for kind in kinds:
        damaged: list[tuple[Key, StoreError]] = []
        try:
            for head in backend.heads(store.tenant, kind, damaged=damaged):
                report.journals += 1
                if kind == task.KIND and head.size > LARGE:
                    report.large += 1
                    found = [*report.largest, Weight(f"{kind}/{head.key.id}", head.size)]
                    report.largest = sorted(found, key=lambda one: -one.size)[:LARGEST]
                try:
                    report.unreadable += problems_of(backend, head, report)
                except StoreError as error:
                    damaged.append((head.key, error))
        except StoreError as error:
            report.unreadable.append(Problem(f"{kind}/…", 0, f"They cannot be listed: {error}"))
        report.unreadable += [Problem(f"{kind}/{key.id}", 0, str(why)) for key, why in damaged]


def problems_of(backend: Backend, head: Head, report: Report) -> list[Problem]:
    """What is wrong with a journal: its meta, and its records up to where it stood."""
    found: list[Problem] = []
    try:
        if head.key.kind in _METAS:
            _METAS[head.key.kind].of(head)
        else:  # what is in it otherwise is the affair of whoever made that kind
            calls_in_doubt(head)
    except Unreadable as error:
        what = f"The meta of its head cannot be read: {error.__cause__}."
        found.append(Problem(f"{head.key.kind}/{head.key.id}", head.seq, what))
    records = list(record_problems(backend, head, report))
    now = backend.head(head.key) if records else head
    if now is None:
        return []
    if (now.created, now.first) != (head.created, head.first):
        # It was deleted and begun anew, or compacted, while we looked.
        records = list(record_problems(backend, now, report))
    return found + records


def record_problems(  # noqa: C901 - all that can be wrong with a record, in one loop
    backend: Backend, head: Head, report: Report
) -> Iterator[Problem]:
    """What is missing or unreadable among the records of a journal."""
    name = f"{head.key.kind}/{head.key.id}"
    is_state = head.key.kind == state.KIND
    codec, saves, check = Codec(), SaveChecker(), check_of(head)
    last = head.first - 1

    def missing(upto: int, what: str) -> Iterator[Problem]:
        known = (last + 1, upto) in gone  # a repair took them out, and recorded that
        if last < upto:
            saves.lose(reported=not known)
        if last < upto and not known:
            yield Problem(name, last + 1, what)

    try:
        gone = backend.lost(head.key)
        for record, damage in records_of(backend, head):
            report.records += 1
            report.entries += record.count
            first = record.seq - record.count + 1
            yield from missing(first - 1, "Entries are missing here.")
            last = record.seq
            entries, trouble = ([], damage) if damage else decoded(codec, record)
            if trouble:
                saves.lose(reported=True)
                yield Problem(name, first, trouble)
            if any(entry.type == LOST for entry in entries):
                saves.lose(reported=False)
                report.lost.append(f"{name}: {numbers(first, last)}, before it was copied here")
                continue
            for entry in entries:
                if trouble := saves.problem(entry) if is_state else check(entry):
                    yield Problem(name, entry.seq, trouble)
        yield from missing(head.seq, "Entries are missing from here on.")
    except StoreError as error:
        yield Problem(name, last + 1, str(error))
    if is_state and saves.unreported:
        yield Problem(name, head.seq, TAKEN)


Check: TypeAlias = "Callable[[Entry], str | None]"


def check_of(head: Head) -> Check:
    """What says of each entry of a journal, in their order, what is wrong with it, or None."""
    make = _CHECKS.get(head.key.kind)
    return (lambda _: None) if make is None else make(head)


def _check_conversation(_: Head) -> Check:
    def problem(entry: Entry) -> str | None:
        is_message = entry.type in (MESSAGE, COPIED)
        return NO_MESSAGE if is_message and not isinstance(entry.body, dict) else None

    return problem


def _check_task(head: Head) -> Check:
    folded = TaskState(head.key.id)

    def problem(entry: Entry) -> str | None:
        try:
            folded.apply(entry)
        except Unreadable as error:
            return str(error)
        return None

    return problem


def _check_memory(_: Head) -> Check:
    def problem(entry: Entry) -> str | None:
        try:
            MemoryEntry.of(entry.seq, 0, entry.type, entry.body)
        except ValidationError as error:
            return f"It is not what is stored as {entry.type!r} ({error})."
        return None

    return problem


def _check_thread(_: Head) -> Check:
    take = threads.fold()
    broken = False

    def problem(entry: Entry) -> str | None:
        nonlocal broken
        if broken:  # what comes behind is said in terms of it
            return None
        try:
            take(entry)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            broken = True
            why = f"{type(error).__name__}: {error}"
            return f"It is not what is stored as {entry.type!r} ({why}); nor is what needs it."
        return None

    return problem


#: What checks the entries of each kind; a state's saves are checked with what is lost of them.
_CHECKS: dict[str, Callable[[Head], Check]] = {
    conversation.KIND: _check_conversation,
    task.KIND: _check_task,
    memory.KIND: _check_memory,
    thread.KIND: _check_thread,
}


def numbers(first: int, last: int) -> str:
    """Those of entries, in words."""
    return f"entry {first}" if first == last else f"entries {first:,} to {last:,}"


def records_of(backend: Backend, head: Head) -> Iterator[tuple[Record, str | None]]:
    """All records up to where the journal stood, a page at a time; and what is wrong with them."""
    after = head.first - 1
    while page := backend.examine(head.key, after=after, upto=head.seq, limit=PAGE):
        yield from page
        after = page[-1][0].seq


def decoded(codec: Codec, record: Record) -> tuple[list[Entry], str | None]:
    """What *record* holds, or why it cannot be read."""
    try:
        found = codec.decode(record.body)
    except Exception as error:  # noqa: BLE001 - whatever it is, this record is what it is about
        return [], str(error)
    if len(found) != record.count:
        return [], f"It should hold {record.count} entries, and holds {len(found)}."
    at, first = from_micros(record.at), record.seq - record.count + 1
    return [Entry(seq, at, *entry) for seq, entry in enumerate(found, first)], None


# -- printing --------------------------------------------------------------------------------------


def print_report(report: Report, screen: Screen) -> None:
    """A line for each thing that was looked at; below what is not well, what to do."""
    facts = [*(Fact("repaired", text) for text in report.repaired), *report.facts]
    if not report.unreadable:
        journals = f"{report.journals:,} journals of tenant {report.tenant!r}"
        facts.append(Fact("records", f"{report.records:,} in {journals}, all readable"))
    for problem in report.unreadable:
        what = f"{problem.journal} at {problem.seq}: {problem.problem}"
        facts.append(Fact("unreadable", what, ok=False, advice=ADVICE))
    facts += [Fact("lost", text) for text in report.lost]
    notes = [fact for fact in facts if fact.ok and fact.advice and fact.unsure]
    facts = [fact for fact in facts if fact not in notes]
    if report.large:
        names = ", ".join(f"{one.journal} ({human_size(one.size)})" for one in report.largest)
        more = ", …" if report.large > len(report.largest) else ""
        value = f"{report.large:,} over {human_size(LARGE)}: {names}{more}"
        notes.append(Fact("large tasks", value, advice=SLIM))
    width = max(len(fact.name) for fact in [*facts, *notes])
    for fact in [*facts, *notes]:
        mark = ("✓ ", "green") if fact.ok else ("✗ ", "bold red")
        mark = ("! ", "yellow") if fact in notes else mark
        text = Text.assemble(mark, (f"{fact.name:<{width}}  ", "dim"), safe(fact.value))
        screen.hanging(text, indent=2 if screen.narrow else width + 4)
        if fact in notes or not fact.ok:
            screen.block(fact.advice, indent=4, first="  →", style="yellow")
    bad = sum(not fact.ok for fact in facts)
    if bad:
        screen.line((f"{bad} of {len(facts)} checks found a problem.", "bold red"))
    elif any(fact.unsure for fact in notes):
        screen.line(("Nothing is known to be wrong; see what is marked with !.", "bold yellow"))
    else:
        screen.line(("All is well.", "bold green"))
