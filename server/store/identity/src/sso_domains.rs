//! The domains of single sign-on: their proofs by DNS, and their confirmations.

use berth_core::domains::record_value;
use berth_types::ids::OrgId;
use berth_types::sso::SsoDomain;
use berth_types::time::Timestamp;

use super::sso::MAX_ROWS;
use super::{StoreError, Tx};

/// A domain with its proof.
#[derive(Clone, sqlx::FromRow)]
pub struct StoredDomain {
    pub org_id: OrgId,
    pub domain: String,
    /// The random part of the record; empty for a domain of an earlier version.
    pub proof: String,
    /// True if the record confirmed the domain.
    pub by_dns: bool,
    /// The begin of the checks for the confirmation.
    pub pending_since: Timestamp,
    pub confirmed_at: Option<Timestamp>,
    pub missing_since: Option<Timestamp>,
    pub checked_at: Option<Timestamp>,
    /// The sentence about the failure of the last check; empty without one.
    pub problem: String,
}

macro_rules! select_domains {
    ($rest:literal) => {
        concat!(
            "SELECT org_id, domain, proof, by_dns, pending_since, confirmed_at, missing_since, checked_at, problem ",
            $rest
        )
    };
}

/// Lists the domains of an organization.
pub async fn list(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<SsoDomain>, StoreError> {
    let sql = select_domains!("FROM sso_domains WHERE org_id = $1 ORDER BY domain LIMIT $2");
    let rows = list!(tx, StoredDomain, sql, org, MAX_ROWS)?;
    let shown = |row: StoredDomain| SsoDomain {
        record: Some(row.proof).filter(|proof| !proof.is_empty()).map(|proof| record_value(&proof)),
        domain: row.domain,
        by_dns: row.by_dns,
        confirmed_at: row.confirmed_at,
        missing_since: row.missing_since,
        checked_at: row.checked_at,
        problem: Some(row.problem).filter(|problem| !problem.is_empty()),
    };
    Ok(rows.into_iter().map(shown).collect())
}

/// Adds a domain without a confirmation. A known domain of the organization stays as it is; one of an earlier version
/// gets its proof.
pub async fn add(
    tx: &mut Tx<'_>,
    org: OrgId,
    (domain, proof): (&str, &str),
    (now, next_check_at): (Timestamp, Timestamp),
) -> Result<(), StoreError> {
    let sql = "INSERT INTO sso_domains (org_id, domain, proof, created_at, pending_since, next_check_at) \
               VALUES ($1, $2, $3, $4, $4, $5) ON CONFLICT (org_id, domain) DO UPDATE SET proof = excluded.proof, \
               pending_since = excluded.pending_since, next_check_at = CASE WHEN sso_domains.confirmed_at IS NULL \
               THEN excluded.next_check_at ELSE NULL END WHERE sso_domains.proof = ''";
    exec!(tx, sql, org, domain, proof, now, next_check_at).map(|_| ())
}

/// Sets the confirmation of a domain by an operator; `None` takes it back. The domain gets another proof, so the
/// former record confirms nothing, and the portal checks it no more. Returns false if the organization does not name
/// the domain.
///
/// # Errors
/// [`StoreError::Duplicate`] if the domain is confirmed for another organization.
pub async fn confirm(
    tx: &mut Tx<'_>,
    org: OrgId,
    (domain, proof): (&str, &str),
    at: Option<Timestamp>,
) -> Result<bool, StoreError> {
    let sql = "UPDATE sso_domains SET confirmed_at = $4, proof = $3, by_dns = FALSE, missing_since = NULL, \
               checked_at = NULL, problem = '', next_check_at = NULL WHERE org_id = $1 AND domain = $2";
    Ok(exec!(tx, sql, org, domain, proof, at)? == 1)
}

pub async fn find(tx: &mut Tx<'_>, org: OrgId, domain: &str) -> Result<Option<StoredDomain>, StoreError> {
    let sql = select_domains!("FROM sso_domains WHERE org_id = $1 AND domain = $2");
    find!(tx, StoredDomain, sql, org, domain)
}

/// Lists the domains with a due check. `rows` has the most domains of all organizations and of each one. The longest
/// due domains of each organization are first.
pub async fn list_due(
    tx: &mut Tx<'_>,
    now: Timestamp,
    (rows, org_rows): (i64, i64),
) -> Result<Vec<StoredDomain>, StoreError> {
    let sql = select_domains!(
        "FROM (SELECT d.*, ROW_NUMBER() OVER (PARTITION BY d.org_id ORDER BY d.next_check_at, d.domain) AS place \
         FROM sso_domains d WHERE d.next_check_at <= $1) due \
         WHERE place <= $3 ORDER BY place, next_check_at, org_id, domain LIMIT $2"
    );
    list!(tx, StoredDomain, sql, now, rows, org_rows)
}

/// Records a check with the new state of a domain.
///
/// # Errors
/// [`StoreError::Duplicate`] if the domain is confirmed for another organization.
pub async fn record_check(
    tx: &mut Tx<'_>,
    row: &StoredDomain,
    next_check_at: Option<Timestamp>,
) -> Result<(), StoreError> {
    let sql = "UPDATE sso_domains SET by_dns = $3, pending_since = $4, confirmed_at = $5, missing_since = $6, \
               checked_at = $7, problem = $8, next_check_at = $9 WHERE org_id = $1 AND domain = $2";
    exec!(
        tx,
        sql,
        row.org_id,
        &row.domain,
        row.by_dns,
        row.pending_since,
        row.confirmed_at,
        row.missing_since,
        row.checked_at,
        &row.problem,
        next_check_at
    )
    .map(|_| ())
}
