-- The end of the last time in which a service was public; absent if it never was. Uses of that time are reported later.
ALTER TABLE services ADD COLUMN public_until BIGINT;
