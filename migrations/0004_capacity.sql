-- Processors and memory: what nodes have (0: unknown) and what jobs ask for (0: nothing in particular).
ALTER TABLE nodes ADD COLUMN cpu_milli BIGINT NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN memory_mib BIGINT NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN cpu_milli BIGINT NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN memory_mib BIGINT NOT NULL DEFAULT 0;
