-- Storage classes: volumes on file systems that the nodes of the operator mount.

-- The classes that an operator declared. Nodes announce their names.
CREATE TABLE storage_classes (
  name TEXT PRIMARY KEY,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL
);

-- The organizations that may create volumes of a class.
CREATE TABLE storage_grants (
  class TEXT NOT NULL REFERENCES storage_classes (name),
  org_id TEXT NOT NULL REFERENCES orgs (id),
  PRIMARY KEY (class, org_id)
);
CREATE INDEX storage_grants_by_org ON storage_grants (org_id);

-- The numbers of organizations with a class, from 1. Workers derive groups of files from them, so a number is never
-- given again.
CREATE TABLE storage_groups (
  org_id TEXT PRIMARY KEY REFERENCES orgs (id),
  number BIGINT NOT NULL UNIQUE
);

-- Absent: the portal has the files of the volume.
ALTER TABLE volumes ADD COLUMN class TEXT REFERENCES storage_classes (name);
CREATE INDEX volumes_by_class ON volumes (class, org_id) WHERE class IS NOT NULL;

-- The host mounts that the worker announced at its last connection.
ALTER TABLE nodes ADD COLUMN host_mounts TEXT NOT NULL DEFAULT '[]';
