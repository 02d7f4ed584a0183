-- What Stripe takes back must be posted even when it was spent: then the account is below nothing by as
-- much as was forced, and nothing new starts until that is paid.
CREATE TABLE accounts_with_force (
  id TEXT PRIMARY KEY,
  org_id TEXT,
  posted_micros BIGINT NOT NULL,
  held_micros BIGINT NOT NULL CHECK (held_micros >= 0),
  overdraft BOOLEAN NOT NULL,
  credit_limit_micros BIGINT NOT NULL DEFAULT 0 CHECK (credit_limit_micros >= 0),
  forced_micros BIGINT NOT NULL DEFAULT 0 CHECK (forced_micros >= 0),
  CHECK (overdraft OR posted_micros - held_micros + credit_limit_micros + forced_micros >= 0)
);
INSERT INTO accounts_with_force (id, org_id, posted_micros, held_micros, overdraft, credit_limit_micros)
  SELECT id, org_id, posted_micros, held_micros, overdraft, credit_limit_micros FROM accounts;
DROP TABLE accounts;
ALTER TABLE accounts_with_force RENAME TO accounts;

-- How an organization pays. No card is ever here: only Stripe's names for it.
CREATE TABLE payment_profiles (
  org_id TEXT PRIMARY KEY REFERENCES orgs (id),
  customer TEXT NOT NULL,
  payment_method TEXT,
  -- Below this, so much is charged to the saved card, so often a day at most; 0 amount: never.
  below_micros BIGINT NOT NULL DEFAULT 0,
  amount_micros BIGINT NOT NULL DEFAULT 0,
  most_a_day BIGINT NOT NULL DEFAULT 0,
  failures BIGINT NOT NULL DEFAULT 0
);

-- A payment that was asked for. Its id is the idempotency key at Stripe, so asking again asks for the same.
CREATE TABLE payments (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  -- 'checkout' or 'recharge'.
  kind TEXT NOT NULL,
  amount_micros BIGINT NOT NULL,
  -- What it pays, when not the balance.
  invoice_id TEXT,
  state TEXT NOT NULL,
  -- Stripe's names.
  session TEXT,
  intent TEXT,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  done_at BIGINT,
  failure TEXT NOT NULL
);
CREATE INDEX payments_by_org ON payments (org_id, id);
CREATE INDEX payments_open ON payments (state, kind);
CREATE INDEX payments_by_intent ON payments (intent);

-- What Stripe told, as it told it, before anything was made of it.
CREATE TABLE stripe_events (
  id TEXT PRIMARY KEY,
  kind TEXT NOT NULL,
  payload TEXT NOT NULL,
  received_at BIGINT NOT NULL,
  done_at BIGINT,
  tries BIGINT NOT NULL,
  next_at BIGINT NOT NULL,
  error TEXT NOT NULL
);
CREATE INDEX stripe_events_due ON stripe_events (done_at, next_at);
