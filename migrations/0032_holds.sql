-- The transfer that set money aside for a job, known without a look into the ledger.
ALTER TABLE jobs ADD COLUMN hold_id TEXT;
UPDATE jobs SET hold_id = (SELECT t.id FROM transfers t WHERE t.source = 'job' AND t.source_id = jobs.id
  AND t.kind = 'hold' ORDER BY t.seq LIMIT 1) WHERE ended_at IS NULL;
