-- Hosts, their boards, and what is placed on them.

CREATE TABLE nodes (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  secret_hash TEXT NOT NULL UNIQUE,
  cordoned BOOLEAN NOT NULL,
  simulated BOOLEAN NOT NULL,
  unisolated BOOLEAN NOT NULL,
  driver_version TEXT NOT NULL,
  worker_version TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  last_seen_at BIGINT
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
  quarantined TEXT,
  -- JSON: instances on it that are not this portal's, as [profile, start] pairs.
  foreign_instances TEXT NOT NULL
);
CREATE INDEX gpus_by_node ON gpus (node_id);

CREATE TABLE join_tokens (
  id TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  used_at BIGINT
);

-- One try of a job. It is open until its end, its clean devices and its whole log are known here.
CREATE TABLE attempts (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  number BIGINT NOT NULL,
  org_id TEXT NOT NULL,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  -- The worker has said that it keeps it.
  known BOOLEAN NOT NULL,
  ended BOOLEAN NOT NULL,
  clean BOOLEAN NOT NULL,
  -- Length of the log at the end.
  log_bytes BIGINT,
  is_open BOOLEAN NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (job_id, number)
);
CREATE INDEX attempts_open ON attempts (node_id, is_open);

-- Slices (or a whole board) that an attempt has. Held until they are proved clean.
CREATE TABLE allocations (
  job_id TEXT NOT NULL,
  attempt BIGINT NOT NULL,
  idx BIGINT NOT NULL,
  org_id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  gpu_uuid TEXT NOT NULL REFERENCES gpus (uuid),
  -- Absent for a whole board without MIG.
  profile_id BIGINT,
  start BIGINT NOT NULL,
  size BIGINT NOT NULL,
  mig_uuid TEXT,
  held BOOLEAN NOT NULL,
  -- Why it could not be proved clean.
  unclean TEXT,
  PRIMARY KEY (job_id, attempt, idx)
);
CREATE INDEX allocations_held ON allocations (held, gpu_uuid);
CREATE INDEX job_events_by_org ON job_events (org_id, at);
