-- People and groups that the identity provider of an organization keeps by SCIM.

CREATE TABLE scim_users (
  org_id TEXT NOT NULL REFERENCES orgs (id),
  user_id TEXT NOT NULL REFERENCES users (id),
  -- The name of the person at the provider, and the same in lower case, which is unique in the organization.
  user_name TEXT NOT NULL,
  user_key TEXT NOT NULL,
  -- The id of the person at the provider; absent if it gave none.
  external_id TEXT,
  display_name TEXT NOT NULL,
  given_name TEXT NOT NULL,
  family_name TEXT NOT NULL,
  -- False after a deactivation: the person has no membership.
  active BOOLEAN NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  PRIMARY KEY (org_id, user_id)
);
CREATE UNIQUE INDEX scim_users_by_key ON scim_users (org_id, user_key);
CREATE UNIQUE INDEX scim_users_by_external_id ON scim_users (org_id, external_id);
CREATE INDEX scim_users_by_user ON scim_users (user_id);

CREATE TABLE scim_groups (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  -- The name of the group, and the same in lower case, which is unique in the organization.
  display_name TEXT NOT NULL,
  display_key TEXT NOT NULL,
  -- The id of the group at the provider; absent if it gave none.
  external_id TEXT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX scim_groups_by_key ON scim_groups (org_id, display_key);
CREATE UNIQUE INDEX scim_groups_by_external_id ON scim_groups (org_id, external_id);

CREATE TABLE scim_members (
  group_id TEXT NOT NULL REFERENCES scim_groups (id),
  org_id TEXT NOT NULL,
  user_id TEXT NOT NULL,
  PRIMARY KEY (group_id, user_id)
);
CREATE INDEX scim_members_by_user ON scim_members (org_id, user_id);
