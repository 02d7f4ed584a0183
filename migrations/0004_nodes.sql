-- Nodes, their boards, and the certificates of their workers.

CREATE TABLE nodes (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  cordoned BOOLEAN NOT NULL,
  simulated BOOLEAN NOT NULL,
  unisolated BOOLEAN NOT NULL,
  driver_version TEXT NOT NULL,
  worker_version TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  last_seen_at BIGINT,
  -- 0: unknown.
  cpu_milli BIGINT NOT NULL DEFAULT 0,
  memory_mib BIGINT NOT NULL DEFAULT 0,
  -- Where other nodes reach this one.
  address TEXT NOT NULL DEFAULT '',
  -- JSON object, from the options of the worker.
  labels TEXT NOT NULL DEFAULT '{}',
  -- The daemon that connected last: its random id, its starts, its connections.
  instance TEXT NOT NULL DEFAULT '',
  epoch BIGINT NOT NULL DEFAULT 0,
  connections BIGINT NOT NULL DEFAULT 0,
  -- Why two daemons are believed to use this node's certificate.
  suspect TEXT,
  -- JSON object: the isolation that the worker offers.
  isolation TEXT NOT NULL DEFAULT '{}',
  -- The worker ends jobs whose lease runs out; set by each session.
  leased BOOLEAN NOT NULL DEFAULT FALSE,
  -- Since when its jobs count as lost, and why; absent once it is back.
  lost_at BIGINT,
  lost_why TEXT,
  -- Its worker can run images.
  images BOOLEAN NOT NULL DEFAULT FALSE,
  -- A sentence about boards that the worker reported and that belong to another node; else empty.
  left_out TEXT NOT NULL DEFAULT ''
);

-- A board that its node no longer reports is not present; its row stays for what is still placed on it.
CREATE TABLE gpus (
  uuid TEXT PRIMARY KEY,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  idx BIGINT NOT NULL,
  model TEXT NOT NULL,
  memory_mib BIGINT NOT NULL,
  mig_enabled BOOLEAN NOT NULL,
  present BOOLEAN NOT NULL,
  -- Why it is out of service, as a sentence.
  quarantined TEXT,
  -- JSON: instances on it that are not this portal's, as [profile, start] pairs.
  foreign_instances TEXT NOT NULL,
  -- Boards of a node with the same number reach each other by NVLink.
  nvlink_island BIGINT NOT NULL DEFAULT 0,
  -- The same as a code, and since when.
  quarantine_code TEXT,
  quarantined_at BIGINT,
  -- The newest fault report that was acted on, so that a repeated report does not undo a release.
  fault_serial BIGINT NOT NULL DEFAULT 0,
  -- Why it does not answer its worker at present.
  silent TEXT,
  -- JSON object: facts that the driver reports.
  facts TEXT NOT NULL DEFAULT '{}',
  -- The newest task of an operator, the newest that was done, and its result.
  task_number BIGINT NOT NULL DEFAULT 0,
  task_kind TEXT,
  task_done BIGINT NOT NULL DEFAULT 0,
  task_good BOOLEAN,
  task_words TEXT
);
CREATE INDEX gpus_by_node ON gpus (node_id);

-- Power budgets of racks; a node is in the rack that its label `rack` names.
CREATE TABLE racks (
  name TEXT PRIMARY KEY,
  budget_watts BIGINT NOT NULL CHECK (budget_watts > 0)
);

-- Nodes that are being drained: jobs may end by themselves until the deadline; then they are stopped.
CREATE TABLE drains (
  node_id TEXT PRIMARY KEY REFERENCES nodes (id),
  reason TEXT NOT NULL,
  -- Absent: everything may run to its own end.
  deadline_at BIGINT,
  -- An upper bound of the grace of jobs, in seconds; absent: their own grace.
  grace_s BIGINT,
  -- Restored when the drain is cancelled.
  was_cordoned BOOLEAN NOT NULL,
  started_by TEXT NOT NULL,
  started_at BIGINT NOT NULL,
  -- When nothing was left on it.
  emptied_at BIGINT,
  -- A host that is shut down empties its node; that is over when its worker is back.
  by_host BOOLEAN NOT NULL DEFAULT FALSE
);

CREATE TABLE join_tokens (
  id TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  used_at BIGINT,
  -- The node that re-enrols; absent for a new node.
  node_id TEXT
);

-- Client certificates of workers, issued by the portal's own authority.
CREATE TABLE node_certificates (
  -- Lower-case hex.
  serial TEXT PRIMARY KEY,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  issued_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  revoked_at BIGINT
);
CREATE INDEX node_certificates_by_node ON node_certificates (node_id, expires_at);
