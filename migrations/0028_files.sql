-- Files of jobs that outlive their attempt. The bytes are in the object store, under the row's id.
CREATE TABLE job_files (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt BIGINT NOT NULL,
  rank BIGINT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('checkpoint', 'artifact')),
  -- Orders the checkpoints of an attempt.
  seq BIGINT NOT NULL,
  path TEXT NOT NULL,
  bytes BIGINT NOT NULL CHECK (bytes >= 0),
  -- Lower-case hex.
  sha256 TEXT NOT NULL,
  files BIGINT NOT NULL,
  -- What is gone is removed from the object store before its row.
  state TEXT NOT NULL CHECK (state IN ('partial', 'complete', 'refused', 'gone')),
  note TEXT,
  created_at BIGINT NOT NULL,
  UNIQUE (job_id, attempt, rank, kind, seq, path)
);
CREATE INDEX job_files_by_org ON job_files (org_id, state);
CREATE INDEX job_files_by_state ON job_files (state, kind);

-- The worker has files of this rank that the portal should have and has not.
ALTER TABLE attempts ADD COLUMN saving BOOLEAN NOT NULL DEFAULT FALSE;
