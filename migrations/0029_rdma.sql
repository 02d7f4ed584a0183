-- RDMA: the ports of nodes, and the grants of organizations.

-- JSON array of the ports of the RDMA devices, from the report of the worker.
ALTER TABLE nodes ADD COLUMN rdma_ports TEXT NOT NULL DEFAULT '[]';

-- True if an operator has granted RDMA to the organization: jobs get the RDMA devices of their nodes.
ALTER TABLE orgs ADD COLUMN rdma BOOLEAN NOT NULL DEFAULT FALSE;
