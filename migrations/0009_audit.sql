-- Audit events with their circumstances, chained by hashes, and signed checkpoints of the chain. Older events have no
-- circumstances; the start of the portal chains them.
ALTER TABLE audit_events ADD COLUMN actor_id TEXT;
ALTER TABLE audit_events ADD COLUMN token_id TEXT;
ALTER TABLE audit_events ADD COLUMN session TEXT;
ALTER TABLE audit_events ADD COLUMN address TEXT;
ALTER TABLE audit_events ADD COLUMN request_id TEXT;
ALTER TABLE audit_events ADD COLUMN before_json TEXT;
ALTER TABLE audit_events ADD COLUMN after_json TEXT;
-- The place in the chain, and the hash of the event with the hash before it.
ALTER TABLE audit_events ADD COLUMN seq BIGINT;
ALTER TABLE audit_events ADD COLUMN hash TEXT;
CREATE UNIQUE INDEX audit_events_by_seq ON audit_events (seq);

-- The end of the chain: one row, which each audited transaction changes last.
CREATE TABLE audit_head (
  id BIGINT PRIMARY KEY CHECK (id = 1),
  seq BIGINT NOT NULL,
  hash TEXT NOT NULL
);
INSERT INTO audit_head (id, seq, hash)
VALUES (1, 0, '0000000000000000000000000000000000000000000000000000000000000000');

-- Signatures of the chain, by a key outside of the database.
CREATE TABLE audit_checkpoints (
  number BIGINT PRIMARY KEY,
  seq BIGINT NOT NULL,
  hash TEXT NOT NULL,
  at BIGINT NOT NULL,
  signature TEXT NOT NULL
);
