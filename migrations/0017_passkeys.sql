-- Passkeys (WebAuthn) of users.

CREATE TABLE passkeys (
  id TEXT PRIMARY KEY,
  user_id TEXT NOT NULL REFERENCES users (id),
  name TEXT NOT NULL,
  -- The id that the authenticator chose, in base64url.
  credential_id TEXT NOT NULL UNIQUE,
  -- The public key with its facts that never change, in base64url.
  public_key TEXT NOT NULL,
  -- The facts that change with each use, such as the counter, in base64url.
  credential_state TEXT NOT NULL,
  -- The bits of the transports.
  transports BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  last_used_at BIGINT
);
CREATE INDEX passkeys_by_user ON passkeys (user_id);
