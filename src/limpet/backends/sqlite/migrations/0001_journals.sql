-- Journals, their records, labels. An append writes a record and nothing else: a journal's row says
-- what changes seldom, and its last record says the rest. `limpet_heads` puts the two together.
CREATE TABLE limpet_journals (
    journal       INTEGER PRIMARY KEY,
    tenant        TEXT NOT NULL,
    kind          TEXT NOT NULL,
    id            TEXT NOT NULL,
    incarnation   TEXT NOT NULL,              -- '' before the first record
    created       INTEGER NOT NULL,           -- times are microseconds since 1970
    dropped_seq   INTEGER NOT NULL,           -- the last record that was compacted away: its number,
    dropped_at    INTEGER NOT NULL,           -- its time, and the bytes
    dropped_total INTEGER NOT NULL,           -- of all bodies up to it
    ttl           INTEGER,                    -- microseconds after the last record,
    ttl_from      INTEGER,                    -- or after this, if that is later
    status        TEXT,
    meta          BLOB,
    labels        TEXT,                       -- as JSON; one by one in limpet_labels
    holder        TEXT,                       -- the newest lease
    epoch         INTEGER,
    until         INTEGER,
    UNIQUE (tenant, kind, id)
) STRICT;

CREATE INDEX limpet_journals_status ON limpet_journals (tenant, kind, status, id)
    WHERE status IS NOT NULL;
-- What `sweep` looks at: an expired journal, or one that was leased and never written to.
CREATE INDEX limpet_journals_ttl ON limpet_journals (ttl_from + ttl)
    WHERE ttl IS NOT NULL;
CREATE INDEX limpet_journals_empty ON limpet_journals (until)
    WHERE incarnation = '';

-- In the order of their commits, so that a batch for many journals fills few pages.
CREATE TABLE limpet_records (
    record  INTEGER PRIMARY KEY,
    journal INTEGER NOT NULL,
    seq     INTEGER NOT NULL,                 -- number of the last entry in it
    count   INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    total   INTEGER NOT NULL,                 -- bytes of all bodies up to and with this one
    id      TEXT,                             -- the append's, where it was given one
    body    BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX limpet_records_seq ON limpet_records (journal, seq);
CREATE UNIQUE INDEX limpet_records_id ON limpet_records (journal, id)
    WHERE id IS NOT NULL;

-- What lists are filtered by.
CREATE TABLE limpet_labels (
    journal INTEGER NOT NULL,
    name    TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (journal, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX limpet_labels_value ON limpet_labels (name, value);

CREATE VIEW limpet_heads AS
SELECT j.*, r.seq AS last_seq, r.at AS last_at, r.total AS last_total,
       max(coalesce(r.at, j.dropped_at), j.ttl_from) + j.ttl AS expires
FROM limpet_journals j LEFT JOIN limpet_records r ON r.record = (
    SELECT record FROM limpet_records WHERE journal = j.journal ORDER BY seq DESC LIMIT 1
);
