-- Stored bytes of organizations, and the retention of ended jobs.

-- The bytes of the logs of an ended job; absent before their count.
ALTER TABLE jobs ADD COLUMN log_bytes BIGINT;
-- The time at which retention removed its submission, logs and files.
ALTER TABLE jobs ADD COLUMN removed_at BIGINT;
CREATE INDEX jobs_uncounted ON jobs (ended_at, id) WHERE ended_at IS NOT NULL AND log_bytes IS NULL;
CREATE INDEX jobs_kept ON jobs (ended_at, id) WHERE ended_at IS NOT NULL AND removed_at IS NULL;
CREATE INDEX jobs_kept_by_org ON jobs (org_id, ended_at, id) WHERE ended_at IS NOT NULL AND removed_at IS NULL;

-- The bytes of the whole submission; 0 for submissions from before this column.
ALTER TABLE job_inputs ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;

-- The number and bytes of stored submissions, and the bytes of logs. They count against the storage limit.
CREATE TABLE org_storage (
  org_id TEXT PRIMARY KEY REFERENCES orgs (id),
  submissions BIGINT NOT NULL,
  submission_bytes BIGINT NOT NULL,
  log_bytes BIGINT NOT NULL
);
INSERT INTO org_storage (org_id, submissions, submission_bytes, log_bytes)
SELECT j.org_id, CAST(COUNT(*) AS BIGINT), 0, 0 FROM jobs j JOIN job_inputs i ON i.job_id = j.id GROUP BY j.org_id;

-- A shorter retention of one organization than the portal's.
CREATE TABLE org_retention (
  org_id TEXT PRIMARY KEY REFERENCES orgs (id),
  keep_ended_jobs_days BIGINT NOT NULL CHECK (keep_ended_jobs_days > 0)
);
