-- Jobs that may be told to make room, and what their earlier attempts used.
ALTER TABLE jobs ADD COLUMN preemptible BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE jobs ADD COLUMN metered_before_ms BIGINT NOT NULL DEFAULT 0;
