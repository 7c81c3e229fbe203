-- The note of each journal's newest record, where it has one: what an append with a note writes beside
-- the record. In a table of its own, so that nothing of a journal's row is written again, and one
-- without a note costs nothing.
CREATE TABLE limpet_notes (
    journal INTEGER PRIMARY KEY,
    note    BLOB NOT NULL
) STRICT;

-- A record and its note, to be inserted by one statement, which commits by itself.
CREATE VIEW limpet_noted AS
SELECT r.journal, seq, count, at, total, id, body, note
FROM limpet_records r JOIN limpet_notes USING (journal);

CREATE TRIGGER limpet_noted_added INSTEAD OF INSERT ON limpet_noted BEGIN
    INSERT INTO limpet_records (journal, seq, count, at, total, id, body)
    VALUES (new.journal, new.seq, new.count, new.at, new.total, new.id, new.body);
    INSERT INTO limpet_notes VALUES (new.journal, new.note)
    ON CONFLICT DO UPDATE SET note = excluded.note; -- REPLACE takes longer
END;

-- Whoever adds a record with a round number moves what is in the small index to the large one.
CREATE TRIGGER limpet_records_gathered AFTER INSERT ON limpet_records WHEN new.record % 1024 = 0 BEGIN
    INSERT INTO limpet_index SELECT * FROM limpet_index_recent ORDER BY journal, seq;
    DELETE FROM limpet_index_recent;
END;

DROP VIEW limpet_heads;

CREATE VIEW limpet_heads AS
SELECT j.*, r.seq AS last_seq, r.at AS last_at, r.total AS last_total,
       max(coalesce(r.at, j.dropped_at), j.ttl_from) + j.ttl AS expires,
       (SELECT note FROM limpet_notes n WHERE n.journal = j.journal) AS note
FROM (SELECT *, coalesce(
          (SELECT record FROM limpet_index_recent i WHERE i.journal = limpet_journals.journal ORDER BY seq DESC LIMIT 1),
          (SELECT record FROM limpet_index i WHERE i.journal = limpet_journals.journal ORDER BY seq DESC LIMIT 1)
      ) AS last_record FROM limpet_journals) j
LEFT JOIN limpet_records r ON r.record = j.last_record;
