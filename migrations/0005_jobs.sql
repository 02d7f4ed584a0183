-- Reservations, jobs, attempts and their allocations, underuse and terminals.

-- Reservations of boards for a window. A row without organization is maintenance.
CREATE TABLE reservations (
  id TEXT PRIMARY KEY,
  org_id TEXT REFERENCES orgs (id),
  name TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('pending', 'scheduled', 'active', 'ended', 'cancelled', 'expired')),
  cause TEXT NOT NULL,
  quote_id TEXT,
  series TEXT NOT NULL,
  offering_id TEXT REFERENCES offerings (id),
  nodes BIGINT NOT NULL,
  gpus_per_node BIGINT NOT NULL,
  topology TEXT NOT NULL CHECK (topology IN ('any', 'same_node', 'same_switch', 'same_rack', 'nvlink')),
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
  -- JSON: the boards and slices by node.
  places TEXT NOT NULL,
  -- JSON: the terms that were shown at the confirmation.
  policy TEXT NOT NULL,
  -- Thousandths of its boards that are out of order, and the time since which they are.
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
  state TEXT NOT NULL CHECK (state IN (
    'queued', 'assigned', 'starting', 'running', 'stopping', 'succeeded', 'failed', 'cancelled', 'timed_out'
  )),
  -- The cause of its stop; absent in every other state.
  stop_cause TEXT CHECK (stop_cause IN ('cancelled', 'timed_out', 'preempted', 'rank_failed', 'idle', 'halted', 'drained')),
  -- The reason of the operator ('halted', 'drained').
  stop_reason TEXT,
  -- The job that gets its boards ('preempted').
  stop_for_job TEXT,
  -- True if the job is queued again ('drained').
  stop_requeues BOOLEAN,
  -- Seconds from the stop signal to SIGKILL ('drained'; 0: the default of the worker), or of idleness ('idle').
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
  -- True if a job of a higher class may have it stopped.
  preemptible BOOLEAN NOT NULL DEFAULT FALSE,
  -- The part of `metered_ms` that earlier attempts used.
  metered_before_ms BIGINT NOT NULL DEFAULT 0,
  -- Processors and memory for each node; 0 without a request.
  cpu_milli BIGINT NOT NULL DEFAULT 0,
  memory_mib BIGINT NOT NULL DEFAULT 0,
  nodes BIGINT NOT NULL DEFAULT 1,
  -- Seconds between the stop signal and SIGKILL.
  grace_s BIGINT NOT NULL DEFAULT 10,
  -- The number of further attempts after failures.
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
CREATE INDEX jobs_by_state ON jobs (org_id, state, id);
CREATE INDEX jobs_by_end ON jobs (ended_at, id);
-- Ended jobs stay in the table; these two indexes do not have them. The queue begins with its state, because SQLite
-- prefers an index with an equality.
CREATE INDEX jobs_open ON jobs (org_id, id) WHERE ended_at IS NULL;
CREATE INDEX jobs_queued ON jobs (state, priority DESC, created_at, id) WHERE state = 'queued';
CREATE INDEX jobs_by_reservation ON jobs (reservation_id, id) WHERE reservation_id IS NOT NULL;

-- The large parts of a submission. They are read for the start of the job on a worker.
CREATE TABLE job_inputs (
  job_id TEXT PRIMARY KEY REFERENCES jobs (id),
  script TEXT,
  -- JSON objects: name or path to text.
  env TEXT NOT NULL,
  files TEXT NOT NULL
);

-- Events of jobs. `seq` is the generation of the job, so the events of a job have no gaps.
CREATE TABLE job_events (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  seq BIGINT NOT NULL,
  org_id TEXT NOT NULL,
  at BIGINT NOT NULL,
  state TEXT NOT NULL CHECK (state IN (
    'queued', 'assigned', 'starting', 'running', 'stopping', 'succeeded', 'failed', 'cancelled', 'timed_out'
  )),
  attempt BIGINT NOT NULL,
  detail TEXT NOT NULL,
  PRIMARY KEY (job_id, seq)
);
CREATE INDEX job_events_by_org ON job_events (org_id, at);

-- Ranks of attempts, each on one node. A rank is open until the portal knows its end, its clean devices and its whole
-- log.
CREATE TABLE attempts (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  number BIGINT NOT NULL,
  rank BIGINT NOT NULL,
  org_id TEXT NOT NULL,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  -- True if the worker has confirmed the assignment.
  known BOOLEAN NOT NULL,
  running BOOLEAN NOT NULL,
  ended BOOLEAN NOT NULL,
  -- JSON: the outcome of the rank.
  outcome TEXT,
  ended_at BIGINT,
  clean BOOLEAN NOT NULL,
  -- The length of the log at the end.
  log_bytes BIGINT,
  is_open BOOLEAN NOT NULL,
  created_at BIGINT NOT NULL,
  -- JSON: the evidence of processors and devices; absent without a reading of the worker.
  evidence TEXT,
  -- 0: no lease. Without a lease, only an operator ends the rank while its worker is silent.
  lease_ms BIGINT NOT NULL DEFAULT 0,
  -- The present step of the preparation, in the text of the worker.
  progress TEXT NOT NULL DEFAULT '',
  -- The digest of the image in the registry.
  image_digest TEXT,
  -- True if the worker has files of this rank that the portal should have and has not.
  saving BOOLEAN NOT NULL DEFAULT FALSE,
  PRIMARY KEY (job_id, number, rank),
  UNIQUE (job_id, number, node_id)
);
CREATE INDEX attempts_open ON attempts (node_id, is_open);
CREATE INDEX attempts_unended ON attempts (is_open, ended, node_id);

-- Devices of attempts on boards: slices, shares or whole boards. They are held until they are proved clean.
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
  -- The reason why it is not proved clean.
  unclean TEXT,
  -- The job for which its attempt was stopped, for every kind of end of the attempt.
  room_for_job TEXT,
  -- Thousandths of a shared board; absent for slices and whole boards.
  share_milli BIGINT,
  PRIMARY KEY (job_id, attempt, idx)
);
CREATE INDEX allocations_held ON allocations (held, gpu_uuid);

-- Reported intervals of idle devices of jobs, with their cost.
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
  -- The time of the report by the portal's clock, and its day (UTC, days since 1970).
  reported_at BIGINT NOT NULL,
  day BIGINT NOT NULL,
  PRIMARY KEY (job_id, attempt, ends_at)
);
CREATE INDEX underuse_by_org ON underuse (org_id, day);

-- Sessions of terminals in running jobs, without their input and output.
CREATE TABLE terminals (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt BIGINT NOT NULL,
  node_rank BIGINT NOT NULL,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  user_id TEXT NOT NULL REFERENCES users (id),
  actor TEXT NOT NULL,
  -- The reason of an operator who is not a member.
  reason TEXT,
  opened_at BIGINT NOT NULL,
  -- The time of the first shell.
  attached_at BIGINT,
  -- The time since which no client is attached; absent while a client is attached.
  left_at BIGINT,
  closed_at BIGINT,
  exit_code BIGINT,
  cause TEXT
);
CREATE INDEX terminals_by_job ON terminals (job_id, id);
CREATE INDEX terminals_open ON terminals (org_id) WHERE closed_at IS NULL;
