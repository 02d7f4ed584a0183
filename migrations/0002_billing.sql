-- Offerings and their prices, the ledger, usage, budgets, invoices, payments.

CREATE TABLE offerings (
  id TEXT PRIMARY KEY,
  slug TEXT NOT NULL UNIQUE,
  gpu_model TEXT NOT NULL,
  mig_profile TEXT,
  memory_mib BIGINT NOT NULL,
  cells BIGINT NOT NULL,
  board_cells BIGINT NOT NULL,
  simulated BOOLEAN NOT NULL,
  created_at BIGINT NOT NULL
);

-- Versions count up from 1 and are never edited.
CREATE TABLE prices (
  offering_id TEXT NOT NULL REFERENCES offerings (id),
  version BIGINT NOT NULL,
  nano_per_second BIGINT NOT NULL CHECK (nano_per_second >= 0),
  effective_from BIGINT NOT NULL,
  set_by TEXT NOT NULL,
  -- Rates of reserved and of preemptible use; the rate on demand where absent.
  reserved_nano_per_second BIGINT,
  preemptible_nano_per_second BIGINT,
  PRIMARY KEY (offering_id, version)
);

-- Quotes; JSON as answered.
CREATE TABLE quotes (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  quote TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  used_at BIGINT
);
CREATE INDEX quotes_by_org ON quotes (org_id, id);

-- The balance of an organization. It may be negative by its credit limit, and by `forced_micros`: the part of a refund
-- at Stripe that was spent before. Nothing new starts until that part is paid.
CREATE TABLE accounts (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  posted_micros BIGINT NOT NULL,
  held_micros BIGINT NOT NULL CHECK (held_micros >= 0),
  credit_limit_micros BIGINT NOT NULL DEFAULT 0 CHECK (credit_limit_micros >= 0),
  forced_micros BIGINT NOT NULL DEFAULT 0 CHECK (forced_micros >= 0),
  CHECK (posted_micros - held_micros + credit_limit_micros + forced_micros >= 0)
);

-- Money may also leave an account without being spent: refunds, and credit that has expired.
CREATE TABLE transfers (
  id TEXT PRIMARY KEY,
  debit TEXT NOT NULL,
  credit TEXT NOT NULL,
  amount_micros BIGINT NOT NULL CHECK (amount_micros > 0),
  kind TEXT NOT NULL CHECK (kind IN ('credit', 'debit', 'hold', 'release', 'usage')),
  pending_id TEXT,
  source TEXT NOT NULL,
  source_id TEXT NOT NULL,
  seq BIGINT NOT NULL,
  memo TEXT NOT NULL,
  at BIGINT NOT NULL,
  UNIQUE (source, source_id, kind, seq)
);
CREATE INDEX transfers_by_debit ON transfers (debit, id);
CREATE INDEX transfers_by_credit ON transfers (credit, id);
CREATE INDEX transfers_given_back ON transfers (credit, at) WHERE kind = 'credit' AND source IN ('reservation', 'evidence');

-- Credit that expires. Charges use the lot that expires first; the rest of a lot is taken back when it expires.
CREATE TABLE credit_lots (
  transfer_id TEXT PRIMARY KEY REFERENCES transfers (id),
  org_id TEXT NOT NULL REFERENCES orgs (id),
  amount_micros BIGINT NOT NULL CHECK (amount_micros > 0),
  left_micros BIGINT NOT NULL CHECK (left_micros >= 0 AND left_micros <= amount_micros),
  expires_at BIGINT NOT NULL,
  -- How often a part was taken back.
  taken BIGINT NOT NULL,
  -- Warnings that were sent.
  told BIGINT NOT NULL
);
-- Spent lots stay in the table and out of the way.
CREATE INDEX credit_lots_live ON credit_lots (org_id, expires_at) WHERE left_micros > 0;
CREATE INDEX credit_lots_due ON credit_lots (expires_at) WHERE left_micros > 0;

-- Charges by day (UTC, days since 1970), written in the transaction of the charge.
CREATE TABLE usage_days (
  org_id TEXT NOT NULL,
  day BIGINT NOT NULL,
  offering_id TEXT NOT NULL,
  -- 'on_demand', 'preemptible' or 'reserved'.
  mode TEXT NOT NULL,
  member TEXT NOT NULL,
  -- Thousandths of devices x milliseconds, so that shares count as their part.
  device_milli_ms BIGINT NOT NULL,
  cost_micros BIGINT NOT NULL,
  PRIMARY KEY (org_id, day, offering_id, mode, member)
);
-- Sums over a year read this alone: every row of the table would cost another look.
CREATE INDEX usage_days_sums ON usage_days (org_id, day, offering_id, mode, member, device_milli_ms, cost_micros);

CREATE TABLE usage_label_days (
  org_id TEXT NOT NULL,
  day BIGINT NOT NULL,
  label TEXT NOT NULL,
  value TEXT NOT NULL,
  device_milli_ms BIGINT NOT NULL,
  cost_micros BIGINT NOT NULL,
  PRIMARY KEY (org_id, label, day, value)
);

-- Use that counts against the monthly quota, by the month of submission: thousandths of whole boards x seconds. A job
-- that has not ended counts with its limit.
CREATE TABLE usage_months (
  org_id TEXT NOT NULL,
  month TEXT NOT NULL,
  board_milli_s BIGINT NOT NULL,
  PRIMARY KEY (org_id, month)
);

-- Limits of organizations; the row without organization ('') is for all that have none of their own.
CREATE TABLE quotas (
  org_id TEXT PRIMARY KEY,
  -- JSON.
  limits TEXT NOT NULL,
  set_by TEXT NOT NULL,
  set_at BIGINT NOT NULL
);

CREATE TABLE quota_requests (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  limits TEXT NOT NULL,
  reason TEXT NOT NULL,
  state TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  decided_at BIGINT,
  decided_by TEXT,
  note TEXT NOT NULL
);
CREATE INDEX quota_requests_by_org ON quota_requests (org_id, id);

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
  -- The highest threshold that was reported, in percent, and its month.
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

-- Means of payment. Card numbers are never stored, only their ids at Stripe.
CREATE TABLE payment_profiles (
  org_id TEXT PRIMARY KEY REFERENCES orgs (id),
  customer TEXT NOT NULL,
  payment_method TEXT,
  -- Below this balance so much is charged to the saved card, so often a day at most; amount 0: never.
  below_micros BIGINT NOT NULL DEFAULT 0,
  amount_micros BIGINT NOT NULL DEFAULT 0,
  most_a_day BIGINT NOT NULL DEFAULT 0,
  failures BIGINT NOT NULL DEFAULT 0
);

-- Payments. The id is the idempotency key at Stripe, so a repeated request asks for the same payment.
CREATE TABLE payments (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  -- 'checkout' or 'recharge'.
  kind TEXT NOT NULL,
  amount_micros BIGINT NOT NULL,
  -- The invoice that it pays; absent when it tops up the balance.
  invoice_id TEXT,
  state TEXT NOT NULL,
  -- Ids at Stripe.
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

-- Webhook events of Stripe as they arrived, before they are processed.
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
