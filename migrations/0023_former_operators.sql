-- The addresses of removed operators. Single sign-on makes none of them an operator again, also after the deletion of the
-- account.

CREATE TABLE former_operators (
  -- The SHA-256 hash of the e-mail address, because a deletion removes the address itself.
  email_hash TEXT PRIMARY KEY,
  removed_at BIGINT NOT NULL
);
