//! The quotas of organizations: limits, the use that counts against them, and requests for higher ones.
//!
//! The engine enforces the limits on held devices: jobs beyond them wait. This module enforces the limits on
//! submissions, in the transaction that records the job.

mod credit;
mod mail;
mod pending;
pub mod routes;

use berth_core::admission::MAX_SLUG_BYTES;
use berth_placement::quotas::Need;
use berth_types::Page;
use berth_types::change_requests::Outcome;
use berth_types::ids::{ChangeRequestId, OrgId, QuotaRequestId};
use berth_types::lists::ListOptions;
use berth_types::money::per_hour_micros;
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::{
    DecideQuotaRequest, Limits, NewQuotaRequest, Quota, QuotaRequest, QuotaRequestState, Used,
};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::planner::Planner;
use berth_foundation::days::month_of;
use berth_foundation::{Caller, Right, Scope, idempotency};
use berth_foundation::{Change, Context, Gate};
use berth_planner::limits::{engine_limits, exceeded, limit_problem};
use berth_store::reservations::StoredReservation;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::reservations::Window;

/// The highest value of a limit, so that sums of counted use stay far below the end of an i64.
const MAX_LIMIT: i64 = 1_000_000_000_000;
const MAX_REASON_CHARS: usize = 1_000;
/// The open requests of one organization.
const MAX_OPEN_REQUESTS: i64 = 20;

/// The demand of a submission, which counts against the quota.
#[derive(Debug, Clone)]
pub struct SubmissionDemand {
    pub slug: String,
    pub need: Need,
    pub max_duration_s: i64,
}

/// Checks the body of a decision.
fn check_decision(input: &DecideQuotaRequest, currency: &str) -> Result<(), Problem> {
    let mut errors = input.limits.as_ref().map_or_else(Vec::new, |l| check(l, "/limits"));
    credit::check(input.credit_micros, currency, &mut errors);
    if input.note.chars().count() > MAX_REASON_CHARS {
        errors.push(FieldError::new("/note", "Use at most 1000 characters."));
    }
    if errors.is_empty() { Ok(()) } else { Err(Problem::invalid(errors)) }
}

/// The limits of an organization, and true if they are the default limits.
pub async fn effective(tx: &mut Tx<'_>, org: OrgId) -> Result<(Limits, bool), StoreError> {
    if let Some(own) = store::quotas::find(tx, Some(org)).await? {
        return Ok((own, false));
    }
    Ok((store::quotas::find(tx, None).await?.unwrap_or_default(), true))
}

/// The highest number of an organization's boards reserved at one time within some windows, in thousandths.
pub fn peak_milli(rows: &[StoredReservation], org: OrgId, windows: &[Window]) -> i64 {
    let own_rows = || rows.iter().filter(|r| r.org_id == Some(org));
    let mut peak = 0;
    for window in windows {
        let (from, until) = (window.starts_at, window.ends_at);
        let inside = || own_rows().filter(move |r| r.starts_at < until && r.ends_at > from);
        for at in inside().map(|r| r.starts_at.max(from)) {
            let there = inside().filter(|r| r.starts_at <= at && at < r.ends_at);
            peak = peak.max(there.map(|r| r.board_milli).sum());
        }
    }
    peak
}

/// The highest number of an organization's boards reserved at one time from now on, in thousandths.
async fn reserved_peak(tx: &mut Tx<'_>, org: OrgId, now: Timestamp) -> Result<i64, StoreError> {
    let ends_at = Timestamp::from_micros(i64::MAX);
    let rows = store::reservations::list_between(tx, now, ends_at).await?;
    Ok(peak_milli(&rows, org, &[Window { starts_at: now, ends_at }]))
}

/// Counts a submission. If it is beyond a limit, refuses it and changes nothing.
pub async fn admit(
    tx: &mut Tx<'_>,
    org: OrgId,
    demand: &SubmissionDemand,
    currency: &str,
    now: Timestamp,
) -> Result<(), WriteError> {
    let (limits, _) = effective(tx, org).await?;
    if let Some(beyond) = engine_limits(&limits).find_permanently_exceeded(&demand.need, &demand.slug) {
        return Err(limit_problem(&beyond, currency).into());
    }
    check_queue(tx, org, &limits).await?;
    let board_milli_s = demand.need.boards_milli.saturating_mul(demand.max_duration_s);
    count_board_time(tx, org, board_milli_s, &limits, now).await
}

/// Refuses a further job if the limit of waiting jobs is reached.
pub async fn check_queue(tx: &mut Tx<'_>, org: OrgId, limits: &Limits) -> Result<(), WriteError> {
    let Some(most) = limits.queued_jobs else { return Ok(()) };
    let queued = store::jobs::count_queued(tx, org).await?;
    if queued < most {
        return Ok(());
    }
    let detail = format!(
        "The organization has {queued} queued jobs, and its limit of queued jobs is {most}. Nothing was started or charged. Submit the job again after the start of others, or ask for a higher limit."
    );
    Err(exceeded(detail, "/offering").into())
}

/// Adds thousandths of boards × seconds to the month of `submitted`. If that is beyond its limit, refuses it
/// and changes nothing.
pub async fn count_board_time(
    tx: &mut Tx<'_>,
    org: OrgId,
    board_milli_s: i64,
    limits: &Limits,
    submitted: Timestamp,
) -> Result<(), WriteError> {
    let month = month_of(submitted);
    if let Some(hours) = limits.board_hours_per_month {
        let used = store::quotas::month_use(tx, org, &month).await?;
        let most = hours.saturating_mul(3_600_000);
        if used.saturating_add(board_milli_s) > most {
            let left = (most - used).max(0);
            let detail = format!(
                "The request needs up to {} board-hours. The limit for {month} is {hours} board-hours, with {} left. Choose a shorter time limit, or ask for a higher limit.",
                tenths(board_milli_s),
                tenths(left)
            );
            return Err(exceeded(detail, "/max_duration_s").into());
        }
    }
    store::quotas::count_month(tx, org, &month, board_milli_s).await?;
    Ok(())
}

/// Thousandths of boards × seconds as whole-board hours with one decimal.
fn tenths(board_milli_s: i64) -> String {
    let tenths = board_milli_s / 360_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// The errors of invalid limits.
fn check(limits: &Limits, base: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut range = |name: &str, value: Option<i64>, least: i64| {
        if value.is_some_and(|n| n < least || n > MAX_LIMIT) {
            let detail = format!("Enter {least} to {MAX_LIMIT}, or omit the field.");
            errors.push(FieldError::new(format!("{base}/{name}"), detail));
        }
    };
    range("boards_milli", limits.boards_milli, 0);
    range("running_jobs", limits.running_jobs, 0);
    range("queued_jobs", limits.queued_jobs, 0);
    range("spend_per_hour_micros", limits.spend_per_hour_micros, 0);
    range("board_hours_per_month", limits.board_hours_per_month, 0);
    range("reserved_boards_milli", limits.reserved_boards_milli, 0);
    range("guaranteed_boards_milli", limits.guaranteed_boards_milli, 0);
    range("weight_milli", limits.weight_milli, 1);
    for (slug, most) in &limits.devices {
        range(&format!("devices/{}", slug.chars().take(80).collect::<String>()), Some(*most), 0);
    }
    let is_slug = |slug: &String| (1..=MAX_SLUG_BYTES).contains(&slug.len());
    if !limits.devices.keys().all(is_slug) {
        errors
            .push(FieldError::new(format!("{base}/devices"), "The name of an offering has 1 to 100 bytes."));
    }
    if limits.devices.len() > 200 {
        errors.push(FieldError::new(format!("{base}/devices"), "Enter at most 200 offerings."));
    }
    errors
}

/// Refuses limits for unknown offerings.
async fn check_offerings(
    tx: &mut Tx<'_>,
    limits: &Limits,
    base: &str,
    now: Timestamp,
) -> Result<(), WriteError> {
    for slug in limits.devices.keys() {
        if store::offerings::find(tx, slug, now).await?.is_none() {
            // The escapes of a JSON pointer.
            let pointer = format!("{base}/devices/{}", slug.replace('~', "~0").replace('/', "~1"));
            return Err(Problem::invalid_field(&pointer, "This offering does not exist.").into());
        }
    }
    Ok(())
}

/// The limits of organizations, and requests for more.
#[derive(Clone)]
pub struct Quotas {
    context: Context,
    planner: Planner,
}

impl Quotas {
    pub fn new(context: Context, planner: Planner) -> Self {
        Self { context, planner }
    }

    pub async fn quota(&self, caller: &Caller, org: OrgId) -> Result<Quota, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        self.quota_of(org).await
    }

    pub async fn any_quota(&self, caller: &Caller, org: OrgId) -> Result<Quota, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        store::accounts::find_org(&mut conn.tx(), org).await?.ok_or_else(Problem::not_found)?;
        drop(conn);
        self.quota_of(org).await
    }

    async fn quota_of(&self, org: OrgId) -> Result<Quota, Problem> {
        self.planner.refresh().await?;
        let asked = self.planner.ask(move |engine| {
            let used = engine.used(org);
            let named = used.devices_milli.iter().filter_map(|(index, milli)| {
                Some((engine.cluster().offering_name(*index)?.to_string(), *milli))
            });
            (used.clone(), named.collect())
        });
        let (held, devices_milli) = asked.await;
        let month = month_of(self.context.now());
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let (limits, is_default) = effective(&mut tx, org).await?;
        let used = Used {
            boards_milli: held.boards_milli,
            devices_milli,
            running_jobs: held.running_jobs,
            queued_jobs: store::jobs::count_queued(&mut tx, org).await?,
            spend_per_hour_micros: per_hour_micros(held.nano_per_second).unwrap_or(i64::MAX),
            board_hours_milli: store::quotas::month_use(&mut tx, org, &month).await? / 3_600,
            reserved_boards_milli: reserved_peak(&mut tx, org, self.context.now()).await?,
        };
        Ok(Quota { org, limits, is_default, used, month })
    }

    /// The limits of all organizations without their own.
    pub async fn default_limits(&self, caller: &Caller) -> Result<Limits, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        Ok(store::quotas::find(&mut conn.tx(), None).await?.unwrap_or_default())
    }

    /// Sets the limits of an organization, or (`None`) of all without their own.
    pub async fn set_limits(
        &self,
        caller: &Caller,
        org: Option<OrgId>,
        limits: Limits,
    ) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageOrgs).await?;
        let errors = check(&limits, "");
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let subject = org.map_or_else(|| "default".to_owned(), |org| org.to_string());
        let detail = serde_json::to_string(&limits).map_err(|_| Problem::internal())?;
        let event = self.context.audit_event(caller, "quota.set", subject, detail);
        let done = self.context.db.try_write(move |tx| {
            let (limits, event) = (limits.clone(), event.clone());
            async move {
                if let Some(org) = org
                    && store::accounts::find_org(tx, org).await?.is_none()
                {
                    return Err(Problem::not_found().into());
                }
                check_offerings(tx, &limits, "", now).await?;
                let before = store::quotas::find(tx, org).await?;
                let before = before.and_then(|limits| serde_json::to_string(&limits).ok());
                let after = serde_json::to_string(&limits).ok();
                store::quotas::put(tx, org, &limits).await?;
                store::quotas::insert_audit(tx, org, &event.with_change(before, after)).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::Orgs);
        Ok(())
    }

    /// Removes the limits of an organization, so that the default limits hold for it.
    pub async fn clear_limits(&self, caller: &Caller, org: OrgId) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageOrgs).await?;
        let event = self.context.audit_event(caller, "quota.cleared", org.to_string(), String::new());
        let known = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let known = store::accounts::find_org(tx, org).await?.is_some();
                if known {
                    store::quotas::remove(tx, org).await?;
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(known)
            }
            .boxed()
        });
        if !known.await? {
            return Err(Problem::not_found());
        }
        self.context.publish(Change::Orgs);
        Ok(())
    }

    /// Records a request for limits or credit. Every member who sees the balance may request credit.
    ///
    /// # Errors
    /// The limits, the amount or the reason are invalid, or the organization has too many open requests.
    pub async fn request_quota(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewQuotaRequest,
    ) -> Result<QuotaRequest, Problem> {
        let only_credit = input.limits == Limits::default() && input.credit_micros.is_some();
        let right = if only_credit { Right::ViewMoney } else { Right::Manage };
        self.context.authorise(caller, org, right).await?;
        if let Some(created) = caller.already_created() {
            let id = created.parse().map_err(|_| Problem::internal())?;
            let mut conn = self.context.db.read().await?;
            return store::quotas::find_request(&mut conn.tx(), id).await?.ok_or_else(Problem::not_found);
        }
        let mut errors = check(&input.limits, "/limits");
        credit::check(input.credit_micros, &self.context.settings.currency, &mut errors);
        if input.limits == Limits::default() && !only_credit {
            errors.push(FieldError::new("/limits", "Enter at least one limit or an amount of credit."));
        }
        if input.limits.guaranteed_boards_milli.is_some() || input.limits.weight_milli.is_some() {
            errors.push(FieldError::new(
                "/limits",
                "Only the operator can change guaranteed capacity and fair-share weight. Omit them.",
            ));
        }
        let reason = input.reason.trim().to_owned();
        if reason.is_empty() || input.reason.chars().count() > MAX_REASON_CHARS {
            errors.push(FieldError::new("/reason", "Enter a reason of 1 to 1000 characters."));
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let request = QuotaRequest {
            id: self.context.new_id(now),
            org,
            org_name: String::new(),
            limits: input.limits,
            credit_micros: input.credit_micros,
            reason,
            state: QuotaRequestState::Pending,
            created_at: now,
            created_by: caller.user.name.clone(),
            decided_at: None,
            granted_limits: None,
            granted_micros: None,
            note: String::new(),
        };
        let event = self.context.audit_event(
            caller,
            "quota.requested",
            request.id.to_string(),
            credit::request_text(&request, &self.context.settings.currency),
        );
        let (id, requester, key) = (request.id, caller.user.id, caller.idempotency_key.clone());
        let done = self.context.db.try_write(move |tx| {
            let (request, event, key) = (request.clone(), event.clone(), key.clone());
            async move {
                credit::check_owner(tx, &request).await?;
                check_offerings(tx, &request.limits, "/limits", now).await?;
                if store::quotas::count_org_pending(tx, org).await? >= MAX_OPEN_REQUESTS {
                    let detail = "The organization has 20 open requests. Wait for an answer of the operator. Nothing was requested.";
                    return Err(Problem::invalid_field("/reason", detail).into());
                }
                idempotency::claim(tx, key.as_ref(), &id.to_string(), now).await?;
                store::quotas::insert_request(tx, &request, requester).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(store::quotas::find_request(tx, id).await?.ok_or_else(Problem::not_found)?)
            }
            .boxed()
        });
        Ok(done.await?)
    }

    /// A page of the quota requests of a scope.
    pub async fn list_quota_requests(
        &self,
        caller: &Caller,
        scope: Scope,
        state: Option<QuotaRequestState>,
        options: &ListOptions<QuotaRequestId>,
    ) -> Result<Page<QuotaRequest>, Problem> {
        let org = self.context.authorise_scope(caller, scope, (Right::View, OperatorRight::View)).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::quotas::list_requests(&mut conn.tx(), org, state, options).await?;
        Ok(options.page(rows, |request| request.id))
    }

    /// Grants or declines a request. The granted limits replace the present ones of the same names. `approved` is the
    /// change request that the caller approves.
    ///
    /// # Errors
    /// The request is unknown or decided already, or the limits or the amount are invalid.
    pub async fn decide_quota_request(
        &self,
        caller: &Caller,
        id: QuotaRequestId,
        input: DecideQuotaRequest,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<QuotaRequest>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::DecideRequests).await?;
        if caller.already_created().is_some() {
            return self.repeated_decision(caller, id).await;
        }
        self.authorise_decision(caller, id, &input).await?;
        check_decision(&input, &self.context.settings.currency)?;
        let gate = Gate::new(&self.context, caller, approved, &input)?;
        let now = self.context.now();
        let action = if input.grant { "quota.granted" } else { "quota.declined" };
        let event = self.context.audit_event(caller, action, id.to_string(), input.note.clone());
        let (context, key) = (self.context.clone(), caller.idempotency_key.clone());
        let done = self.context.db.try_write(move |tx| {
            let (context, input) = (context.clone(), input.clone());
            let (event, key, gate) = (event.clone(), key.clone(), gate.clone());
            async move {
                let Some(request) = store::quotas::find_request(tx, id).await? else {
                    return Err(Problem::not_found().into());
                };
                if input.credit_micros.is_some() && (!input.grant || request.credit_micros.is_none()) {
                    let detail = "The request is declined, or is not for credit. Omit the field.";
                    return Err(Problem::invalid_field("/credit_micros", detail).into());
                }
                // This check comes before any write, since a refusal must change nothing.
                let granted = input.limits.as_ref().unwrap_or(&request.limits);
                if input.grant {
                    check_offerings(tx, granted, "/limits", now).await?;
                }
                let micros = input.credit_micros.or(request.credit_micros).filter(|_| input.grant);
                if request.state == QuotaRequestState::Pending
                    && let Some(micros) = micros
                    && let Some(waiting) =
                        gate.pass(tx, &credit::grant_act(&context, &request, &input, micros)).await?
                {
                    return Ok(Outcome::Requested(waiting));
                }
                let state =
                    if input.grant { QuotaRequestState::Granted } else { QuotaRequestState::Declined };
                let note = input.note.trim();
                let values = (input.grant.then_some(granted), micros);
                if !store::quotas::decide_request(tx, id, state, note, values, now).await? {
                    let detail =
                        format!("The request was already {}. Nothing was changed.", request.state.name());
                    return Err(Problem::conflict("quota_request.decided", "Request decided", detail).into());
                }
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                // A grant of credit alone leaves an organization with the default limits.
                if input.grant && *granted != Limits::default() {
                    let limits = effective(tx, request.org).await?.0.with(granted);
                    store::quotas::put(tx, Some(request.org), &limits).await?;
                }
                if let Some(micros) = micros {
                    credit::grant(tx, &context, &request, micros, &event).await?;
                }
                store::quotas::insert_audit(tx, Some(request.org), &event).await?;
                let decided = store::quotas::find_request(tx, id).await?.ok_or_else(Problem::not_found)?;
                mail::record(tx, &context, &decided).await?;
                Ok(Outcome::Done(decided))
            }
            .boxed()
        });
        let decided = done.await;
        if !matches!(decided, Err(WriteError::Store(_))) {
            self.context.publish(Change::Orgs);
        }
        Ok(decided?)
    }
}
