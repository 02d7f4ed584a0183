-- What a price was asked for and answered; JSON as it was answered.
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

-- Capacity promised for a time; without organization it is maintenance.
CREATE TABLE reservations (
  id TEXT PRIMARY KEY,
  org_id TEXT REFERENCES orgs (id),
  name TEXT NOT NULL,
  state TEXT NOT NULL,
  cause TEXT NOT NULL,
  quote_id TEXT,
  series TEXT NOT NULL,
  offering_id TEXT REFERENCES offerings (id),
  nodes BIGINT NOT NULL,
  gpus_per_node BIGINT NOT NULL,
  topology TEXT NOT NULL,
  board_milli BIGINT NOT NULL,
  starts_at BIGINT NOT NULL,
  ends_at BIGINT NOT NULL,
  ended_at BIGINT,
  nano_per_second BIGINT NOT NULL,
  price_version BIGINT NOT NULL,
  total_micros BIGINT NOT NULL CHECK (total_micros >= 0),
  held_micros BIGINT NOT NULL CHECK (held_micros >= 0),
  posted_micros BIGINT NOT NULL CHECK (posted_micros >= 0),
  credited_micros BIGINT NOT NULL CHECK (credited_micros >= 0),
  -- JSON: which boards and slices of which nodes.
  places TEXT NOT NULL,
  -- JSON: the terms that were shown when it was confirmed.
  policy TEXT NOT NULL,
  -- Thousandths of it that are out of order, and since when.
  lost_milli BIGINT NOT NULL,
  lost_since BIGINT,
  generation BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL
);
CREATE INDEX reservations_by_org ON reservations (org_id, id);
CREATE INDEX reservations_by_end ON reservations (state, ends_at);

ALTER TABLE jobs ADD COLUMN reservation_id TEXT;
CREATE INDEX jobs_by_reservation ON jobs (reservation_id);
