-- Who was inside a running job, when and why; never what was typed or shown.
CREATE TABLE terminals (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt BIGINT NOT NULL,
  node_rank BIGINT NOT NULL,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  user_id TEXT NOT NULL REFERENCES users (id),
  actor TEXT NOT NULL,
  -- Given by an operator who is no member.
  reason TEXT,
  opened_at BIGINT NOT NULL,
  -- When there was first a shell.
  attached_at BIGINT,
  -- Since when nobody looks at it; absent while somebody does.
  left_at BIGINT,
  closed_at BIGINT,
  exit_code BIGINT,
  cause TEXT
);
CREATE INDEX terminals_by_job ON terminals (job_id, id);
CREATE INDEX terminals_open ON terminals (org_id) WHERE closed_at IS NULL;
