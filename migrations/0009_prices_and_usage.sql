-- What a device costs when it is reserved, or lent until somebody needs it more; as on demand when absent.
ALTER TABLE prices ADD COLUMN reserved_nano_per_second BIGINT;
ALTER TABLE prices ADD COLUMN preemptible_nano_per_second BIGINT;

-- An account may go below nothing by its credit limit, and no further.
CREATE TABLE accounts_with_limit (
  id TEXT PRIMARY KEY,
  org_id TEXT,
  posted_micros BIGINT NOT NULL,
  held_micros BIGINT NOT NULL CHECK (held_micros >= 0),
  overdraft BOOLEAN NOT NULL,
  credit_limit_micros BIGINT NOT NULL DEFAULT 0 CHECK (credit_limit_micros >= 0),
  CHECK (overdraft OR posted_micros - held_micros + credit_limit_micros >= 0)
);
INSERT INTO accounts_with_limit (id, org_id, posted_micros, held_micros, overdraft)
  SELECT id, org_id, posted_micros, held_micros, overdraft FROM accounts;
DROP TABLE accounts;
ALTER TABLE accounts_with_limit RENAME TO accounts;

-- Money may also leave an account without being spent: refunds, and credit that has expired.
CREATE TABLE all_transfers (
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
INSERT INTO all_transfers SELECT id, debit, credit, amount_micros, kind, pending_id, source, source_id, seq, memo, at
  FROM transfers;
DROP TABLE transfers;
ALTER TABLE all_transfers RENAME TO transfers;
CREATE INDEX transfers_by_debit ON transfers (debit, id);
CREATE INDEX transfers_by_credit ON transfers (credit, id);

-- What was charged, by day (UTC, days since 1970), in the transaction that charged it.
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
CREATE TABLE usage_label_days (
  org_id TEXT NOT NULL,
  day BIGINT NOT NULL,
  label TEXT NOT NULL,
  value TEXT NOT NULL,
  device_milli_ms BIGINT NOT NULL,
  cost_micros BIGINT NOT NULL,
  PRIMARY KEY (org_id, label, day, value)
);
-- JSON, and how far the meter was when it was charged last.
ALTER TABLE jobs ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
ALTER TABLE jobs ADD COLUMN posted_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN device_milli BIGINT NOT NULL DEFAULT 1000;
UPDATE jobs SET device_milli = device_count * nodes * 1000, posted_ms = metered_ms;
INSERT INTO usage_days (org_id, day, offering_id, mode, member, device_milli_ms, cost_micros)
  SELECT j.org_id, t.at / 86400000000, j.offering_id,
    CASE WHEN j.preemptible THEN 'preemptible' ELSE 'on_demand' END, j.created_by,
    SUM(t.amount_micros * 1000000 / j.nano_per_second * j.device_milli), SUM(t.amount_micros)
  FROM transfers t JOIN jobs j ON t.source = 'job' AND t.source_id = j.id
  WHERE t.kind = 'usage' AND j.nano_per_second > 0
  GROUP BY j.org_id, t.at / 86400000000, j.offering_id, j.preemptible, j.created_by;
INSERT INTO usage_days (org_id, day, offering_id, mode, member, device_milli_ms, cost_micros)
  SELECT r.org_id, t.at / 86400000000, r.offering_id, 'reserved', r.created_by, 0, SUM(t.amount_micros)
  FROM transfers t JOIN reservations r ON t.source = 'reservation' AND t.source_id = r.id
  WHERE t.kind = 'usage'
  GROUP BY r.org_id, t.at / 86400000000, r.offering_id, r.created_by;
