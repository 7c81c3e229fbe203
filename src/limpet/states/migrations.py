"""Versions of users' state: functions that make a newer one of an older, and chains of them.

::

    @limpet.migration("support", 1, 2)
    def tickets_have_a_list(document):
        document["tickets"] = [document.pop("ticket")]
        return document

A migration is known by the name of the states that it is for: their type, their id, or the
beginning of their ids and a star (``"support/*"``). It gets a copy, and what it returns is checked;
nothing is written before the next save.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, json

from limpet.errors import (
    MigrationFailed,
    NoMigration,
    NotStorable,
    StateTooNew,
    TooLarge,
    WrongState,
)
from limpet.states.format import type_of
from limpet.states.writer import Draft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from limpet.core.codec import Codec
    from limpet.states.format import Snapshot

    Function = Callable[[Any], Any]
    F = TypeVar("F", bound=Function)

__all__ = ["Migration", "Migrations", "Upgrader", "check_version", "migration", "migrations"]


class Migration(Struct, frozen=True):
    """One step: what makes version *to* of version *since*, for the states that *name* is of."""

    name: str
    since: int
    to: int
    function: Any

    def __str__(self) -> str:
        called = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{self.name!r} {self.since} → {self.to} ({called})"

    def is_for(self, names: tuple[str, ...]) -> bool:
        """Whether it is for a state known by one of *names*."""
        if self.name.endswith("*"):
            return any(name.startswith(self.name[:-1]) for name in names)
        return self.name in names


class Migrations:
    """Migrations that belong together; `limpet.migration` adds to those of the whole program.

    >>> ours = Migrations()
    >>> @ours.migration("support", 1, 2)
    ... def renamed(document):
    ...     return {"customer": document["user"]}
    >>> [str(step) for step in ours.steps(("support",), 1, 2)]
    ["'support' 1 → 2 (renamed)"]
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int, int], Migration] = {}

    def __iter__(self) -> Iterator[Migration]:
        """All of them."""
        return iter(list(self._steps.values()))

    def migration(self, name: str, since: int, to: int) -> Callable[[F], F]:
        """Register a function that makes version *to* of a document of version *since*.

        *name* is the type or the id of the states that it is for, or the beginning of their ids
        and a star.
        """
        if not (name and isinstance(name, str)):
            msg = f"A migration is for states of a name: their type, or their id; not {name!r:.80}."
            raise ValueError(msg)
        if check_version(to) <= check_version(since):
            msg = f"A migration leads to a newer version: from {since} to {to} it does not."
            raise ValueError(msg)

        def register(function: F) -> F:
            step = Migration(name, since, to, function)
            known = self._steps.setdefault((name, since, to), step)
            if known is not step:
                if not _is_reloaded(known.function, function):
                    msg = f"There are two migrations {step} and {known}. Remove one of them."
                    raise ValueError(msg)
                self._steps[name, since, to] = step
            return function

        return register

    def newest(self, names: tuple[str, ...], version: int) -> int:
        """The highest version that a state known by *names* can be brought to from *version*."""
        found = [version]
        for reached in found:
            found += [step.to for step in self._from(names, reached) if step.to not in found]
        return max(found)

    def steps(self, names: tuple[str, ...], since: int, to: int) -> list[Migration]:
        """The steps from version *since* to version *to*, as few as there can be.

        *names* are what the state is known by, its id first. `NoMigration` if a link is missing,
        `StateTooNew` if *to* is the older one.
        """
        if since > to:
            msg = (
                f"State {names[0]!r} was saved as version {since}, and this program reads version "
                f"{to}. A newer one saved it: update this one. Or take an earlier save: history() "
                "has the versions, at() reads one."
            )
            raise StateTooNew(msg)
        paths: dict[int, list[Migration]] = {since: []}
        reached = [since]
        for version in reached:
            for step in self._from(names, version):
                if step.to <= to and step.to not in paths:
                    paths[step.to] = [*paths[version], step]
                    reached.append(step.to)
        if to in paths:
            return paths[to]
        furthest = paths[max(paths)]
        end = furthest[-1].to if furthest else since
        known, name = ", ".join(map(str, furthest)), json.encode(names[0]).decode()
        there = (
            f"There is {known}, but none from {end} on." if known else "No migration begins there."
        )
        msg = (
            f"State {names[0]!r} was saved as version {since}, and this program reads version "
            f"{to}. {there} Register one, and import it before loading:\n"
            f"@limpet.migration({name}, {end}, {to})\n"
            f"def upgrade(document): ..."
        )
        raise NoMigration(msg)

    def _from(self, names: tuple[str, ...], version: int) -> list[Migration]:
        """The steps from *version*, those of the nearest name first, then the longest."""
        found = [step for step in self if step.since == version and step.is_for(names)]

        def order(step: Migration) -> tuple[bool, bool, int, int]:
            return step.name != names[0], not step.name.endswith("*"), -len(step.name), -step.to

        return sorted(found, key=order)


def check_version(version: Any) -> int:
    """*version* if it is one: a whole number from 0 up."""
    if isinstance(version, int) and not isinstance(version, bool) and version >= 0:
        return version
    msg = f"A version is a whole number, from 0 up; not {version!r:.80}."
    raise ValueError(msg)


def _is_reloaded(known: Function, function: Function) -> bool:
    """Whether a module was only loaded a second time: two in one file have each a line."""
    names = ("__module__", "__qualname__")
    if any(getattr(known, name, known) != getattr(function, name, function) for name in names):
        return False
    lines = {
        (code.co_filename, code.co_firstlineno)
        for one in (known, function)
        if (code := getattr(one, "__code__", None)) is not None
    }
    return len(lines) == len({file for file, _ in lines})


class Upgrader:
    """Brings saved documents to the version, and holds them to the type, that a program asks for.

    It writes nothing.
    """

    def __init__(
        self,
        id_: str,
        type_: str | None,
        migrations: Migrations,
        codec: Codec,
        invoke: Callable[..., Awaitable[Any]],
    ) -> None:
        self._id = id_
        self._type = type_
        self._migrations = migrations
        self._codec = codec
        self._invoke = invoke

    async def upgrade(self, snapshot: Snapshot, version: int) -> Any:
        """The document of *snapshot*, which is the caller's own, at *version*."""
        document, found = snapshot.document, snapshot.info.type
        names = (self._id, found, self._type)
        known = tuple(dict.fromkeys(name for name in names if name is not None))
        steps = self._migrations.steps(known, snapshot.info.version, version)
        if steps:
            # A type that the user has given says nothing of what a migration makes.
            given = found not in (None, type_of(document))
            for step in steps:
                document = await self._run(step, document, snapshot.position)
            found = None if given else type_of(document)
        self.check_type(found, self._type)
        return document

    def check_type(self, found: str | None, wanted: str | None) -> None:
        """`WrongState`, if a state of the type *found* will not do where *wanted* is asked for."""
        if found is None or wanted is None or found == wanted:
            return
        msg = (
            f"State {self._id!r} is of type {found!r}, and {wanted!r} was asked for. Loading it "
            "would lose what is in it. Load it into what saved it, or give this one another id."
        )
        raise WrongState(msg)

    async def _run(self, step: Migration, document: Any, position: int) -> Any:
        """What *step* makes of *document*, as it would be stored."""
        what = f"The migration {step} of state {self._id!r}, saved at {position},"
        untouched = "Nothing was written."
        try:
            made = await self._invoke(step.function, document)
        except Exception as error:
            msg = f"{what} raised {type(error).__name__}: {error}. {untouched}"
            raise MigrationFailed(msg) from error
        if made is None:
            msg = f"{what} returned None: a migration returns the document. {untouched}"
            raise MigrationFailed(msg)
        try:
            draft = Draft(made, self._codec)
            draft.make_plain()
        except (NotStorable, TooLarge) as error:
            msg = f"{what} made what cannot be stored: {error} {untouched}"
            raise MigrationFailed(msg) from error
        return draft.document


#: Those of the whole program.
migrations = Migrations()
migration = migrations.migration
