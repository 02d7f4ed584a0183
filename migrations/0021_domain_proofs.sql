-- The proof of domains of single sign-on by a TXT record in DNS.

-- The random part of the record; empty for a domain of an earlier version until its organization sets the provider again.
ALTER TABLE sso_domains ADD COLUMN proof TEXT NOT NULL DEFAULT '';
-- True if the record confirmed the domain, false if an operator did or nobody yet.
ALTER TABLE sso_domains ADD COLUMN by_dns BOOLEAN NOT NULL DEFAULT FALSE;
-- The begin of the checks for the confirmation.
ALTER TABLE sso_domains ADD COLUMN pending_since BIGINT NOT NULL DEFAULT 0;
-- The last check, and the sentence about its failure; empty without one.
ALTER TABLE sso_domains ADD COLUMN checked_at BIGINT;
ALTER TABLE sso_domains ADD COLUMN problem TEXT NOT NULL DEFAULT '';
-- The first check without the record of a confirmed domain.
ALTER TABLE sso_domains ADD COLUMN missing_since BIGINT;
-- The next check by the portal; absent: it has none.
ALTER TABLE sso_domains ADD COLUMN next_check_at BIGINT;
CREATE INDEX sso_domains_due ON sso_domains (next_check_at) WHERE next_check_at IS NOT NULL;
