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

-- Price versions. They count up from 1 and never change.
CREATE TABLE prices (
  offering_id TEXT NOT NULL REFERENCES offerings (id),
  version BIGINT NOT NULL,
  nano_per_second BIGINT NOT NULL CHECK (nano_per_second >= 0),
  effective_from BIGINT NOT NULL,
  set_by TEXT NOT NULL,
  -- Rates of reserved and of preemptible use; absent: the rate on demand.
  reserved_nano_per_second BIGINT,
  preemptible_nano_per_second BIGINT,
  PRIMARY KEY (offering_id, version)
);

-- Quotes, as JSON in the form of the answer.
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

-- The balance of an organization. Its credit limit and `forced_micros` permit a negative balance. `forced_micros` is
-- the part of a refund at Stripe that was spent before. Nothing new starts until that part is paid.
CREATE TABLE accounts (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  posted_micros BIGINT NOT NULL,
  held_micros BIGINT NOT NULL CHECK (held_micros >= 0),
  credit_limit_micros BIGINT NOT NULL DEFAULT 0 CHECK (credit_limit_micros >= 0),
  forced_micros BIGINT NOT NULL DEFAULT 0 CHECK (forced_micros >= 0),
  CHECK (posted_micros - held_micros + credit_limit_micros + forced_micros >= 0)
);

-- Transfers, the rows of the ledger. A debit takes money without use: a refund, or credit that has expired.
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
-- Credits and debits are few beside charges and holds, and a statement sums those of one month.
CREATE INDEX transfers_credits ON transfers (credit, at) WHERE kind = 'credit';
CREATE INDEX transfers_debits ON transfers (debit, at) WHERE kind = 'debit';
CREATE INDEX transfers_given_back ON transfers (credit, at) WHERE kind = 'credit' AND source IN ('reservation', 'evidence');

-- Credit that expires. Charges use the lot that expires first. The rest of a lot becomes a debit at its expiry.
CREATE TABLE credit_lots (
  transfer_id TEXT PRIMARY KEY REFERENCES transfers (id),
  org_id TEXT NOT NULL REFERENCES orgs (id),
  amount_micros BIGINT NOT NULL CHECK (amount_micros > 0),
  left_micros BIGINT NOT NULL CHECK (left_micros >= 0 AND left_micros <= amount_micros),
  expires_at BIGINT NOT NULL,
  -- The number of debits of its expired part.
  expiry_debits BIGINT NOT NULL,
  -- The number of warnings that were sent.
  warnings BIGINT NOT NULL
);
-- Spent lots stay in the table; these indexes do not have them.
CREATE INDEX credit_lots_live ON credit_lots (org_id, expires_at) WHERE left_micros > 0;
CREATE INDEX credit_lots_due ON credit_lots (expires_at) WHERE left_micros > 0;

-- Charges by day (UTC, days since 1970), written in the transaction of the charge.
CREATE TABLE usage_days (
  org_id TEXT NOT NULL,
  day BIGINT NOT NULL,
  offering_id TEXT NOT NULL,
  mode TEXT NOT NULL CHECK (mode IN ('on_demand', 'preemptible', 'reserved')),
  member TEXT NOT NULL,
  -- Thousandths of devices x milliseconds, so a share counts as its part of a device.
  device_milli_ms BIGINT NOT NULL,
  cost_micros BIGINT NOT NULL,
  PRIMARY KEY (org_id, day, offering_id, mode, member)
);
-- A sum over a year reads only this index and no row of the table.
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

-- Use that counts against the monthly quota, by the month of submission, in thousandths of whole boards x seconds. A
-- job that has not ended counts with its time limit.
CREATE TABLE usage_months (
  org_id TEXT NOT NULL,
  month TEXT NOT NULL,
  board_milli_s BIGINT NOT NULL,
  PRIMARY KEY (org_id, month)
);

-- Limits of organizations. The row with the empty organization ('') is for all organizations without their own row.
CREATE TABLE quotas (
  org_id TEXT PRIMARY KEY,
  -- JSON.
  limits TEXT NOT NULL
);

CREATE TABLE quota_requests (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  -- JSON.
  limits TEXT NOT NULL,
  -- Requested credit; absent in a request for limits only.
  credit_micros BIGINT CHECK (credit_micros > 0),
  reason TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('pending', 'granted', 'declined')),
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  decided_at BIGINT,
  note TEXT NOT NULL
);
CREATE INDEX quota_requests_by_org ON quota_requests (org_id, id);
CREATE INDEX quota_requests_pending ON quota_requests (id) WHERE state = 'pending';

-- Monthly budgets of organizations, for all charges or for the charges of one label.
CREATE TABLE budgets (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  name TEXT NOT NULL,
  -- Empty: all charges count.
  label TEXT NOT NULL,
  value TEXT NOT NULL,
  limit_micros BIGINT NOT NULL CHECK (limit_micros > 0),
  at_limit TEXT NOT NULL CHECK (at_limit IN ('notify', 'refuse', 'stop')),
  -- The highest threshold with a notice, in percent, and its month.
  notified_percent BIGINT NOT NULL,
  notified_month TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL
);
CREATE INDEX budgets_by_org ON budgets (org_id, id);

-- Invoices and credit notes of a month. A number is used once.
CREATE TABLE invoices (
  id TEXT PRIMARY KEY,
  number BIGINT NOT NULL UNIQUE,
  kind TEXT NOT NULL CHECK (kind IN ('invoice', 'credit_note')),
  org_id TEXT NOT NULL REFERENCES orgs (id),
  month TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'paid', 'void', 'uncollectible')),
  -- JSON: the whole invoice as it was issued.
  document TEXT NOT NULL,
  total_micros BIGINT NOT NULL,
  issued_at BIGINT NOT NULL,
  due_at BIGINT,
  paid_at BIGINT,
  -- The invoice that a credit note corrects.
  corrects TEXT,
  UNIQUE (org_id, month, kind)
);
CREATE INDEX invoices_by_org ON invoices (org_id, number);

-- Payment profiles. They have the ids of cards at Stripe, never card numbers.
CREATE TABLE payment_profiles (
  org_id TEXT PRIMARY KEY REFERENCES orgs (id),
  customer TEXT NOT NULL,
  payment_method TEXT,
  -- The rule for automatic recharges: the balance below which a recharge happens, its amount (0: never), and the
  -- greatest number of recharges a day.
  below_micros BIGINT NOT NULL DEFAULT 0,
  amount_micros BIGINT NOT NULL DEFAULT 0,
  most_a_day BIGINT NOT NULL DEFAULT 0,
  failures BIGINT NOT NULL DEFAULT 0
);

-- Payments. The id is the idempotency key at Stripe, so a repeated request asks for the same payment.
CREATE TABLE payments (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES orgs (id),
  kind TEXT NOT NULL CHECK (kind IN ('checkout', 'recharge')),
  amount_micros BIGINT NOT NULL,
  -- The invoice that it pays; absent when it tops up the balance.
  invoice_id TEXT,
  state TEXT NOT NULL CHECK (state IN ('open', 'paid', 'failed')),
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
  next_at BIGINT NOT NULL
);
CREATE INDEX stripe_events_due ON stripe_events (done_at, next_at);
