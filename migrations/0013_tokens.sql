-- Scopes and networks of tokens, and service accounts.

-- The names of the scopes with a space between them. Every former token may do all that its owner may.
ALTER TABLE tokens ADD COLUMN scopes TEXT NOT NULL DEFAULT 'admin';
-- The networks of accepted requests with a space between them; empty: all.
ALTER TABLE tokens ADD COLUMN networks TEXT NOT NULL DEFAULT '';

-- A service account is a user without a password and without a mail address. It has a role in one organization, and
-- is no member of it.
ALTER TABLE users ADD COLUMN service BOOLEAN NOT NULL DEFAULT FALSE;
CREATE TABLE service_accounts (
  user_id TEXT PRIMARY KEY REFERENCES users (id),
  org_id TEXT NOT NULL REFERENCES orgs (id),
  role TEXT NOT NULL CHECK (role IN ('billing', 'member', 'viewer')),
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL
);
CREATE INDEX service_accounts_by_org ON service_accounts (org_id, user_id);
