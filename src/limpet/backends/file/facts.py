"""What `limpet doctor` reports on a ``file:`` store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from limpet.backends.contract import Fact, shown_size
from limpet.backends.file.lines import FORMAT, entries
from limpet.backends.file.names import SUFFIX
from limpet.backends.file.reading import File, Text, opened
from limpet.backends.file.repair import QUARANTINE, Survey
from limpet.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet.backends.file.names import Place

__all__ = ["describe"]

ADVICE = (
    "Copy the directory away first. Then restore the file from a backup, or run `limpet doctor "
    "--repair`: it moves what is damaged to a file beside it and keeps the rest."
)


def describe(root: str, places: Iterable[Place], durability: str, *, deep: bool) -> list[Fact]:
    """The facts about the store in *root*; *deep*: of every line."""
    found = sorted(places)
    facts = [*_settings(root, durability), *_sizes(found), *_set_aside(found)]
    if deep:
        facts += _integrity(found)
    return facts


def _settings(root: str, durability: str) -> Iterator[Fact]:
    full = durability == "full"
    mode = os.stat(root).st_mode & 0o777
    yield Fact("engine", "files of JSON Lines")
    yield Fact("directory", root)
    yield Fact(
        "directory mode",
        f"{mode:o}",
        ok=not mode & 0o077,
        advice=f"Other users of this machine can look into it: chmod 700 {root}",
    )
    yield Fact("format", str(FORMAT))
    yield Fact(
        "durability",
        "every acknowledged write survives power loss (each append is synced)"
        if full
        else "a power loss may undo the last writes (appends are not synced)",
        ok=full,
        advice="Leave out durability=normal.",
    )


def _sizes(places: list[Place]) -> Iterator[Fact]:
    total = 0
    kinds: dict[str, list[int]] = {}
    for place in places:
        with opened(place.path) as handle:
            if handle is None:
                continue
            total += os.fstat(handle).st_size
            try:
                state = File(handle, place.path).state
            except StoreError:  # `_integrity` says what is wrong
                continue
        sums = kinds.setdefault(state.key.kind, [0, 0, 0])
        sums[0] += 1
        sums[1] += state.seq - state.floor
        sums[2] += state.size - state.floor_size
    yield Fact("size", shown_size(total))
    for kind, (journals, count, size) in sorted(kinds.items()):
        yield Fact.of_kind(kind, journals, count, size)


def _set_aside(places: list[Place]) -> Iterator[Fact]:
    for directory in sorted({os.path.dirname(place.path) for place in places}):
        for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
            if f"{SUFFIX}{QUARANTINE}" in name:
                path = os.path.join(directory, name)
                size = shown_size(os.path.getsize(path))
                yield Fact("set aside", f"{path}, {size} that a repair took out")


def _integrity(places: list[Place]) -> Iterator[Fact]:
    """Read every line of every journal."""
    well = True
    lines = 0
    for place in places:
        with opened(place.path) as handle:
            found = None if handle is None else Survey(Text(handle, place.path), place)
        if found is None:
            continue
        lines += found.lines
        for fact in _findings(place, found):
            well = well and fact.ok
            yield fact
    if well:
        yield Fact("integrity", f"{lines:,} lines, all as they were written")


def _findings(place: Place, found: Survey) -> Iterator[Fact]:
    if found.newer:
        advice = "Upgrade limpet."
        yield Fact("newer", f"{place.path}: of a newer release", ok=False, advice=advice)
        return
    for span in found.damage:
        text = f"{place.path}, line {span.number}: {span.why}"
        yield Fact("damaged", text, ok=False, advice=ADVICE)
    if found.torn is not None:
        size = found.torn.end - found.torn.start
        yield Fact(
            "unfinished",
            f"{place.path}, line {found.torn.number}: {size} bytes of an append that was never "
            "acknowledged; the next append drops them",
        )
    for run in found.gaps:
        yield Fact("taken out", f"{place.path}: {entries(*run)}, by a repair")
