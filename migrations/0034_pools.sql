-- Pools of nodes, and the time in which jobs give their devices back.

-- The work that the node is for.
ALTER TABLE nodes ADD COLUMN pool TEXT NOT NULL DEFAULT 'both' CHECK (pool IN ('both', 'inference', 'training'));
-- The longest time in ms between the stop of an attempt, for another job or for a drain, and its end; NULL before the first.
ALTER TABLE jobs ADD COLUMN gives_back_ms BIGINT CHECK (gives_back_ms >= 0);
