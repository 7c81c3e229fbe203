-- The note of a journal's newest record lies in the small index, right behind the entry of that record:
-- under a number over all others, 2^62, and with no record. So it is on a page that an append writes
-- anyway; on one of its own it would be 5 % of what an append takes on a fast disk. When the small
-- index is emptied, notes go to a table of theirs; a journal's note is in one of the two.
ALTER TABLE limpet_index_recent ADD COLUMN note BLOB;

CREATE TABLE limpet_notes (
    journal INTEGER PRIMARY KEY,
    note    BLOB NOT NULL
) STRICT;

-- A record and its note, to be inserted by one statement, which commits by itself.
CREATE VIEW limpet_noted AS
SELECT r.journal, r.seq, count, at, total, id, body, note
FROM limpet_records r JOIN limpet_index_recent i ON i.journal = r.journal AND i.seq = 1 << 62;

CREATE TRIGGER limpet_noted_added INSTEAD OF INSERT ON limpet_noted BEGIN
    INSERT INTO limpet_records (journal, seq, count, at, total, id, body)
    VALUES (new.journal, new.seq, new.count, new.at, new.total, new.id, new.body);
    DELETE FROM limpet_notes WHERE journal = new.journal;
    INSERT INTO limpet_index_recent VALUES (new.journal, 1 << 62, 0, new.note)
    ON CONFLICT DO UPDATE SET note = excluded.note; -- REPLACE takes longer
END;

DROP TRIGGER limpet_records_added;

CREATE TRIGGER limpet_records_added AFTER INSERT ON limpet_records BEGIN
    INSERT INTO limpet_index_recent VALUES (new.journal, new.seq, new.record, NULL);
END;

-- Whoever adds a record with a round number empties the small index.
CREATE TRIGGER limpet_records_gathered AFTER INSERT ON limpet_records WHEN new.record % 1024 = 0 BEGIN
    INSERT INTO limpet_index SELECT journal, seq, record FROM limpet_index_recent
    WHERE record > 0 ORDER BY journal, seq;
    INSERT OR REPLACE INTO limpet_notes SELECT journal, note FROM limpet_index_recent WHERE record = 0;
    DELETE FROM limpet_index_recent;
END;

DROP VIEW limpet_heads;

CREATE VIEW limpet_heads AS
SELECT j.*, r.seq AS last_seq, r.at AS last_at, r.total AS last_total,
       max(coalesce(r.at, j.dropped_at), j.ttl_from) + j.ttl AS expires,
       coalesce((SELECT note FROM limpet_index_recent i WHERE i.journal = j.journal AND i.seq = 1 << 62),
                (SELECT note FROM limpet_notes n WHERE n.journal = j.journal)) AS note
FROM (SELECT *, coalesce(
          (SELECT record FROM limpet_index_recent i
           WHERE i.journal = limpet_journals.journal AND seq < 1 << 62 ORDER BY seq DESC LIMIT 1),
          (SELECT record FROM limpet_index i WHERE i.journal = limpet_journals.journal ORDER BY seq DESC LIMIT 1)
      ) AS last_record FROM limpet_journals) j
LEFT JOIN limpet_records r ON r.record = j.last_record;
