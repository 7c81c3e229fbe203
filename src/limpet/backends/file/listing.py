"""Which journals there are, by the names of their files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from limpet.backends.contract import Key
from limpet.backends.file.names import Place, is_plain, name_of
from limpet.backends.file.reading import File, misplaced, opened
from limpet.backends.file.root import names

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Listing"]

#: A directory, when a file last came there or went, and the ids that were there.
_NONE: tuple[str, int, list[str]] = ("", 0, [])


class Listing:
    """The journals below *root*."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: dict[str, Key] = {}  # of names that do not tell them
        self._last = _NONE

    def ids(self, directory: str, *, again: bool) -> list[str]:
        """The ids of one tenant and kind, in order: of code points, which is that of UTF-8.

        *again*: for a further page, for which the last listing does if no file has come or gone.
        """
        changed = _changed_at(os.path.join(self._root, directory))
        last = self._last
        if again and last[:2] == (directory, changed):
            return last[2]
        ids = sorted(key.id for key in self.keys(directory))
        self._last = directory, changed, ids
        return ids

    def let_go(self) -> None:
        """There was the last page: do not keep the ids of them all."""
        self._last = _NONE

    def keys(self, directory: str) -> Iterator[Key]:
        """The keys of all files of one tenant and kind. Most names tell them."""
        for name in names(self._root, directory):
            full = f"{directory}/{name}"
            key = Key(*full.split("/")) if is_plain(full) else self._known.get(full)
            if key is None:
                key = _key_inside(Place.of(self._root, full))
                if key is None:
                    continue
                self._known[full] = key
            yield key


def _key_inside(place: Place) -> Key | None:
    """The key that the file at *place* says it has; None if it is not there after all."""
    with opened(place.path) as handle:
        if handle is None:
            return None
        header = File(handle, place.path).header
    if name_of(header.key) != place.name:
        raise misplaced(place.path, header.key)
    return header.key


def _changed_at(directory: str) -> int:
    """When a file last came to a directory, went, or was given another name."""
    try:
        return os.stat(directory).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0
