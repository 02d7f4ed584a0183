-- The proof of host names of services, the retention of their records, and the credit of a gateway in an hour.

-- Several organizations may name a host, because naming proves nothing. The engines drop no primary key in one spelling,
-- so the table is built again.
DROP INDEX service_hosts_by_service;
ALTER TABLE service_hosts RENAME TO service_hosts_before;
CREATE TABLE service_hosts (
  host TEXT NOT NULL,
  service_id TEXT NOT NULL REFERENCES services (id),
  PRIMARY KEY (host, service_id)
);
INSERT INTO service_hosts (host, service_id) SELECT host, service_id FROM service_hosts_before;
DROP TABLE service_hosts_before;
CREATE INDEX service_hosts_by_service ON service_hosts (service_id);

-- The proofs of host names by a TXT record in DNS, as those of domains of single sign-on.
CREATE TABLE host_proofs (
  org_id TEXT NOT NULL REFERENCES orgs (id),
  host TEXT NOT NULL,
  -- The random part of the record.
  proof TEXT NOT NULL,
  -- True if the record confirmed the host, false if an operator did or nobody yet.
  by_dns BOOLEAN NOT NULL DEFAULT FALSE,
  -- The begin of the checks for the confirmation.
  pending_since BIGINT NOT NULL,
  confirmed_at BIGINT,
  -- The first check without the record of a confirmed host.
  missing_since BIGINT,
  -- The last check, and the sentence about its failure; empty without one.
  checked_at BIGINT,
  problem TEXT NOT NULL DEFAULT '',
  -- The next check by the portal; absent: it has none.
  next_check_at BIGINT,
  PRIMARY KEY (org_id, host)
);
CREATE UNIQUE INDEX host_proofs_confirmed ON host_proofs (host) WHERE confirmed_at IS NOT NULL;
CREATE INDEX host_proofs_due ON host_proofs (next_check_at) WHERE next_check_at IS NOT NULL;

-- What a gateway has charged to an organization with blocks that ended in an hour, in nano-units.
CREATE TABLE gateway_hours (
  gateway_number BIGINT NOT NULL,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  hour_at BIGINT NOT NULL,
  nanos BIGINT NOT NULL,
  PRIMARY KEY (gateway_number, org_id, hour_at)
);
CREATE INDEX gateway_hours_by_hour ON gateway_hours (hour_at);

-- The oldest records, for their retention.
CREATE INDEX service_use_by_hour ON service_use (hour_at);
CREATE INDEX service_replicas_ended ON service_replicas (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX services_deleted ON services (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX inference_keys_revoked ON inference_keys (revoked_at) WHERE revoked_at IS NOT NULL;
CREATE INDEX credit_blocks_by_key ON credit_blocks (key_number);
