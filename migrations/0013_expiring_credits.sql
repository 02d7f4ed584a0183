-- What is left of a grant that expires. Use takes from the soonest first; what is left when its time comes is
-- taken back.
CREATE TABLE credit_lots (
  transfer_id TEXT PRIMARY KEY REFERENCES transfers (id),
  org_id TEXT NOT NULL REFERENCES orgs (id),
  amount_micros BIGINT NOT NULL CHECK (amount_micros > 0),
  left_micros BIGINT NOT NULL CHECK (left_micros >= 0 AND left_micros <= amount_micros),
  expires_at BIGINT NOT NULL,
  -- How often something was taken back of it.
  taken BIGINT NOT NULL,
  -- How many of the warnings were told.
  told BIGINT NOT NULL
);
-- Spent lots stay in the table and out of the way.
CREATE INDEX credit_lots_live ON credit_lots (org_id, expires_at) WHERE left_micros > 0;
CREATE INDEX credit_lots_due ON credit_lots (expires_at) WHERE left_micros > 0;
