-- The statements of a SQLite store. ?now is a time in microseconds, as all times are.

-- A journal as it is stored: its row, then its last record, if it has one.
-- name: stored_head
SELECT journal, id, incarnation, created, dropped_seq, dropped_at, dropped_total, ttl, ttl_from,
       status, meta, labels, holder, epoch, until, last_seq, last_at, last_total
FROM limpet_heads WHERE tenant = ? AND kind = ? AND id = ?

-- The same in two statements, for a transaction: together they take half as long.
-- name: stored_journal
SELECT journal, id, incarnation, created, dropped_seq, dropped_at, dropped_total, ttl, ttl_from,
       status, meta, labels, holder, epoch, until
FROM limpet_journals WHERE tenant = ? AND kind = ? AND id = ?

-- name: last_record
SELECT seq, at, total FROM limpet_records WHERE journal = ? ORDER BY seq DESC LIMIT 1

-- name: scan
SELECT journal, id, incarnation, created, dropped_seq, dropped_at, dropped_total, ttl, ttl_from,
       status, meta, labels, holder, epoch, until, last_seq, last_at, last_total
FROM limpet_heads
WHERE tenant = ? AND kind = ? AND incarnation <> ''
  AND (ttl IS NULL OR expires > ? OR until > ?)

-- name: kinds
SELECT DISTINCT tenant, kind FROM limpet_heads
WHERE incarnation <> '' AND (ttl IS NULL OR expires > ?1 OR until > ?1)
ORDER BY tenant, kind

-- name: read
SELECT seq, count, at, body, id FROM limpet_records
WHERE journal = (SELECT journal FROM limpet_heads WHERE tenant = ? AND kind = ? AND id = ?
                 AND (ttl IS NULL OR expires > ? OR until > ?))
  AND seq > ?

-- name: bodies
SELECT seq, body FROM limpet_records
WHERE journal = (SELECT journal FROM limpet_heads WHERE tenant = ?1 AND kind = ?2 AND id = ?3
                 AND (ttl IS NULL OR expires > ?4 OR until > ?4))
  AND seq > ?5
ORDER BY seq LIMIT ?6

-- name: known
SELECT seq, at FROM limpet_records WHERE journal = ? AND id = ?

-- As many rows as there are records to add.
-- name: insert_records
INSERT INTO limpet_records (journal, seq, count, at, total, id, body) VALUES

-- name: create_journal
INSERT INTO limpet_journals
    (tenant, kind, id, incarnation, created, dropped_seq, dropped_at, dropped_total,
     ttl, ttl_from, status, meta, labels, holder, epoch, until)
VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: change_journal
UPDATE limpet_journals
SET incarnation = ?, created = ?, dropped_seq = ?, dropped_at = coalesce(?, dropped_at),
    ttl = ?, ttl_from = ?, status = ?, meta = ?, labels = ?
WHERE journal = ?

-- name: set_lease
UPDATE limpet_journals SET holder = ?, epoch = ?, until = ? WHERE journal = ?

-- name: set_label
INSERT INTO limpet_labels VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value

-- name: remove_label
DELETE FROM limpet_labels WHERE journal = ? AND name = ?

-- name: delete_records
DELETE FROM limpet_records WHERE journal = ?

-- name: delete_labels
DELETE FROM limpet_labels WHERE journal = ?

-- name: delete_journal
DELETE FROM limpet_journals WHERE journal = ?

-- name: droppable
SELECT seq, at, total FROM limpet_records
WHERE journal = ? AND seq < ? ORDER BY seq DESC LIMIT 1

-- name: count_entries
SELECT sum(count) FROM limpet_records WHERE journal = ? AND seq < ?

-- name: drop_records
DELETE FROM limpet_records WHERE journal = ? AND seq < ?

-- name: note_dropped
UPDATE limpet_journals SET dropped_seq = ?, dropped_at = ?, dropped_total = ? WHERE journal = ?

-- Expired journals, and those without a record whose lease has ended.
-- name: expired
SELECT journal, tenant, kind, id FROM limpet_heads
WHERE journal IN (SELECT journal FROM limpet_journals
                  WHERE ttl IS NOT NULL AND ttl_from + ttl <= ?1)
  AND expires <= ?1 AND coalesce(until, 0) <= ?1
UNION ALL
SELECT journal, tenant, kind, id FROM limpet_journals WHERE incarnation = '' AND until <= ?1
LIMIT ?2

-- name: sizes
SELECT kind, count(*), sum(coalesce(last_seq, dropped_seq) - dropped_seq),
       sum(coalesce(last_total, dropped_total) - dropped_total)
FROM limpet_heads
WHERE incarnation <> '' GROUP BY kind ORDER BY kind

-- name: has_schema
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'limpet_schema'
