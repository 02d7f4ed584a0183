-- Sums over a year read this alone: every row of the table would cost another look.
CREATE INDEX usage_days_sums ON usage_days (org_id, day, offering_id, mode, member, device_milli_ms, cost_micros);
