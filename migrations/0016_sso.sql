-- Single sign-on by OpenID Connect: providers of organizations, their domains, identities, and the grants of sessions.

CREATE TABLE sso_providers (
  org_id TEXT PRIMARY KEY REFERENCES orgs (id),
  issuer TEXT NOT NULL,
  client_id TEXT NOT NULL,
  -- The secret of the client, sealed by the key of the portal.
  sealed_secret TEXT NOT NULL,
  -- The claim with the groups of a person.
  group_claim TEXT NOT NULL,
  -- The roles of groups as a JSON array.
  roles TEXT NOT NULL,
  -- The role of a person without a listed group; absent: such a person is refused.
  default_role TEXT CHECK (default_role IN ('owner', 'billing', 'member', 'viewer')),
  -- True if a first sign-in creates the account and the membership.
  create_members BOOLEAN NOT NULL,
  -- True if members with an address of a confirmed domain have no password, except owners.
  required BOOLEAN NOT NULL,
  updated_at BIGINT NOT NULL
);

-- Domains of e-mail addresses. An operator confirms a domain for one organization.
CREATE TABLE sso_domains (
  org_id TEXT NOT NULL REFERENCES orgs (id),
  domain TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  confirmed_at BIGINT,
  PRIMARY KEY (org_id, domain)
);
CREATE UNIQUE INDEX sso_domains_confirmed ON sso_domains (domain) WHERE confirmed_at IS NOT NULL;

-- Identities of users at providers.
CREATE TABLE sso_identities (
  issuer TEXT NOT NULL,
  subject TEXT NOT NULL,
  user_id TEXT NOT NULL REFERENCES users (id),
  created_at BIGINT NOT NULL,
  last_used_at BIGINT NOT NULL,
  PRIMARY KEY (issuer, subject)
);
CREATE INDEX sso_identities_by_user ON sso_identities (user_id);

-- The grant of a provider for a session. It outlives its session while the identity has API tokens.
CREATE TABLE sso_grants (
  -- The hash of the cookie of the session.
  hash TEXT PRIMARY KEY,
  -- The organization of the provider; absent for the provider of the operators.
  org_id TEXT REFERENCES orgs (id),
  issuer TEXT NOT NULL,
  subject TEXT NOT NULL,
  -- The session at the provider; empty if the provider gave none.
  sid TEXT NOT NULL,
  -- True if the provider verified a second factor.
  second_factor BOOLEAN NOT NULL,
  -- The refresh token, sealed by the key of the portal; absent if the provider gave none.
  sealed_refresh TEXT,
  created_at BIGINT NOT NULL,
  -- The last answer of the provider, and the time of the next request.
  answered_at BIGINT NOT NULL,
  next_at BIGINT NOT NULL
);
CREATE INDEX sso_grants_due ON sso_grants (next_at) WHERE sealed_refresh IS NOT NULL;
CREATE INDEX sso_grants_by_identity ON sso_grants (issuer, subject);

-- API tokens of sessions with a grant.
CREATE TABLE sso_tokens (
  token_id TEXT PRIMARY KEY REFERENCES tokens (id) ON DELETE CASCADE,
  issuer TEXT NOT NULL,
  subject TEXT NOT NULL
);
CREATE INDEX sso_tokens_by_identity ON sso_tokens (issuer, subject);
