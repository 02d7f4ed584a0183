-- Jobs, their attempts, and the boards that these hold.

-- Boards that are promised for a time; without organization it is maintenance.
CREATE TABLE reservations (
  id TEXT PRIMARY KEY,
  org_id TEXT REFERENCES orgs (id),
  name TEXT NOT NULL,
  state TEXT NOT NULL,
  cause TEXT NOT NULL,
  quote_id TEXT,
  series TEXT NOT NULL,
  offering_id TEXT REFERENCES offerings (id),
  nodes BIGINT NOT NULL,
  gpus_per_node BIGINT NOT NULL,
  topology TEXT NOT NULL,
  board_milli BIGINT NOT NULL,
  starts_at BIGINT NOT NULL,
  ends_at BIGINT NOT NULL,
  ended_at BIGINT,
  nano_per_second BIGINT NOT NULL,
  price_version BIGINT NOT NULL,
  total_micros BIGINT NOT NULL CHECK (total_micros >= 0),
  held_micros BIGINT NOT NULL CHECK (held_micros >= 0),
  posted_micros BIGINT NOT NULL CHECK (posted_micros >= 0),
  credited_micros BIGINT NOT NULL CHECK (credited_micros >= 0),
  -- JSON: which boards and slices of which nodes.
  places TEXT NOT NULL,
  -- JSON: the terms that were shown when it was confirmed.
  policy TEXT NOT NULL,
  -- Thousandths of it that are out of order, and since when.
  lost_milli BIGINT NOT NULL,
  lost_since BIGINT,
  generation BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  warned BOOLEAN NOT NULL DEFAULT FALSE
);
CREATE INDEX reservations_by_org ON reservations (org_id, id);
CREATE INDEX reservations_by_end ON reservations (state, ends_at);

CREATE TABLE jobs (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  name TEXT NOT NULL,
  offering_id TEXT NOT NULL REFERENCES offerings (id),
  -- JSON: the submission without its inputs.
  spec TEXT NOT NULL,
  state TEXT NOT NULL,
  -- Why it is being stopped; absent in every other state.
  stop_cause TEXT CHECK (stop_cause IN ('cancelled', 'timed_out', 'preempted', 'rank_failed', 'idle', 'halted', 'drained')),
  -- The operator's reason ('halted', 'drained').
  stop_reason TEXT,
  -- The job that gets its boards ('preempted').
  stop_for_job TEXT,
  -- It is queued again ('drained').
  stop_requeues BOOLEAN,
  -- Seconds from the signal to the kill ('drained'; 0: the worker's default), or of idleness ('idle').
  stop_seconds BIGINT,
  -- Mean utilization ('idle').
  stop_percent BIGINT,
  attempt BIGINT NOT NULL,
  generation BIGINT NOT NULL,
  priority BIGINT NOT NULL,
  device_count BIGINT NOT NULL,
  max_duration_s BIGINT NOT NULL,
  price_version BIGINT NOT NULL,
  nano_per_second BIGINT NOT NULL,
  held_micros BIGINT NOT NULL CHECK (held_micros >= 0),
  cost_micros BIGINT NOT NULL CHECK (cost_micros >= 0),
  posted_micros BIGINT NOT NULL CHECK (posted_micros >= 0),
  metered_ms BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  started_at BIGINT,
  ended_at BIGINT,
  exit_code BIGINT,
  failure_code TEXT,
  failure_detail TEXT,
  -- Jobs of higher classes may have it stopped.
  preemptible BOOLEAN NOT NULL DEFAULT FALSE,
  -- The part of `metered_ms` that earlier attempts used.
  metered_before_ms BIGINT NOT NULL DEFAULT 0,
  -- For each node; 0 where the job asks for nothing in particular.
  cpu_milli BIGINT NOT NULL DEFAULT 0,
  memory_mib BIGINT NOT NULL DEFAULT 0,
  nodes BIGINT NOT NULL DEFAULT 1,
  -- Seconds between the signal to stop and the end.
  grace_s BIGINT NOT NULL DEFAULT 10,
  -- Further attempts after failures.
  retries BIGINT NOT NULL DEFAULT 0,
  -- Thousandths of whole boards that a job takes on all its nodes.
  board_milli BIGINT NOT NULL DEFAULT 0,
  reservation_id TEXT REFERENCES reservations (id),
  -- JSON object.
  labels TEXT NOT NULL DEFAULT '{}',
  -- `metered_ms` at the last charge.
  posted_ms BIGINT NOT NULL DEFAULT 0,
  -- Thousandths of devices on all its nodes.
  device_milli BIGINT NOT NULL DEFAULT 1000,
  -- The transfer that holds `held_micros`.
  hold_id TEXT,
  CHECK (stop_cause <> 'preempted' OR stop_for_job IS NOT NULL),
  CHECK (stop_cause <> 'drained' OR (stop_requeues IS NOT NULL AND stop_seconds IS NOT NULL)),
  CHECK (stop_cause <> 'idle' OR (stop_seconds IS NOT NULL AND stop_percent IS NOT NULL))
);
CREATE INDEX jobs_by_org ON jobs (org_id, id);
CREATE INDEX jobs_by_state ON jobs (state, priority, created_at);
CREATE INDEX jobs_by_end ON jobs (ended_at);
CREATE INDEX jobs_by_reservation ON jobs (reservation_id);

-- The large parts of a submission. They are read when a worker is told to start the job.
CREATE TABLE job_inputs (
  job_id TEXT PRIMARY KEY REFERENCES jobs (id),
  script TEXT,
  -- JSON objects: name or path, and text.
  env TEXT NOT NULL,
  files TEXT NOT NULL
);

-- seq is the job's generation, so a job's events have no gaps.
CREATE TABLE job_events (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  seq BIGINT NOT NULL,
  org_id TEXT NOT NULL,
  at BIGINT NOT NULL,
  state TEXT NOT NULL,
  attempt BIGINT NOT NULL,
  detail TEXT NOT NULL,
  PRIMARY KEY (job_id, seq)
);
CREATE INDEX job_events_by_org ON job_events (org_id, at);

-- One rank of an attempt on one node. It is open until its end, its clean devices and its whole log are known here.
CREATE TABLE attempts (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  number BIGINT NOT NULL,
  rank BIGINT NOT NULL,
  org_id TEXT NOT NULL,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  -- The worker has confirmed that it has the assignment.
  known BOOLEAN NOT NULL,
  running BOOLEAN NOT NULL,
  ended BOOLEAN NOT NULL,
  -- JSON: how it ended.
  outcome TEXT,
  ended_at BIGINT,
  clean BOOLEAN NOT NULL,
  -- Length of the log at the end.
  log_bytes BIGINT,
  is_open BOOLEAN NOT NULL,
  created_at BIGINT NOT NULL,
  -- JSON: use of processors and devices; absent when the worker has no reading.
  evidence TEXT,
  -- 0: no lease; only an operator ends it while its worker is silent.
  lease_ms BIGINT NOT NULL DEFAULT 0,
  -- The present step of the preparation, as the worker describes it.
  progress TEXT NOT NULL DEFAULT '',
  -- The digest of the image in the registry.
  image_digest TEXT,
  -- The worker has files of this rank that the portal should have and has not.
  saving BOOLEAN NOT NULL DEFAULT FALSE,
  PRIMARY KEY (job_id, number, rank),
  UNIQUE (job_id, number, node_id)
);
CREATE INDEX attempts_open ON attempts (node_id, is_open);
CREATE INDEX attempts_unended ON attempts (is_open, ended, node_id);

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
  -- Why it is not proved clean.
  unclean TEXT,
  -- The job for which its attempt was stopped, whatever ended the attempt then.
  room_for_job TEXT,
  -- Thousandths of a shared board; absent for slices and whole boards.
  share_milli BIGINT,
  PRIMARY KEY (job_id, attempt, idx)
);
CREATE INDEX allocations_held ON allocations (held, gpu_uuid);

-- Intervals in which the devices of a job stood idle, as they were reported, with their cost.
CREATE TABLE underuse (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt BIGINT NOT NULL,
  org_id TEXT NOT NULL,
  -- By the clock of the host that took the readings.
  starts_at BIGINT NOT NULL,
  ends_at BIGINT NOT NULL,
  -- Mean utilisation, whole percent.
  percent BIGINT NOT NULL,
  cost_micros BIGINT NOT NULL,
  -- By the portal's clock, and the day of it (UTC, days since 1970).
  told_at BIGINT NOT NULL,
  day BIGINT NOT NULL,
  PRIMARY KEY (job_id, attempt, ends_at)
);
CREATE INDEX underuse_by_org ON underuse (org_id, day);

-- Sessions of terminals in running jobs; never their input or output.
CREATE TABLE terminals (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt BIGINT NOT NULL,
  node_rank BIGINT NOT NULL,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  user_id TEXT NOT NULL REFERENCES users (id),
  actor TEXT NOT NULL,
  -- Given by an operator who is no member.
  reason TEXT,
  opened_at BIGINT NOT NULL,
  -- When there was first a shell.
  attached_at BIGINT,
  -- Since when nobody looks at it; absent while somebody does.
  left_at BIGINT,
  closed_at BIGINT,
  exit_code BIGINT,
  cause TEXT
);
CREATE INDEX terminals_by_job ON terminals (job_id, id);
CREATE INDEX terminals_open ON terminals (org_id) WHERE closed_at IS NULL;
