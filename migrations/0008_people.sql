-- Accounts of people: verified addresses, disabled and deleted accounts, sessions with their browser, links in mail.

-- The time of the proof that the address is the person's own; absent before it. Every former account has the proof.
ALTER TABLE users ADD COLUMN email_verified_at BIGINT;
UPDATE users SET email_verified_at = created_at;
-- The time at which an operator disabled the account, with the reason; absent for an enabled account.
ALTER TABLE users ADD COLUMN disabled_at BIGINT;
ALTER TABLE users ADD COLUMN disabled_reason TEXT NOT NULL DEFAULT '';
-- The time at which the person deleted the account. The row stays for the objects that refer to it.
ALTER TABLE users ADD COLUMN deleted_at BIGINT;

-- Sessions have ids apart from the hashes of their cookies. A former session has none, so its person signs in again.
DROP TABLE sessions;
CREATE TABLE sessions (
  hash TEXT PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  user_id TEXT NOT NULL REFERENCES users (id),
  created_at BIGINT NOT NULL,
  last_seen_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  -- The network of the sign-in; empty if it is unknown.
  network TEXT NOT NULL,
  -- The header User-Agent of the sign-in, at most 200 bytes.
  browser TEXT NOT NULL
);
CREATE INDEX sessions_by_user ON sessions (user_id, id);

-- Links in mail. The secret of a link is stored as a hash only.
CREATE TABLE mail_links (
  hash TEXT PRIMARY KEY,
  user_id TEXT NOT NULL REFERENCES users (id),
  purpose TEXT NOT NULL CHECK (purpose IN ('password_reset', 'verification')),
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL
);
CREATE INDEX mail_links_by_user ON mail_links (user_id, purpose);
