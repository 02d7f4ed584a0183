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
  PRIMARY KEY (service_id, number)
);
CREATE INDEX service_promises_by_due ON service_promises (due_at);
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

-- The wakes of services: the first waiting request of a sleeping service, and the time until a replica was ready.
CREATE TABLE service_wakes (
  service_id TEXT NOT NULL REFERENCES services (id),
  at BIGINT NOT NULL,
  -- Absent until a replica is ready.
  took_ms BIGINT,
  PRIMARY KEY (service_id, at)
);
CREATE INDEX service_wakes_by_time ON service_wakes (at);

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
