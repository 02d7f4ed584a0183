-- What an organization keeps from everybody but its jobs. The value is sealed for this very row, under a key that
-- is not in this database.
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
