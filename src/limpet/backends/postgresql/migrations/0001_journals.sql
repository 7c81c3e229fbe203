-- Journals and their records. A journal's row is its head: it changes with every append.
--
-- An append changes no column that is in an index, so that its update is a "heap-only" one, for
-- which the table is left some room. `due` is why: it is `expires`, but only to the hour.
CREATE TABLE {schema}.limpet_journals (
    tenant      text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    id          text COLLATE "C" NOT NULL,
    journal     uuid NOT NULL,                          -- another one when it begins anew
    incarnation text COLLATE "C" NOT NULL DEFAULT '',   -- '' before the first record
    seq         bigint NOT NULL DEFAULT 0,              -- number of the newest entry
    first       bigint NOT NULL DEFAULT 1,              -- of the oldest that was not compacted away
    size        bigint NOT NULL DEFAULT 0,              -- bytes of the bodies that are there
    created     bigint NOT NULL,                        -- times are microseconds since 1970
    updated     bigint NOT NULL,
    ttl         bigint,                                 -- microseconds after the last append
    expires     bigint,
    due         bigint,                                 -- the hour from which `sweep` looks at it
    status      text COLLATE "C",
    labels      jsonb,                                  -- null where there are none
    meta        bytea,
    epoch       bigint,                                 -- the newest lease
    holder      text,
    until       bigint,
    token       text,                                   -- of the call that took it, should it ask again
    PRIMARY KEY (tenant, kind, id)
) WITH (fillfactor = 70);

CREATE INDEX limpet_journals_status ON {schema}.limpet_journals (tenant, kind, status, id)
    WHERE status IS NOT NULL;
CREATE INDEX limpet_journals_labels ON {schema}.limpet_journals USING gin (labels)
    WHERE labels IS NOT NULL;
CREATE INDEX limpet_journals_due ON {schema}.limpet_journals (due)
    WHERE due IS NOT NULL;

CREATE TABLE {schema}.limpet_records (
    journal uuid NOT NULL,
    seq     bigint NOT NULL,            -- number of the last entry in it
    count   bigint NOT NULL,
    at      bigint NOT NULL,
    id      text COLLATE "C" NOT NULL,  -- the append's; ours, where it was given none
    body    bytea NOT NULL,
    PRIMARY KEY (journal, seq)
);

CREATE UNIQUE INDEX limpet_records_id ON {schema}.limpet_records (journal, id);
