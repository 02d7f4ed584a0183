-- Limits of organizations; the row without organization ('') is for all that have none of their own.
CREATE TABLE quotas (
  org_id TEXT PRIMARY KEY,
  -- JSON.
  limits TEXT NOT NULL,
  set_by TEXT NOT NULL,
  set_at BIGINT NOT NULL
);

-- What jobs submitted in a month count for: thousandths of whole boards x seconds, at their longest
-- until they have ended.
CREATE TABLE usage_months (
  org_id TEXT NOT NULL,
  month TEXT NOT NULL,
  board_milli_s BIGINT NOT NULL,
  PRIMARY KEY (org_id, month)
);

CREATE TABLE quota_requests (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  limits TEXT NOT NULL,
  reason TEXT NOT NULL,
  state TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  decided_at BIGINT,
  decided_by TEXT,
  note TEXT NOT NULL
);
CREATE INDEX quota_requests_by_org ON quota_requests (org_id, id);

-- What was done on purpose, and by whom. Without organization: the operator's own.
CREATE TABLE audit_events (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL,
  at BIGINT NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL
);
CREATE INDEX audit_events_by_org ON audit_events (org_id, id);

-- Thousandths of whole boards that a job takes on all its nodes.
ALTER TABLE jobs ADD COLUMN board_milli BIGINT NOT NULL DEFAULT 0;
UPDATE jobs SET board_milli = device_count * nodes *
  (SELECT o.cells * 1000 / o.board_cells FROM offerings o WHERE o.id = jobs.offering_id);
CREATE INDEX jobs_by_end ON jobs (ended_at);
