"""``limpet copy``, ``export`` and ``import``: to another store, to JSON, and from JSON.

`limpet import` takes what `limpet export` has written, what agents and frameworks have in files,
and the databases of LangGraph's checkpointers.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
)

import limpet
from limpet.backends.facts import human_size
from limpet.backends.url import DEFAULT_TENANT, connect
from limpet.cli.langgraph import import_langgraph
from limpet.cli.options import (
    FAILED,
    Failure,
    Missing,
    StoreOptions,
    audited,
    head_of,
    json_option,
    label_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen, progress_bar
from limpet.conversations import conversation
from limpet.core.runtime import run_to_end
from limpet.crypto.opening import as_it_is, check_plain, opened
from limpet.errors import (
    NotImportable,
    NotStorable,
    StoreBusy,
    StoreFull,
    StoreNotFound,
    StoreUnavailable,
    TooLarge,
)
from limpet.integrations.autogen.run import exported
from limpet.integrations.langgraph import thread
from limpet.tasks import task
from limpet.transfer import copy as copying
from limpet.transfer import export as exporting
from limpet.transfer import imports as importing
from limpet.views import threads
from limpet.views.text import count, json_document, json_line, safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from limpet.backends.contract import Backend, Head
    from limpet.states.state import State
    from limpet.store import Store
    from limpet.transfer.copy import Copied

__all__ = ["copy", "export", "import_"]


# -- copy ------------------------------------------------------------------------------------------


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
@click.option("--decrypt", is_flag=True, help="Write what is encrypted in FROM as plain text.")
@json_option
@click.pass_context
def copy(
    context: click.Context,
    *,
    source: str,
    target: str,
    tenants: tuple[str, ...],
    kinds: tuple[str, ...],
    dry_run: bool,
    decrypt: bool,
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

    With $LIMPET_KEYS, TO is encrypted, whether FROM is or not: under data keys of its own, not
    those of FROM.
    """
    # A tenant may have been named before the command. A store cannot be.
    options = context.ensure_object(StoreOptions)
    if options.url is not None:
        raise click.UsageError("copy takes its two stores as FROM and TO, not by --store.")
    parent = context.parent
    named = parent.get_parameter_source("tenant") if parent else None
    if named is click.core.ParameterSource.COMMANDLINE:
        tenants = (*tenants, options.tenant)
    for url in (source, target):
        if url == "memory:":
            raise click.UsageError("A memory: store ends with its process; there is none to copy.")
    report = Report(source, target, dry_run=dry_run)
    columns = (
        TextColumn("{task.fields[journals]:,} of {task.fields[all]:,} journals"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TimeRemainingColumn(compact=True),
    )
    with two_stores(source, target, dry_run=dry_run, decrypt=decrypt) as (old, new):
        with progress_bar(*columns) as bar:
            # To know how much there is takes reading every head, which nobody else needs.
            survey = None if bar.disable else copying.survey(old, tenants=tenants, kinds=kinds)
            size, journals = (survey.size, survey.journals) if survey else (None, 0)
            job = bar.add_task("", total=size, journals=0, all=journals)
            copied = copying.copy(
                old,
                new,
                tenants=tenants,
                kinds=kinds,
                dry_run=dry_run,
                progress=None if bar.disable else lambda more: bar.advance(job, more),
            )
            with closing(copied):
                for number, journal in enumerate(copied, 1):
                    report.add(journal)
                    bar.update(job, journals=number)
        report.source, report.target = old.url, new.url if new else target
    if not report.outcomes and (tenants or kinds):
        raise Missing(f"{report.source} has nothing of that tenant or kind.")
    options.url = source
    for options.tenant in () if dry_run else tenants or (DEFAULT_TENANT,):
        options.record("exported")
    if as_json:
        click.echo(json_document(report.data()))
    else:
        report.print(Screen())
    context.exit(FAILED if report.problems else 0)


@contextmanager
def two_stores(
    source: str, target: str, *, dry_run: bool, decrypt: bool
) -> Iterator[tuple[Backend, Backend | None]]:
    """Both stores; in a dry run, None for one that would be created."""
    old = as_it_is(connect(source, create=False, readonly=True))
    try:
        new: Backend | None = None
        try:
            new = connect(target, **({"create": False, "readonly": True} if dry_run else {}))
            if decrypt:
                check_plain(new)
            else:
                new = opened(new, None)
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
            "moved": [one.key._asdict() for one in _by_key(self.moved)],
            "held": [one.key._asdict() | {"held_by": one.held_by} for one in _by_key(self.held)],
            "problems": [
                one.key._asdict() | {"outcome": one.outcome, "why": one.why}
                for one in _by_key(self.problems)
            ],
        }

    def print(self, screen: Screen) -> None:
        """All of it in words."""
        would = "would be " if self.dry_run else ""
        counts = [
            f"{self.outcomes[outcome]:,} {words}"
            for outcome, words in (
                (copying.NEW, f"{would}copied"),
                (copying.CONTINUED, f"{would}continued"),
                (copying.SAME, "there already"),
                (copying.GONE, "gone meanwhile"),
            )
            if self.outcomes[outcome]
        ]
        entries = count(self.entries, "entry", "entries")
        if self.dry_run:
            rest = f"That is {entries}. Nothing was written."
        else:
            rest = f"{entries} ({human_size(self.size)}) copied, {self.verified:,} verified."
        screen.line(f"journals: {', '.join(counts) or 'none'}. {rest}")
        different = [one for one in self.problems if one.outcome == copying.DIFFERS]
        failed = [one for one in self.problems if one.outcome == copying.FAILED]
        for title, style, journals in (
            ("Still written to in FROM; copy again to catch up:", "bold", self.moved),
            (
                "Being worked on in FROM; the right to do so is not copied:",
                "bold",
                self.held,
            ),
            (
                "Not copied; what TO has was left alone. To have one copied anew, delete it in TO:",
                "bold red",
                different,
            ),
            ("Not copied; could not be read, or not be written:", "bold red", failed),
        ):
            if journals:
                screen.line((title, style))
            for one in _by_key(journals):
                name = f"{one.key.kind}/{one.key.id}"
                if one.key.tenant != DEFAULT_TENANT:
                    name += f" (tenant {one.key.tenant})"
                why = f"by {one.held_by}" if journals is self.held else one.why
                why = "" if journals is self.moved else why
                screen.block(f"{name}: {why}" if why else name)


def _by_key(journals: list[Copied]) -> list[Copied]:
    return sorted(journals, key=lambda journal: journal.key)


# -- export ----------------------------------------------------------------------------------------


@click.command(short_help="Write conversations, tasks, threads or a state to JSON.")
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option(
    "--kind",
    type=click.Choice(list(exporting.MANY)),
    default=conversation.KIND,
    show_default=True,
    help="What to export.",
)
@click.option("--prefix", metavar="TEXT", default="", help="Only ids that begin with this.")
@label_option
@click.option(
    "--messages", "only_messages", is_flag=True, help="Only what was said, as models take it."
)
@click.option(
    "--readable",
    is_flag=True,
    help="Of threads: only the newest values, and what each checkpoint says of itself.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "json"]),
    help="JSON Lines or one document. [default: by the name of FILE, else jsonl]",
)
@click.option("--state", metavar="ID", help="This state, as the program that saved it loads it.")
@click.option(
    "--at", type=click.IntRange(min=1), metavar="N", help="With --state: as it was at its save N."
)
@click.option(
    "--output", "-o", "path", metavar="FILE", help="Write to this new file, and not to the screen."
)
@store_options
@pass_store
@audited("exported", "ids")
def export(
    options: StoreOptions,
    *,
    ids: tuple[str, ...],
    kind: str,
    prefix: str,
    labels: dict[str, str],
    only_messages: bool,
    readable: bool,
    form: str | None,
    state: str | None,
    at: int | None,
    path: str | None,
) -> None:
    """Write the conversations ID..., or all of this tenant, in a form that programs read.

    A whole export has every entry with its position and time, labels, summaries and all else:
    `limpet import` makes the same conversation of it, in any store. With --kind task it is tasks,
    with their large results, calls in doubt and outcomes. The right to work on a task is not
    exported: let it be worked on in one store only. With --kind thread it is threads of LangGraph,
    with all their checkpoints.

    With --messages an export has only the messages: of one conversation or thread a list of them,
    of several one line or key for each. With --readable it has of each thread the values of its
    newest checkpoint without the form in which LangGraph stores them, what is next and asked, and
    its checkpoints. `limpet import` makes no thread of either.

    With --state it is one document: the newest save of that state, or another (`limpet history`
    has their numbers). Of an AutoGen agent or team it is what load_state() takes in plain AutoGen.

    What is exported can be read by anybody who has the file, whatever the store was.
    """
    if state is not None:
        others = (ids, prefix, labels, only_messages, readable, form)
        if any(others) or kind != conversation.KIND:
            raise click.UsageError("--state goes with --at and --output only.")
        export_state(options, state, at, path)
        return
    if at is not None:
        raise click.UsageError("--at is for a state: say which with --state.")
    wanted = "readable" if readable else "messages" if only_messages else None
    check_wanted(wanted, kind, both=readable and only_messages)
    form = form or ("json" if path and path.endswith(".json") else "jsonl")
    with options.open() as store:
        if kind == thread.KIND:  # which are named by what LangGraph calls them, too
            named = [(id_, head_of(store, kind, id_)) for id_ in ids]
            ids = tuple(id_ if head is None else head.key.id for id_, head in named)
        found = list(exporting.heads(store, ids, kind=kind, prefix=prefix, labels=labels))
        if not found:
            Screen(stderr=True).line(f"There is no {kind} like that in {options.name}.")
        with written_to(path) as put:
            for text in exported_lines(store, kind, found, form, wanted, single=len(ids) == 1):
                put(text)
    if path:
        Screen(stderr=True).line(f"{count(len(found), kind)} written to {safe(path)}.")


def check_wanted(wanted: str | None, kind: str, *, both: bool) -> None:
    """Refuse what a kind has not, and *both* at once."""
    if wanted == "messages" and kind not in (conversation.KIND, thread.KIND):
        msg = f"A {kind} has no messages: --messages is for conversations and threads."
        raise click.UsageError(msg)
    if wanted == "readable" and (kind != thread.KIND or both):
        raise click.UsageError("--readable is for threads, and goes without --messages.")


def export_state(options: StoreOptions, id_: str, at: int | None, path: str | None) -> None:
    """Write one save of a state, as the program that saved it loads it."""
    with options.open() as store:
        state: State = store.state(id_)
        position = state.info().position if at is None else at
        found = exported(state.at(position, migrate=False))
    with written_to(path) as put:
        put(json_document(found))
    if path:
        text = f"State {safe(id_)}, as it was saved at {position:,}, was written to {safe(path)}."
        Screen(stderr=True).line(text)


def exported_lines(
    store: Store, kind: str, found: list[Head], form: str, wanted: str | None, *, single: bool
) -> Iterator[str]:
    """Those *found* of one *kind* as text in that *form*; *single*: one was named.

    *wanted* is what of them, if not all: their "messages", or what is "readable".
    """
    if wanted == "readable":
        readables = (
            (head.key.id, run_to_end(threads.state(store.scope.as_sync(), head))) for head in found
        )
        yield from one_each(readables, form, single=single)
    elif wanted == "messages":
        said = ((head.key.id, messages_of(store, head)) for head in found)
        yield from one_each(said, form, single=single, name="messages")
    elif form == "json":
        yield json_document(exporting.document(store, found, kind))
    else:
        yield from map(json_line, exporting.lines(store, found))


def messages_of(store: Store, head: Head) -> list[Any]:
    """What was said in a conversation or a thread."""
    if head.key.kind == thread.KIND:
        return run_to_end(threads.messages(store.scope.as_sync(), head))
    (line,) = exporting.messages_lines(store, [head])
    messages: list[Any] = line["messages"]
    return messages


def one_each(
    found: Iterable[tuple[str, Any]], form: str, *, single: bool, name: str | None = None
) -> Iterator[str]:
    """A line or key for each id, with what was *found* of it under *name*; a *single* one alone."""
    if single:
        ((_, value),) = found
        many = isinstance(value, list) and form == "jsonl"
        if form == "json":
            yield json_document(value)
        else:
            yield from map(json_line, value if many else [value])
    elif form == "json":
        yield json_document(dict(found))
    else:
        for id_, value in found:
            yield json_line({"id": id_, **({name: value} if name else value)})


@contextmanager
def written_to(path: str | None) -> Iterator[Callable[[str], object]]:
    """Where lines go: the screen, or a file that was not there, and is not if it fails."""
    if path is None:
        yield click.echo
        return
    try:
        # For its owner only, as a store is: what people said is in it.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        file = open(handle, "w", encoding="utf-8")  # noqa: SIM115 - closed below
    except FileExistsError as error:
        msg = f"There is a file {path} already, and it is left alone. Name another."
        raise Failure(msg, "FileExistsError") from error
    try:
        with file:
            yield lambda text: file.write(text + "\n")
    except BaseException:
        os.remove(path)
        raise


# -- import ----------------------------------------------------------------------------------------

#: Suffixes of JSON Lines.
LINES = (".jsonl", ".ndjson")

_FINISHED = ("imported, from where it had been interrupted", "would be finished")
_THERE = ("there already; nothing was added", "is there already")

#: What is printed of each: after an import, and after a dry run.
_OUTCOMES = {
    importing.NEW: ("imported", "would be imported"),
    importing.PART: _FINISHED,
    copying.CONTINUED: _FINISHED,
    importing.THERE: _THERE,
    copying.SAME: _THERE,
    copying.GONE: ("left out: its time to live is over", "would be left out: its time is over"),
}


#: What a database of LangGraph's checkpointers is named with.
LANGGRAPH = "langgraph:"


class FileOrDatabase(click.Path):
    """A file that is there, or a database by its scheme."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name, if there can be something under it."""
        return value if value.startswith(LANGGRAPH) else super().convert(value, param, ctx)


@click.command("import", short_help="Import JSON files of agents, and LangGraph's checkpoints.")
@click.argument(
    "path", metavar="FILE", type=FileOrDatabase(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--as",
    "as_",
    type=click.Choice([conversation.KIND, task.KIND, importing.STATE]),
    help="What the file is to become, if its shape does not say.",
)
@click.option("--id", "id_", metavar="ID", help="What it is to be known by. [default: see above]")
@click.option("--goal", metavar="TEXT", help="The goal of a checkpoint that has none.")
@click.option(
    "--salvage", is_flag=True, help="Of a file that was cut off, import what is whole before that."
)
@click.option(
    "--encoding", metavar="NAME", help="The encoding of the file, if it is not Unicode: cp1252, ..."
)
@click.option(
    "--newest", is_flag=True, help="Of langgraph: only the newest checkpoint of each thread."
)
@click.option(
    "--allow",
    "allowed",
    metavar="MODULE:NAME",
    multiple=True,
    help="Of langgraph: a class of yours that may be made; give it again for more.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be imported, and write nothing.")
@json_option
@store_options
@pass_store
@audited("imported")
def import_(
    options: StoreOptions,
    *,
    path: str,
    as_: str | None,
    id_: str | None,
    goal: str | None,
    salvage: bool,
    encoding: str | None,
    newest: bool,
    allowed: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import FILE, which an agent or a framework has written, into the store.

    \b
    What it can be, found out by its shape:
      messages    a list of them, {"messages": [...]}, or JSON Lines, in the
                  shape of OpenAI, of Anthropic or of LangChain
                  -> a conversation, known by the file's name
      AutoGen     what save_state() of an agent or a team returns
                  -> the whole document, as an entry "imported" of state/NAME,
                  and the messages of each agent as a conversation:
                  NAME/messages, of a team NAME/AGENT
      ChatGPT     the conversations.json of its export
                  -> a conversation for each, known by its id: the branch
                  that was shown last
      checkpoint  goal, plan, completed, results, decisions, discoveries
                  -> a task, known by its task_id, that goes on after the
                  steps that are completed; of our own also status, outcome
                  and what is in doubt
      many        a list of these, or an object with one under each id
      export      what `limpet export` has written -> the same conversations,
                  tasks or threads, with their positions, times, labels and
                  summaries
      show        what `limpet show --json` has printed
      langgraph:  the database of a LangGraph checkpointer, named as
                  langgraph:checkpoints.sqlite or as
                  langgraph:postgresql://user@host/database
                  -> each thread, known by its id, with all its checkpoints

    A file with more in it than that has a place for is kept whole as well, as state/NAME/file;
    with --as state, any file is, as state/NAME. FILE may be - for standard input.

    Importing a file again adds nothing. A file that has changed since is refused: import it under
    another --id. An import that was interrupted is finished by the same command.

    A file that was cut off is refused. With --salvage the messages that are whole are imported, and
    of a checkpoint what is; its steps of which no result is left are then in doubt. FILE itself is
    only read.

    Of langgraph:, every checkpoint is read back and compared. A thread that is in the store already
    and has gone on there, or is another one, is named and left alone; so is one with values of
    types that are not allowed. Of classes of yours, say with --allow which may be made.
    """  # noqa: D301 - click's mark for lines that are not to be wrapped
    if path.startswith(LANGGRAPH):
        if as_ or id_ or goal or salvage or encoding:
            raise click.UsageError(
                "langgraph: goes with --newest, --allow, --dry-run and --json only."
            )
        import_langgraph(
            path.removeprefix(LANGGRAPH),
            import_store(options, dry_run=dry_run),
            newest=newest,
            allowed=allowed,
            dry_run=dry_run,
            as_json=as_json,
        )
        return
    if newest or allowed:
        raise click.UsageError("--newest and --allow are for langgraph: only.")
    stem, suffix = os.path.splitext(os.path.basename(path))
    with blaming(path):
        lines = suffix.lower() in LINES
        found, cut = read_file(path, salvage=salvage, lines=lines, encoding=encoding)
        if exporting.is_export(found, as_):
            import_export(options, found, id_, dry_run=dry_run, as_json=as_json, salvage=salvage)
            return
        if path == "-" and id_ is None:
            raise click.UsageError("What comes from standard input has no name: give it an --id.")
        items = importing.understand(found, name=stem, id=id_, as_=as_, goal=goal, cut=cut)
    import_items(options, items, dry_run=dry_run, as_json=as_json)


def import_items(
    options: StoreOptions, items: list[importing.Item], *, dry_run: bool, as_json: bool
) -> None:
    """Import what a file was understood as, all of it or nothing, and say what became of it."""
    columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with import_store(options, dry_run=dry_run) as store, progress_bar(*columns) as bar:
        outcomes = [importing.look(store, item) for item in items]
        for item, outcome in zip(items, outcomes, strict=True):
            if outcome == importing.OTHER:  # nothing is written then
                raise importing.taken(item)
        job = bar.add_task("", total=sum(len(item.entries) for item in items))
        for item in [] if dry_run else items:
            importing.put(store, item, lambda more: bar.advance(job, more))
    if as_json:
        facts = [
            {
                "kind": item.kind,
                "id": item.id,
                "entries": len(item.entries),
                "about": item.about,
                "was": outcome,
                "notes": item.notes,
            }
            for item, outcome in zip(items, outcomes, strict=True)
        ]
        click.echo(json_document(facts))
        return
    screen = Screen()
    for item, outcome in zip(items, outcomes, strict=True):
        name = (f"{item.kind}/", "dim"), (safe(item.id), "bold")
        screen.line(*name, f": {safe(item.about)}; {_OUTCOMES[outcome][dry_run]}")
        for note in item.notes:
            screen.block(note, style="yellow")
    if dry_run:
        screen.line("Nothing was written.")


def read_file(path: str, *, salvage: bool, **how: Any) -> tuple[Any, bool]:
    """The document in a file, and whether its end is missing; *how* as `importing.parse` has it."""
    with click.open_file(path, "rb") as file:
        # One byte over the limit is enough to be refused.
        content = bytes(file.read(importing.MAX_FILE + 1))
    if not salvage:
        return importing.parse(content, **how), False
    found, where = importing.salvage(content, **how)
    if where is None and exporting.lacks_end(found):
        where = "before the line that ends an export"
    if where is not None:
        text = f"{safe(path)} is cut off ({where}). What is whole before that is taken."
        Screen(stderr=True).line((text, "yellow"))
    return found, where is not None


@contextmanager
def blaming(path: str) -> Iterator[None]:
    """Name the file in what is wrong with it."""
    try:
        yield
    except (NotImportable, NotStorable, TooLarge) as error:
        name = "standard input" if path == "-" else os.path.basename(path)
        raise Failure(f"{name}: {error}", type(error).__name__) from error


@contextmanager
def import_store(options: StoreOptions, *, dry_run: bool) -> Iterator[Store]:
    """The store to write to, created if need be; in a dry run to look at, or an empty one."""
    try:
        opened = options.open(create=not dry_run, readonly=dry_run)
    except StoreNotFound:
        if not dry_run:
            raise
        opened = limpet.open("memory:", tenant=options.tenant)
    with opened as store:
        yield store


def import_export(
    options: StoreOptions,
    found: Any,
    id_: str | None,
    *,
    dry_run: bool,
    as_json: bool,
    salvage: bool,
) -> None:
    """Import what ``limpet export`` has written."""
    with import_store(options, dry_run=dry_run) as store:
        folds = {thread.KIND: threads.fold}
        done = exporting.put(store, found, id=id_, dry_run=dry_run, salvage=salvage, folds=folds)
    for copied in done:
        if not copied.ok:
            msg = (
                f"There is a {copied.key.kind} {copied.key.id!r} already, and it is not what is in "
                f"this file. It was left alone. {copied.why} Import the file under another id "
                "(--id), or delete it."
            )
            raise Failure(msg, "Conflict")
    if as_json:
        facts = [
            {
                "kind": copied.key.kind,
                "id": copied.key.id,
                "entries": copied.entries or copied.verified,
                "was": copied.outcome,
            }
            for copied in done
        ]
        click.echo(json_document(facts))
        return
    screen = Screen()
    for copied in done:
        entries = count(copied.entries or copied.verified, "entry", "entries")
        name = (f"{copied.key.kind}/", "dim"), (safe(copied.key.id), "bold")
        screen.line(*name, f": {entries}; {_OUTCOMES[copied.outcome][dry_run]}")
    if dry_run:
        screen.line("Nothing was written.")
