-- Stretches of time in which the devices of a job stood idle, as they were pointed out, and what they cost.
CREATE TABLE underuse (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt BIGINT NOT NULL,
  org_id TEXT NOT NULL,
  -- By the clock of the host that took the readings.
  starts_at BIGINT NOT NULL,
  ends_at BIGINT NOT NULL,
  -- Mean utilisation, whole percent.
  percent BIGINT NOT NULL,
  cost_micros BIGINT NOT NULL,
  -- By the portal's clock, and the day of it (UTC, days since 1970).
  told_at BIGINT NOT NULL,
  day BIGINT NOT NULL,
  PRIMARY KEY (job_id, attempt, ends_at)
);
CREATE INDEX underuse_by_org ON underuse (org_id, day);
