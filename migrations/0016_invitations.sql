-- Since when somebody is a member. Absent for who founded the organization: as long as it exists.
ALTER TABLE members ADD COLUMN joined_at BIGINT;

-- Who may become a member. The secret of the link is with whoever was invited; here is only its hash.
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
  -- When its mail was handed on.
  mailed_at BIGINT,
  -- Whom it made a member; it is used up then.
  accepted_at BIGINT,
  accepted_by TEXT
);
-- One address has one open invitation into an organization.
CREATE UNIQUE INDEX invitations_open ON invitations (org_id, email) WHERE accepted_at IS NULL;
