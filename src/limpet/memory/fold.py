"""What a memory's journal amounts to: each entry is one change of the tables of its index."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from limpet.core.text_index import spaced
from limpet.memory import entries as kinds
from limpet.memory.entries import micros, quoting

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

    from limpet.memory.entries import Told

__all__ = ["Fold"]

_MEMORY = """
INSERT INTO memory(n, id, text, context, kind, tags, source, maker, trust, key, at, valid, expires,
                   supersedes)
VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_AGAIN = """
UPDATE memory SET text = ?, context = ?, kind = ?, tags = ?, source = ?, maker = ?, trust = ?,
                  at = ?
WHERE n = ?
"""
_WORDS = "INSERT INTO words(rowid, text, context) VALUES(?, ?, ?)"
_NO_WORDS = "INSERT INTO words(words, rowid, text, context) VALUES('delete', ?, ?, ?)"


class Fold:
    """Applies entries in order. One that comes a second time changes nothing."""

    def __init__(self, database: apsw.Connection) -> None:
        self._run = database.execute
        self._database = database
        self._acts = {
            kinds.SUPERSEDED: self._supersede,
            kinds.CONTRADICTED: self._contradict,
            kinds.CONFIRMED: self._confirm,
            kinds.USED: self._use,
            kinds.FORGOTTEN: self._forget,
        }

    def take(self, told: Iterable[Told]) -> None:
        """Take in what was *told*. Types that this release does not know change nothing."""
        for type_, run in groupby(told, lambda one: one.type):
            if type_ == kinds.REMEMBERED:
                self._remember(list(run))
            elif type_ in self._acts:
                act = self._acts[type_]
                for one in run:
                    act(one)

    def _remember(self, told: list[Told]) -> None:
        """Those that are news: of the same words, or the same key, the first stays."""
        new = self._new(told)
        first = (self._run("SELECT max(n) FROM memory").fetchone() or (0,))[0] or 0
        rows = list(enumerate(new, first + 1))
        self._database.executemany(_MEMORY, [_row(n, one) for n, one in rows])
        self._index(rows)
        if len(new) < len(told):
            fresh = set(map(id, new))
            for one in told:
                if id(one) not in fresh:
                    self._remember_again(one)

    def _index(self, rows: list[tuple[int, Told]]) -> None:
        """What else is kept of new rows: their words and tags."""
        many = self._database.executemany
        many(_WORDS, [(n, *_words(one.body)) for n, one in rows])
        tagged = [(tag, n) for n, one in rows for tag in one.body.get("tags", ())]
        many("INSERT OR IGNORE INTO tag(tag, n) VALUES(?, ?)", tagged)

    def _remember_again(self, one: Told) -> None:
        """It holds for as long as any who told it said; the first key that it was given stays."""
        which = "SELECT n, superseded, valid, expires, at FROM memory WHERE id = ?"
        found: Any = self._run(which, (one.body["id"],)).fetchone()
        if found is None:
            return  # its key was another's
        n, superseded, valid, expires, known = found
        key, at, begins, ends, _ = _row(n, one)[-5:]
        since = None if None in (valid, begins) else min(valid, begins)
        until = None if None in (expires, ends) else max(expires, ends)
        if expires is not None and expires <= at and superseded is None:
            self._replace(n, one)
            since, until = begins, ends
        elif at < known and ends is not None and ends <= known:
            since, until = valid, expires  # what is there was told after this had expired
        elif at < known:
            self._replace(n, one)  # told before, but a rewriting has put it behind
        if (since, until) != (valid, expires):
            self._run("UPDATE memory SET valid = ?, expires = ? WHERE n = ?", (since, until, n))
        if key is not None:
            self._run("UPDATE OR IGNORE memory SET key = ? WHERE n = ? AND key IS NULL", (key, n))

    def _replace(self, n: int, one: Told) -> None:
        """It is as it was told this time; since when, how long, and its uses are another matter."""
        which = "SELECT text, context FROM memory WHERE n = ?"
        text, context = next(iter(self._run(which, (n,))))
        self._run(_NO_WORDS, (n, *_words({"text": text, "context": context})))
        for table in ("tag", "vector"):
            self._run(f"DELETE FROM {table} WHERE n = ?", (n,))  # noqa: S608 - all from here
        _, _, *said, _key, at, _begins, _ends, _ = _row(n, one)
        self._run(_AGAIN, (*said, at, n))
        self._index([(n, one)])

    def _new(self, told: list[Told]) -> list[Told]:
        known = {*self._among("id", told), *self._among("key", told)}
        found = []
        for one in told:
            names = {("id", one.body["id"]), ("key", one.body.get("key"))}
            if known.isdisjoint(names):
                known |= {name for name in names if name[1] is not None}
                found.append(one)
        return found

    def _among(self, column: str, told: list[Told]) -> list[tuple[str, Any]]:
        """Which of what they have in a *column* is there."""
        values = [value for one in told if (value := one.body.get(column)) is not None]
        sql = f"SELECT {column} FROM memory WHERE {column} IN (SELECT value FROM json_each(?))"  # noqa: S608
        return [(column, value) for (value,) in self._run(sql, (json.dumps(values),))]

    def _supersede(self, one: Told) -> None:
        """The newest version is replaced, whichever the writer knew: who came later wins."""
        new, old = one.body["other"], self._newest(one.body["id"])
        if old is None or old == new or self._row(new) is None:
            return
        if new in self._line(one.body["id"]):
            return  # by a later version; it was told before
        because = one.body.get("because")
        self._run(
            "UPDATE memory SET superseded = ?, because = ? WHERE id = ?",
            # Once, anything was taken for a reason: none of it may keep all else from being read.
            (new, because if isinstance(because, str) else None, old),
        )

    def _line(self, id_: str) -> list[str]:
        """The versions from *id_* on."""
        found = [id_]
        while True:
            row = self._row(found[-1])
            if row is None or row[1] is None or row[1] in found:
                return found
            found.append(row[1])

    def _newest(self, id_: str) -> str | None:
        line = self._line(id_)
        return line[-1] if self._row(line[-1]) else None

    def _row(self, id_: str) -> tuple[Any, ...] | None:
        rows = self._run("SELECT n, superseded, text, context FROM memory WHERE id = ?", (id_,))
        return rows.fetchone()

    def _contradict(self, one: Told) -> None:
        self._run(
            "UPDATE memory SET contradicted = json_insert(coalesce(contradicted, '[]'), '$[#]', ?1)"
            " WHERE id = ?2 AND NOT EXISTS"
            " (SELECT 1 FROM json_each(coalesce(contradicted, '[]')) WHERE value = ?1)",
            (one.body["other"], one.body["id"]),
        )

    def _confirm(self, one: Told) -> None:
        for n in self._use(one):
            self._run("UPDATE memory SET confirmed = confirmed + 1 WHERE n = ?", (n,))

    def _use(self, one: Told) -> list[int]:
        """Note the use; the rows for which it is news."""
        found = []
        for id_ in one.body["ids"]:
            self._run(
                "INSERT OR IGNORE INTO used(n, seq, at) SELECT n, ?, ? FROM memory WHERE id = ?",
                (one.seq, one.at, id_),
            )
            if self._database.changes():
                row = self._row(id_)
                found += [row[0]] if row else []
        return found

    def _forget(self, one: Told) -> None:
        rows = [row for id_ in one.body["ids"] if (row := self._row(id_))]
        for n, _, text, context in rows:
            # Told what was there, the index of words leaves no trace of it.
            self._run(_NO_WORDS, (n, spaced(text), spaced(context) if context else None))
            for table in ("memory", "tag", "used", "vector"):
                self._run(f"DELETE FROM {table} WHERE n = ?", (n,))  # noqa: S608 - all from here
        self._unlink(one.body["ids"])
        self._unquote({row[2] for row in rows})

    def _unlink(self, ids: list[str]) -> None:
        """No other memory names one that is forgotten; what it had replaced counts again."""
        listed = json.dumps(ids)
        self._run(
            "UPDATE memory SET superseded = NULL, because = NULL"
            " WHERE superseded IN (SELECT value FROM json_each(?))",
            (listed,),
        )
        for column in ("supersedes", "contradicted"):
            self._run(
                f"UPDATE memory SET {column} = (SELECT nullif(json_group_array(value), '[]')"  # noqa: S608
                f" FROM json_each({column}) WHERE value NOT IN (SELECT value FROM json_each(?1)))"
                f" WHERE {column} NOTNULL AND EXISTS (SELECT 1 FROM json_each({column}) e"
                " WHERE e.value IN (SELECT value FROM json_each(?1)))",
                (listed,),
            )

    def _unquote(self, texts: set[str]) -> None:
        """No other memory's context quotes one that is forgotten."""
        sql = "SELECT n, text, context FROM memory WHERE context NOTNULL"
        rows: Any = self._run(sql).fetchall()
        quoted = quoting(texts, (context for *_, context in rows))
        for n, text, context in rows:
            if context in quoted:
                self._run(_NO_WORDS, (n, spaced(text), spaced(context)))
                self._run(_WORDS, (n, spaced(text), None))
                self._run("UPDATE memory SET context = NULL WHERE n = ?", (n,))
                self._run("DELETE FROM vector WHERE n = ?", (n,))


def _row(n: int, one: Told) -> tuple[Any, ...]:
    """A memory's row, as `_MEMORY` has it."""
    body = one.body
    tags, older = body.get("tags"), body.get("supersedes")
    begins, ttl = body.get("from"), body.get("ttl")
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
        body.get("key"),
        one.at,
        None if begins is None else micros(datetime.fromisoformat(begins), "from"),
        None if ttl is None else one.at + round(ttl * 1_000_000),
        json.dumps(older) if older else None,
    )


def _words(body: dict[str, Any]) -> tuple[str, str | None]:
    context = body.get("context")
    return spaced(body["text"]), spaced(context) if context else None
