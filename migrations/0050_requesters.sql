-- The user of `created_by`, who gets the mail about the decision; absent for an unknown user.
ALTER TABLE quota_requests ADD COLUMN created_by_id TEXT;
UPDATE quota_requests SET created_by_id = (
  SELECT MAX(a.actor_id) FROM audit_events a WHERE a.subject = quota_requests.id AND a.action = 'quota.requested'
) WHERE state = 'pending';
