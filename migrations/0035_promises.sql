-- Promises of services: the classes of the operator, the choices of services, and the judged windows with their credits.

CREATE TABLE promises (
  id TEXT PRIMARY KEY,
  -- Unique among the classes that are offered.
  name TEXT NOT NULL,
  -- The terms as JSON.
  terms TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  retired_at BIGINT
);
CREATE UNIQUE INDEX promises_by_name ON promises (name) WHERE retired_at IS NULL;

-- The choices of services. A former choice stays until its last whole window is judged.
CREATE TABLE service_promises (
  service_id TEXT NOT NULL REFERENCES services (id),
  number BIGINT NOT NULL,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  promise_id TEXT NOT NULL REFERENCES promises (id),
  -- The name and the terms of the class at the choice.
  name TEXT NOT NULL,
  terms TEXT NOT NULL,
  chosen_at BIGINT NOT NULL,
  until_at BIGINT,
  -- The number of the next window to judge, from 1970, and the time of its judgement.
  next_window BIGINT NOT NULL,
  due_at BIGINT NOT NULL,
  -- Credits for lost time that are above the charges of the windows before. They reduce the charges of the next one.
  carry_micros BIGINT NOT NULL DEFAULT 0 CHECK (carry_micros >= 0),
  PRIMARY KEY (service_id, number)
);
CREATE INDEX service_promises_by_due ON service_promises (due_at);
CREATE INDEX service_promises_by_class ON service_promises (promise_id) WHERE until_at IS NULL;
CREATE UNIQUE INDEX service_promises_present ON service_promises (service_id) WHERE until_at IS NULL;

-- The judged windows. The credit, if any, is posted in the transaction of its row.
CREATE TABLE service_promise_windows (
  service_id TEXT NOT NULL REFERENCES services (id),
  begin_at BIGINT NOT NULL,
  end_at BIGINT NOT NULL,
  name TEXT NOT NULL,
  -- The counts, and the sentences about missed parts, as JSON.
  evidence TEXT NOT NULL,
  misses TEXT NOT NULL,
  credit_micros BIGINT NOT NULL CHECK (credit_micros >= 0),
  transfer_id TEXT,
  PRIMARY KEY (service_id, begin_at)
);
CREATE INDEX service_promise_windows_by_begin ON service_promise_windows (begin_at);

-- The wakes of services: the first waiting request of a sleeping service, and the time until a replica had its devices.
CREATE TABLE service_wakes (
  service_id TEXT NOT NULL REFERENCES services (id),
  at BIGINT NOT NULL,
  -- Absent until a replica has its devices; 2^63 - 1 for a wake without a replica.
  took_ms BIGINT,
  PRIMARY KEY (service_id, at)
);
CREATE INDEX service_wakes_by_time ON service_wakes (at);

-- The faults of the platform by hours of UTC, from the reports of gateways: requests without a replica, and requests whose
-- replica was lost.
CREATE TABLE service_faults (
  service_id TEXT NOT NULL REFERENCES services (id),
  hour_at BIGINT NOT NULL,
  refused BIGINT NOT NULL,
  lost BIGINT NOT NULL,
  PRIMARY KEY (service_id, hour_at)
);
CREATE INDEX service_faults_by_hour ON service_faults (hour_at);

-- The jobs of replicas, for the charges of a window: the rows of replicas are deleted earlier.
CREATE TABLE service_jobs (
  job_id TEXT PRIMARY KEY,
  service_id TEXT NOT NULL REFERENCES services (id),
  created_at BIGINT NOT NULL
);
CREATE INDEX service_jobs_by_service ON service_jobs (service_id);
CREATE INDEX service_jobs_by_time ON service_jobs (created_at);
INSERT INTO service_jobs (job_id, service_id, created_at) SELECT job_id, service_id, created_at FROM service_replicas;

-- Credits for missed promises return charges too.
DROP INDEX transfers_given_back;
CREATE INDEX transfers_given_back ON transfers (credit, at)
  WHERE kind = 'credit' AND source IN ('reservation', 'evidence', 'promise');

-- The blocks of credit that an organization got between two times.
CREATE INDEX transfers_lent ON transfers (debit, at) WHERE kind = 'hold' AND source = 'credit_block';

-- The keys of an organization with the revoked ones, which have use still.
CREATE INDEX inference_keys_all_of_org ON inference_keys (org_id);

-- Classes of promises pass the second operator too.
DROP INDEX change_requests_pending;
DROP INDEX change_requests_access;
DROP INDEX change_requests_mail_due;
DROP INDEX change_requests_mailed;
ALTER TABLE change_requests RENAME TO change_requests_without_promises;
CREATE TABLE change_requests (
  id TEXT PRIMARY KEY,
  action TEXT NOT NULL CHECK (action IN ('access_job', 'add_operator', 'add_promise', 'change_operator', 'change_promise', 'debit', 'enable_operator', 'end_policy', 'grant_credit', 'grant_credits', 'grant_request', 'pay_invoice', 'set_credit_limit', 'set_price', 'void_invoice')),
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
FROM change_requests_without_promises;
DROP TABLE change_requests_without_promises;
CREATE INDEX change_requests_pending ON change_requests (expires_at) WHERE state = 'pending';
-- The approved accesses of an operator to a job.
CREATE INDEX change_requests_access ON change_requests (requested_by, target) WHERE action = 'access_job';
CREATE INDEX change_requests_mail_due ON change_requests (requested_by, id) WHERE mail_due;
-- The last mail about new requests of an operator.
CREATE INDEX change_requests_mailed ON change_requests (requested_by, mailed_at) WHERE mailed_at IS NOT NULL;
