-- What may be spent in a month, by an organization or on what carries a label.
CREATE TABLE budgets (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  name TEXT NOT NULL,
  -- Without label it counts everything.
  label TEXT NOT NULL,
  value TEXT NOT NULL,
  limit_micros BIGINT NOT NULL CHECK (limit_micros > 0),
  at_limit TEXT NOT NULL,
  -- The highest threshold that was told of, in percent, and the month it was told in.
  told BIGINT NOT NULL,
  told_month TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL
);
CREATE INDEX budgets_by_org ON budgets (org_id, id);

-- What was used in a month, as it was billed. A number is given once and never again.
CREATE TABLE invoices (
  id TEXT PRIMARY KEY,
  number BIGINT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  month TEXT NOT NULL,
  state TEXT NOT NULL,
  -- JSON: the whole invoice as it was issued.
  document TEXT NOT NULL,
  total_micros BIGINT NOT NULL,
  issued_at BIGINT NOT NULL,
  due_at BIGINT,
  paid_at BIGINT,
  -- What a credit note corrects.
  corrects TEXT,
  UNIQUE (org_id, month, kind)
);
CREATE INDEX invoices_by_org ON invoices (org_id, number);

-- What happened that somebody outside should hear of: webhooks and mail are made from it.
CREATE TABLE notices (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL,
  -- JSON.
  data TEXT NOT NULL,
  at BIGINT NOT NULL,
  -- Deliveries were made of it.
  spread BOOLEAN NOT NULL
);
CREATE INDEX notices_to_spread ON notices (spread, id);
CREATE INDEX notices_by_org ON notices (org_id, id);
