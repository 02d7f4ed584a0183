-- Leases: what runs on a node ends by itself when its worker has had no word from the portal for so long.

-- Its worker keeps leases; set by each session.
ALTER TABLE nodes ADD COLUMN leased BOOLEAN NOT NULL DEFAULT FALSE;
-- What ran there counts as ended since then, and why; absent once it is back.
ALTER TABLE nodes ADD COLUMN lost_at BIGINT;
ALTER TABLE nodes ADD COLUMN lost_why TEXT;
-- 0: none, so only somebody's word ends it while its worker is silent.
ALTER TABLE attempts ADD COLUMN lease_ms BIGINT NOT NULL DEFAULT 0;
CREATE INDEX attempts_unended ON attempts (is_open, ended, node_id);
