-- The rule for the steps of canaries of a service, as JSON.
ALTER TABLE services ADD COLUMN rollout TEXT NOT NULL DEFAULT '{}';
