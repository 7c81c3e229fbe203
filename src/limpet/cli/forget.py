"""``limpet forget`` and ``limpet retention``: what is to be gone for good, now or by its age."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from limpet.backends.directories import sync_directory
from limpet.backends.facts import human_size
from limpet.cli.options import (
    MODELS,
    Commands,
    Missing,
    StoreOptions,
    json_option,
    kinds_of,
    pass_store,
    store_options,
    user_name,
)
from limpet.cli.output import Screen
from limpet.erasure.retention import Rule
from limpet.errors import LeaseHeld
from limpet.views.text import count, json_document, safe

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.erasure import Erasure

__all__ = ["forget", "retention"]


#: What can be done about what stays.
BY_NAME = (
    "What is found by its name is not renamed: `limpet forget --session ID` removes all that has "
    "an id, and `limpet memory forget NAMESPACE --source TEXT` what was remembered of something."
)


@click.command(short_help="Remove a person, a user or a session for good, everywhere.")
@click.option("--conversation", metavar="ID", help="A conversation.")
@click.option("--task", metavar="ID", help="A task, with its steps that are tasks.")
@click.option("--state", metavar="ID", help="A state.")
@click.option("--thread", metavar="ID", help="A thread of LangGraph's, with its effects.")
@click.option("--session", metavar="ID", help="Whatever has this id, of every kind.")
@click.option("--source", metavar="TEXT", help="Only what was remembered of that.")
@click.option("--label", metavar="NAME[=VALUE]", help="All that has this label.")
@click.option("--subject", metavar="NAME", help="A name: see above.")
@click.option("--keep-forks", is_flag=True, help="Leave copies of what goes.")
@click.option("--dry-run", is_flag=True, help="Only list what would go.")
@click.option("--yes", "-y", "sure", is_flag=True, help="Do not ask.")
@click.option("--receipt", metavar="FILE", type=click.Path(), help="Write the receipt to FILE.")
@json_option
@store_options
@pass_store
def forget(
    options: StoreOptions,
    /,
    *,
    keep_forks: bool,
    dry_run: bool,
    sure: bool,
    receipt: str | None,
    as_json: bool,
    **selectors: str | None,
) -> None:
    """Remove what one option names, and all that was derived from it, after asking.

    A conversation, task, state or thread goes with its results, steps, copies, what was remembered
    of it, and its texts in the index. With --subject, what has the name as its id or as a label
    goes whole, and so do memories about it; in all else, each text that mentions the name is
    replaced by "[forgotten]", and numbers, roles and steps stay. What cannot be replaced is listed.

    The receipt says how much went, when and by which rule, with digests and nothing of the content,
    and what may be left in places that no program reaches: backups, logs of servers. If it is cut
    short, give the same command again; FILE then says what was about to go, with "at" null.
    """
    given: dict[str, Any] = {name: value for name, value in selectors.items() if value is not None}
    if len(given) != 1 or not "".join(given.values()).strip():
        raise click.UsageError("Say what to forget, by one option: --conversation, --subject, …")
    if receipt is not None and os.path.lexists(receipt):
        raise click.UsageError(f"{receipt} is there already, and is not written over.")
    with options.open(readonly=dry_run) as store:
        act = partial(store.forget, **given, forks=not keep_forks, by=user_name())
        done = act(dry_run=True) if dry_run else carry_out(act, receipt, sure=sure)
    kept = done.receipt()
    if not dry_run:
        about = {name: kept[name] for name in ("rule", "named", "salt", "digest")}
        options.record("forgot", about=about)
    if receipt is not None and not dry_run:
        write(kept, receipt)
    if as_json:
        found = {name: getattr(done, name) for name in ("journals", "memories", "mentions")}
        click.echo(json_document({**found, "receipt": kept}))
    elif not done:
        raise Missing("Nothing is like that; what deletions had left in the files is overwritten.")
    else:
        show(done, Screen())


def carry_out(act: Callable[..., Erasure], receipt: str | None, *, sure: bool) -> Erasure:
    """Ask, unless somebody is *sure*; note at *receipt* what is about to go; and forget it."""
    if receipt is not None or not sure:
        planned = act(dry_run=True)
        if planned and not sure:
            show(planned, Screen(stderr=True))
            click.confirm("Forget this for good?", abort=True, err=True)
        if planned and receipt is not None:
            write(planned.receipt(), receipt)  # if this is killed, there is no other
    try:
        return act()
    except LeaseHeld:  # and nothing went
        if receipt is not None:
            Path(receipt).unlink(missing_ok=True)
        raise


def write(receipt: dict[str, Any], path: str) -> None:
    """Let the file at *path* be *receipt*, for its owner alone; durable on return."""
    part = f"{path}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json_document(receipt) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_directory(os.path.dirname(os.path.abspath(path)))


def show(done: Erasure, screen: Screen) -> None:
    """Print what went, or would go, and what is left."""
    verb = "would forget " if done.at is None else "forgot "
    for gone in done.journals:
        size = f"{count(gone.entries, 'entry', 'entries')}, {human_size(gone.bytes)}"
        about = (f"  {size}; {gone.why}", "dim")
        screen.line(verb, (safe(f"{gone.kind}/{gone.id}"), "bold"), about)
    for namespace, ids in done.memories.items():
        memories = count(len(ids), "memory", "memories")
        screen.line(f"{verb}{memories} of ", (safe(f"memory/{namespace}"), "bold"))
    replace = "would replace " if done.at is None else "replaced "
    for one in done.mentions:
        name = (safe(f"{one.kind}/{one.id}"), "bold")
        if one.stays is None:
            screen.line(f"{replace}{count(one.texts, 'text')} in ", name)
        else:
            screen.line(("stays ", "yellow"), "in ", name, f": {one.stays}")
    if any(one.stays for one in done.mentions):
        screen.block(BY_NAME, indent=0, style="yellow")
    if done.at is None:
        return
    if not done.scrubbed:
        words = "This store cannot overwrite by itself where they stood: free room may hold them."
        screen.block(words, indent=0, style="yellow")
    for sentence in done.remains:
        screen.block(sentence, indent=0, style="dim")


# -- retention -------------------------------------------------------------------------------------


@click.group(
    cls=Commands, invoke_without_command=True, short_help="How long things are kept, by rules."
)
@click.option("--dry-run", is_flag=True, help="List what the rules would remove now.")
@json_option
@store_options
@click.pass_context
def retention(context: click.Context, *, dry_run: bool, as_json: bool) -> None:
    """List the rules of how long things are kept; with --dry-run, what they would remove now.

    A rule is a kind, perhaps a label, and an age since the last entry: "conversation 90d", or
    "conversation label:channel=web 30d". Of memories the age counts for each, and label: is a tag.
    A task goes when it has ended, unless the rule says even-open. `limpet sweep` and workers remove
    what is older.
    """
    if context.invoked_subcommand is not None:
        return
    options = context.ensure_object(StoreOptions)
    with options.open() as store:
        rules = [str(rule) for rule in store.retention()]
        found = store.apply_retention(dry_run=True) if dry_run else None
    if as_json:
        would: dict[str, Any] = {} if found is None else {"would_remove": found}
        click.echo(json_document({"rules": rules, **would}))
        return
    screen = Screen()
    for rule in rules:
        screen.line((safe(rule), "bold"))
    if not rules:
        screen.line("There are no rules: everything is kept.")
    if found is not None:
        for gone in found.journals:
            screen.line("would remove ", (safe(f"{gone.kind}/{gone.id}"), "bold"))
        for namespace, number in found.memories.items():
            memories = count(number, "memory", "memories")
            screen.line(f"would remove {memories} of ", (safe(f"memory/{namespace}"), "bold"))
        if not found.count:
            screen.line("Nothing is older than that.")


def parsed(_context: object, _parameter: object, words: tuple[str, ...]) -> Rule:
    """The rule that *words* are."""
    try:
        # As one word, quoted, or as several.
        return Rule.parse(words[0] if len(words) == 1 else shlex.join(words))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


rule_argument = click.argument("rule", metavar="RULE...", nargs=-1, required=True, callback=parsed)


@retention.command("set", short_help="Add a rule, or change its age.")
@rule_argument
@store_options
@pass_store
def set_rule(options: StoreOptions, *, rule: Rule) -> None:
    """Add RULE...; it takes the place of one for the same kind and label."""
    with options.open(create=True, readonly=False) as store:
        others = [one for one in store.retention() if (one.kind, one.label) != which(rule)]
        store.set_retention(*others, rule)
        there = rule.kind in MODELS or rule.kind in kinds_of(store)
    options.record("set retention", about={"rule": str(rule)})
    click.echo(f"From the next sweep on: {rule}")
    if not there:  # a typing error would keep everything for ever
        click.echo(f"Note: there is nothing of the kind {rule.kind!r} yet.", err=True)


@retention.command("remove", short_help="Remove a rule.")
@rule_argument
@store_options
@pass_store
def remove_rule(options: StoreOptions, *, rule: Rule) -> None:
    """Remove RULE..., as it is listed."""
    with options.open(readonly=False) as store:
        rules = store.retention()
        if rule not in rules:
            raise Missing(f"There is no rule {str(rule)!r}. `limpet retention` lists them.")
        store.set_retention(*(one for one in rules if one != rule))
    options.record("removed retention", about={"rule": str(rule)})
    click.echo(f"Removed: {rule}")


def which(rule: Rule) -> tuple[str, str | None]:
    """What a rule is about."""
    return rule.kind, rule.label
