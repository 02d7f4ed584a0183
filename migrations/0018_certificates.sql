-- Workers prove themselves by certificates of the portal's own authority. What was a node's secret is
-- read no more: `nodes.secret_hash` holds the node's id, since one of the engines cannot drop it.
CREATE TABLE node_certificates (
  -- Lower-case hex.
  serial TEXT PRIMARY KEY,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  issued_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  revoked_at BIGINT
);
CREATE INDEX node_certificates_by_node ON node_certificates (node_id, expires_at);

-- The node that a token is for; absent: a new one.
ALTER TABLE join_tokens ADD COLUMN node_id TEXT;

-- The daemon that was last let in: its random id, the count of its starts, the count of its connections.
ALTER TABLE nodes ADD COLUMN instance TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN connections BIGINT NOT NULL DEFAULT 0;
-- Why two daemons must be holding this node's certificate; absent: they are not known to.
ALTER TABLE nodes ADD COLUMN suspect TEXT;
