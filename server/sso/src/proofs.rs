//! The confirmation of domains by their records in DNS: checks by owners, and repeated checks by the portal.

use berth_core::domains::{Answer, DomainState, Step, after_check, record_name};
use berth_foundation::dns::find_record;
use berth_foundation::{Caller, Context, Right};
use berth_store::sso_domains::StoredDomain;
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::quotas::{AuditContext, AuditEvent};
use berth_types::sso::{CheckDomain, SsoSettings};
use futures::{FutureExt, StreamExt, stream};
use serde_json::json;

use super::Providers;
use super::provider::normal_domain;
use berth_accounts::grants::end_without_provider;

/// Domains of one run.
const DOMAINS: i64 = 64;
/// Domains of one organization in a run, so that no organization holds up the others.
const ORG_DOMAINS: i64 = 4;
/// Lookups at once of the loop.
const LOOKUPS: usize = 16;

const MISSING: &str =
    "The TXT record with this value was not found. A new record can take some hours to be visible.";
const UNKNOWN: &str = "No DNS server answered. This check proves nothing, and the next one follows.";
const TAKEN: &str = "The record is there, but the domain is confirmed for another organization. Ask the operator of this portal.";

/// An event of the portal itself, without its action.
fn portal_event(context: &Context, row: &StoredDomain) -> AuditEvent {
    let at = context.now();
    AuditEvent {
        id: context.new_id(at),
        at,
        actor: "The portal".to_owned(),
        action: String::new(),
        subject: row.org_id.to_string(),
        detail: String::new(),
        context: AuditContext::default(),
    }
}

/// True for a domain whose record decides: no operator confirmed it, and it has a record.
const fn is_checked(row: &StoredDomain) -> bool {
    (row.confirmed_at.is_none() || row.by_dns) && !row.proof.is_empty()
}

/// Writes the audit event and the notice of a step. `event` is without its action.
async fn record_step(
    tx: &mut Tx<'_>,
    context: &Context,
    (org, domain): (OrgId, &str),
    step: Step,
    event: AuditEvent,
) -> Result<(), StoreError> {
    let name = record_name(domain);
    let (action, detail) = match step {
        Step::Same => return Ok(()),
        Step::Confirmed => ("sso.domain_confirmed", format!("{domain}: by the record at {name}")),
        Step::Missing => ("sso.domain_missing", format!("{domain}: no record at {name}")),
        Step::Unconfirmed => ("sso.domain_unconfirmed", format!("{domain}: no record at {name} for 7 days")),
    };
    let event = AuditEvent { action: action.to_owned(), detail, ..event };
    store::quotas::insert_audit(tx, Some(org), &event).await?;
    let (subject, detail) = match step {
        Step::Same | Step::Confirmed => return Ok(()),
        Step::Missing => (
            format!("The DNS record of {domain} is missing"),
            format!(
                "The TXT record at {name} was not found. Single sign-on for {domain} continues for seven days. Publish \
                 the record again before; its value is on the page Team. Jobs and sessions continue in any case."
            ),
        ),
        Step::Unconfirmed => (
            format!("{domain} is no longer confirmed"),
            format!(
                "The TXT record at {name} was missing for seven days, so nobody signs in with single sign-on for \
                 {domain}. Sessions and jobs continue. Publish the record again, or ask the operator of this portal; \
                 its value is on the page Team."
            ),
        ),
    };
    let notice = context.notice(org, action, subject, detail, &json!({ "domain": domain }));
    store::budgets::insert_notice(tx, &notice).await
}

impl Providers {
    /// The random part of the record of a domain, 128 bits in hexadecimal.
    pub(super) fn new_proof(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.context.salt()))
    }

    /// Checks the record of a domain now. A domain that an operator confirmed stays as it is. The checks by the portal
    /// begin again for seven days.
    ///
    /// # Errors
    /// 403 for others than owners. 404 if the organization does not name the domain. 429 beyond ten checks an hour.
    pub async fn check_domain(
        &self,
        caller: &Caller,
        org: OrgId,
        input: CheckDomain,
    ) -> Result<SsoSettings, Problem> {
        let context = &self.context;
        context.authorise(caller, org, Right::Manage).await?;
        let domain = normal_domain(&input.domain)
            .ok_or_else(|| Problem::invalid_field("/domain", "Enter a domain, such as example.org."))?;
        let mut conn = context.db.read().await?;
        let found = store::sso_domains::find(&mut conn.tx(), org, &domain).await?;
        drop(conn);
        let row = found.ok_or_else(Problem::not_found)?;
        if is_checked(&row) {
            if let Some(wait_s) = self.domain_throttle.count_check(org) {
                let detail = "Your organization has at most ten checks an hour. Nothing was checked; the portal checks the record by itself.";
                return Err(Problem::throttled(detail, wait_s));
            }
            let event = context.audit_event(caller, "", org.to_string(), String::new());
            self.check_row(row, event, true).await?;
        }
        let mut conn = context.db.read().await?;
        self.read_settings(&mut conn.tx(), org).await
    }

    /// Checks the records of the domains with a due check. Returns true if more checks are due.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn tick_domains(&self) -> Result<bool, StoreError> {
        let context = &self.context;
        let mut conn = context.db.read().await?;
        let rows = (DOMAINS, ORG_DOMAINS);
        let due = store::sso_domains::list_due(&mut conn.tx(), context.now(), rows).await?;
        drop(conn);
        let more = i64::try_from(due.len()).is_ok_and(|rows| rows >= DOMAINS);
        let work: Vec<_> = due
            .into_iter()
            .map(|row| {
                let this = self.clone();
                async move {
                    let event = portal_event(&this.context, &row);
                    this.check_row(row, event, false).await
                }
            })
            .collect();
        let results: Vec<Result<(), StoreError>> =
            stream::iter(work).buffer_unordered(LOOKUPS).collect().await;
        results.into_iter().collect::<Result<(), StoreError>>()?;
        Ok(more)
    }

    /// Checks the record of a domain and applies the rule. `restarts` begins the seven days of a domain without a
    /// confirmation again.
    async fn check_row(
        &self,
        asked: StoredDomain,
        event: AuditEvent,
        restarts: bool,
    ) -> Result<(), StoreError> {
        let answer = find_record(&*self.dns, &asked.domain, &asked.proof).await;
        let (context, now) = (self.context.clone(), self.context.now());
        let done = self.context.db.write(move |tx| {
            let (context, asked, event) = (context.clone(), asked.clone(), event.clone());
            async move {
                let org = asked.org_id;
                let found = store::sso_domains::find(tx, org, &asked.domain).await?;
                // During the lookup an operator decided, or the domain got another proof.
                let is_same = |row: &StoredDomain| is_checked(row) && row.proof == asked.proof;
                let Some(row) = found.filter(is_same) else { return Ok(Vec::new()) };
                let is_pending = row.confirmed_at.is_none();
                let state = DomainState {
                    pending_since: if restarts && is_pending { now } else { row.pending_since },
                    confirmed_at: row.confirmed_at,
                    missing_since: row.missing_since,
                };
                let holder = store::sso::find_domain_org(tx, &row.domain).await?;
                let is_taken = holder.is_some_and(|holder| holder != org);
                let (answer, problem) = match answer {
                    Answer::Found if is_taken => (Answer::Missing, TAKEN),
                    Answer::Found => (Answer::Found, ""),
                    Answer::Missing => (Answer::Missing, MISSING),
                    Answer::Unknown => (Answer::Unknown, UNKNOWN),
                };
                let checked = after_check(state, answer, now);
                let row = StoredDomain {
                    by_dns: checked.state.confirmed_at.is_some(),
                    pending_since: checked.state.pending_since,
                    confirmed_at: checked.state.confirmed_at,
                    missing_since: checked.state.missing_since,
                    checked_at: Some(now),
                    problem: problem.to_owned(),
                    ..row
                };
                store::sso_domains::record_check(tx, &row, checked.next_check_at).await?;
                record_step(tx, &context, (org, &row.domain), checked.step, event).await?;
                match checked.step {
                    Step::Confirmed => end_without_provider(tx, org).await,
                    Step::Same | Step::Missing | Step::Unconfirmed => Ok(Vec::new()),
                }
            }
            .boxed()
        });
        self.publish_ended(&done.await?);
        Ok(())
    }
}
