-- Waits of services for their own organization, and what an ended choice of a promise leaves to the next one.

-- The end of the last time in which replicas waited for a limit, a volume or the dedicated nodes of the organization;
-- 2^63 - 1 while they wait, absent before the first time.
ALTER TABLE services ADD COLUMN own_wait_until BIGINT;
-- The credits for lost time that choices carried at their end. The next choice gets them.
ALTER TABLE services ADD COLUMN promise_carry_micros BIGINT NOT NULL DEFAULT 0 CHECK (promise_carry_micros >= 0);
