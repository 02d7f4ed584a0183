-- The granted limits (JSON) and credit of a request; absent until the grant, and in grants of earlier versions.
ALTER TABLE quota_requests ADD COLUMN granted_limits TEXT;
ALTER TABLE quota_requests ADD COLUMN granted_micros BIGINT CHECK (granted_micros > 0);
