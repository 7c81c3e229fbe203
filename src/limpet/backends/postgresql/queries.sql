-- The statements of a PostgreSQL store. Plain SQL, so that other engines that speak it can take it:
-- no triggers, sequences or procedures. Times are microseconds since 1970, by the server's clock.
--
-- Under READ COMMITTED a statement sees what was committed when it began, but for a row that it
-- locks: of that one it sees the newest version. So every condition of a write is about the head's
-- row alone, the labels are in that row, and that an id was used before is known for certain by a
-- unique index.

-- == parts of statements ==

-- The time at this very moment: after a lock has been waited for.
-- name: now
(extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- The time when the statement came in: one value all through it.
-- name: began
(extract(epoch FROM statement_timestamp()) * 1000000)::bigint

-- name: hour
3600000000

-- name: journals
{schema}.limpet_journals

-- name: records
{schema}.limpet_records

-- name: key
j.tenant = %(tenant)s AND j.kind = %(kind)s AND j.id = %(id)s

-- Whether the journal has not expired; never null.
-- name: live
(j.expires IS NULL OR j.expires > {now} OR coalesce(j.until, 0) > {now})

-- name: head
j.id, j.incarnation, j.seq, j.first, j.size, j.created, j.updated, j.ttl, j.expires,
j.status, j.labels, j.meta, j.holder, j.epoch, j.until, j.note

-- == appends ==

-- What must be so for an append. The last condition only spares the server an error in its log: an
-- id that came in since the statement began is not seen here.
-- name: allowed
{live}
AND (%(epoch)s::bigint IS NULL OR j.epoch = %(epoch)s)
AND (%(expect_seq)s::bigint IS NULL OR (
    j.seq = %(expect_seq)s
    AND (j.seq = 0 OR %(expect_incarnation)s::text IS NULL OR j.incarnation = %(expect_incarnation)s)
))
AND (NOT %(known)s::boolean OR NOT EXISTS (
    SELECT 1 FROM {records} r WHERE r.journal = j.journal AND r.id = %(append_id)s
))

-- name: attributes
status = CASE WHEN %(sets_status)s::boolean THEN %(status)s::text ELSE j.status END,
labels = CASE WHEN %(labels)s::jsonb IS NULL THEN j.labels
    ELSE nullif(jsonb_strip_nulls(coalesce(j.labels, '{}') || %(labels)s), '{}') END,
meta = CASE WHEN %(sets_meta)s::boolean THEN %(meta)s::bytea ELSE j.meta END

-- name: ttl
(CASE WHEN %(sets_ttl)s::boolean THEN %(ttl)s::bigint ELSE j.ttl END)

-- The time of the append. A clock may be set back, a journal's times do not go back.
-- name: at
greatest(j.updated, coalesce(%(at)s::bigint, {began}))

-- A record to a journal that has one, and nothing else. Returns nothing where it is not allowed.
-- name: append
WITH head AS (
    UPDATE {journals} AS j
    SET seq = j.seq + %(total)s, size = j.size + %(size)s, updated = {at}, note = %(note)s::bytea,
        expires = {at} + j.ttl, due = ({at} + j.ttl) / {hour}
    WHERE {key} AND j.seq > 0 AND {allowed}
    RETURNING j.journal, j.seq, j.updated, j.incarnation
), {record}

-- The same with attributes. To name only what changes would be a statement for each combination.
-- name: append_and_change
WITH head AS (
    UPDATE {journals} AS j
    SET seq = j.seq + %(total)s, size = j.size + %(size)s, updated = {at}, note = %(note)s::bytea,
        ttl = {ttl}, expires = {at} + {ttl}, due = ({at} + {ttl}) / {hour}, {attributes}
    WHERE {key} AND j.seq > 0 AND {allowed}
    RETURNING j.journal, j.seq, j.updated, j.incarnation
), {record}

-- name: record
{earlier} record AS (
    INSERT INTO {records} (journal, seq, count, at, id, body)
    SELECT journal, seq, %(count)s, updated, %(append_id)s, %(body)s FROM head
)
SELECT seq, updated, incarnation {notify} FROM head

-- The other records of an append, where it has several. `behind` is how many entries come after each.
-- name: earlier_records
earlier AS (
    INSERT INTO {records} (journal, seq, count, at, id, body)
    SELECT journal, seq - e.behind, e.count, updated, chr(31) || %(append_id)s || '/' || e.behind, e.body
    FROM head, unnest(%(behind)s::bigint[], %(counts)s::bigint[], %(bodies)s::bytea[])
         AS e (behind, count, body)
),

-- The first record of a journal, which until now was nothing or only a lease. With an epoch it must
-- have been a lease. Returns nothing where that is not so.
-- name: begin
WITH leased AS (
    UPDATE {journals} AS j
    SET incarnation = %(new_incarnation)s, seq = %(first)s - 1 + %(total)s, first = %(first)s,
        size = %(size)s, created = coalesce(%(created)s, {began}),
        updated = {new_at}, note = %(note)s::bytea, ttl = %(new_ttl)s, expires = {new_at} + %(new_ttl)s,
        due = ({new_at} + %(new_ttl)s) / {hour}, {attributes}
    WHERE {key} AND j.seq = 0 AND {live}
      AND (%(epoch)s::bigint IS NULL OR j.epoch = %(epoch)s)
    RETURNING j.journal, j.seq, j.updated, j.incarnation
), begun AS (
    INSERT INTO {journals}
        (tenant, kind, id, journal, incarnation, seq, first, size, created, updated,
         ttl, expires, due, status, labels, meta, note)
    SELECT %(tenant)s, %(kind)s, %(id)s, %(journal)s::uuid, %(new_incarnation)s,
           %(first)s::bigint - 1 + %(total)s, %(first)s::bigint, %(size)s,
           coalesce(%(created)s, {began}), {new_at},
           %(new_ttl)s::bigint, {new_at} + %(new_ttl)s, ({new_at} + %(new_ttl)s) / {hour},
           %(status)s, nullif(jsonb_strip_nulls(%(labels)s::jsonb), '{}'), %(meta)s::bytea,
           %(note)s::bytea
    WHERE %(epoch)s::bigint IS NULL AND NOT EXISTS (SELECT 1 FROM leased)
    ON CONFLICT DO NOTHING
    RETURNING journal, seq, updated, incarnation
), head AS (
    SELECT * FROM leased UNION ALL SELECT * FROM begun
), {record}

-- name: new_at
greatest(coalesce(%(at)s::bigint, {began}), %(created)s::bigint)

-- Attributes without a record. What is only a lease stays due for a sweep when that has ended.
-- name: change
UPDATE {journals} AS j
SET ttl = {ttl}, {attributes},
    changes = (coalesce(j.changes, '{}') || %(append_id)s::text)
              [greatest(1, coalesce(cardinality(j.changes), 0) - 14):],
    expires = CASE WHEN %(sets_ttl)s THEN {at} + %(ttl)s ELSE j.expires END,
    due = CASE WHEN %(sets_ttl)s AND j.seq > 0 THEN ({at} + %(ttl)s) / {hour} ELSE j.due END
WHERE {key} AND {allowed} AND NOT {changed}
RETURNING j.seq, j.updated, j.incarnation

-- Whether this very call has changed the attributes before.
-- name: changed
coalesce(%(append_id)s::text = ANY (j.changes), false)

-- name: notify
, pg_notify('{channel}', concat_ws(' ', %(tenant)s::text, %(kind)s::text, %(id)s::text))::text

-- == reading ==

-- What is stored of a journal, expired or not, and of an append to it; always one row.
-- name: stored
SELECT t.now, coalesce(r.seq, CASE WHEN {changed} THEN j.seq END),
       coalesce(r.at, CASE WHEN {changed} THEN j.updated END), {head}
FROM (SELECT {now} AS now) t
LEFT JOIN {journals} j ON {key}
LEFT JOIN {records} r ON r.journal = j.journal AND r.id = %(append_id)s

-- name: visible_head
SELECT {now}, {head} FROM {journals} j WHERE {key} AND j.seq > 0 AND {live}

-- name: scan
SELECT {now}, {head} FROM {journals} j
WHERE j.tenant = %(tenant)s AND j.kind = %(kind)s AND j.seq > 0 AND {live}

-- The first journal of each kind, one after the other: what a million more of a kind cost nothing.
-- name: kinds
WITH RECURSIVE firsts AS (
    (SELECT tenant, kind FROM {journals} ORDER BY tenant, kind LIMIT 1)
    UNION ALL
    SELECT n.tenant, n.kind FROM firsts f CROSS JOIN LATERAL (
        SELECT tenant, kind FROM {journals}
        WHERE (tenant, kind) > (f.tenant, f.kind) ORDER BY tenant, kind LIMIT 1) n
)
SELECT f.tenant, f.kind FROM firsts f
WHERE EXISTS (SELECT 1 FROM {journals} j
              WHERE j.tenant = f.tenant AND j.kind = f.kind AND j.seq > 0 AND {live})
ORDER BY f.tenant, f.kind

-- A sub-select, not a join: only so it is known that the index gives the order.
-- name: of_journal
r.journal = (SELECT j.journal FROM {journals} j WHERE {key} AND {live})

-- name: read
SELECT r.seq, r.count, r.at, r.body, r.id FROM {records} r
WHERE {of_journal} AND r.seq > %(after)s

-- The first record that ends at or behind `upto` is the last that can hold it.
-- name: and_upto
AND r.seq - r.count < %(upto)s
AND r.seq <= coalesce((
    SELECT min(e.seq) FROM {records} e
    WHERE e.journal = (SELECT j.journal FROM {journals} j WHERE {key}) AND e.seq >= %(upto)s
), %(upto)s)

-- name: bodies
SELECT r.seq, r.body FROM {records} r WHERE {of_journal} AND r.seq > %(after)s
ORDER BY r.seq LIMIT %(limit)s

-- == removing ==

-- name: delete_journal
DELETE FROM {journals} AS j
WHERE {key} AND (%(journal)s::uuid IS NULL OR j.journal = %(journal)s)
RETURNING j.journal, j.seq > 0 AND {live}

-- The same where the journal is as expected, and nobody may write it.
-- name: delete_expected
DELETE FROM {journals} AS j
WHERE {key} AND (%(journal)s::uuid IS NULL OR j.journal = %(journal)s) AND {live}
  AND j.seq = %(expect_seq)s
  AND (j.seq = 0 OR %(expect_incarnation)s::text IS NULL OR j.incarnation = %(expect_incarnation)s)
  AND coalesce(j.until, 0) <= {now}
RETURNING j.journal, j.seq > 0

-- name: delete_expired
DELETE FROM {journals} AS j WHERE {key} AND NOT {live} RETURNING j.journal

-- name: delete_records
DELETE FROM {records} WHERE journal = ANY(%(journals)s::uuid[])

-- name: lock_journal
SELECT j.journal, j.first FROM {journals} j WHERE {key} AND {live} FOR UPDATE

-- name: drop_records
WITH gone AS (
    DELETE FROM {records} WHERE journal = %(journal)s AND seq < %(before)s
    RETURNING seq, octet_length(body) AS size
)
SELECT max(seq), sum(size)::bigint FROM gone

-- name: set_first
UPDATE {journals} AS j SET first = %(first)s, size = j.size - %(dropped)s WHERE {key}

-- name: lock_expected
SELECT j.journal FROM {journals} j
WHERE {key} AND {live} AND j.incarnation = %(incarnation)s AND j.seq = %(seq)s FOR UPDATE

-- Returns the size that it had.
-- name: set_body
UPDATE {records} AS r SET body = %(body)s
FROM (SELECT journal, seq, octet_length(body) AS size FROM {records}
      WHERE journal = %(journal)s AND seq = %(seq)s FOR UPDATE) old
WHERE r.journal = old.journal AND r.seq = old.seq RETURNING old.size

-- name: set_rewritten
UPDATE {journals} AS j
SET incarnation = %(renewed)s, size = j.size + %(grown)s,
    note = coalesce(%(note)s::bytea, j.note),
    labels = nullif(coalesce(j.labels, jsonb_build_object()) || %(labels)s::jsonb, jsonb_build_object())
WHERE {key}

-- name: is_to_be_swept
j.due <= {began} / {hour} AND (NOT {live} OR (j.seq = 0 AND coalesce(j.until, 0) <= {now}))

-- FOR UPDATE asks again of a row that has changed: what was revived meanwhile stays.
-- name: sweep
WITH gone AS (
    SELECT j.tenant, j.kind, j.id FROM {journals} j WHERE {is_to_be_swept}
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM {journals} AS j USING gone
WHERE j.tenant = gone.tenant AND j.kind = gone.kind AND j.id = gone.id
RETURNING j.journal

-- == leases ==

-- What is only a lease is due for a sweep when that has ended.
-- name: acquire
INSERT INTO {journals} AS j
    (tenant, kind, id, journal, created, updated, holder, token, epoch, until, due)
VALUES (%(tenant)s, %(kind)s, %(id)s, %(journal)s::uuid, {began}, {began}, %(holder)s, %(token)s,
        {began}, {began} + %(ttl)s, ({began} + %(ttl)s) / {hour})
ON CONFLICT (tenant, kind, id) DO UPDATE SET
    holder = %(holder)s, token = %(token)s, until = {now} + %(ttl)s,
    -- A call that comes again because its answer was lost is known by its token.
    epoch = CASE WHEN j.token = %(token)s THEN j.epoch
                 ELSE greatest(coalesce(j.epoch, 0) + 1, {now}) END,
    due = CASE WHEN j.seq = 0 THEN ({now} + %(ttl)s) / {hour} ELSE j.due END
WHERE {live}
  AND (coalesce(j.until, 0) <= {now} OR j.epoch = %(over)s OR j.token = %(token)s)
RETURNING j.epoch, j.until

-- One that is ended ended before all times: the clock may be ahead, and be set right later.
-- name: renew
UPDATE {journals} AS j
SET until = CASE WHEN %(ttl)s > 0 THEN {now} + %(ttl)s ELSE 0 END,
    due = CASE WHEN j.seq = 0 THEN ({now} + %(ttl)s) / {hour} ELSE j.due END
WHERE {key} AND j.epoch = %(epoch)s AND {live}
RETURNING j.until

-- == sessions ==

-- What decides whether an acknowledged write survives power loss, and the time.
-- name: settings
SELECT {now}, current_setting('synchronous_commit', true), current_setting('fsync', true),
       current_setting('full_page_writes', true)

-- A process number is used again: a session that began later is another's. So is one that began
-- long before we had ours, on a server that has taken the place of the one we had it on.
-- name: of_sessions
FROM pg_stat_activity JOIN unnest(%(pids)s::bigint[], %(ats)s::bigint[]) AS lost (pid, at) USING (pid)
WHERE extract(epoch FROM backend_start) * 1000000 BETWEEN at - 600000000 AND at

-- name: end_sessions
SELECT pg_terminate_backend(pid::int) {of_sessions}

-- name: find_sessions
SELECT pid {of_sessions} LIMIT 1

-- == tables ==

-- name: find_schema
SELECT 1 FROM pg_namespace WHERE nspname = %(name)s

-- name: create_version
CREATE TABLE IF NOT EXISTS {schema}.limpet_schema
    (one integer PRIMARY KEY CHECK (one = 1), version integer NOT NULL)

-- name: first_version
INSERT INTO {schema}.limpet_schema VALUES (1, 0) ON CONFLICT (one) DO NOTHING

-- name: version
SELECT version FROM {schema}.limpet_schema

-- name: lock_version
SELECT version FROM {schema}.limpet_schema FOR UPDATE

-- name: set_version
UPDATE {schema}.limpet_schema SET version = %(version)s

-- == what the doctor asks ==

-- name: engine
SELECT version()

-- name: table_size
SELECT pg_total_relation_size('{journals}') + pg_total_relation_size('{records}')

-- name: sizes
SELECT j.kind, count(*), sum(j.seq - j.first + 1)::bigint, sum(j.size)::bigint
FROM {journals} j WHERE j.seq > 0 AND {live} GROUP BY j.kind ORDER BY j.kind

-- name: count_expired
SELECT count(*) FROM {journals} j WHERE {is_to_be_swept}

-- Journals whose records are not those that their heads tell of. A digest of each body, so that the
-- server reads every byte.
-- name: faults
SELECT j.tenant, j.kind, j.id FROM {journals} j LEFT JOIN (
    SELECT journal, min(seq - count) + 1 AS first, max(seq) AS seq,
           sum(octet_length(body)) AS size, bool_and(follows) AS whole,
           bool_and(sha256(body) IS NOT NULL) AS legible
    FROM (SELECT journal, seq, count, body, coalesce(seq - count = lag(seq) OVER (
              PARTITION BY journal ORDER BY seq), true) AS follows FROM {records}) one
    GROUP BY journal) r ON r.journal = j.journal
WHERE j.first <> coalesce(r.first, j.first) OR j.seq <> coalesce(r.seq, j.first - 1)
   OR j.size <> coalesce(r.size, 0) OR NOT r.whole OR NOT r.legible
ORDER BY j.tenant, j.kind, j.id LIMIT 20

-- name: strays
SELECT count(*) FROM {records} r
WHERE NOT EXISTS (SELECT 1 FROM {journals} j WHERE j.journal = r.journal)
