-- Change requests: acts of operators that wait for a second operator.

CREATE TABLE change_requests (
  id TEXT PRIMARY KEY,
  action TEXT NOT NULL CHECK (action IN ('access_job', 'debit', 'end_policy', 'grant_credit', 'grant_credits', 'grant_request', 'pay_invoice', 'set_credit_limit', 'set_price', 'void_invoice')),
  -- The state `expired` is never stored: it follows from `expires_at`.
  state TEXT NOT NULL CHECK (state IN ('approved', 'expired', 'pending', 'rejected', 'withdrawn')),
  -- Absent for an act about several organizations or about none.
  org_id TEXT REFERENCES orgs (id),
  -- The id or the slug of the object of the act.
  target TEXT NOT NULL,
  amount_micros BIGINT,
  reason TEXT NOT NULL,
  detail TEXT NOT NULL,
  -- The body of the request as JSON.
  input TEXT NOT NULL,
  requested_by TEXT NOT NULL REFERENCES users (id),
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  decided_by TEXT REFERENCES users (id),
  decided_at BIGINT,
  decision_reason TEXT NOT NULL
);
CREATE INDEX change_requests_pending ON change_requests (expires_at) WHERE state = 'pending';
-- The approved accesses of an operator to a job.
CREATE INDEX change_requests_access ON change_requests (requested_by, target) WHERE action = 'access_job';
