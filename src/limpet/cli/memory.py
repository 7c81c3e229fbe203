"""``limpet memory``: what was learned, to be looked at, added to and forgotten."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Table

from limpet.backends.contract import from_micros
from limpet.backends.facts import human_size
from limpet.cli.options import (
    AGE,
    Commands,
    Missing,
    StoreOptions,
    audited,
    best_option,
    heads,
    json_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen, progress_bar
from limpet.errors import LimpetError
from limpet.memory import KIND
from limpet.memory.entries import Draft
from limpet.views.memory import facts, hit_view
from limpet.views.text import count, json_document, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet import Store
    from limpet.memory import Memory, Receipt, Remembered, Stats

__all__ = ["memory", "print_memory"]

#: Lines that are written by one append, which has a limit.
AT_ONCE = 500

namespace_argument = click.argument("namespace", metavar="NAMESPACE")
embeddings_option = click.option(
    "--embeddings", is_flag=True, help="By meaning too, with the local model (an extra)."
)


@click.group(cls=Commands, short_help="Remember, recall and forget.")
def memory() -> None:
    """What was learned, by namespace: add to it, search it, look at it, forget.

    search, show, stats and reindex change nothing in a store.
    """


def _existing(store: Store, namespace: str, *, embed: bool = False) -> Memory:
    if store.journal(KIND, namespace).head() is None:
        msg = (
            f"There is no memory {namespace!r} for tenant {store.tenant!r}. "
            "`limpet memory stats` lists what there is."
        )
        raise Missing(msg)
    return store.memory(namespace, embed=embed)


# -- add -------------------------------------------------------------------------------------------


@memory.command(short_help="Remember something.")
@namespace_argument
@click.argument("text", metavar="TEXT...", nargs=-1, required=True)
@click.option(
    "--kind",
    metavar="WORD",
    default="fact",
    help="What it is; a preference or an instruction goes to every task. [default: fact]",
)
@click.option("--tag", "tags", metavar="WORD", multiple=True, help="A tag; again for more.")
@click.option("--source", metavar="TEXT", help="Where it is from: a task, a file, a person.")
@click.option("--by", metavar="NAME", help="Who says so.")
@click.option("--context", metavar="TEXT", help="What it was about; helps to find it.")
@click.option(
    "--said-at",
    metavar="TIME",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]),
    help="When it was said, if not now: 2026-01-31, in UTC.",
)
@click.option("--key", metavar="TEXT", help="With the same key again, it is kept once.")
@click.option("--ttl", type=AGE, help="Forget it so long from now: 30d, 12h, 90min.")
@json_option
@store_options
@pass_store
@audited("remembered", "namespace", kind="memory")
def add(
    options: StoreOptions,
    /,
    *,
    namespace: str,
    text: tuple[str, ...],
    as_json: bool,
    **attributes: Any,
) -> None:
    """Remember TEXT... in NAMESPACE; with - in its place, each line of standard input.

    The same words again are the same memory. The store is created if need be.
    """
    texts = [" ".join(text)]
    if text == ("-",):
        texts = [line.strip() for line in sys.stdin if line.strip()]
    if len(texts) > 1 and attributes["key"]:
        raise click.UsageError("--key is for one text, and there are several lines.")
    if attributes["said_at"] is not None:
        attributes["said_at"] = attributes["said_at"].replace(tzinfo=UTC)
    try:
        drafts = [Draft.of({"text": one, **attributes}) for one in texts]
    except LimpetError:
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with options.open(create=True, readonly=False) as store:
        space = store.memory(namespace)
        # What was cut short can be done again: the same words are the same memory.
        portions = (drafts[at : at + AT_ONCE] for at in range(0, len(drafts), AT_ONCE))
        made = [one for portion in portions for one in space.remember_all(portion)]
    if as_json:
        click.echo(json_document(made))
    else:
        for one in made:
            click.echo(one.id)


# -- search ----------------------------------------------------------------------------------------


@memory.command(short_help="Recall what fits a question.")
@namespace_argument
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@best_option(5)
@click.option("--kind", "kinds", metavar="WORD", multiple=True, help="Only this; again for more.")
@click.option("--tag", "tags", metavar="WORD", multiple=True, help="Only with this tag.")
@click.option("--newer-than", type=AGE, help="Only what was said since then: 30d, 12h.")
@click.option("--older-than", type=AGE, help="Only what was said before then.")
@click.option(
    "--min-score", type=click.FloatRange(0, 1), metavar="N", help="Only what fits so well."
)
@embeddings_option
@json_option
@store_options
@pass_store
@audited("opened", "namespace", kind="memory")
def search(
    options: StoreOptions,
    *,
    namespace: str,
    query: tuple[str, ...],
    most: int,
    kinds: tuple[str, ...],
    tags: tuple[str, ...],
    newer_than: float | None,
    older_than: float | None,
    min_score: float | None,
    embeddings: bool,
    as_json: bool,
) -> None:
    """Recall what NAMESPACE knows that bears on QUERY..., the best first, each with the reason why.

    A time in it, such as "last week", prefers what was said then or tells of it. The index that
    this needs is local and made of the store; see `limpet search`.
    """
    now = datetime.now(UTC)
    since = None if newer_than is None else now - timedelta(seconds=newer_than)
    until = None if older_than is None else now - timedelta(seconds=older_than)
    with options.open() as store:
        space = _existing(store, namespace, embed=embeddings)
        found = space.recall(
            " ".join(query),
            k=most,
            kinds=kinds or None,
            tags=tags or None,
            since=since,
            until=until,
            min_score=min_score,
        )
    if as_json:
        click.echo(json_document(found))
    elif not found:
        Screen(stderr=True).line(f"Nothing in {namespace!r} bears on that.")
    else:
        screen = Screen()
        for one in found:
            hit = hit_view(one)
            print_memory(hit.view.memory, screen, f"{hit.score:.2f} · ")
            why = [f"{part.name} {part.value:.2f} (+{part.adds:.2f})" for part in hit.parts]
            screen.block(", ".join([*why, *one.why.notes()]), indent=4, style="dim")


def print_memory(one: Remembered, screen: Screen, lead: str = "") -> None:
    """A memory with where it is from and how old it is; *lead* comes before that."""
    about = " · ".join([*facts(one), screen.since(one.said_at or one.at)])
    screen.line((safe(one.id), "bold"), (f"  {lead}{safe(about)}", "dim"))
    screen.block(one.text, indent=4)


# -- show ------------------------------------------------------------------------------------------


@memory.command(short_help="Show memories, or one with its history.")
@namespace_argument
@click.argument("id_", metavar="[ID]", required=False)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    default=20,
    help="Without an ID: the newest N. [default: 20]",
)
@click.option("--kind", "kinds", metavar="WORD", multiple=True, help="Without an ID: only this.")
@json_option
@store_options
@pass_store
@audited("opened", "namespace", kind="memory")
def show(
    options: StoreOptions,
    *,
    namespace: str,
    id_: str | None,
    last: int,
    kinds: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the newest memories of NAMESPACE; or the one with ID, with its older versions."""
    with options.open() as store:
        space = _existing(store, namespace)
        if id_ is None:
            found = space.page(kinds=kinds or None, limit=last).memories[::-1]
        else:
            found = space.history(id_)
    if as_json:
        click.echo(json_document(found))
    else:
        screen = Screen()
        for one in found:
            print_memory(one, screen)
            details = (
                {}
                if id_ is None
                else {
                    "context": one.context,
                    "key": one.key,
                    "trust": one.trust,
                    "said": one.said_at and screen.time(one.said_at),
                    "valid from": one.valid_from and screen.time(one.valid_from),
                    "expires": one.expires_at and screen.time(one.expires_at),
                    "replaced by": one.superseded_by,
                    "because": one.because,
                    "disputed by": ", ".join(one.contradicted_by),
                    "confirmed": one.confirmed,
                    "of use": one.uses,
                }
            )
            for name, value in details.items():
                if value:
                    screen.block(f"{name}: {value}", indent=4, style="dim")


# -- forget ----------------------------------------------------------------------------------------


@memory.command(short_help="Remove memories for good.")
@namespace_argument
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--source", metavar="TEXT", help="All that came from there.")
@click.option("--tag", metavar="WORD", help="All with this tag.")
@click.option("--subject", metavar="NAME", help="All with this name as a tag, or in their words.")
@click.option("--all", "everything", is_flag=True, help="All of NAMESPACE, after asking.")
@click.option("--yes", "-y", "sure", is_flag=True, help="With --all: do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
@store_options
@pass_store
def forget(
    options: StoreOptions,
    *,
    namespace: str,
    ids: tuple[str, ...],
    source: str | None,
    tag: str | None,
    subject: str | None,
    everything: bool,
    sure: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove memories from NAMESPACE, with their history: from the store and from the index.

    By ID..., or all from a --source, with a --tag, or about a --subject; or --all. What went is
    printed.
    """
    if sum(map(bool, (ids, source, tag, subject, everything))) != 1:
        msg = "Say what to forget: IDs, or --source, or --tag, or --subject, or --all."
        raise click.UsageError(msg)
    with options.open(readonly=dry_run) as store:
        space = _existing(store, namespace)
        if everything:
            ids = tuple(one.id for one in space.list(superseded=True)) or _nothing(namespace)
            if not (sure or dry_run):
                many = count(len(ids), "memory", "memories")
                click.confirm(f"Forget {many} of {namespace!r} for good?", abort=True, err=True)
        act = space.would_forget if dry_run else space.forget
        gone = act(*ids, source=source, tag=tag, subject=subject)
    if gone and not dry_run:
        options.record("forgot", f"{KIND}/{namespace}", about={"memories": len(gone.ids)})
    if as_json:
        click.echo(json_document(gone))
        return
    if not gone:
        _nothing(namespace)
    print_forgotten(gone, dry_run=dry_run)


def print_forgotten(gone: Receipt, *, dry_run: bool) -> None:
    """Print what went, or would go."""
    screen = Screen()
    for id_ in gone.ids:
        screen.line("would forget " if dry_run else "forgot ", (safe(id_), "bold"))
    if dry_run:
        contexts = count(len(gone.contexts), "context")
        went = f"{contexts} that quote them, {count(gone.vectors, 'vector')}; nothing was changed"
        screen.block(went, indent=0, style="dim")
        return
    for id_ in gone.contexts:
        screen.line("took what quoted it from the context of ", (safe(id_), "bold"))
    went = f"{count(gone.entries, 'entry', 'entries')} of the store"
    indexed = f"{count(gone.indexed, 'text')} and {count(gone.vectors, 'vector')} of the index"
    screen.block(f"{went}; {indexed}", indent=0, style="dim")
    if not gone.scrubbed:
        words = "This store cannot overwrite by itself where they stood: free room may hold them."
        screen.block(words, indent=0, style="yellow")


def _nothing(namespace: str) -> NoReturn:
    raise Missing(f"Nothing in {namespace!r} is like that.")


# -- stats and reindex -----------------------------------------------------------------------------


@memory.command(short_help="Figures of a namespace, or of all.")
@click.argument("namespace", metavar="[NAMESPACE]", required=False)
@json_option
@store_options
@pass_store
def stats(options: StoreOptions, *, namespace: str | None, as_json: bool) -> None:
    """Say how much NAMESPACE holds; without one, list the namespaces there are."""
    if namespace is None:
        list_namespaces(options, as_json=as_json)
        return
    with options.open() as store:
        found = _existing(store, namespace).stats()
    if as_json:
        click.echo(json_document(found))
        return
    screen = Screen()
    screen.line((safe(found.namespace), "bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in figures(found, screen):
        table.add_row(name, safe(value))
    screen.show(table)


def list_namespaces(options: StoreOptions, *, as_json: bool) -> None:
    """A line for each namespace, by its head alone."""
    with options.open() as store:
        found = list(heads(store, KIND))
    if as_json:
        facts = [
            {
                "namespace": head.key.id,
                "size": head.size,
                "position": head.seq,
                "updated_at": from_micros(head.updated),
            }
            for head in found
        ]
        click.echo(json_document(facts))
    elif not found:
        screen = Screen(stderr=True)
        screen.line(f"No memory yet in {options.name} for tenant {options.tenant!r}.")
    else:
        screen = Screen()
        for head in found:
            about = f"  {human_size(head.size)} · {screen.since(from_micros(head.updated))}"
            screen.line((safe(head.key.id), "bold"), (about, "dim"))


def figures(found: Stats, screen: Screen) -> Iterator[tuple[str, str]]:
    """Name and value of what is known of a namespace."""
    yield "memories", f"{found.memories:,}"
    for name in ("superseded", "contradicted", "expired"):
        if getattr(found, name):
            yield name, f"{getattr(found, name):,}"
    for name, counts in (("kinds", found.kinds), ("tags", found.tags)):
        if counts:
            most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]
            yield name, ", ".join(f"{word} {count:,}" for word, count in most)
    yield "embedded", f"{found.embedded:,}" + (f" by {found.model}" if found.model else "")
    if found.unembedded:
        failed = f": {found.embedding_failed}, when last tried" if found.embedding_failed else ""
        yield "to embed", f"{found.unembedded:,}{failed}"
    yield "journal", f"{human_size(found.size)}, at entry {found.position:,}"
    yield "index", human_size(found.index_size)
    if found.newest is not None:
        yield "newest", screen.since(found.newest)


@memory.command(short_help="Make the index anew.")
@namespace_argument
@embeddings_option
@store_options
@pass_store
def reindex(options: StoreOptions, *, namespace: str, embeddings: bool) -> None:
    """Make the index of NAMESPACE anew from the store: of texts, and with --embeddings of meaning.

    It is never needed for what is found to be right: an index that is behind catches up by itself.
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with options.open() as store, progress_bar(*columns) as bar:
        job = bar.add_task("Indexing", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(job, completed=done, total=total)

        space = _existing(store, namespace, embed=embeddings)
        space.reindex(progress=progress)
        bar.update(job, description="Embedding", completed=0, total=None)
        space.embed(progress=progress)
        found = space.stats()
    memories = count(found.memories, "memory", "memories")
    click.echo(f"{memories}, {found.embedded:,} with a vector.")
