-- The note of the newest record, where it has one.
ALTER TABLE {schema}.limpet_journals ADD COLUMN note bytea;
