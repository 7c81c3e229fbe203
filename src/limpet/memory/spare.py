"""Vectors that outlive the index they were in.

To make a vector may cost money, and an index is made anew whenever another machine has forgotten
something. So the vectors of texts that are still there are put back. Meanwhile they are in memory
only: of a text that is not there any more, nothing is left in a file.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import apsw

    from limpet.core.text_index import Known

__all__ = ["Spare"]

_HAD = "SELECT m.text, m.context, v.value FROM vector v JOIN memory m USING (n)"
_WITHOUT = """
SELECT n, text, context FROM memory m WHERE NOT EXISTS (SELECT 1 FROM vector v WHERE v.n = m.n)
"""


class Spare:
    """The vectors that an index had, by the words that they are of."""

    def __init__(self, database: apsw.Connection, now: Known) -> None:
        rows: Any = database.execute(_HAD)
        self._vectors = {_digest(text, context): value for text, context, value in rows}
        self._model = _model(database)
        self._of = _journal(now)
        self._length = next((len(value) for value in self._vectors.values()), None)

    def serves(self, now: Known) -> bool:
        """Whether what is read *now* is of the journal that the index is being made of."""
        return bool(self._vectors) and self._of == _journal(now)

    def put_back(self, database: apsw.Connection) -> None:
        """Give its vector to every row whose words had one; unless the model is another by now."""
        length = database.execute("SELECT length(value) FROM vector LIMIT 1").fetchone()
        if _model(database) != self._model or length not in (None, (self._length,)):
            return
        rows: Any = database.execute(_WITHOUT).fetchall()
        known = ((n, self._vectors.get(_digest(text, context))) for n, text, context in rows)
        found = [(n, value) for n, value in known if value is not None]
        database.executemany("INSERT INTO vector(n, value) VALUES(?, ?)", found)


def _model(database: apsw.Connection) -> Any:
    return database.execute("SELECT name FROM model").fetchone()


def _journal(now: Known) -> tuple[str, int, int]:
    return now.incarnation, now.first, now.updated


def _digest(text: str, context: str | None) -> bytes:
    words = f"{len(text)} {text}" if context is None else f"{len(text)} {text} {context}"
    return hashlib.blake2b(words.encode(errors="surrogatepass"), digest_size=16).digest()
