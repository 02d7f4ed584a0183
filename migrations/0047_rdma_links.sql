-- The measurements of RDMA links between nodes before the starts of jobs on several nodes.

-- True if the worker of the node measures them.
ALTER TABLE nodes ADD COLUMN checks_rdma_links BOOLEAN NOT NULL DEFAULT FALSE;
-- True for a measurement by RDMA: it is not compared with those in the networks of gangs.
ALTER TABLE node_links ADD COLUMN rdma BOOLEAN NOT NULL DEFAULT FALSE;
