-- Second factors of users, and the proofs of identity of sessions.

CREATE TABLE totp_factors (
  user_id TEXT PRIMARY KEY REFERENCES users (id),
  -- The secret, sealed by the key of the portal.
  sealed TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  -- The time of the first right code. Before it the factor has no effect.
  confirmed_at BIGINT,
  -- The step of the last accepted code. No code of this or of an earlier step is accepted again.
  last_step BIGINT NOT NULL
);

-- Recovery codes are stored as hashes only.
CREATE TABLE recovery_codes (
  user_id TEXT NOT NULL REFERENCES users (id),
  hash TEXT NOT NULL,
  used_at BIGINT,
  PRIMARY KEY (user_id, hash)
);

-- The last proof of the session's user after the sign-in. Absent: the sign-in itself.
ALTER TABLE sessions ADD COLUMN proved_at BIGINT;

-- The time since which members of the organization need a second factor.
ALTER TABLE orgs ADD COLUMN second_factor_since BIGINT;
