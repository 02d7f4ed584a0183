-- Dedicated nodes, and the organizations that use no others.

-- The only organization whose work the node takes; absent for a node of all organizations.
ALTER TABLE nodes ADD COLUMN dedicated_to TEXT REFERENCES orgs (id);
CREATE INDEX nodes_dedicated ON nodes (dedicated_to) WHERE dedicated_to IS NOT NULL;

-- True if its jobs and reservations use only nodes that are dedicated to it.
ALTER TABLE orgs ADD COLUMN own_nodes_only BOOLEAN NOT NULL DEFAULT FALSE;
CREATE INDEX orgs_own_nodes_only ON orgs (id) WHERE own_nodes_only;
