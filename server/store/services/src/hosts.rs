//! The host names of services with their proofs by DNS, and the organizations that have them.

use berth_types::Sort;
use berth_types::ids::{OrgId, ServiceId};
use berth_types::lists::{ListOptions, NameCursor};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// The character between host and organization in the key of a list. No host has it.
const CURSOR_SEPARATOR: char = '\u{1f}';

/// A host name of an organization with its proof.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredProof {
    pub org_id: OrgId,
    pub host: String,
    /// The random part of the record.
    pub proof: String,
    /// True if the record confirmed the host.
    pub by_dns: bool,
    /// The begin of the checks for the confirmation.
    pub pending_since: Timestamp,
    pub confirmed_at: Option<Timestamp>,
    pub missing_since: Option<Timestamp>,
    pub checked_at: Option<Timestamp>,
    /// The sentence about the failure of the last check; empty without one.
    pub problem: String,
}

/// A proof in the list of operators.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredClaim {
    pub host: String,
    pub org_id: OrgId,
    /// The name of the organization.
    pub org_name: String,
    /// True if the record confirmed the host.
    pub by_dns: bool,
    pub pending_since: Timestamp,
    pub confirmed_at: Option<Timestamp>,
    pub missing_since: Option<Timestamp>,
    /// The sentence about the failure of the last check; empty without one.
    pub problem: String,
}

impl StoredClaim {
    /// The key in the list: the host, then the organization.
    pub fn cursor(&self) -> NameCursor {
        NameCursor(format!("{}{CURSOR_SEPARATOR}{}", self.host, self.org_id))
    }
}

macro_rules! select_proofs {
    ($($rest:literal),+) => {
        concat!(
            "SELECT org_id, host, proof, by_dns, pending_since, confirmed_at, missing_since, checked_at, problem ",
            $($rest),+
        )
    };
}

/// Lists the services that name a host, with their organizations.
pub async fn list_services(tx: &mut Tx<'_>, host: &str) -> Result<Vec<(ServiceId, OrgId)>, StoreError> {
    let sql = "SELECT h.service_id, s.org_id FROM service_hosts h JOIN services s ON s.id = h.service_id \
               WHERE h.host = $1 ORDER BY h.service_id";
    list!(tx, (ServiceId, OrgId), sql, host)
}

/// Adds the proof of a host. A known one stays as it is; without a confirmation and a next check its checks begin again.
pub async fn add(
    tx: &mut Tx<'_>,
    org: OrgId,
    (host, proof): (&str, &str),
    (now, next_check_at): (Timestamp, Timestamp),
) -> Result<(), StoreError> {
    let sql = "INSERT INTO host_proofs (org_id, host, proof, pending_since, next_check_at) VALUES ($1, $2, $3, $4, $5) \
               ON CONFLICT (org_id, host) DO UPDATE SET pending_since = excluded.pending_since, \
               next_check_at = excluded.next_check_at \
               WHERE host_proofs.confirmed_at IS NULL AND host_proofs.next_check_at IS NULL";
    exec!(tx, sql, org, host, proof, now, next_check_at).map(|_| ())
}

/// Counts the proofs of an organization, also those of hosts that no service names any more.
pub async fn count(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM host_proofs WHERE org_id = $1";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(count,)| count))
}

pub async fn find(tx: &mut Tx<'_>, org: OrgId, host: &str) -> Result<Option<StoredProof>, StoreError> {
    let sql = select_proofs!("FROM host_proofs WHERE org_id = $1 AND host = $2");
    find!(tx, StoredProof, sql, org, host)
}

/// Lists the proofs of these hosts, of all organizations.
pub async fn list_of_hosts(tx: &mut Tx<'_>, hosts: Vec<String>) -> Result<Vec<StoredProof>, StoreError> {
    list_in!(
        tx,
        StoredProof,
        select_proofs!("FROM host_proofs WHERE host IN (SELECT value FROM json_each($1))"),
        select_proofs!("FROM host_proofs WHERE host = ANY($1)"),
        hosts
    )
}

/// Lists a page of the proofs of all organizations by host and organization.
pub async fn list_page(
    tx: &mut Tx<'_>,
    options: &ListOptions<NameCursor>,
) -> Result<Vec<StoredClaim>, StoreError> {
    macro_rules! select_claims {
        ($after:literal, $order:literal) => {
            concat!(
                "SELECT p.host, p.org_id, o.name AS org_name, p.by_dns, p.pending_since, p.confirmed_at, \
                 p.missing_since, p.problem FROM host_proofs p JOIN orgs o ON o.id = p.org_id \
                 WHERE ($1 = '' OR (p.host, p.org_id) ",
                $after,
                " ($1, $2)) ORDER BY p.host ",
                $order,
                ", p.org_id ",
                $order,
                " LIMIT $3"
            )
        };
    }
    let name = options.cursor_name();
    let (host, org) = name.split_once(CURSOR_SEPARATOR).unwrap_or((name, ""));
    let sql = match options.sort {
        Sort::Asc => select_claims!(">", "ASC"),
        Sort::Desc => select_claims!("<", "DESC"),
    };
    list!(tx, StoredClaim, sql, host, org, options.rows())
}

/// Lists the names of the services that name these hosts, with the host and the organization.
pub async fn list_service_names(
    tx: &mut Tx<'_>,
    hosts: Vec<String>,
) -> Result<Vec<(String, OrgId, String)>, StoreError> {
    macro_rules! select_names {
        ($condition:literal) => {
            concat!(
                "SELECT h.host, s.org_id, s.name FROM service_hosts h JOIN services s ON s.id = h.service_id \
                 WHERE h.host ",
                $condition,
                " ORDER BY s.name"
            )
        };
    }
    list_in!(
        tx,
        (String, OrgId, String),
        select_names!("IN (SELECT value FROM json_each($1))"),
        select_names!("= ANY($1)"),
        hosts
    )
}

/// Lists those of these domains that are confirmed, with their organizations: the domains of single sign-on, then the
/// hosts of services. A domain can be in both.
pub async fn list_confirmed(
    tx: &mut Tx<'_>,
    domains: Vec<String>,
) -> Result<Vec<(String, OrgId)>, StoreError> {
    let sqlite = "SELECT domain, org_id FROM sso_domains WHERE confirmed_at IS NOT NULL \
                  AND domain IN (SELECT value FROM json_each($1))";
    let postgres =
        "SELECT domain, org_id FROM sso_domains WHERE confirmed_at IS NOT NULL AND domain = ANY($1)";
    let mut all = list_in!(tx, (String, OrgId), sqlite, postgres, domains.clone())?;
    let sqlite = "SELECT host, org_id FROM host_proofs WHERE confirmed_at IS NOT NULL \
                  AND host IN (SELECT value FROM json_each($1))";
    let postgres = "SELECT host, org_id FROM host_proofs WHERE confirmed_at IS NOT NULL AND host = ANY($1)";
    all.extend(list_in!(tx, (String, OrgId), sqlite, postgres, domains)?);
    Ok(all)
}

/// Lists hosts of services without a proof: those from before the proofs.
pub async fn list_unproved(tx: &mut Tx<'_>, most: i64) -> Result<Vec<(String, OrgId)>, StoreError> {
    let sql = "SELECT DISTINCT h.host, s.org_id FROM service_hosts h JOIN services s ON s.id = h.service_id \
               WHERE NOT EXISTS (SELECT 1 FROM host_proofs p WHERE p.org_id = s.org_id AND p.host = h.host) \
               ORDER BY h.host, s.org_id LIMIT $1";
    list!(tx, (String, OrgId), sql, most)
}

/// Lists the proofs with a due check. `rows` has the most proofs of all organizations and of each one. The longest due
/// ones of each organization are first.
pub async fn list_due(
    tx: &mut Tx<'_>,
    now: Timestamp,
    (rows, org_rows): (i64, i64),
) -> Result<Vec<StoredProof>, StoreError> {
    let sql = select_proofs!(
        "FROM (SELECT p.*, ROW_NUMBER() OVER (PARTITION BY p.org_id ORDER BY p.next_check_at, p.host) AS place \
         FROM host_proofs p WHERE p.next_check_at <= $1) due \
         WHERE place <= $3 ORDER BY place, next_check_at, org_id, host LIMIT $2"
    );
    list!(tx, StoredProof, sql, now, rows, org_rows)
}

/// Records a check with the new state of a proof.
///
/// # Errors
/// [`StoreError::Duplicate`] if the host is confirmed for another organization.
pub async fn record_check(
    tx: &mut Tx<'_>,
    row: &StoredProof,
    next_check_at: Option<Timestamp>,
) -> Result<(), StoreError> {
    let sql = "UPDATE host_proofs SET by_dns = $3, pending_since = $4, confirmed_at = $5, missing_since = $6, \
               checked_at = $7, problem = $8, next_check_at = $9 WHERE org_id = $1 AND host = $2";
    exec!(
        tx,
        sql,
        row.org_id,
        &row.host,
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

/// Sets the confirmation of a host by an operator; `None` takes it back. The host gets another proof, so the former
/// record confirms nothing, and the portal checks it no more. Returns false if the organization does not name the host.
///
/// # Errors
/// [`StoreError::Duplicate`] if the host is confirmed for another organization.
pub async fn confirm(
    tx: &mut Tx<'_>,
    org: OrgId,
    (host, proof): (&str, &str),
    at: Option<Timestamp>,
) -> Result<bool, StoreError> {
    let sql = "UPDATE host_proofs SET confirmed_at = $4, proof = $3, by_dns = FALSE, missing_since = NULL, \
               checked_at = NULL, problem = '', next_check_at = NULL WHERE org_id = $1 AND host = $2";
    Ok(exec!(tx, sql, org, host, proof, at)? == 1)
}

/// Deletes the proofs of hosts that no service of their organization names. A confirmed one stays while it confirms a
/// host below it.
pub async fn delete_unnamed(tx: &mut Tx<'_>) -> Result<u64, StoreError> {
    let sql = "DELETE FROM host_proofs WHERE NOT EXISTS (SELECT 1 FROM service_hosts h \
               JOIN services s ON s.id = h.service_id WHERE s.org_id = host_proofs.org_id AND (h.host = host_proofs.host \
               OR (host_proofs.confirmed_at IS NOT NULL AND h.host LIKE '%.' || host_proofs.host)))";
    exec!(tx, sql)
}
