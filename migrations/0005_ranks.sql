-- An attempt has one rank on each of its nodes; rows were attempts on one node before.
CREATE TABLE attempt_ranks (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  number BIGINT NOT NULL,
  rank BIGINT NOT NULL,
  org_id TEXT NOT NULL,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  -- The worker has said that it keeps it.
  known BOOLEAN NOT NULL,
  running BOOLEAN NOT NULL,
  ended BOOLEAN NOT NULL,
  -- JSON: how it ended.
  outcome TEXT,
  ended_at BIGINT,
  clean BOOLEAN NOT NULL,
  -- Length of the log at the end.
  log_bytes BIGINT,
  is_open BOOLEAN NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (job_id, number, rank),
  UNIQUE (job_id, number, node_id)
);
INSERT INTO attempt_ranks (job_id, number, rank, org_id, node_id, known, running, ended, clean, log_bytes, is_open, created_at)
  SELECT job_id, number, 0, org_id, node_id, known, known, ended, clean, log_bytes, is_open, created_at FROM attempts;
DROP TABLE attempts;
ALTER TABLE attempt_ranks RENAME TO attempts;
CREATE INDEX attempts_open ON attempts (node_id, is_open);
-- Where other nodes reach this one.
ALTER TABLE nodes ADD COLUMN address TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN nodes BIGINT NOT NULL DEFAULT 1;
