-- The statements of a SQLite store. ?now is a time in microseconds, as all times are.

-- A journal as it is stored: its row, then its last record, if it has one.
-- name: stored
j.journal, j.id, incarnation, created, dropped_seq, dropped_at, dropped_total, ttl, ttl_from,
status, meta, labels, holder, epoch, until

-- name: stored_head
SELECT {stored}, last_seq, last_at, last_total
FROM limpet_heads j WHERE tenant = ? AND kind = ? AND id = ?

-- The same of a journal that has records, in a quarter of the time.
-- name: stored_head_with_record
SELECT {stored}, r.seq, r.at, r.total FROM limpet_records r, limpet_journals j
WHERE r.journal = (SELECT journal FROM limpet_journals WHERE tenant = ? AND kind = ? AND id = ?)
  AND j.journal = r.journal
ORDER BY r.seq DESC LIMIT 1

-- name: scan
SELECT {stored}, last_seq, last_at, last_total FROM limpet_heads j
WHERE tenant = ? AND kind = ? AND incarnation <> ''
  AND (ttl IS NULL OR expires > ? OR until > ?)

-- name: kinds
SELECT DISTINCT tenant, kind FROM limpet_heads
WHERE incarnation <> '' AND (ttl IS NULL OR expires > ?1 OR until > ?1)
ORDER BY tenant, kind

-- A journal, unless it has expired by ?4. Not through limpet_heads: most have no ttl, and then
-- nobody has to look for the last record.
-- name: live_journal
(SELECT journal FROM limpet_journals j WHERE tenant = ?1 AND kind = ?2 AND id = ?3
 AND (ttl IS NULL OR until > ?4 OR max(ttl_from, dropped_at) + ttl > ?4
      OR (SELECT at FROM limpet_records r WHERE r.journal = j.journal ORDER BY seq DESC LIMIT 1)
         + ttl > ?4))

-- name: read
SELECT seq, count, at, body, id FROM limpet_records WHERE journal = {live_journal} AND seq > ?5

-- The same, up to ?6: the first record that ends at or behind it is the last that can hold it.
-- name: read_upto
{read} AND seq - count < ?6
  AND seq <= coalesce((SELECT min(seq) FROM limpet_records r
                       WHERE r.journal = limpet_records.journal AND r.seq >= ?6), ?6)

-- name: bodies
SELECT seq, body FROM limpet_records WHERE journal = {live_journal} AND seq > ?5
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
