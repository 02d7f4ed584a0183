-- The measurements of the links between nodes before the starts of jobs on several nodes.

-- True if the worker of the node measures them.
ALTER TABLE nodes ADD COLUMN gang_checks BOOLEAN NOT NULL DEFAULT FALSE;
-- The node takes no rank of a job on several nodes until this time, for this reason.
ALTER TABLE nodes ADD COLUMN aside_until BIGINT;
ALTER TABLE nodes ADD COLUMN aside_reason TEXT NOT NULL DEFAULT '';

-- The last 20 good measurements of each pair of nodes. The node with the smaller id is the first.
CREATE TABLE node_links (
  first_node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
  second_node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
  job_id TEXT NOT NULL,
  attempt BIGINT NOT NULL,
  measured_at BIGINT NOT NULL,
  rtt_us BIGINT NOT NULL,
  mib_per_s BIGINT NOT NULL,
  PRIMARY KEY (first_node, second_node, job_id, attempt)
);
CREATE INDEX node_links_second ON node_links (second_node);
