-- The networks between the ranks of jobs on several nodes.

-- The first UDP port of a node for such networks; 0: its ranks have the network of the host.
ALTER TABLE nodes ADD COLUMN gang_first_port BIGINT NOT NULL DEFAULT 0;
-- True for packets without encryption.
ALTER TABLE nodes ADD COLUMN gang_plain BOOLEAN NOT NULL DEFAULT FALSE;

-- The network of an attempt, as long as one of its ranks is open.
CREATE TABLE gang_networks (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt BIGINT NOT NULL,
  -- Unique among the networks of each node.
  number BIGINT NOT NULL,
  -- The sealed seed of the keys of the ranks.
  sealed TEXT NOT NULL,
  PRIMARY KEY (job_id, attempt)
);
