-- Notices, webhooks and deliveries.

-- Events of organizations. Webhooks and mail are made from them.
CREATE TABLE notices (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL,
  -- JSON.
  data TEXT NOT NULL,
  at BIGINT NOT NULL,
  -- True if its deliveries exist.
  dispatched BOOLEAN NOT NULL
);
CREATE INDEX notices_by_dispatch ON notices (dispatched, id);
CREATE INDEX notices_by_org ON notices (org_id, id);

-- Addresses of organizations for notices. The secret signs the notices; it is sealed, and a secret from before the
-- sealing is plain until the next start of the portal.
CREATE TABLE webhooks (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  url TEXT NOT NULL,
  secret TEXT NOT NULL,
  -- JSON array: kinds of notices; each may end with *.
  kinds TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL
);
CREATE INDEX webhooks_by_org ON webhooks (org_id, id);

-- The delivery of one notice to one target: a webhook or an e-mail address.
CREATE TABLE deliveries (
  id TEXT PRIMARY KEY,
  notice_id TEXT NOT NULL REFERENCES notices (id),
  org_id TEXT NOT NULL,
  channel TEXT NOT NULL CHECK (channel IN ('webhook', 'mail')),
  target TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
  tries BIGINT NOT NULL,
  next_at BIGINT NOT NULL,
  last_status BIGINT,
  last_error TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  done_at BIGINT
);
CREATE INDEX deliveries_due ON deliveries (state, next_at);
CREATE INDEX deliveries_by_target ON deliveries (target, id);
