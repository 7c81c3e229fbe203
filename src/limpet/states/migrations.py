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

from limpet.errors import NoMigration, StateTooNew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Function = Callable[[Any], Any]
    F = TypeVar("F", bound=Function)

__all__ = ["Migration", "Migrations", "check_version", "migration", "migrations"]


class Migration(Struct, frozen=True):
    """One step: what makes version *to* of version *since*, for the states that *name* means."""

    name: str
    since: int
    to: int
    function: Any

    def __str__(self) -> str:
        called = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{self.name!r} {self.since} → {self.to} ({called})"

    def means(self, names: tuple[str, ...]) -> bool:
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
    >>> [str(step) for step in ours.way(("support",), 1, 2)]
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
        _check_name(name)
        if check_version(to) <= check_version(since):
            msg = f"A migration leads to a newer version: from {since} to {to} it does not."
            raise ValueError(msg)

        def register(function: F) -> F:
            step = Migration(name, since, to, function)
            known = self._steps.setdefault((name, since, to), step)
            if known is not step:
                if not _is_again(known.function, function):
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

    def way(self, names: tuple[str, ...], since: int, to: int) -> list[Migration]:
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
        ways: dict[int, list[Migration]] = {since: []}
        reached = [since]
        for version in reached:
            for step in self._from(names, version):
                if step.to <= to and step.to not in ways:
                    ways[step.to] = [*ways[version], step]
                    reached.append(step.to)
        if to not in ways:
            raise _missing(names, since, to, furthest=ways[max(ways)])
        return ways[to]

    def _from(self, names: tuple[str, ...], version: int) -> list[Migration]:
        """The steps from *version*, those of the nearest name first, then the longest."""
        found = [step for step in self if step.since == version and step.means(names)]

        def order(step: Migration) -> tuple[bool, bool, int, int]:
            return step.name != names[0], not step.name.endswith("*"), -len(step.name), -step.to

        return sorted(found, key=order)


def check_version(version: Any) -> int:
    """*version* if it is one: a whole number from 0 up."""
    if isinstance(version, int) and not isinstance(version, bool) and version >= 0:
        return version
    msg = f"A version is a whole number, from 0 up; not {version!r:.80}."
    raise ValueError(msg)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        msg = f"A migration is for states of a name: their type, or their id; not {name!r:.80}."
        raise ValueError(msg)


def _is_again(known: Function, function: Function) -> bool:
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


def _missing(names: tuple[str, ...], since: int, to: int, furthest: list[Migration]) -> NoMigration:
    """The error that says what to register."""
    end = furthest[-1].to if furthest else since
    known, name = ", ".join(map(str, furthest)), json.encode(names[0]).decode()
    there = f"There is {known}, but none from {end} on." if known else "No migration begins there."
    msg = (
        f"State {names[0]!r} was saved as version {since}, and this program reads version {to}. "
        f"{there} Register one, and import it before loading:\n"
        f"@limpet.migration({name}, {end}, {to})\n"
        f"def upgrade(document): ..."
    )
    return NoMigration(msg)


#: Those of the whole program.
migrations = Migrations()
migration = migrations.migration
