-- Services: models and other servers behind one address, with replicas that are jobs.

CREATE TABLE services (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  -- Unique among the services of the organization that are not deleted.
  name TEXT NOT NULL,
  protocol TEXT NOT NULL CHECK (protocol IN ('http', 'openai')),
  access TEXT NOT NULL CHECK (access IN ('organization', 'public')),
  -- Lists and structures as JSON.
  hosts TEXT NOT NULL,
  models TEXT NOT NULL,
  max_body_bytes BIGINT NOT NULL,
  scaling TEXT NOT NULL,
  stopped BOOLEAN NOT NULL DEFAULT FALSE,
  state TEXT NOT NULL CHECK (state IN ('asleep', 'degraded', 'failed', 'ready', 'waking')),
  detail TEXT NOT NULL DEFAULT '',
  -- The last decision about the number of replicas as JSON; empty before the first.
  decision TEXT NOT NULL DEFAULT '',
  -- The price of tokens in nano-units of the currency, set by an operator.
  nano_per_prompt_token BIGINT NOT NULL DEFAULT 0,
  nano_per_completion_token BIGINT NOT NULL DEFAULT 0,
  -- One more with each change; a write names the number that it read.
  version BIGINT NOT NULL DEFAULT 1,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  deleted_at BIGINT
);
CREATE UNIQUE INDEX services_by_name ON services (org_id, name) WHERE deleted_at IS NULL;
CREATE INDEX services_present ON services (id) WHERE deleted_at IS NULL;

-- The host names of services that are not deleted. One name leads to one service.
CREATE TABLE service_hosts (
  host TEXT PRIMARY KEY,
  service_id TEXT NOT NULL REFERENCES services (id)
);
CREATE INDEX service_hosts_by_service ON service_hosts (service_id);

CREATE TABLE service_revisions (
  id TEXT PRIMARY KEY,
  service_id TEXT NOT NULL REFERENCES services (id),
  org_id TEXT NOT NULL REFERENCES orgs (id),
  number BIGINT NOT NULL,
  state TEXT NOT NULL
    CHECK (state IN ('canary', 'draining', 'live', 'retired', 'rolled_back', 'staging')),
  detail TEXT NOT NULL DEFAULT '',
  weight_percent BIGINT NOT NULL DEFAULT 0,
  -- The percentage for which its replicas start now, and whether a person set it.
  goal_percent BIGINT NOT NULL DEFAULT 0,
  held BOOLEAN NOT NULL DEFAULT FALSE,
  -- True if it was live before and comes back.
  returns BOOLEAN NOT NULL DEFAULT FALSE,
  -- The number of the revision that was live before it.
  before_number BIGINT,
  -- The specification as JSON.
  spec TEXT NOT NULL,
  -- Two fields of it, which snapshots for gateways need.
  port BIGINT NOT NULL,
  concurrency BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  UNIQUE (service_id, number)
);

-- The replicas of services. A row is written before its job, so that a repeated submission names the same job.
CREATE TABLE service_replicas (
  job_id TEXT PRIMARY KEY,
  service_id TEXT NOT NULL REFERENCES services (id),
  revision_id TEXT NOT NULL REFERENCES service_revisions (id),
  org_id TEXT NOT NULL REFERENCES orgs (id),
  created_at BIGINT NOT NULL,
  -- The reports of its worker: the attempt and the time since which it answers at its readiness path.
  ready_attempt BIGINT,
  ready_since BIGINT,
  -- The first time at which it was ready, and the time since which it is not ready any more.
  first_ready_at BIGINT,
  unready_since BIGINT,
  draining_since BIGINT,
  -- The end of its job, seen by the loop of services.
  ended_at BIGINT,
  -- True if it ended by its own fault, or was not ready in time.
  failed BOOLEAN NOT NULL DEFAULT FALSE
);
CREATE INDEX service_replicas_open ON service_replicas (service_id) WHERE ended_at IS NULL;
CREATE INDEX service_replicas_by_revision ON service_replicas (revision_id, created_at);

CREATE TABLE inference_keys (
  id TEXT PRIMARY KEY,
  -- The number of the key for gateways, from 1; it is never used again.
  number BIGINT NOT NULL UNIQUE,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  name TEXT NOT NULL,
  -- The SHA-256 hash of the secret in hexadecimal digits, and its last four characters.
  secret_hash TEXT NOT NULL UNIQUE,
  hint TEXT NOT NULL,
  -- Models and services as JSON.
  models TEXT NOT NULL,
  requests_per_minute BIGINT,
  tokens_per_minute BIGINT,
  day_budget_micros BIGINT,
  month_budget_micros BIGINT,
  total_budget_micros BIGINT,
  expires_at BIGINT,
  last_used_at BIGINT,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  revoked_at BIGINT
);
CREATE INDEX inference_keys_by_org ON inference_keys (org_id, id) WHERE revoked_at IS NULL;

CREATE TABLE gateways (
  id TEXT PRIMARY KEY,
  -- The number of the gateway in its blocks of credit, from 1; it is never used again.
  number BIGINT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  url TEXT NOT NULL DEFAULT '',
  token_hash TEXT NOT NULL UNIQUE,
  version TEXT NOT NULL DEFAULT '',
  -- The number of its last report: each report counts once.
  life BIGINT NOT NULL DEFAULT 0,
  last_report BIGINT NOT NULL DEFAULT 0,
  -- Its latest life with blocks of credit, and the least number of a block that this life still has.
  credit_life BIGINT NOT NULL DEFAULT 0,
  credit_oldest BIGINT NOT NULL DEFAULT 0,
  last_seen_at BIGINT,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  removed_at BIGINT
);
CREATE UNIQUE INDEX gateways_by_name ON gateways (name) WHERE removed_at IS NULL;

-- The use of a service by a key in an hour of UTC. Without a key the id is empty. It outlives its revision.
CREATE TABLE service_use (
  service_id TEXT NOT NULL REFERENCES services (id),
  revision_id TEXT NOT NULL,
  key_id TEXT NOT NULL,
  hour_at BIGINT NOT NULL,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  requests BIGINT NOT NULL,
  errors BIGINT NOT NULL,
  prompt_tokens BIGINT NOT NULL,
  completion_tokens BIGINT NOT NULL,
  token_nanos BIGINT NOT NULL,
  -- The times to the first byte as JSON: the counts of the buckets.
  first_byte TEXT NOT NULL,
  PRIMARY KEY (service_id, revision_id, key_id, hour_at)
);
CREATE INDEX service_use_by_service ON service_use (service_id, hour_at);
CREATE INDEX service_use_by_key ON service_use (key_id, hour_at);
CREATE INDEX service_use_by_org ON service_use (org_id, hour_at);
CREATE INDEX service_use_by_revision ON service_use (revision_id, hour_at);

-- The blocks of credit that gateways have. A block counts in its budgets with its whole size. In nano-units. Its hold in
-- the ledger has the size, rounded up to micro-units, until the block is closed. A closed block stays while its gateway
-- can still report it.
CREATE TABLE credit_blocks (
  gateway_number BIGINT NOT NULL,
  life BIGINT NOT NULL,
  number BIGINT NOT NULL,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  key_number BIGINT NOT NULL,
  size_nanos BIGINT NOT NULL,
  spent_nanos BIGINT NOT NULL,
  lent_at BIGINT NOT NULL,
  until_at BIGINT NOT NULL,
  ending BOOLEAN NOT NULL,
  void BOOLEAN NOT NULL,
  -- The gateway has none of it any more: all of its use is posted.
  closed BOOLEAN NOT NULL DEFAULT FALSE,
  -- The transfer of its hold, what is left of the hold, and the charge at the end.
  hold_id TEXT NOT NULL UNIQUE,
  held_micros BIGINT NOT NULL CHECK (held_micros >= 0),
  posted_micros BIGINT NOT NULL CHECK (posted_micros >= 0),
  PRIMARY KEY (gateway_number, life, number)
);
CREATE INDEX credit_blocks_open ON credit_blocks (org_id) WHERE NOT closed;
CREATE INDEX credit_blocks_open_by_end ON credit_blocks (until_at) WHERE NOT closed;

-- The spent nano-units of closed blocks by key and day (UTC, days since 1970) of the loan.
CREATE TABLE credit_days (
  key_number BIGINT NOT NULL,
  day BIGINT NOT NULL,
  nanos BIGINT NOT NULL,
  PRIMARY KEY (key_number, day)
);

-- The TLS listener of the node's worker for gateways; 0 without one.
ALTER TABLE nodes ADD COLUMN inference_port BIGINT NOT NULL DEFAULT 0;
