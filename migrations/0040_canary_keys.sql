-- The inference keys whose requests all go to a revision while it is a canary, as JSON. They end with its way to become live.
ALTER TABLE service_revisions ADD COLUMN canary_keys TEXT NOT NULL DEFAULT '[]';

-- The order of the list of host names for operators.
CREATE INDEX host_proofs_by_host ON host_proofs (host, org_id);
