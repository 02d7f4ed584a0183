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
  -- The address for connections from other nodes.
  address TEXT NOT NULL DEFAULT '',
  -- JSON object, from the options of the worker.
  labels TEXT NOT NULL DEFAULT '{}',
  -- The daemon that connected last: its random id, the number of its starts and of its connections.
  instance TEXT NOT NULL DEFAULT '',
  epoch BIGINT NOT NULL DEFAULT 0,
  connections BIGINT NOT NULL DEFAULT 0,
  -- The reason for the suspicion that two daemons use this node's certificate.
  suspect TEXT,
  -- JSON object: the isolation that the worker offers.
  isolation TEXT NOT NULL DEFAULT '{}',
  -- True if the worker ends jobs at the end of their leases; set by each session.
  leased BOOLEAN NOT NULL DEFAULT FALSE,
  -- The time since which its jobs count as lost, and the reason; absent after its return.
  lost_at BIGINT,
  lost_reason TEXT,
  -- True if its worker can run images.
  images BOOLEAN NOT NULL DEFAULT FALSE,
  -- A sentence about reported boards that belong to another node; empty without such boards.
  gpus_left_out TEXT NOT NULL DEFAULT ''
);

-- Boards. A board that its node no longer reports is not present; its row stays for the jobs that are placed on it.
CREATE TABLE gpus (
  uuid TEXT PRIMARY KEY,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  idx BIGINT NOT NULL,
  model TEXT NOT NULL,
  memory_mib BIGINT NOT NULL,
  mig_enabled BOOLEAN NOT NULL,
  present BOOLEAN NOT NULL,
  -- The reason of its quarantine as a sentence.
  quarantined TEXT,
  -- JSON: MIG instances on it that this portal did not create, as [profile, start] pairs.
  foreign_instances TEXT NOT NULL,
  -- Boards of a node with the same number have NVLink to each other.
  nvlink_island BIGINT NOT NULL DEFAULT 0,
  -- The reason of its quarantine as a code, and the time of the quarantine.
  quarantine_code TEXT,
  quarantined_at BIGINT,
  -- The newest fault report with an effect, so a repeated report does not undo a release.
  fault_serial BIGINT NOT NULL DEFAULT 0,
  -- The reason why it does not answer its worker at present.
  silent TEXT,
  -- JSON object: facts that the driver reports.
  facts TEXT NOT NULL DEFAULT '{}',
  -- The number and kind of the newest task of an operator, the number of the newest finished task, and its result.
  task_number BIGINT NOT NULL DEFAULT 0,
  task_kind TEXT CHECK (task_kind IN ('check', 'mig_on', 'mig_off')),
  task_done BIGINT NOT NULL DEFAULT 0,
  task_succeeded BOOLEAN,
  task_detail TEXT
);
CREATE INDEX gpus_by_node ON gpus (node_id);

-- Power budgets of racks. The label `rack` of a node names its rack.
CREATE TABLE racks (
  name TEXT PRIMARY KEY,
  budget_watts BIGINT NOT NULL CHECK (budget_watts > 0)
);

-- Drains of nodes. Jobs may end by themselves until the deadline; after it they are stopped.
CREATE TABLE drains (
  node_id TEXT PRIMARY KEY REFERENCES nodes (id),
  reason TEXT NOT NULL,
  -- Absent: jobs may run to their own end.
  deadline_at BIGINT,
  -- An upper bound of the grace of jobs, in seconds; absent: their own grace.
  grace_s BIGINT,
  -- The cordon of the node before the drain, for its cancellation.
  was_cordoned BOOLEAN NOT NULL,
  started_by TEXT NOT NULL,
  started_at BIGINT NOT NULL,
  -- The time at which the node was empty.
  emptied_at BIGINT,
  -- True for a drain by the shutdown of the host. It ends with the return of the worker.
  by_host BOOLEAN NOT NULL DEFAULT FALSE
);

CREATE TABLE join_tokens (
  id TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  used_at BIGINT,
  -- The node that enrols again; absent for a new node.
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
