-- The last calls that changed attributes and added no record: one that comes again because its answer
-- was lost is known by its id, as one that adds a record is known by that.
ALTER TABLE {schema}.limpet_journals ADD COLUMN changes text[];
