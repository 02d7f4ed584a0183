-- Secrets, files of jobs, and volumes.

-- Secrets for jobs. A value is sealed for its row, with a key that is not in this database.
CREATE TABLE secrets (
  org_id TEXT NOT NULL REFERENCES orgs (id),
  name TEXT NOT NULL,
  version BIGINT NOT NULL,
  sealed TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_by TEXT NOT NULL,
  updated_at BIGINT NOT NULL,
  last_used_at BIGINT,
  PRIMARY KEY (org_id, name)
);

-- Files of jobs that outlive their attempt. The bytes are in the object store, under the row's id.
CREATE TABLE job_files (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt BIGINT NOT NULL,
  rank BIGINT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('checkpoint', 'artifact')),
  -- Orders the checkpoints of an attempt.
  seq BIGINT NOT NULL,
  path TEXT NOT NULL,
  bytes BIGINT NOT NULL CHECK (bytes >= 0),
  -- Lower-case hex.
  sha256 TEXT NOT NULL,
  files BIGINT NOT NULL,
  -- The bytes of a gone file are removed from the object store before its row.
  state TEXT NOT NULL CHECK (state IN ('partial', 'complete', 'refused', 'gone')),
  note TEXT,
  created_at BIGINT NOT NULL,
  UNIQUE (job_id, attempt, rank, kind, seq, path)
);
CREATE INDEX job_files_by_org ON job_files (org_id, state);
CREATE INDEX job_files_by_state ON job_files (state, kind);

-- Volumes of organizations, for the jobs of the organization.
CREATE TABLE volumes (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  name TEXT NOT NULL,
  max_bytes BIGINT NOT NULL CHECK (max_bytes > 0),
  -- Rises by one with each change of the volume's files.
  version BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  changed_at BIGINT NOT NULL,
  UNIQUE (org_id, name)
);

-- Contents of files in volumes. The bytes are in the object store, under the row's id. A row may outlive its volume
-- until its bytes are removed.
CREATE TABLE volume_blobs (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  volume_id TEXT NOT NULL,
  -- An upload by a user; a file or the list of all files from an attempt.
  kind TEXT NOT NULL CHECK (kind IN ('upload', 'file', 'listing')),
  -- The target path of an upload.
  path TEXT NOT NULL,
  -- Empty and 0 for an upload.
  job_id TEXT NOT NULL,
  attempt BIGINT NOT NULL,
  bytes BIGINT NOT NULL CHECK (bytes >= 0),
  -- Lower-case hex; empty for an upload without a given hash.
  sha256 TEXT NOT NULL,
  tag TEXT NOT NULL,
  -- The bytes of a gone blob are removed from the object store before its row.
  state TEXT NOT NULL CHECK (state IN ('partial', 'complete', 'gone')),
  touched_at BIGINT NOT NULL
);
CREATE INDEX volume_blobs_by_volume ON volume_blobs (volume_id, state);
CREATE INDEX volume_blobs_by_org ON volume_blobs (org_id, state);
CREATE INDEX volume_blobs_by_state ON volume_blobs (state);

-- Files of volumes, from one version up to but not including another.
CREATE TABLE volume_files (
  volume_id TEXT NOT NULL REFERENCES volumes (id),
  path TEXT NOT NULL,
  blob_id TEXT NOT NULL REFERENCES volume_blobs (id),
  bytes BIGINT NOT NULL,
  sha256 TEXT NOT NULL,
  executable BOOLEAN NOT NULL,
  from_version BIGINT NOT NULL,
  -- Absent: the file is in the present version.
  to_version BIGINT,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY (volume_id, path, from_version)
);
CREATE INDEX volume_files_by_blob ON volume_files (blob_id);

-- Volumes that jobs request.
CREATE TABLE job_volumes (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  idx BIGINT NOT NULL,
  volume_id TEXT NOT NULL,
  writable BOOLEAN NOT NULL,
  PRIMARY KEY (job_id, idx)
);
CREATE INDEX job_volumes_by_volume ON job_volumes (volume_id);

-- Versions of volumes that attempts got. A version stays while the attempt is open.
CREATE TABLE volume_uses (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt BIGINT NOT NULL,
  volume_id TEXT NOT NULL,
  version BIGINT NOT NULL,
  writable BOOLEAN NOT NULL,
  -- True if another job writes to the volume now; changes of this attempt are refused.
  abandoned BOOLEAN NOT NULL,
  -- The version with its changes.
  kept_version BIGINT,
  note TEXT,
  PRIMARY KEY (job_id, attempt, volume_id)
);
CREATE INDEX volume_uses_by_volume ON volume_uses (volume_id);
