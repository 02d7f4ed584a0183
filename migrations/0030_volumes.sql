-- Named volumes of organizations, which jobs mount.
CREATE TABLE volumes (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  name TEXT NOT NULL,
  max_bytes BIGINT NOT NULL CHECK (max_bytes > 0),
  -- Rises by one with every change of what is in it.
  version BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  changed_at BIGINT NOT NULL,
  UNIQUE (org_id, name)
);

-- Bytes of volumes. They are in the object store, under the row's id; rows may outlive their volume until
-- the bytes are removed.
CREATE TABLE volume_blobs (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  volume_id TEXT NOT NULL,
  -- An upload by a person; a file, or the list of all files, from a job's attempt.
  kind TEXT NOT NULL CHECK (kind IN ('upload', 'file', 'listing')),
  -- Of an upload: where it goes.
  path TEXT NOT NULL,
  -- Empty and 0 for an upload.
  job_id TEXT NOT NULL,
  attempt BIGINT NOT NULL,
  bytes BIGINT NOT NULL CHECK (bytes >= 0),
  -- Lower-case hex; empty while an upload did not say it.
  sha256 TEXT NOT NULL,
  tag TEXT NOT NULL,
  -- What is gone is removed from the object store before its row.
  state TEXT NOT NULL CHECK (state IN ('partial', 'complete', 'gone')),
  touched_at BIGINT NOT NULL
);
CREATE INDEX volume_blobs_by_volume ON volume_blobs (volume_id, state);
CREATE INDEX volume_blobs_by_org ON volume_blobs (org_id, state);
CREATE INDEX volume_blobs_by_state ON volume_blobs (state);

-- Which file was where, from one version on and up to before another.
CREATE TABLE volume_files (
  volume_id TEXT NOT NULL REFERENCES volumes (id),
  path TEXT NOT NULL,
  blob_id TEXT NOT NULL REFERENCES volume_blobs (id),
  bytes BIGINT NOT NULL,
  sha256 TEXT NOT NULL,
  executable BOOLEAN NOT NULL,
  from_version BIGINT NOT NULL,
  -- Absent: it is there now.
  to_version BIGINT,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY (volume_id, path, from_version)
);
CREATE INDEX volume_files_by_blob ON volume_files (blob_id);

-- What jobs asked for.
CREATE TABLE job_volumes (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  idx BIGINT NOT NULL,
  volume_id TEXT NOT NULL,
  writable BOOLEAN NOT NULL,
  PRIMARY KEY (job_id, idx)
);
CREATE INDEX job_volumes_by_volume ON job_volumes (volume_id);

-- What their attempts were given. The version stays for as long as the attempt is open.
CREATE TABLE volume_uses (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt BIGINT NOT NULL,
  volume_id TEXT NOT NULL,
  version BIGINT NOT NULL,
  writable BOOLEAN NOT NULL,
  -- Somebody else changes the volume by now: nothing of this attempt is taken any more.
  given_up BOOLEAN NOT NULL,
  -- The version that holds what it left.
  kept_version BIGINT,
  note TEXT,
  PRIMARY KEY (job_id, attempt, volume_id)
);
CREATE INDEX volume_uses_by_volume ON volume_uses (volume_id);
