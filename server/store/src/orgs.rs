//! The list of organizations for operators, with counts and sums.

use berth_types::Sort;
use berth_types::accounts::OrgOrder;
use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// An organization with the number of its members, the numbers of its open jobs, and its money.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredOrgSummary {
    pub id: OrgId,
    pub name: String,
    pub slug: String,
    pub created_at: Timestamp,
    pub members: i64,
    pub queued: i64,
    pub running: i64,
    pub posted_micros: i64,
    pub held_micros: i64,
    pub credit_limit_micros: i64,
    /// The charges since [`OrgSearch::since_day`].
    pub spent_micros: i64,
}

/// The place in a list after which a page begins. The key is the name, or the number of the other orders.
#[derive(Debug, Clone, Default)]
pub struct OrgPlace {
    pub name: String,
    pub number: i64,
    /// The id of the last organization; empty for the first page.
    pub id: String,
}

/// The filter, the order and the page of a list.
#[derive(Debug, Clone)]
pub struct OrgSearch {
    /// Only this organization; empty for all.
    pub org: String,
    /// Only the organization with this slug; empty for all.
    pub slug: String,
    /// A part of the name or of the slug, without regard to the case of ASCII letters; empty for all.
    pub name: String,
    /// Only organizations that had credit and have no available money.
    pub without_credit: bool,
    pub order: OrgOrder,
    pub sort: Sort,
    pub after: OrgPlace,
    /// The first day of the counted charges.
    pub since_day: i64,
    /// The most rows.
    pub rows: i64,
}

macro_rules! spent {
    () => {
        "(SELECT CAST(COALESCE(SUM(u.cost_micros), 0) AS BIGINT) FROM usage_days u \
          WHERE u.org_id = o.id AND u.day >= $5)"
    };
}

/// The text of a page in one direction. The inner query reads the keys of the page, so that counts and sums
/// are read for its rows only. The id of an account is that of [`crate::ledger::org_account`]. `$collate` gives texts
/// the order of their bytes and the lower case of ASCII letters only, as SQLite has them.
macro_rules! org_page {
    ($collate:literal, [$($key:tt)+], [$($cursor:tt)+], $after:literal, $direction:literal) => {
        concat!(
            "SELECT o.id, o.name, o.slug, o.created_at, \
             (SELECT CAST(COUNT(*) AS BIGINT) FROM members m WHERE m.org_id = o.id) AS members, \
             (SELECT CAST(COUNT(*) AS BIGINT) FROM jobs j WHERE j.org_id = o.id AND j.ended_at IS NULL \
              AND j.state = 'queued') AS queued, \
             (SELECT CAST(COUNT(*) AS BIGINT) FROM jobs j WHERE j.org_id = o.id AND j.ended_at IS NULL \
              AND j.state <> 'queued') AS running, \
             COALESCE(a.posted_micros, 0) AS posted_micros, COALESCE(a.held_micros, 0) AS held_micros, \
             COALESCE(a.credit_limit_micros, 0) AS credit_limit_micros, ",
            spent!(),
            " AS spent_micros FROM (SELECT o.id AS page_id, ",
            $($key)+,
            " AS sort_key FROM orgs o LEFT JOIN accounts a ON a.id = 'tenant:' || o.id \
             WHERE ($1 = '' OR REPLACE(LOWER(o.name",
            $collate,
            "), LOWER($1",
            $collate,
            "), '') <> LOWER(o.name",
            $collate,
            ") OR REPLACE(o.slug, LOWER($1",
            $collate,
            "), '') <> o.slug) \
             AND (NOT $2 OR (a.posted_micros - a.held_micros + a.credit_limit_micros <= 0 AND EXISTS \
              (SELECT 1 FROM transfers t WHERE t.credit = a.id AND t.kind = 'credit'))) \
             AND ($7 = '' OR o.id = $7) AND ($8 = '' OR o.slug = $8) AND ($4 = '' OR (",
            $($key)+,
            ", o.id) ",
            $after,
            " (",
            $($cursor)+,
            ", $4)) ORDER BY sort_key ",
            $direction,
            ", page_id ",
            $direction,
            " LIMIT $6) p JOIN orgs o ON o.id = p.page_id LEFT JOIN accounts a ON a.id = 'tenant:' || o.id \
             ORDER BY p.sort_key ",
            $direction,
            ", p.page_id ",
            $direction
        )
    };
}

macro_rules! org_pages {
    ($collate:literal, $sort:expr, [$($key:tt)+], [$($cursor:tt)+]) => {
        match $sort {
            Sort::Asc => org_page!($collate, [$($key)+], [$($cursor)+], ">", "ASC"),
            Sort::Desc => org_page!($collate, [$($key)+], [$($cursor)+], "<", "DESC"),
        }
    };
}

/// The text for one engine.
macro_rules! org_sql {
    ($collate:literal, $search:expr) => {
        match $search.order {
            OrgOrder::Name => org_pages!(
                $collate,
                $search.sort,
                ["LOWER(o.name", $collate, ")"],
                ["LOWER($3", $collate, ")"]
            ),
            OrgOrder::Created => org_pages!($collate, $search.sort, ["o.created_at"], ["$3"]),
            OrgOrder::Balance => {
                org_pages!($collate, $search.sort, ["COALESCE(a.posted_micros, 0)"], ["$3"])
            }
            OrgOrder::Spent => org_pages!($collate, $search.sort, [spent!()], ["$3"]),
        }
    };
}

/// Lists a page of the organizations. Organizations with the same key are in the order of their ids.
pub async fn list_summaries(
    tx: &mut Tx<'_>,
    search: &OrgSearch,
) -> Result<Vec<StoredOrgSummary>, StoreError> {
    let OrgSearch { org, slug, name, without_credit, after, since_day, rows, .. } = search;
    let (without_credit, since_day, rows) = (*without_credit, *since_day, *rows);
    let sql = match tx {
        Tx::Sqlite(_) => org_sql!("", search),
        Tx::Postgres(_) => org_sql!(" COLLATE \"C\"", search),
    };
    let id = &after.id;
    if search.order == OrgOrder::Name {
        let key = &after.name;
        return list!(tx, StoredOrgSummary, sql, name, without_credit, key, id, since_day, rows, org, slug);
    }
    let key = after.number;
    list!(tx, StoredOrgSummary, sql, name, without_credit, key, id, since_day, rows, org, slug)
}
