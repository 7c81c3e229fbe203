-- Journals, their records, labels. A journal's row is its head: it changes with every append.
CREATE TABLE limpet_journals (
    journal INTEGER PRIMARY KEY,
    tenant  TEXT NOT NULL,
    kind    TEXT NOT NULL,
    id      TEXT NOT NULL,
    seq     INTEGER NOT NULL DEFAULT 0, -- number of the newest entry
    floor   INTEGER NOT NULL DEFAULT 0, -- entries up to here were compacted away
    size    INTEGER NOT NULL DEFAULT 0, -- bytes of the bodies that are there
    created INTEGER NOT NULL,           -- times are microseconds since 1970
    updated INTEGER NOT NULL,
    ttl     INTEGER,                    -- microseconds after the last append
    expires INTEGER,
    status  TEXT,
    epoch   INTEGER,                    -- the newest lease
    holder  TEXT,
    until   INTEGER,
    UNIQUE (tenant, kind, id)
) STRICT;

CREATE INDEX limpet_journals_status ON limpet_journals (tenant, kind, status, id)
    WHERE status IS NOT NULL;
CREATE INDEX limpet_journals_expires ON limpet_journals (expires)
    WHERE expires IS NOT NULL;
-- Leased and never written to: what `sweep` clears away.
CREATE INDEX limpet_journals_empty ON limpet_journals (until)
    WHERE seq = 0;

-- In the order of their commits, so that a batch for many journals fills few pages.
CREATE TABLE limpet_records (
    record  INTEGER PRIMARY KEY,
    journal INTEGER NOT NULL,
    seq     INTEGER NOT NULL,           -- number of the last entry in it
    count   INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    id      TEXT,                       -- the append's, where it was given one
    body    BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX limpet_records_seq ON limpet_records (journal, seq);
CREATE UNIQUE INDEX limpet_records_id ON limpet_records (journal, id)
    WHERE id IS NOT NULL;

CREATE TABLE limpet_labels (
    journal INTEGER NOT NULL,
    name    TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (journal, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX limpet_labels_value ON limpet_labels (name, value);
