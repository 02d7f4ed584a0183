-- Withdrawals of price versions before their begin. A version stays, because versions never change.
CREATE TABLE price_withdrawals (
  offering_id TEXT NOT NULL,
  version BIGINT NOT NULL,
  withdrawn_at BIGINT NOT NULL,
  withdrawn_by TEXT NOT NULL,
  PRIMARY KEY (offering_id, version),
  FOREIGN KEY (offering_id, version) REFERENCES prices (offering_id, version)
);

-- They pass the second operator too.
DROP INDEX change_requests_pending;
DROP INDEX change_requests_access;
DROP INDEX change_requests_mail_due;
DROP INDEX change_requests_mailed;
ALTER TABLE change_requests RENAME TO change_requests_without_withdrawals;
CREATE TABLE change_requests (
  id TEXT PRIMARY KEY,
  action TEXT NOT NULL CHECK (action IN ('access_job', 'add_operator', 'add_promise', 'change_operator', 'change_promise', 'debit', 'enable_operator', 'end_policy', 'grant_credit', 'grant_credits', 'grant_request', 'pay_invoice', 'set_credit_limit', 'set_price', 'void_invoice', 'withdraw_price')),
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
  decision_reason TEXT NOT NULL,
  -- True until the mail about the present state is handed over.
  mail_due BOOLEAN NOT NULL,
  -- The time of the mail about the new request; absent without one.
  mailed_at BIGINT
);
INSERT INTO change_requests (id, action, state, org_id, target, amount_micros, reason, detail, input, requested_by,
  created_at, expires_at, decided_by, decided_at, decision_reason, mail_due, mailed_at)
SELECT id, action, state, org_id, target, amount_micros, reason, detail, input, requested_by,
  created_at, expires_at, decided_by, decided_at, decision_reason, mail_due, mailed_at
FROM change_requests_without_withdrawals;
DROP TABLE change_requests_without_withdrawals;
CREATE INDEX change_requests_pending ON change_requests (expires_at) WHERE state = 'pending';
-- The approved accesses of an operator to a job.
CREATE INDEX change_requests_access ON change_requests (requested_by, target) WHERE action = 'access_job';
CREATE INDEX change_requests_mail_due ON change_requests (requested_by, id) WHERE mail_due;
-- The last mail about new requests of an operator.
CREATE INDEX change_requests_mailed ON change_requests (requested_by, mailed_at) WHERE mailed_at IS NOT NULL;
