"""The statements of the PostgreSQL backend but for the append, which has a module of its own.

Plain SQL, so that other engines that speak it can take it: no triggers, sequences or procedures.
"""
# ruff: noqa: S608  # texts of our own, the schema's quoted name, and $1 for all that others say

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BEGAN", "HOUR", "KEY", "NOW", "Statements", "json", "live", "quoted"]

#: The server's clock in microseconds, at this very moment: after a lock has been waited for.
NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
#: The same when the statement came in, one value all through it: for what waits for nobody.
BEGAN = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
HOUR = 3_600_000_000

KEY = "j.tenant = $1 AND j.kind = $2 AND j.id = $3"

_HEAD = (
    "j.id, j.seq, j.floor, j.size, j.created, j.updated, j.ttl, j.expires, j.status, j.labels,"
    f" j.holder, j.epoch, j.until, coalesce(j.until > {BEGAN}, false)"
)


def live(now: str) -> str:
    """Whether the journal *j* is there; never null."""
    return f"(j.expires IS NULL OR j.expires > {now} OR coalesce(j.until, 0) > {now})"


class Statements:
    """The texts, with the schema's name in them."""

    def __init__(self, schema: str) -> None:
        self.journals = f"{quoted(schema)}.limpet_journals"
        self.records = f"{quoted(schema)}.limpet_records"
        self._reads(self.journals, self.records)
        self._leases(self.journals)
        self._removals(self.journals, self.records)
        self._checks(self.journals, self.records)

    def _reads(self, j: str, r: str) -> None:
        # A sub-select, not a join: only so it is known that the index gives the order.
        of = f"r.journal = (SELECT j.journal FROM {j} j WHERE {KEY} AND {live(BEGAN)})"
        self._read = f"SELECT r.seq, r.count, r.at, r.body, r.id FROM {r} r WHERE {of}"
        self.bodies = f"""
            SELECT r.seq, r.body FROM {r} r WHERE {of} AND r.seq > $4 ORDER BY r.seq LIMIT $5"""
        self.head = f"SELECT {_HEAD} FROM {j} j WHERE {KEY} AND j.seq > 0 AND {live(BEGAN)}"
        self.kinds = f"""
            SELECT DISTINCT j.tenant, j.kind FROM {j} j WHERE j.seq > 0 AND {live(BEGAN)}
            ORDER BY j.tenant, j.kind"""
        self.why = f"""
            SELECT t.now, j.seq, j.epoch, {live("t.now")}, r.seq, r.at
            FROM (SELECT {NOW} AS now) t LEFT JOIN {j} j ON {KEY}
            LEFT JOIN {r} r ON r.journal = j.journal AND r.id = $4"""

    def _leases(self, j: str) -> None:
        # A call that asks again because the reply was lost is known by its token.
        self.acquire = f"""
            INSERT INTO {j} AS j
                (tenant, kind, id, journal, created, updated, holder, token, epoch, until, due)
            VALUES ($1, $2, $3, $4::uuid, {BEGAN}, {BEGAN}, $5, $6,
                    {BEGAN}, {BEGAN} + $7, ({BEGAN} + $7) / {HOUR})
            ON CONFLICT (tenant, kind, id) DO UPDATE SET
                holder = $5, token = $6, until = {NOW} + $7,
                epoch = CASE WHEN j.token = $6 THEN j.epoch
                             ELSE greatest(coalesce(j.epoch, 0) + 1, {NOW}) END,
                due = CASE WHEN j.seq = 0 THEN ({NOW} + $7) / {HOUR} ELSE j.due END
            WHERE {live(NOW)}
              AND (coalesce(j.until, 0) <= {NOW} OR j.epoch = $8 OR j.token = $6)
            RETURNING j.epoch, j.until"""
        self.lease = f"""
            SELECT {live(NOW)}, coalesce(j.until > {NOW}, false), j.holder, j.epoch, j.until
            FROM {j} j WHERE {KEY}"""
        self.renew = f"""
            UPDATE {j} AS j SET until = {NOW} + $5,
                due = CASE WHEN j.seq = 0 THEN ({NOW} + $5) / {HOUR} ELSE j.due END
            WHERE {KEY} AND j.epoch = $4 AND {live(NOW)} RETURNING j.until"""
        self.release = f"""
            UPDATE {j} AS j SET until = {NOW},
                due = CASE WHEN j.seq = 0 THEN {NOW} / {HOUR} ELSE j.due END
            WHERE {KEY} AND j.epoch = $4 AND {live(NOW)} RETURNING j.until"""

    def _removals(self, j: str, r: str) -> None:
        self.delete = f"""
            DELETE FROM {j} AS j WHERE {KEY} AND ($4::uuid IS NULL OR j.journal = $4::uuid)
            RETURNING j.journal, j.seq > 0 AND {live(NOW)}"""
        self.clear = f"DELETE FROM {j} AS j WHERE {KEY} AND NOT {live(NOW)} RETURNING j.journal"
        self.drop = f"DELETE FROM {r} WHERE journal = ANY($1::uuid[])"
        self.lock = f"SELECT j.journal, j.floor FROM {j} j WHERE {KEY} AND {live(NOW)} FOR UPDATE"
        self.cut = f"""
            WITH gone AS (DELETE FROM {r} WHERE journal = $1 AND seq < $2
                          RETURNING seq, octet_length(body) AS size)
            SELECT max(seq), sum(size)::bigint FROM gone"""
        self.raise_floor = f"""
            UPDATE {j} AS j SET floor = $4, size = j.size - $5 WHERE {KEY}"""
        done = f"""
            j.due <= {BEGAN} / {HOUR}
            AND (NOT {live(BEGAN)} OR (j.seq = 0 AND coalesce(j.until, 0) <= {BEGAN}))"""
        # FOR UPDATE asks again of a row that has changed: what was revived meanwhile stays.
        self.sweep = f"""
            WITH gone AS (SELECT j.tenant, j.kind, j.id FROM {j} j WHERE {done}
                          LIMIT $1 FOR UPDATE SKIP LOCKED)
            DELETE FROM {j} AS j USING gone
            WHERE j.tenant = gone.tenant AND j.kind = gone.kind AND j.id = gone.id
            RETURNING j.journal"""
        self.expired = f"SELECT count(*) FROM {j} j WHERE {done}"

    def _checks(self, j: str, r: str) -> None:
        self.sizes = f"""
            SELECT j.kind, count(*), sum(j.seq - j.floor)::bigint, sum(j.size)::bigint
            FROM {j} j WHERE j.seq > 0 AND {live(BEGAN)} GROUP BY j.kind ORDER BY j.kind"""
        # A digest of each body, so that the server reads every byte.
        self.faults = f"""
            SELECT j.tenant, j.kind, j.id FROM {j} j LEFT JOIN (
                SELECT journal, min(seq - count) AS floor, max(seq) AS seq,
                       sum(octet_length(body)) AS size, bool_and(follows) AS whole,
                       bool_and(sha256(body) IS NOT NULL) AS legible
                FROM (SELECT journal, seq, count, body, coalesce(seq - count = lag(seq) OVER (
                          PARTITION BY journal ORDER BY seq), true) AS follows FROM {r}) one
                GROUP BY journal) r ON r.journal = j.journal
            WHERE j.floor <> coalesce(r.floor, j.floor) OR j.seq <> coalesce(r.seq, j.floor)
               OR j.size <> coalesce(r.size, 0) OR NOT r.whole OR NOT r.legible
            ORDER BY j.tenant, j.kind, j.id LIMIT 20"""
        self.strays = f"""
            SELECT count(*) FROM {r} r
            WHERE NOT EXISTS (SELECT 1 FROM {j} j WHERE j.journal = r.journal)"""

    def read(self, *, upto: bool, reverse: bool) -> str:
        """Values: the key, after, limit, and upto if there is one."""
        edge = ""
        if upto:
            # The first record that ends at or behind *upto* is the last that can hold it.
            edge = f"""
                AND r.seq - r.count < $6
                AND r.seq <= coalesce((SELECT min(e.seq) FROM {self.records} e
                                       WHERE e.journal = r.journal AND e.seq >= $6), $6)"""
        order = "DESC" if reverse else "ASC"
        return f"{self._read} AND r.seq > $4 {edge} ORDER BY r.seq {order} LIMIT $5"

    def scan(
        self,
        prefix: str,
        status: str | None,
        labels: Mapping[str, str] | None,
        cursor: str | None,
    ) -> tuple[str, list[Any]]:
        """The statement, and its values after tenant, kind and limit."""
        sql = ""
        values: list[Any] = []

        def bind(value: str) -> str:
            values.append(value)
            return f"${len(values) + 3}"

        if prefix:
            # U+10FFFF is the last code point, and no id contains it.
            sql += f" AND j.id >= {bind(prefix)} AND j.id < {bind(prefix + chr(0x10FFFF))}"
        if cursor is not None:
            sql += f" AND j.id > {bind(cursor)}"
        if status is not None:
            sql += f" AND j.status = {bind(status)}"
        if labels:
            sql += f" AND j.labels @> {bind(json(labels))}::jsonb"
        where = f"j.tenant = $1 AND j.kind = $2 AND j.seq > 0 AND {live(BEGAN)}{sql}"
        return f"SELECT {_HEAD} FROM {self.journals} j WHERE {where} ORDER BY j.id LIMIT $3", values


def quoted(name: str) -> str:
    """*name* as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def json(value: object) -> str:
    """*value* as text for jsonb."""
    return msgspec.json.encode(value).decode()
