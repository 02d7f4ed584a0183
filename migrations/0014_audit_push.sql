-- Creators of webhooks, and the delivery of the audit log to destinations of the operator.

-- The user of `created_by`; absent for an unknown user. A webhook without an enabled member here has stopped.
ALTER TABLE webhooks ADD COLUMN created_by_id TEXT;
UPDATE webhooks SET created_by_id = (
  SELECT MAX(a.actor_id) FROM audit_events a WHERE a.subject = webhooks.id AND a.action = 'webhook.created'
);
-- Audit events of earlier versions have no user. The name of exactly one member is enough.
UPDATE webhooks SET created_by_id = (
  SELECT CASE WHEN COUNT(*) = 1 THEN MAX(u.id) END FROM members m JOIN users u ON u.id = m.user_id
  WHERE m.org_id = webhooks.org_id AND u.name = webhooks.created_by
) WHERE created_by_id IS NULL;
-- The webhooks of people who have left, or whose accounts are disabled, pass to the owner who joined first.
UPDATE webhooks SET created_by_id = COALESCE((
  SELECT m.user_id FROM members m JOIN users u ON u.id = m.user_id
  WHERE m.org_id = webhooks.org_id AND m.role = 'owner' AND u.disabled_at IS NULL
  ORDER BY COALESCE(m.joined_at, 0), m.user_id LIMIT 1
), created_by_id)
WHERE created_by_id IS NULL OR NOT EXISTS (
  SELECT 1 FROM members m JOIN users u ON u.id = m.user_id
  WHERE m.org_id = webhooks.org_id AND m.user_id = webhooks.created_by_id AND u.disabled_at IS NULL
);
UPDATE webhooks SET created_by = COALESCE(
  (SELECT u.name FROM users u WHERE u.id = webhooks.created_by_id), created_by
);

-- The delivered part of the audit log, by destination.
CREATE TABLE audit_marks (
  destination TEXT PRIMARY KEY CHECK (destination IN ('bucket', 'syslog', 'webhook')),
  -- The number of the last delivered event.
  seq BIGINT NOT NULL,
  -- The number of the last delivered checkpoint.
  checkpoint BIGINT NOT NULL,
  delivered_at BIGINT
);
