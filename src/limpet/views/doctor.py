"""Whether a store is well: what is so of its place, and whether every record can be read.

The checks are made in the calling thread, and count in their `Report` as they go: whoever shows it
can look at it from another, and can say that nobody wants to know any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, ValidationError, field

from limpet import Codec, StoreError, memory
from limpet.backends.contract import from_micros
from limpet.backends.facts import Fact, human_size
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
from limpet.tasks.state import TaskState
from limpet.views import threads
from limpet.views.text import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet import Store
    from limpet.backends.contract import Backend, Head, Key, Record

__all__ = [
    "UNREADABLE",
    "Diagnosis",
    "Finding",
    "Problem",
    "Report",
    "Weight",
    "check_journals",
    "diagnosis",
    "index_facts",
]

#: Records that are read at once, and the bytes that these are to have at most.
PAGE = 500
PAGE_BYTES = 16_000_000

#: Stored bytes over which a task is named, and how many of the largest are.
LARGE = 10_000
LARGEST = 10

#: What findings are called that name a record.
UNREADABLE = "unreadable"

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


class Finding(Struct, frozen=True):
    """A line of a diagnosis: what was looked at, what was found, and what to do about it.

    A "note" is no fault: either nobody can tell whether it is one, or it could be better.
    """

    name: str
    value: str
    mark: Literal["well", "wrong", "note"]
    advice: str = ""


class Diagnosis(Struct, frozen=True):
    """What a report comes to, line by line; and all in all, in a sentence."""

    findings: list[Finding]
    mark: Literal["well", "wrong", "note"]
    verdict: str


# -- looking ---------------------------------------------------------------------------------------

#: What the head of each model's journals has as its meta.
_METAS: dict[str, type[Meta]] = {
    conversation.KIND: ConversationMeta,
    state.KIND: StateMeta,
    task.KIND: Meta,
}


def index_facts() -> list[Fact]:
    """What this user has on this machine of any store, beside the store itself."""
    cache = cached()
    if cache is None:
        return []
    indexes, stores = count(cache.indexes, "index", "indexes"), count(cache.stores, "store")
    about = f"{cache.directory}: {indexes} of {stores}, {human_size(cache.size)}"
    gone = f"; {cache.gone:,} of them gone, which the next new index removes"
    return [Fact("search cache", about + (gone if cache.gone else ""))]


def check_journals(store: Store, report: Report, pulse: Callable[[], None] = lambda: None) -> None:
    """Look at every journal of the tenant. Whatever is wrong with one, the others are looked at.

    *pulse* is called again and again, and may raise to end it: there may be much to read.
    """
    backend = store.backend
    try:
        kinds = [kind for tenant, kind in backend.kinds() if tenant == store.tenant]
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
                pulse()
                try:
                    report.unreadable += problems_of(backend, head, report, pulse)
                except StoreError as error:
                    damaged.append((head.key, error))
        except StoreError as error:
            report.unreadable.append(Problem(f"{kind}/…", 0, f"They cannot be listed: {error}"))
        report.unreadable += [Problem(f"{kind}/{key.id}", 0, str(why)) for key, why in damaged]


def problems_of(
    backend: Backend, head: Head, report: Report, pulse: Callable[[], None]
) -> list[Problem]:
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
    records = list(record_problems(backend, head, report, pulse))
    now = backend.head(head.key) if records else head
    if now is None:
        return []
    if (now.created, now.first) != (head.created, head.first):
        # It was deleted and begun anew, or compacted, while we looked.
        records = list(record_problems(backend, now, report, pulse))
    return found + records


def record_problems(  # noqa: C901 - all that can be wrong with a record, in one loop
    backend: Backend, head: Head, report: Report, pulse: Callable[[], None]
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
            pulse()
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
    # By what its entries have on average: a page of large ones would fill the memory.
    size = head.size // max(head.seq - after, 1) + 1
    most = min(max(PAGE_BYTES // size, 1), PAGE)
    while page := backend.examine(head.key, after=after, upto=head.seq, limit=most):
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


# -- what it comes to ------------------------------------------------------------------------------


def diagnosis(report: Report, *, complete: bool = True) -> Diagnosis:
    """What *report* comes to. *complete*: of all that can be checked; or of what was, so far."""
    facts = [*(Fact("repaired", text) for text in report.repaired), *report.facts]
    if complete and not report.unreadable:
        journals = f"{report.journals:,} journals of tenant {report.tenant!r}"
        facts.append(Fact("records", f"{report.records:,} in {journals}, all readable"))
    for problem in report.unreadable:
        what = f"{problem.journal} at {problem.seq}: {problem.problem}"
        facts.append(Fact(UNREADABLE, what, ok=False, advice=ADVICE))
    facts += [Fact("lost", text) for text in report.lost]
    notes = [fact for fact in facts if fact.ok and fact.advice and fact.unsure]
    facts = [fact for fact in facts if fact not in notes]
    unsure = bool(notes)
    if report.large:
        names = ", ".join(f"{one.journal} ({human_size(one.size)})" for one in report.largest)
        more = ", …" if report.large > len(report.largest) else ""
        value = f"{report.large:,} over {human_size(LARGE)}: {names}{more}"
        notes.append(Fact("large tasks", value, advice=SLIM))
    found = [
        Finding(
            fact.name, fact.value, "well" if fact.ok else "wrong", "" if fact.ok else fact.advice
        )
        for fact in facts
    ]
    found += [Finding(fact.name, fact.value, "note", fact.advice) for fact in notes]
    bad = sum(not fact.ok for fact in facts)
    if bad:
        return Diagnosis(found, "wrong", f"{bad} of {len(facts)} checks found a problem.")
    if unsure:
        verdict = "Nothing is known to be wrong; see what is marked with !."
        return Diagnosis(found, "note", verdict)
    return Diagnosis(found, "well", "All is well." if complete else "Nothing is known to be wrong.")
