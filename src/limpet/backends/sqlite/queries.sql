-- The statements of a SQLite store. ?now is a time in microseconds, as all times are.

-- A journal as it is stored: its row, and then its last record, if it has one.
-- name: stored
j.journal, j.id, incarnation, created, dropped_seq, dropped_at, dropped_total, ttl, ttl_from,
status, meta, labels, holder, epoch, until, note

-- name: stored_head
SELECT {stored}, last_record, last_seq, last_at, last_total
FROM limpet_heads j WHERE tenant = ? AND kind = ? AND id = ?

-- name: has_journal
SELECT 1 FROM limpet_journals WHERE tenant = ? AND kind = ? AND id = ?

-- By the index, of a journal whose last record is missing.
-- name: last_number
SELECT max(seq) FROM (SELECT max(seq) AS seq FROM limpet_index WHERE journal = ?1 UNION ALL
                      SELECT max(seq) FROM limpet_index_recent WHERE journal = ?1 AND record > 0)

-- name: scan
SELECT {stored}, last_record, last_seq, last_at, last_total FROM limpet_heads j
WHERE tenant = ? AND kind = ? AND incarnation <> ''
  AND (ttl IS NULL OR expires > ? OR until > ?)

-- The first journal of each kind, one after the other: what a million more of a kind cost nothing.
-- name: kinds
WITH RECURSIVE firsts (journal) AS (
    SELECT (SELECT journal FROM limpet_journals ORDER BY tenant, kind, id LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT journal FROM limpet_journals WHERE tenant = j.tenant AND kind > j.kind ORDER BY kind, id LIMIT 1),
        (SELECT journal FROM limpet_journals WHERE tenant > j.tenant ORDER BY tenant, kind, id LIMIT 1))
    FROM firsts JOIN limpet_journals j USING (journal)
)
SELECT f.tenant, f.kind FROM firsts JOIN limpet_journals f USING (journal)
WHERE EXISTS (SELECT 1 FROM limpet_heads h WHERE h.tenant = f.tenant AND h.kind = f.kind
              AND incarnation <> '' AND (ttl IS NULL OR expires > ?1 OR until > ?1))
ORDER BY f.tenant, f.kind

-- A journal, unless it has expired by ?4. Not through limpet_heads: most have no ttl, and then
-- nobody has to look for the last record.
-- name: live_journal
(SELECT journal FROM limpet_journals j WHERE tenant = ?1 AND kind = ?2 AND id = ?3
 AND (ttl IS NULL OR until > ?4 OR (SELECT expires > ?4 FROM limpet_heads h WHERE h.journal = j.journal)))

-- name: after
i.journal = {live_journal} AND i.seq > ?5

-- Up to ?6: the first record that ends at or behind it is the last that can hold it.
-- name: and_upto
AND r.seq - r.count < ?6 AND i.seq <= coalesce(
    (SELECT min(seq) FROM limpet_index WHERE journal = {live_journal} AND seq >= ?6),
    (SELECT min(seq) FROM limpet_index_recent WHERE journal = {live_journal} AND seq >= ?6),
    ?6)

-- Each of the two gives its records in order, and SQLite merges them without sorting.
-- name: records
SELECT i.seq, count, at, body, id FROM limpet_index i CROSS JOIN limpet_records r USING (record)
WHERE {after} {and_upto}
UNION ALL
SELECT i.seq, count, at, body, id FROM limpet_index_recent i CROSS JOIN limpet_records r USING (record)
WHERE {after} {and_upto}
ORDER BY 1

-- name: read
{records} LIMIT ?7

-- name: read_down
{records} DESC LIMIT ?7

-- name: bodies
SELECT i.seq, body FROM limpet_index i CROSS JOIN limpet_records r USING (record) WHERE {after}
UNION ALL
SELECT i.seq, body FROM limpet_index_recent i CROSS JOIN limpet_records r USING (record) WHERE {after}
ORDER BY 1 LIMIT ?6

-- name: known
SELECT seq, at FROM limpet_records WHERE journal = ? AND id = ?

-- As many rows as there are records to add: without a note, and with one. Triggers see to the index.
-- name: insert_records
INSERT INTO limpet_records (journal, seq, count, at, total, id, body) VALUES

-- name: insert_noted
INSERT INTO limpet_noted (journal, seq, count, at, total, id, body, note) VALUES

-- One that was in limpet_index_recent is deleted before.
-- name: set_note
INSERT INTO limpet_notes VALUES (?, ?) ON CONFLICT DO UPDATE SET note = excluded.note

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

-- Records numbered under ?2.
-- name: delete_records
DELETE FROM limpet_records WHERE record IN (
    SELECT record FROM limpet_index WHERE journal = ?1 AND seq < ?2 UNION ALL
    SELECT record FROM limpet_index_recent WHERE journal = ?1 AND seq < ?2)

-- name: delete_indexed
DELETE FROM limpet_index WHERE journal = ? AND seq < ?

-- name: delete_recent
DELETE FROM limpet_index_recent WHERE journal = ? AND seq < ?

-- name: delete_recent_note
DELETE FROM limpet_index_recent WHERE journal = ? AND seq = 1 << 62

-- name: delete_note
DELETE FROM limpet_notes WHERE journal = ?

-- name: delete_labels
DELETE FROM limpet_labels WHERE journal = ?

-- name: delete_journal
DELETE FROM limpet_journals WHERE journal = ?

-- The last record numbered under ?2.
-- name: droppable
SELECT seq, at, total FROM limpet_records WHERE record = coalesce(
    (SELECT record FROM limpet_index_recent WHERE journal = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT 1),
    (SELECT record FROM limpet_index WHERE journal = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT 1))

-- name: note_dropped
UPDATE limpet_journals SET dropped_seq = ?, dropped_at = ?, dropped_total = ? WHERE journal = ?

-- name: sizes_of
SELECT i.seq, record, length(body), total FROM limpet_index i CROSS JOIN limpet_records r USING (record)
WHERE i.journal = ?1
UNION ALL
SELECT i.seq, record, length(body), total FROM limpet_index_recent i CROSS JOIN limpet_records r USING (record)
WHERE i.journal = ?1
ORDER BY 1

-- name: set_body
UPDATE limpet_records SET body = ?, total = ? WHERE record = ?

-- name: set_total
UPDATE limpet_records SET total = ? WHERE record = ?

-- name: set_rewritten
UPDATE limpet_journals SET incarnation = ?, labels = ? WHERE journal = ?

-- Expired journals, and those without a record whose lease has ended.
-- name: expired
SELECT journal, tenant, kind, id FROM limpet_heads
WHERE journal IN (SELECT journal FROM limpet_journals
                  WHERE ttl IS NOT NULL AND ttl_from + ttl <= ?1)
  AND expires <= ?1 AND coalesce(until, 0) <= ?1
UNION ALL
SELECT journal, tenant, kind, id FROM limpet_journals WHERE incarnation = '' AND until <= ?1
LIMIT ?2

-- Records that the index does not have as they are, and entries of it that no record belongs to.
-- name: index_faults
WITH i AS (SELECT * FROM limpet_index UNION ALL
           SELECT journal, seq, record FROM limpet_index_recent WHERE record > 0)
SELECT count(*) FILTER (WHERE i.record IS NULL), count(*) FILTER (WHERE r.record IS NULL),
       (SELECT count(*) - count(DISTINCT record) FROM i)
FROM i FULL JOIN limpet_records r
    ON r.record = i.record AND r.journal = i.journal AND r.seq = i.seq

-- name: sizes
SELECT kind, count(*), sum(coalesce(last_seq, dropped_seq) - dropped_seq),
       sum(coalesce(last_total, dropped_total) - dropped_total)
FROM limpet_heads
WHERE incarnation <> '' GROUP BY kind ORDER BY kind
