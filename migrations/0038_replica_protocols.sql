-- The protocol between gateways and the replicas of a revision, as in its specification.
ALTER TABLE service_revisions ADD COLUMN replica_protocol TEXT NOT NULL DEFAULT 'http1'
  CHECK (replica_protocol IN ('http1', 'http2'));
