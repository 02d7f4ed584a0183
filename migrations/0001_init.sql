-- Portable to SQLite and Postgres: TEXT, BIGINT, BOOLEAN and DOUBLE PRECISION only.
-- Times are microseconds UTC, money is micro-units, rates are nano-units a second.

CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);

CREATE TABLE users (
  id TEXT PRIMARY KEY,
  email TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  password_hash TEXT NOT NULL,
  operator BOOLEAN NOT NULL,
  created_at BIGINT NOT NULL
);

CREATE TABLE orgs (id TEXT PRIMARY KEY, name TEXT NOT NULL, created_at BIGINT NOT NULL);

CREATE TABLE members (
  org_id TEXT NOT NULL REFERENCES orgs (id),
  user_id TEXT NOT NULL REFERENCES users (id),
  role TEXT NOT NULL CHECK (role IN ('owner', 'billing', 'member', 'viewer')),
  PRIMARY KEY (org_id, user_id)
);
CREATE INDEX members_by_user ON members (user_id);

CREATE TABLE sessions (
  hash TEXT PRIMARY KEY,
  user_id TEXT NOT NULL REFERENCES users (id),
  created_at BIGINT NOT NULL,
  last_seen_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL
);
CREATE INDEX sessions_by_user ON sessions (user_id);

-- A token without organization is an operator's.
CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  org_id TEXT REFERENCES orgs (id),
  user_id TEXT NOT NULL REFERENCES users (id),
  name TEXT NOT NULL,
  role TEXT NOT NULL,
  hash TEXT NOT NULL UNIQUE,
  hint TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  last_used_at BIGINT
);
CREATE INDEX tokens_by_org ON tokens (org_id);

-- What was answered to a request with an Idempotency-Key; the key is unique for its caller.
CREATE TABLE idempotency_keys (
  scope TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  status BIGINT NOT NULL,
  answer TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (scope, idempotency_key)
);

CREATE TABLE offerings (
  id TEXT PRIMARY KEY,
  slug TEXT NOT NULL UNIQUE,
  gpu_model TEXT NOT NULL,
  mig_profile TEXT,
  memory_mib BIGINT NOT NULL,
  cells BIGINT NOT NULL,
  board_cells BIGINT NOT NULL,
  simulated BOOLEAN NOT NULL,
  created_at BIGINT NOT NULL
);

-- Versions count up from 1 and are never edited.
CREATE TABLE prices (
  offering_id TEXT NOT NULL REFERENCES offerings (id),
  version BIGINT NOT NULL,
  nano_per_second BIGINT NOT NULL CHECK (nano_per_second >= 0),
  effective_from BIGINT NOT NULL,
  set_by TEXT NOT NULL,
  PRIMARY KEY (offering_id, version)
);

CREATE TABLE jobs (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  name TEXT NOT NULL,
  offering_id TEXT NOT NULL REFERENCES offerings (id),
  spec TEXT NOT NULL,
  state TEXT NOT NULL,
  stop_cause TEXT,
  attempt BIGINT NOT NULL,
  generation BIGINT NOT NULL,
  priority BIGINT NOT NULL,
  device_count BIGINT NOT NULL,
  max_duration_s BIGINT NOT NULL,
  price_version BIGINT NOT NULL,
  nano_per_second BIGINT NOT NULL,
  held_micros BIGINT NOT NULL CHECK (held_micros >= 0),
  cost_micros BIGINT NOT NULL CHECK (cost_micros >= 0),
  posted_micros BIGINT NOT NULL CHECK (posted_micros >= 0),
  metered_ms BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  started_at BIGINT,
  ended_at BIGINT,
  exit_code BIGINT,
  failure_code TEXT,
  failure_detail TEXT
);
CREATE INDEX jobs_by_org ON jobs (org_id, id);
CREATE INDEX jobs_by_state ON jobs (state, priority, created_at);

-- seq is the job's generation, so a job's events have no gaps.
CREATE TABLE job_events (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  seq BIGINT NOT NULL,
  org_id TEXT NOT NULL,
  at BIGINT NOT NULL,
  state TEXT NOT NULL,
  attempt BIGINT NOT NULL,
  detail TEXT NOT NULL,
  PRIMARY KEY (job_id, seq)
);

-- An account that may not be overdrawn can never hold or post more than it has.
CREATE TABLE accounts (
  id TEXT PRIMARY KEY,
  org_id TEXT,
  posted_micros BIGINT NOT NULL,
  held_micros BIGINT NOT NULL CHECK (held_micros >= 0),
  overdraft BOOLEAN NOT NULL,
  CHECK (overdraft OR posted_micros - held_micros >= 0)
);

CREATE TABLE transfers (
  id TEXT PRIMARY KEY,
  debit TEXT NOT NULL,
  credit TEXT NOT NULL,
  amount_micros BIGINT NOT NULL CHECK (amount_micros > 0),
  kind TEXT NOT NULL CHECK (kind IN ('credit', 'hold', 'release', 'usage')),
  pending_id TEXT,
  source TEXT NOT NULL,
  source_id TEXT NOT NULL,
  seq BIGINT NOT NULL,
  memo TEXT NOT NULL,
  at BIGINT NOT NULL,
  UNIQUE (source, source_id, kind, seq)
);
CREATE INDEX transfers_by_debit ON transfers (debit, id);
CREATE INDEX transfers_by_credit ON transfers (credit, id);
