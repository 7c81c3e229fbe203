-- Which record of a journal has which number. An index on (journal, seq) has a page for each journal
-- of some length, so that a commit of records for 64 journals would write 64 pages of it. Here new
-- entries go to a table of some pages, and are moved to the large one a thousand at a time.
CREATE TABLE limpet_index (
    journal INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    record  INTEGER NOT NULL,
    PRIMARY KEY (journal, seq)
) STRICT, WITHOUT ROWID;

-- The same of the newest records: all of a journal's numbers here are over those in limpet_index.
CREATE TABLE limpet_index_recent (
    journal INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    record  INTEGER NOT NULL,
    PRIMARY KEY (journal, seq)
) STRICT, WITHOUT ROWID;

INSERT INTO limpet_index SELECT journal, seq, record FROM limpet_records ORDER BY journal, seq;

CREATE TRIGGER limpet_records_added AFTER INSERT ON limpet_records BEGIN
    INSERT INTO limpet_index_recent VALUES (new.journal, new.seq, new.record);
END;

DROP VIEW limpet_heads;
DROP INDEX limpet_records_seq;

-- `last_record` is what the index has, `last_seq` what the record says: without the latter, the file is
-- damaged.
CREATE VIEW limpet_heads AS
SELECT j.*, r.seq AS last_seq, r.at AS last_at, r.total AS last_total,
       max(coalesce(r.at, j.dropped_at), j.ttl_from) + j.ttl AS expires
FROM (SELECT *, coalesce(
          (SELECT record FROM limpet_index_recent i WHERE i.journal = limpet_journals.journal ORDER BY seq DESC LIMIT 1),
          (SELECT record FROM limpet_index i WHERE i.journal = limpet_journals.journal ORDER BY seq DESC LIMIT 1)
      ) AS last_record FROM limpet_journals) j
LEFT JOIN limpet_records r ON r.record = j.last_record;
