"""Which store, which tenant, and what is meant by an id."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

import limpet
from limpet import memory
from limpet.backends.url import DEFAULT_TENANT, DEFAULT_URL, command, safe_url
from limpet.cli.errors import Ambiguous, Missing
from limpet.conversations import conversation
from limpet.core.ids import make_key
from limpet.errors import InvalidId
from limpet.states import state
from limpet.tasks import task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Head

__all__ = ["KINDS", "Where", "find", "heads", "pass_where", "store_options"]

C = TypeVar("C", bound="Callable[..., Any]")

#: The nouns; a store may hold journals of other kinds too, which are asked for by their kind.
KINDS = (conversation.KIND, task.KIND, state.KIND)
#: What an id alone may mean: memories by their namespace, too.
_NAMED = (*KINDS, memory.KIND)

#: A command that a message names; the demo has a store of its own.
_COMMAND = re.compile(r"`limpet (?!demo\b)((?:(?!--store|--tenant)[^`\n])+)`")


class Where:
    """What ``--store`` and ``--tenant`` said."""

    def __init__(self) -> None:
        self.store: str | None = None
        self.tenant = DEFAULT_TENANT

    @property
    def name(self) -> str:
        """The store's URL, without the password that may be in it."""
        url = self.store or os.environ.get("LIMPET_URL") or DEFAULT_URL
        return safe_url(url)

    def command(self, words: str) -> str:
        """The command ``limpet`` *words* for this store and tenant: it can be pasted."""
        return command(words, url=self.store, tenant=self.tenant)

    def told(self, text: str) -> str:
        """*text*, with each command that it names as `command` has it."""
        return _COMMAND.sub(lambda found: f"`{self.command(found[1])}`", text)

    def open(self, **options: Any) -> limpet.Store:
        """Open the store to look at it, unless *options* say more: nothing comes to be by that."""
        options = {"create": False, "readonly": True} | options
        return limpet.open(self.store, tenant=self.tenant, **options)


pass_where = click.make_pass_decorator(Where, ensure=True)


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and parameter.name is not None:
        setattr(context.ensure_object(Where), parameter.name, value)


def store_options(command: C) -> C:
    """The options ``--store`` and ``--tenant``: before the command or behind it."""
    for option in (
        click.option(
            "--tenant",
            metavar="NAME",
            help=f"Whose state. [default: {DEFAULT_TENANT}]",
            expose_value=False,
            callback=_remember,
        ),
        click.option(
            "--store",
            metavar="URL",
            help="The store: a file or a URL. [default: $LIMPET_URL, else limpet.db]",
            expose_value=False,
            callback=_remember,
        ),
    ):
        command = option(command)
    return command


def heads(store: limpet.Store, kind: str, **filters: Any) -> Iterator[Head]:
    """The journals of one *kind*, by id."""
    yield from store.backend.heads(store.tenant, kind, **filters)


def find(store: limpet.Store, name: str) -> Head:
    """The journal that *name* means: ``kind/id``, or an id alone if one noun only has it."""
    kind, slash, rest = name.partition("/")
    if slash and kind in _NAMED:  # before an id that happens to begin so: it can be said no better
        named = _head(store, kind, rest)
        if named is not None:
            return named
    found = [head for noun in _NAMED if (head := _head(store, noun, name)) is not None]
    if len(found) > 1:
        raise Ambiguous(name, [head.key.kind for head in found])
    if found:
        return found[0]
    other = _head(store, kind, rest) if slash else None
    if other is None:
        _missing(store, name)
    return other


def _head(store: limpet.Store, kind: str, id_: str) -> Head | None:
    try:
        key = make_key(store.tenant, kind, id_)
    except InvalidId:  # what cannot be an id is not there
        return None
    return store.backend.head(key)


def _missing(store: limpet.Store, name: str) -> NoReturn:
    msg = (
        f"There is no conversation, task, state or memory {name!r} for tenant {store.tenant!r} "
        "(or it has expired). `limpet ls` lists what there is."
    )
    raise Missing(msg)
