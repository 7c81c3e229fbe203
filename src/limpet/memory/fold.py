"""How the entries of a memory's journal change the tables of its index."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import from_micros, micros, to_micros
from limpet.core.recalled import STANDING
from limpet.core.vocabulary import count_texts
from limpet.core.words import indexed
from limpet.memory import entries as types
from limpet.memory.dates import spans_in
from limpet.memory.entries import contexts_quoting
from limpet.memory.instructions import about_what, instructs
from limpet.memory.passages import passages
from limpet.memory.speakers import first_person, speaker_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

    from limpet.memory.entries import MemoryEntry

__all__ = ["Fold"]

_INSERT = """
INSERT INTO memory(n, id, text, context, kind, tags, source, maker, trust, speaker, first, said,
                   standing, about, key, at, valid, expires, supersedes)
VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_REPLACE = """
UPDATE memory SET text = ?, context = ?, kind = ?, tags = ?, source = ?, maker = ?, trust = ?,
                  speaker = ?, first = ?, said = ?, standing = ?, about = ?, at = ?
WHERE n = ?
"""
_ADD_PASSAGE = "INSERT INTO passage(p, n, text) VALUES(?, ?, ?)"
_ADD_WORDS = "INSERT INTO words(rowid, text) VALUES(?, ?)"
_ADD_AROUND = "INSERT INTO around(rowid, context) VALUES(?, ?)"
#: FTS5 has to be given the words that it held, and then leaves no trace of them.
_REMOVE_WORDS = "INSERT INTO words(words, rowid, text) VALUES('delete', ?, ?)"
_REMOVE_AROUND = "INSERT INTO around(around, rowid, context) VALUES('delete', ?, ?)"


class Fold:
    """Applies entries in their order. An entry that comes a second time changes nothing."""

    def __init__(self, database: apsw.Connection) -> None:
        self._run = database.execute
        self._database = database
        self._change = {
            types.SUPERSEDED: self._supersede,
            types.CONTRADICTED: self._contradict,
            types.CONFIRMED: self._confirm,
            types.USED: self._use,
            types.FORGOTTEN: self._forget,
        }

    def apply(self, entries: Iterable[MemoryEntry]) -> None:
        """Apply *entries*. Types that this release does not know change nothing."""
        for type_, run in groupby(entries, lambda entry: entry.type):
            if type_ == types.REMEMBERED:
                self._remember(list(run))
            elif type_ in self._change:
                change = self._change[type_]
                for entry in run:
                    change(entry)

    # -- remembered ----------------------------------------------------------------------------

    def _remember(self, entries: list[MemoryEntry]) -> None:
        """Add the new ones. Of the same words, or of the same key, the first stays."""
        known = {*self._stored("id", entries), *self._stored("key", entries)}
        new, again = [], []
        for entry in entries:
            names = {("id", entry.body["id"]), ("key", entry.body.get("key"))}
            if known.isdisjoint(names):
                known |= {name for name in names if name[1] is not None}
                new.append(entry)
            else:
                again.append(entry)
        first = (self._run("SELECT max(n) FROM memory").fetchone() or (0,))[0] or 0
        rows = list(enumerate(new, first + 1))
        self._database.executemany(_INSERT, [_row(n, entry) for n, entry in rows])
        self._add_words_and_tags(rows)
        for entry in again:
            self._remember_again(entry)

    def _stored(self, column: str, entries: list[MemoryEntry]) -> list[tuple[str, Any]]:
        """Which of the ids, or keys, of *entries* are in the table."""
        values = [value for one in entries if (value := one.body.get(column)) is not None]
        sql = f"SELECT {column} FROM memory WHERE {column} IN (SELECT value FROM json_each(?))"  # noqa: S608 - a column of ours
        return [(column, value) for (value,) in self._run(sql, (json.dumps(values),))]

    def _add_words_and_tags(self, rows: list[tuple[int, MemoryEntry]]) -> None:
        self._add_words([(n, one.body["text"], one.body.get("context")) for n, one in rows])
        tagged = [(tag, n) for n, entry in rows for tag in entry.body.get("tags", ())]
        self._database.executemany("INSERT OR IGNORE INTO tag(tag, n) VALUES(?, ?)", tagged)
        dated = [
            (n, to_micros(start), to_micros(end))
            for n, entry in rows
            for start, end in spans_in(entry.body["text"], from_micros(_said(entry)))
        ]
        self._database.executemany(
            "INSERT OR IGNORE INTO dated(n, start, end) VALUES(?, ?, ?)", dated
        )

    def _remember_again(self, entry: MemoryEntry) -> None:
        """Let it hold for as long as any of its entries say; the first key that it got stays."""
        which = "SELECT n, superseded, valid, expires, at FROM memory WHERE id = ?"
        found: Any = self._run(which, (entry.body["id"],)).fetchone()
        if found is None:
            return  # another memory has its key
        n, superseded, valid, expires, known = found
        key, at, begins, ends, _ = _row(n, entry)[-5:]
        since = None if None in (valid, begins) else min(valid, begins)
        until = None if None in (expires, ends) else max(expires, ends)
        if expires is not None and expires <= at and superseded is None:
            self._replace(n, entry)
            since, until = begins, ends
        elif at < known and ends is not None and ends <= known:
            since, until = valid, expires  # this had expired when what is there was remembered
        elif at < known:
            self._replace(n, entry)  # it is the older entry, and a rewrite has moved it behind
        if (since, until) != (valid, expires):
            self._run("UPDATE memory SET valid = ?, expires = ? WHERE n = ?", (since, until, n))
        if key is not None:
            self._run("UPDATE OR IGNORE memory SET key = ? WHERE n = ? AND key IS NULL", (key, n))

    def _replace(self, n: int, entry: MemoryEntry) -> None:
        """Let row *n* be as *entry* has it, but for its key, since when and how long it holds."""
        self._remove_words(n, *next(iter(self._run(_TEXT, (n,)))))
        for table in ("dated", "tag"):
            self._run(f"DELETE FROM {table} WHERE n = ?", (n,))  # noqa: S608 - a table of ours
        _, _, *fields, _key, at, _begins, _ends, _ = _row(n, entry)
        self._run(_REPLACE, (*fields, at, n))
        self._add_words_and_tags([(n, entry)])

    def _add_words(self, rows: list[tuple[int, str, str | None]]) -> None:
        """Let *rows* be found: each passage by its words, what is a passage by its context, too."""
        p = (self._run("SELECT max(p) FROM passage").fetchone() or (0,))[0] or 0
        parts, around = [], []
        for n, text, context in rows:
            found = passages(text)
            for passage in found:
                p += 1
                parts.append((p, n, passage if len(found) > 1 else None, indexed(passage)))
            # A longer text says enough by itself, and is not found by what others said around it.
            if context and len(found) == 1:
                around.append((n, indexed(context)))
        many = self._database.executemany
        many(_ADD_PASSAGE, [(p, n, text) for p, n, text, _ in parts])
        many(_ADD_WORDS, [(p, words) for p, _, _, words in parts])
        many(_ADD_AROUND, around)
        count_texts(self._database, [words for *_, words in parts], 1)
        count_texts(self._database, [words for _, words in around], 1)

    def _remove_words(self, n: int, text: str, context: str | None) -> None:
        """Leave nothing of row *n* by which it is found: passages, words, vectors."""
        rows: Any = self._run("SELECT p, coalesce(text, ?) FROM passage WHERE n = ?", (text, n))
        parts = [(p, indexed(passage)) for p, passage in rows.fetchall()]
        around = [(n, indexed(context))] if context and len(parts) == 1 else []
        many = self._database.executemany
        many(_REMOVE_WORDS, parts)
        many(_REMOVE_AROUND, around)
        many("DELETE FROM vector WHERE p = ?", [(p,) for p, _ in parts])
        self._run("DELETE FROM passage WHERE n = ?", (n,))
        count_texts(self._database, (words for _, words in [*parts, *around]), -1)

    # -- links and uses ------------------------------------------------------------------------

    def _supersede(self, entry: MemoryEntry) -> None:
        """Replace the newest version, whichever one the writer knew: the later writer wins."""
        new, versions = entry.body["other"], [entry.body["id"]]
        while (row := self._find(versions[-1])) and row[1] is not None and row[1] not in versions:
            versions.append(row[1])
        if row is None or self._find(new) is None or new in versions:
            return  # one of them was forgotten, or the entry has come before
        because = entry.body.get("because")
        self._run(
            "UPDATE memory SET superseded = ?, because = ? WHERE id = ?",
            # Anything could be a reason once, and must not make the journal unreadable now.
            (new, because if isinstance(because, str) else None, versions[-1]),
        )

    def _find(self, id_: str) -> tuple[Any, ...] | None:
        """Row, successor, text and context of a memory."""
        rows = self._run("SELECT n, superseded, text, context FROM memory WHERE id = ?", (id_,))
        return rows.fetchone()

    def _contradict(self, entry: MemoryEntry) -> None:
        self._run(
            "UPDATE memory SET contradicted = json_insert(coalesce(contradicted, '[]'), '$[#]', ?1)"
            " WHERE id = ?2 AND NOT EXISTS"
            " (SELECT 1 FROM json_each(coalesce(contradicted, '[]')) WHERE value = ?1)",
            (entry.body["other"], entry.body["id"]),
        )

    def _confirm(self, entry: MemoryEntry) -> None:
        for n in self._use(entry):
            self._run("UPDATE memory SET confirmed = confirmed + 1 WHERE n = ?", (n,))

    def _use(self, entry: MemoryEntry) -> list[int]:
        """Add the use; returns the rows for which it is new."""
        found = []
        for id_ in entry.body["ids"]:
            self._run(
                "INSERT OR IGNORE INTO used(n, seq, at) SELECT n, ?, ? FROM memory WHERE id = ?",
                (entry.seq, entry.at, id_),
            )
            if self._database.changes():
                row = self._find(id_)
                found += [row[0]] if row else []
        return found

    # -- forgotten -----------------------------------------------------------------------------

    def _forget(self, entry: MemoryEntry) -> None:
        rows = [row for id_ in entry.body["ids"] if (row := self._find(id_))]
        for n, _, text, context in rows:
            self._remove_words(n, text, context)
            for table in ("memory", "dated", "tag", "used"):
                self._run(f"DELETE FROM {table} WHERE n = ?", (n,))  # noqa: S608 - a table of ours
        self._unlink(entry.body["ids"])
        self._remove_quotes({text for _, _, text, _ in rows})

    def _unlink(self, ids: list[str]) -> None:
        """Name them in no other memory; what they had replaced counts again."""
        listed = json.dumps(ids)
        self._run(
            "UPDATE memory SET superseded = NULL, because = NULL"
            " WHERE superseded IN (SELECT value FROM json_each(?))",
            (listed,),
        )
        for column in ("supersedes", "contradicted"):
            self._run(
                f"UPDATE memory SET {column} = (SELECT nullif(json_group_array(value), '[]')"  # noqa: S608 - a column of ours
                f" FROM json_each({column}) WHERE value NOT IN (SELECT value FROM json_each(?1)))"
                f" WHERE {column} NOTNULL AND EXISTS (SELECT 1 FROM json_each({column}) e"
                " WHERE e.value IN (SELECT value FROM json_each(?1)))",
                (listed,),
            )

    def _remove_quotes(self, texts: set[str]) -> None:
        """Remove the contexts of other memories that quote *texts*."""
        sql = "SELECT n, text, context FROM memory WHERE context NOTNULL"
        rows: Any = self._run(sql).fetchall()
        quoted = contexts_quoting(texts, (context for *_, context in rows))
        for n, text, context in rows:
            if context in quoted:
                self._remove_words(n, text, context)
                self._add_words([(n, text, None)])
                self._run("UPDATE memory SET context = NULL WHERE n = ?", (n,))


_TEXT = "SELECT text, context FROM memory WHERE n = ?"


def _row(n: int, entry: MemoryEntry) -> tuple[Any, ...]:
    """A memory's row, as `_INSERT` takes it."""
    body = entry.body
    tags, older = body.get("tags"), body.get("supersedes")
    begins, ttl = body.get("from"), body.get("ttl")
    is_instruction = instructs(body["text"])
    return (
        n,
        body["id"],
        body["text"],
        body.get("context"),
        body["kind"],
        json.dumps(tags) if tags else None,
        body.get("source"),
        body.get("by"),
        body.get("trust"),
        speaker_of(body["text"], body.get("by")),
        max(map(first_person, passages(body["text"]))),
        _said(entry),
        body["kind"] in STANDING or is_instruction,
        about_what(body["text"]) if is_instruction else None,
        body.get("key"),
        entry.at,
        None if begins is None else to_micros(datetime.fromisoformat(begins)),
        None if ttl is None else entry.at + micros(ttl),
        json.dumps(older) if older else None,
    )


def _said(entry: MemoryEntry) -> int:
    said = entry.body.get("said")
    return entry.at if said is None else to_micros(datetime.fromisoformat(said))
