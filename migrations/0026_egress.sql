-- The egress policies of organizations, and the networks that they name.

CREATE TABLE named_networks (
  name TEXT PRIMARY KEY,
  -- The ranges of addresses as JSON.
  ranges TEXT NOT NULL
);

-- False: the jobs of the organization do not reach the internet.
ALTER TABLE orgs ADD COLUMN internet BOOLEAN NOT NULL DEFAULT TRUE;
-- True: its jobs may ask for the network of their node.
ALTER TABLE orgs ADD COLUMN host_network BOOLEAN NOT NULL DEFAULT FALSE;
CREATE INDEX orgs_without_internet ON orgs (id) WHERE NOT internet;

-- The named networks that the jobs of an organization may reach.
CREATE TABLE org_networks (
  org_id TEXT NOT NULL REFERENCES orgs (id),
  network TEXT NOT NULL REFERENCES named_networks (name),
  PRIMARY KEY (org_id, network)
);
CREATE INDEX org_networks_by_network ON org_networks (network, org_id);

-- True if the worker keeps the egress policy of a job, and if it gives a job the network of the host.
ALTER TABLE nodes ADD COLUMN egress BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE nodes ADD COLUMN host_network BOOLEAN NOT NULL DEFAULT FALSE;
