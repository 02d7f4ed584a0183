-- Shares of boards, further tries, the notice that a job gets, and where nodes and boards are.
ALTER TABLE allocations ADD COLUMN share_milli BIGINT;
ALTER TABLE jobs ADD COLUMN grace_s BIGINT NOT NULL DEFAULT 10;
ALTER TABLE jobs ADD COLUMN retries BIGINT NOT NULL DEFAULT 0;
-- JSON: what the node's worker was started with.
ALTER TABLE nodes ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
-- Boards of a node with the same number reach each other by NVLink.
ALTER TABLE gpus ADD COLUMN nvlink_island BIGINT NOT NULL DEFAULT 0;
