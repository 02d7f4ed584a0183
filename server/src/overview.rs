//! The overview of the whole portal for operators. Each part gives its figures by one method.

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_foundation::{Caller, Scope};
use berth_rest::operations::doc;
use berth_rest::{Failed, Signed};
use berth_types::lists::ListOptions;
use berth_types::operations::Rack;
use berth_types::operators::OperatorRight;
use berth_types::overview::{LedgerCheck, OVERVIEW_ITEMS, OperatorOverview};
use berth_types::problems::Problem;
use berth_types::quotas::{AuditEvent, AuditFilter};
use berth_types::scopes::ApiScope;

use crate::change_requests;
use crate::portal::Portal;

/// The number of audit events.
const AUDIT_EVENTS: u32 = 10;

pub fn routes() -> ApiRouter<Portal> {
    ApiRouter::new().api_route(
        "/operator/overview",
        get_with(
            show,
            doc(ApiScope::FleetRead, "Gives the state of the whole portal: nodes, work, money and power."),
        ),
    )
}

async fn show(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<OperatorOverview>, Failed> {
    Ok(Answer(read(&portal, &caller).await?))
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// The number of items and the first of them.
fn first<T>(mut items: Vec<T>) -> (u64, Vec<T>) {
    let all = count(items.len());
    items.truncate(OVERVIEW_ITEMS);
    (all, items)
}

/// The used part of a rack's power budget in millionths; `None` without a budget.
fn used_ppm(rack: &Rack) -> Option<i64> {
    rack.budget_watts.map(|budget| rack.counted_watts.saturating_mul(1_000_000) / budget.max(1))
}

/// Sorts racks: the fullest budget first, then racks without a budget by name.
fn sort_racks(racks: &mut [Rack]) {
    racks.sort_by(|one, other| used_ppm(other).cmp(&used_ppm(one)).then_with(|| one.name.cmp(&other.name)));
}

/// The newest audit events; none for a role or a token that may not read the audit log.
async fn newest_events(portal: &Portal, caller: &Caller) -> Result<Vec<AuditEvent>, Problem> {
    let in_scope = caller.token.is_none_or(|token| token.scopes.include(ApiScope::MembersRead));
    if !in_scope || !caller.has_operator_right(OperatorRight::Inspect) {
        return Ok(Vec::new());
    }
    let (all, newest) = (AuditFilter::default(), ListOptions::newest(AUDIT_EVENTS));
    Ok(portal.audit_log.list_events(caller, Scope::Operator(None), &all, &newest).await?.items)
}

async fn read(portal: &Portal, caller: &Caller) -> Result<OperatorOverview, Problem> {
    portal.context.authorise_operator(caller, OperatorRight::View).await?;
    let cluster = portal.cluster.summary(caller).await?;
    let work = portal.operator_jobs.work_summary(caller).await?;
    let mut stuck = portal.inventory.list_stuck(caller).await?;
    stuck.sort_by_key(|one| (one.since, one.job));
    let (stuck_count, stuck) = first(stuck);
    let (quota_request_count, quota_requests) =
        portal.quotas.list_pending_requests(caller, OVERVIEW_ITEMS).await?;
    let change_request_count = change_requests::count_pending(&portal.context, caller).await?;
    let (orgs_without_credit_count, orgs_without_credit) =
        portal.ledger.list_orgs_without_credit(caller, OVERVIEW_ITEMS).await?;
    let last = portal.reconciliations.last_reconciliation().await?;
    let mut racks = portal.inventory.list_racks(caller).await?;
    sort_racks(&mut racks);
    let (rack_count, racks) = first(racks);
    let audit_events = newest_events(portal, caller).await?;
    Ok(OperatorOverview {
        at: portal.context.now(),
        currency: portal.context.settings.currency.clone(),
        cluster,
        work,
        stuck_count,
        stuck,
        quota_request_count,
        quota_requests,
        change_request_count,
        orgs_without_credit_count,
        orgs_without_credit,
        ledger_check: last.map(|last| LedgerCheck { at: last.at, mismatches: count(last.mismatches.len()) }),
        revenue: portal.usage.revenue(caller).await?,
        disk: portal.context.disk.space(),
        rack_count,
        racks,
        audit_events,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rack(name: &str, budget_watts: Option<i64>, counted_watts: i64) -> Rack {
        Rack {
            name: name.to_owned(),
            budget_watts,
            nodes: 1,
            boards: 1,
            drawn_watts: 0.0,
            unread: 0,
            counted_watts,
            most_watts: 0,
            unknown: 0,
        }
    }

    #[test]
    fn the_fullest_rack_is_first() {
        let mut racks = vec![
            rack("b", None, 9_000),
            rack("a", None, 0),
            rack("half", Some(1_000), 500),
            rack("full", Some(100), 100),
        ];
        sort_racks(&mut racks);
        let names: Vec<&str> = racks.iter().map(|rack| rack.name.as_str()).collect();
        assert_eq!(names, ["full", "half", "a", "b"]);
    }

    #[test]
    fn a_long_list_is_counted_and_cut() {
        assert_eq!(first(vec![1, 2]), (2, vec![1, 2]));
        let (all, items) = first((0..25).collect::<Vec<u32>>());
        assert_eq!((all, items.len()), (25, OVERVIEW_ITEMS));
    }
}
