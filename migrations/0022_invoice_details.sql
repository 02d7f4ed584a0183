-- Prices and billing details on invoices.

-- Charges by day (UTC, days since 1970) and version of the price, written in the transaction of the charge. Their lines
-- on an invoice have a price each.
DROP INDEX usage_days_sums;
ALTER TABLE usage_days RENAME TO usage_days_without_prices;
CREATE TABLE usage_days (
  org_id TEXT NOT NULL,
  day BIGINT NOT NULL,
  offering_id TEXT NOT NULL,
  mode TEXT NOT NULL CHECK (mode IN ('on_demand', 'preemptible', 'reserved')),
  member TEXT NOT NULL,
  -- The version of the offering's price; 0 for fees, and for use from before this column.
  price_version BIGINT NOT NULL DEFAULT 0,
  -- Thousandths of devices x milliseconds, so a share counts as its part of a device.
  device_milli_ms BIGINT NOT NULL,
  cost_micros BIGINT NOT NULL,
  PRIMARY KEY (org_id, day, offering_id, mode, member, price_version)
);
INSERT INTO usage_days (org_id, day, offering_id, mode, member, price_version, device_milli_ms, cost_micros)
SELECT org_id, day, offering_id, mode, member, 0, device_milli_ms, cost_micros FROM usage_days_without_prices;
DROP TABLE usage_days_without_prices;
-- A sum over a year reads only this index and no row of the table.
CREATE INDEX usage_days_sums
ON usage_days (org_id, day, offering_id, mode, member, device_milli_ms, cost_micros, price_version);

-- The details of the customer on new invoices of an organization. Empty texts are absent on the invoice.
CREATE TABLE billing_details (
  org_id TEXT PRIMARY KEY REFERENCES orgs (id),
  name TEXT NOT NULL,
  address TEXT NOT NULL,
  tax_id TEXT NOT NULL
);
