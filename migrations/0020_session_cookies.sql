-- Another cookie of a session after each proof of identity. The key `hash` of the session stays: streams, ports and grants
-- belong to it.

-- The hash of the present cookie.
ALTER TABLE sessions ADD COLUMN cookie TEXT;
UPDATE sessions SET cookie = hash;
CREATE UNIQUE INDEX sessions_by_cookie ON sessions (cookie);
-- The hash of the cookie before the last proof, and the time until which it is valid for requests on their way.
ALTER TABLE sessions ADD COLUMN former_cookie TEXT;
ALTER TABLE sessions ADD COLUMN former_until BIGINT;
CREATE INDEX sessions_by_former_cookie ON sessions (former_cookie);
