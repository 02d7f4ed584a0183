-- Portable to SQLite and Postgres: TEXT, BIGINT, BOOLEAN and DOUBLE PRECISION only.
-- Times are microseconds UTC, money is micro-units, rates are nano-units a second.

-- Users, organizations, tokens, stored answers and audit events.

CREATE TABLE settings (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
);

CREATE TABLE users (
  id TEXT PRIMARY KEY,
  email TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  password_hash TEXT NOT NULL,
  operator BOOLEAN NOT NULL,
  created_at BIGINT NOT NULL
);

CREATE TABLE orgs (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  -- The name in addresses of pages.
  slug TEXT NOT NULL UNIQUE,
  created_at BIGINT NOT NULL
);
CREATE INDEX orgs_by_name ON orgs (LOWER(name), id);
CREATE INDEX orgs_by_creation ON orgs (created_at, id);

CREATE TABLE members (
  org_id TEXT NOT NULL REFERENCES orgs (id),
  user_id TEXT NOT NULL REFERENCES users (id),
  role TEXT NOT NULL CHECK (role IN ('owner', 'billing', 'member', 'viewer')),
  -- Absent for the founder, who joined at the creation of the organization.
  joined_at BIGINT,
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

-- Invitations. The secret of the link is stored as a hash only.
CREATE TABLE invitations (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  email TEXT NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('owner', 'billing', 'member', 'viewer')),
  hash TEXT NOT NULL UNIQUE,
  created_by TEXT NOT NULL,
  created_by_id TEXT NOT NULL REFERENCES users (id),
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  -- The time of its mail.
  mailed_at BIGINT,
  -- The time of its acceptance, after which it cannot be used again, and its new member.
  accepted_at BIGINT,
  accepted_by TEXT
);
-- One address has one open invitation into an organization.
CREATE UNIQUE INDEX invitations_open ON invitations (org_id, email) WHERE accepted_at IS NULL;

-- API tokens. A token without organization is an operator's token.
CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  org_id TEXT REFERENCES orgs (id),
  user_id TEXT NOT NULL REFERENCES users (id),
  name TEXT NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('owner', 'billing', 'member', 'viewer')),
  hash TEXT NOT NULL UNIQUE,
  hint TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  last_used_at BIGINT
);
CREATE INDEX tokens_by_org ON tokens (org_id, id);

-- Tokens that read /metrics and nothing else. They have their own table, so none of them can pass for an API token.
CREATE TABLE metrics_tokens (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  hash TEXT NOT NULL UNIQUE,
  hint TEXT NOT NULL,
  created_by TEXT NOT NULL REFERENCES users (id),
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  last_used_at BIGINT
);

-- Answers to requests with an Idempotency-Key. A key is unique for its caller. Before the answer (status 0), `answer` has
-- the id of the new object, or a JSON array of the ids of several.
CREATE TABLE idempotency_keys (
  scope TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  status BIGINT NOT NULL,
  answer TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (scope, idempotency_key)
);

-- Audit events: deliberate acts and their actors. The organization is empty for acts of operators.
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
CREATE INDEX audit_events_by_subject ON audit_events (subject, id);
