"""What commands share: options, which store and id is meant, and how a command ends.

A command that cannot do what it was asked ends with one message and an exit code.
"""

from __future__ import annotations

import errno
import functools
import getpass
import json
import os
from typing import IO, TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, cast

import click
from rich.text import Text

import limpet
from limpet import memory
from limpet.backends.url import DEFAULT_TENANT, DEFAULT_URL, command, in_commands, safe_url
from limpet.cli.output import Screen
from limpet.conversations import conversation
from limpet.core import audit
from limpet.core.ids import make_key, written_out
from limpet.core.runtime import run_to_end
from limpet.errors import (
    InvalidId,
    LimpetError,
    NotFound,
    StoreError,
    StoreNotFound,
    StoreReadOnly,
    Unreadable,
)
from limpet.integrations.langgraph import thread
from limpet.states import state
from limpet.tasks import task
from limpet.views.measures import AGES, SIZES, measured
from limpet.views.text import safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from limpet.backends.contract import Head, Key

__all__ = [
    "AGE",
    "COMMAND",
    "FAILED",
    "JSON",
    "KINDS",
    "MISSING",
    "MODELS",
    "SIZE",
    "USAGE",
    "Ambiguous",
    "Commands",
    "Failure",
    "Missing",
    "StoreOptions",
    "audited",
    "best_option",
    "failure_of",
    "find",
    "head_of",
    "heads",
    "json_option",
    "kinds_of",
    "label_option",
    "message_of",
    "pass_store",
    "store_options",
    "user_name",
]

C = TypeVar("C", bound="Callable[..., Any]")

#: The models that have an id of their own; a store may hold journals of other kinds too, which are
#: named as KIND/ID.
KINDS = (conversation.KIND, task.KIND, state.KIND, thread.KIND)
MODELS = (*KINDS, memory.KIND)

#: Through what acts of commands are recorded.
COMMAND = "command"


class Commands(click.Group):
    """A group that lists its commands in the order in which one comes to need them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


# -- how a command ends ----------------------------------------------------------------------------

FAILED = 1
USAGE = 2  # click's own
MISSING = 3

_UNREADABLE = "`limpet doctor` lists every record that cannot be read."


class Failure(click.ClickException):
    """Something is wrong, and the message says what."""

    exit_code = FAILED
    title: ClassVar[str] = "Error"

    def __init__(self, message: str, title: str | None = None) -> None:
        super().__init__(message)
        self._title = title or self.title
        #: The store that the commands in the message are about.
        self.store = StoreOptions()

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 - click's signature
        """Print the message to standard error."""
        screen = Screen(stderr=True)
        first, *others = self.store.in_commands(self.message).split("\n")
        title = Text.assemble((f"{self._title}: ", "bold red"), safe(first))
        screen.hanging(title, indent=2)
        screen.block("\n".join(others))


class Missing(Failure):
    """There is nothing under that id."""

    exit_code = MISSING
    title = "Not found"


class Ambiguous(Failure):
    """An id that could mean several things."""

    exit_code = USAGE
    title = "Ambiguous"

    def __init__(self, name: str, kinds: Sequence[str]) -> None:
        choices = " or ".join(f"{kind}/{name}" for kind in kinds)
        super().__init__(f"{name!r} is a {' and a '.join(kinds)}. Say which: {choices}")


def failure_of(error: LimpetError | OSError) -> Failure:
    """*error* as the message that a command ends with."""
    if not isinstance(error, LimpetError):
        if error.errno == errno.EPIPE:  # the reader has gone; click ends quietly by itself
            raise error
        return Failure(str(error))
    lines = [message_of(error), *getattr(error, "__notes__", ())]
    if isinstance(error, Unreadable) and not isinstance(error, StoreError):
        lines.append(_UNREADABLE)  # others say it, or are about all of the store
    make = Missing if isinstance(error, NotFound) else Failure
    return make("\n".join(lines), type(error).__name__)


def message_of(error: LimpetError) -> str:
    """What *error* says, without advice that only a program can follow."""
    return error.message if isinstance(error, StoreError) else str(error)


# -- which store -----------------------------------------------------------------------------------


class StoreOptions:
    """What ``--store`` and ``--tenant`` say."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.tenant = DEFAULT_TENANT

    @property
    def name(self) -> str:
        """The store's URL, without the password that may be in it."""
        return safe_url(self.source)

    @property
    def source(self) -> str:
        """The store's URL, as it is to be opened."""
        return self.url or os.environ.get("LIMPET_URL") or DEFAULT_URL

    def command(self, words: str) -> str:
        """The command ``limpet`` *words* for this store and tenant: it can be pasted."""
        return command(words, url=self.url, tenant=self.tenant)

    def in_commands(self, text: str) -> str:
        """*text*, with this store and tenant in each command that it names in backticks."""
        return in_commands(text, url=self.url, tenant=self.tenant)

    def record(
        self, what: str, name: str | None = None, *, about: dict[str, Any] | None = None
    ) -> None:
        """Record an act of this command, where acts are recorded: *what* it did to what *name* is.

        Where the store cannot be written to, a note says that nothing was recorded.
        """
        try:
            with self.open() as store:
                if not run_to_end(audit.is_on(store.scope)):
                    return
        except StoreNotFound:
            return  # a store that is gone by now, or made somewhere else, has no acts
        except (StoreError, OSError) as error:
            click.echo(f"Note: this was not recorded: {error}", err=True)
            return
        kind, slash, id_ = (name or "").partition("/")
        kind, id_ = (kind, id_) if slash else ("", name or "")
        try:
            with self.open(readonly=False) as store:
                act = audit.record(
                    store.scope,
                    what,
                    via=COMMAND,
                    who=user_name(),
                    kind=kind or None,
                    id=id_ or None,
                    about=about,
                )
                run_to_end(act)
        except StoreReadOnly as error:
            click.echo(f"Note: this was not recorded: {error}", err=True)

    def open(self, *, create: bool = False, readonly: bool = True) -> limpet.Store:
        """Open the store: to look at it, and without creating one, unless asked otherwise."""
        try:
            return limpet.open(self.url, tenant=self.tenant, create=create, readonly=readonly)
        except StoreNotFound as error:
            # Here and not in `failure_of`: some commands name their stores in another way.
            error.add_note("Name a store with --store or $LIMPET_URL; `limpet demo` makes one.")
            raise


def audited(
    what: str, parameter: str | None = None, *, kind: str | None = None
) -> Callable[[C], C]:
    """Record *what* the command has done to what its *parameter* names, when it comes to its end.

    Under `pass_store`. *kind*: of what is named by its id alone.
    """

    def decorate(command: C) -> C:
        @functools.wraps(command)
        def recorded(options: StoreOptions, /, *args: Any, **kwargs: Any) -> Any:
            done, ended = None, None
            try:
                done = command(options, *args, **kwargs)
            except click.exceptions.Exit as exit_:  # with a code of its own, but at its end
                ended = exit_
            given = kwargs.get(parameter) if parameter else None
            for name in (given or (None,)) if isinstance(given, tuple) else (given,):
                options.record(what, f"{kind}/{name}" if kind and name else name)
            if ended is not None:
                raise ended
            return done

        return cast("C", recorded)

    return decorate


pass_store = click.make_pass_decorator(StoreOptions, ensure=True)


def store_options(command: C) -> C:
    """The options ``--store`` and ``--tenant``: before the command or behind it."""

    def remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            attribute = "url" if parameter.name == "store" else "tenant"
            setattr(context.ensure_object(StoreOptions), attribute, value)

    for name, metavar, text in (
        ("--tenant", "NAME", f"Whose state. [default: {DEFAULT_TENANT}]"),
        ("--store", "URL", "The store: a file or a URL. [default: $LIMPET_URL, else limpet.db]"),
    ):
        add = click.option(name, metavar=metavar, help=text, expose_value=False, callback=remember)
        command = add(command)
    return command


def user_name() -> str | None:
    """Who is logged in: what a change is recorded under, unless another name is given."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return None


# -- which journal ---------------------------------------------------------------------------------


def kinds_of(store: limpet.Store) -> list[str]:
    """The kinds of which the tenant has journals, by name."""
    return [kind for tenant, kind in store.backend.kinds() if tenant == store.tenant]


def heads(store: limpet.Store, kind: str, **filters: Any) -> Iterator[Head]:
    """The heads of all journals of one *kind*, by id. Of those that nobody can read, a word."""
    damaged: list[tuple[Key, StoreError]] = []
    yield from store.backend.heads(store.tenant, kind, damaged=damaged, **filters)
    for key, error in damaged:
        click.echo(f"{key.kind}/{safe(key.id)} cannot be listed: {safe(str(error))}", err=True)


def head_of(store: limpet.Store, kind: str, id_: str) -> Head | None:
    """The head of one journal; None if there is none, or if that cannot be an id."""
    ids = [id_, written_out(id_, thread.WRITTEN_OUT)] if kind == thread.KIND else [id_]
    for one in dict.fromkeys(ids):  # a thread is found by its own id too
        try:
            head = store.backend.head(make_key(store.tenant, kind, one))
        except InvalidId:
            continue
        if head is not None:
            return head
    return None


def find(store: limpet.Store, name: str) -> Head:
    """The head of what *name* means: ``kind/id``, or an id alone if one model only has it."""
    kind, slash, rest = name.partition("/")
    # A kind in front comes before an id that happens to begin so: there is no other way to name it.
    if slash and kind in MODELS and (named := head_of(store, kind, rest)) is not None:
        return named
    found = [head for model in MODELS if (head := head_of(store, model, name)) is not None]
    if len(found) > 1:
        raise Ambiguous(name, [head.key.kind for head in found])
    if not found and slash and (other := head_of(store, kind, rest)) is not None:
        return other
    if not found:
        msg = (
            f"There is nothing called {name!r} for tenant {store.tenant!r} (or it has expired). "
            "`limpet ls` lists what there is."
        )
        raise Missing(msg)
    return found[0]


# -- other options ---------------------------------------------------------------------------------

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def best_option(count: int) -> Callable[[C], C]:
    """The option ``-k``: how many that fit best, *count* unless it is given."""
    return click.option(
        "-k",
        "most",
        type=click.IntRange(min=1),
        metavar="N",
        default=count,
        help=f"The N that fit best. [default: {count}]",
    )


def label_option(command: C) -> C:
    """The option ``--label NAME=VALUE``, as often as there are labels."""

    def parse(_: object, __: object, pairs: tuple[str, ...]) -> dict[str, str]:
        for pair in pairs:
            if "=" not in pair:
                raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE.")
        return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}

    return click.option(
        "--label",
        "labels",
        metavar="NAME=VALUE",
        multiple=True,
        callback=parse,
        help="Only what has this label; give it again for more.",
    )(command)


class Measure(click.ParamType[float]):
    """A number with a unit; without one it is of the first."""

    def __init__(self, name: str, units: Mapping[str, float]) -> None:
        self.name = name
        self._units = units

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """How much *value* says, in the smallest of the units."""
        if isinstance(value, (int, float)):
            return value
        try:
            return measured(value, self._units)
        except ValueError as error:
            self.fail(str(error), param, ctx)


AGE = Measure("AGE", AGES)
SIZE = Measure("SIZE", SIZES)


class Json(click.ParamType[Any]):
    """A value as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What the text means."""

        def refuse(constant: str) -> NoReturn:
            raise ValueError(f"{constant} is not a number of JSON")

        try:
            return json.loads(value, parse_constant=refuse)
        except ValueError as error:
            quoted = json.dumps(value, ensure_ascii=False)
            self.fail(f"{value!r} is not JSON ({error}). For a text, write '{quoted}'.", param, ctx)


JSON = Json()
