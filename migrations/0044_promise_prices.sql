-- The price of a promise: a surcharge on the rate of each replica.

-- The part of the rate that the promise of the service added at the submission, in basis points; 0 for other jobs.
ALTER TABLE jobs ADD COLUMN surcharge_basis_points BIGINT NOT NULL DEFAULT 0 CHECK (surcharge_basis_points >= 0);

-- Charges with a surcharge have lines of their own on an invoice.
DROP INDEX usage_days_sums;
ALTER TABLE usage_days RENAME TO usage_days_without_surcharges;
CREATE TABLE usage_days (
  org_id TEXT NOT NULL,
  day BIGINT NOT NULL,
  offering_id TEXT NOT NULL,
  mode TEXT NOT NULL CHECK (mode IN ('on_demand', 'preemptible', 'reserved')),
  member TEXT NOT NULL,
  -- The version of the offering's price; 0 for fees, and for use from before this column.
  price_version BIGINT NOT NULL DEFAULT 0,
  -- The surcharge on that price in basis points.
  surcharge_basis_points BIGINT NOT NULL DEFAULT 0,
  -- Thousandths of devices x milliseconds, so a share counts as its part of a device.
  device_milli_ms BIGINT NOT NULL,
  cost_micros BIGINT NOT NULL,
  PRIMARY KEY (org_id, day, offering_id, mode, member, price_version, surcharge_basis_points)
);
INSERT INTO usage_days (org_id, day, offering_id, mode, member, price_version, device_milli_ms, cost_micros)
SELECT org_id, day, offering_id, mode, member, price_version, device_milli_ms, cost_micros
FROM usage_days_without_surcharges;
DROP TABLE usage_days_without_surcharges;
-- A sum over a year reads only this index and no row of the table.
CREATE INDEX usage_days_sums ON usage_days (org_id, day, offering_id, mode, member, device_milli_ms, cost_micros,
  price_version, surcharge_basis_points);
