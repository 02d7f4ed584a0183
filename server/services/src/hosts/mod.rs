//! The proof of host names of services. Everybody can name a host; its requests go to the service only after the record
//! in DNS, a confirmed domain of single sign-on, or an operator confirmed it for the organization.

pub mod owners;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_core::domains::{Answer, DomainState, Step, after_check, first_check, record_name};
use berth_foundation::dns::{DnsServer, TxtRecords, find_record};
use berth_foundation::{Caller, Change, Context, Right, recheck_operator_right};
use berth_service_types::hosts::{CheckHost, ClaimedHost, ConfirmHost, ServiceHost};
use berth_serving::snapshot::is_host;
use berth_store::services::hosts::{self, StoredClaim, StoredProof};
use berth_store::services::services::StoredService;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::Page;
use berth_types::ids::{OrgId, ServiceId};
use berth_types::lists::{ListOptions, NameCursor};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::{AuditContext, AuditEvent};
use berth_types::time::Timestamp;
use futures::{FutureExt, StreamExt, stream};
use serde_json::json;

use owners::HostOwners;

/// Hosts of one run.
const HOSTS: i64 = 64;
/// Hosts of one organization in a run, so that no organization holds up the others.
const ORG_HOSTS: i64 = 4;
/// Lookups at once of the loop.
const LOOKUPS: usize = 16;
/// Proofs of an organization, also those of hosts that it named in the last hour.
const MAX_PROOFS: i64 = 2_000;
/// Checks by an organization in an hour.
const MAX_CHECKS: u32 = 10;
const HOUR_MS: i64 = 3_600_000;

const MISSING: &str =
    "The TXT record with this value was not found. A new record can take some hours to be visible.";
const UNKNOWN: &str = "No DNS server answered. This check proves nothing, and the next one follows.";
const TAKEN: &str = "The record is there, but the host name or a parent of it is confirmed for another organization. Ask the operator of this portal.";

/// The checks by organizations since the begin of an hour.
#[derive(Default)]
struct Checks(Mutex<(i64, HashMap<OrgId, u32>)>);

impl Checks {
    /// Counts a check. Beyond the limit it returns the seconds to wait.
    fn count(&self, org: OrgId, now_ms: i64) -> Option<u64> {
        let mut checks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, counts) = &mut *checks;
        if now_ms.saturating_sub(*since) >= HOUR_MS {
            *since = now_ms;
            counts.clear();
        }
        let count = counts.entry(org).or_default();
        if *count >= MAX_CHECKS {
            let left_ms = since.saturating_add(HOUR_MS).saturating_sub(now_ms);
            return Some(u64::try_from(left_ms).unwrap_or(0).div_ceil(1_000));
        }
        *count += 1;
        None
    }
}

/// The proofs of host names.
#[derive(Clone)]
pub struct HostProofs {
    context: Context,
    dns: Arc<dyn TxtRecords>,
    checks: Arc<Checks>,
}

/// The random part of a record, 128 bits in hexadecimal.
fn new_proof(context: &Context) -> String {
    format!("{:032x}", u128::from_be_bytes(context.salt()))
}

/// A host of a request in its one form.
fn normal_host(host: &str) -> Result<String, Problem> {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let detail = "Enter a host name that a service of the organization names, such as models.example.org.";
    if is_host(&host) { Ok(host) } else { Err(Problem::invalid_field("/host", detail)) }
}

/// True for a host whose record decides: no operator confirmed it.
const fn is_checked(row: &StoredProof) -> bool {
    row.confirmed_at.is_none() || row.by_dns
}

/// Begins the proofs of the hosts of a service.
pub async fn begin_proofs(
    tx: &mut Tx<'_>,
    context: &Context,
    service: &StoredService,
    now: Timestamp,
) -> Result<(), WriteError> {
    if service.hosts.is_empty() {
        return Ok(());
    }
    if hosts::count(tx, service.org_id).await? >= MAX_PROOFS {
        let detail =
            "The organization changed its host names too often. Nothing was changed. Try again in an hour.";
        return Err(Problem::invalid_field("/hosts", detail).into());
    }
    for host in service.hosts.iter() {
        let proof = new_proof(context);
        hosts::add(tx, service.org_id, (host, &proof), (now, first_check(now))).await?;
    }
    Ok(())
}

/// The services of an organization that name a host.
async fn services_of(tx: &mut Tx<'_>, org: OrgId, host: &str) -> Result<Vec<ServiceId>, StoreError> {
    let all = hosts::list_services(tx, host).await?;
    Ok(all.into_iter().filter(|(_, owner)| *owner == org).map(|(service, _)| service).collect())
}

/// Writes the audit event and the notice of a step. `event` is without its action.
async fn record_step(
    tx: &mut Tx<'_>,
    context: &Context,
    (org, host): (OrgId, &str),
    step: Step,
    event: AuditEvent,
) -> Result<(), StoreError> {
    let name = record_name(host);
    let (action, detail) = match step {
        Step::Same => return Ok(()),
        Step::Confirmed => ("service_host.confirmed", format!("{host}: by the record at {name}")),
        Step::Missing => ("service_host.missing", format!("{host}: no record at {name}")),
        Step::Unconfirmed => ("service_host.unconfirmed", format!("{host}: no record at {name} for 7 days")),
    };
    let event = AuditEvent { action: action.to_owned(), detail, ..event };
    store::quotas::insert_audit(tx, Some(org), &event).await?;
    let (subject, detail) = match step {
        Step::Same | Step::Confirmed => return Ok(()),
        Step::Missing => (
            format!("The DNS record of {host} is missing"),
            format!(
                "The TXT record at {name} was not found. {host} leads to its service for seven more days. Publish the \
                 record again before; its value is on the page of the service. The path of the service works in any case."
            ),
        ),
        Step::Unconfirmed => (
            format!("{host} is no longer confirmed"),
            format!(
                "The TXT record at {name} was missing for seven days, so {host} leads to no service. The path of the \
                 service works. Publish the record again; its value is on the page of the service."
            ),
        ),
    };
    let notice = context.notice(org, action, subject, detail, &json!({ "host": host }));
    store::budgets::insert_notice(tx, &notice).await
}

/// The row after a check, with the time of the next one. Without an answer of DNS nothing is proved.
fn after(
    (row, restarts): (StoredProof, bool),
    (answer, is_taken): (Answer, bool),
    now: Timestamp,
) -> (StoredProof, Step, Option<Timestamp>) {
    let is_pending = row.confirmed_at.is_none();
    let state = DomainState {
        pending_since: if restarts && is_pending { now } else { row.pending_since },
        confirmed_at: row.confirmed_at,
        missing_since: row.missing_since,
    };
    let (answer, problem) = match answer {
        // A parent that another organization confirmed later does not end a confirmation.
        Answer::Found if is_taken && is_pending => (Answer::Missing, TAKEN),
        Answer::Found => (Answer::Found, ""),
        Answer::Missing => (Answer::Missing, MISSING),
        Answer::Unknown => (Answer::Unknown, UNKNOWN),
    };
    let checked = after_check(state, answer, now);
    let row = StoredProof {
        by_dns: checked.state.confirmed_at.is_some(),
        pending_since: checked.state.pending_since,
        confirmed_at: checked.state.confirmed_at,
        missing_since: checked.state.missing_since,
        checked_at: Some(now),
        problem: problem.to_owned(),
        ..row
    };
    (row, checked.step, checked.next_check_at)
}

impl HostProofs {
    pub fn new(context: Context) -> Self {
        let dns = Arc::new(DnsServer::new(context.settings.dns_server));
        Self { context, dns, checks: Arc::default() }
    }

    async fn show(&self, org: OrgId, host: &str) -> Result<ServiceHost, Problem> {
        let mut conn = self.context.db.read().await?;
        Ok(owners::find_state(&mut conn.tx(), org, host).await?)
    }

    /// Checks the record of a host now. The checks by the portal begin again for seven days.
    ///
    /// # Errors
    /// 404 if no service of the organization names the host. 429 beyond ten checks an hour.
    pub async fn check_host(
        &self,
        caller: &Caller,
        org: OrgId,
        input: CheckHost,
    ) -> Result<ServiceHost, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let host = normal_host(&input.host)?;
        let mut conn = self.context.db.read().await?;
        let found = hosts::find(&mut conn.tx(), org, &host).await?;
        drop(conn);
        let row = found.ok_or_else(Problem::not_found)?;
        if is_checked(&row) {
            if let Some(wait_s) = self.checks.count(org, self.context.monotonic_ms()) {
                let detail = "Your organization has at most ten checks an hour. Nothing was checked; the portal checks the record by itself.";
                return Err(Problem::throttled(detail, wait_s));
            }
            let event = self.context.audit_event(caller, "", org.to_string(), String::new());
            self.check_row(row, event, true).await?;
        }
        self.show(org, &host).await
    }

    /// A page of the host names of all organizations with their proofs, by name, for operators.
    pub async fn list_claims(
        &self,
        caller: &Caller,
        options: &ListOptions<NameCursor>,
    ) -> Result<Page<ClaimedHost>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let rows = hosts::list_page(&mut tx, options).await?;
        let Page { items, next_cursor } = options.page(rows, StoredClaim::cursor);
        Ok(Page { items: owners::claims(&mut tx, items).await?, next_cursor })
    }

    /// Confirms a host for an organization without DNS, or takes the confirmation back.
    ///
    /// # Errors
    /// 404 for all callers but operators, and if no service of the organization names the host. 403 without a fresh
    /// proof. 409 if the host is confirmed for another organization, or a gateway has it.
    pub async fn confirm_host(
        &self,
        caller: &Caller,
        org: OrgId,
        input: ConfirmHost,
    ) -> Result<ServiceHost, Problem> {
        let context = &self.context;
        context.authorise_operator(caller, OperatorRight::ManagePortal).await?;
        context.check_proof(caller)?;
        let host = normal_host(&input.host)?;
        let at = input.confirmed.then(|| context.now());
        let action = if input.confirmed { "service_host.confirmed" } else { "service_host.refused" };
        let event = context.audit_event(caller, action, org.to_string(), host.clone());
        let (name, proof, user) = (host.clone(), new_proof(context), caller.user.id);
        let done = context.db.try_write(move |tx| {
            let (host, proof, event) = (name.clone(), proof.clone(), event.clone());
            async move {
                recheck_operator_right(tx, user, OperatorRight::ManagePortal).await?;
                let owners = HostOwners::read(tx, std::iter::once(host.as_str())).await?;
                if at.is_some() && owners.is_of_gateway(&host) {
                    let detail = "A gateway has this host name, so it can lead to no service. Nothing was changed. Give the gateway another address first.";
                    let title = "Host name of a gateway";
                    return Err(Problem::conflict("service.host_of_gateway", title, detail).into());
                }
                let holder = owners.find(&host).filter(|(domain, _)| *domain == host);
                if at.is_some() && holder.is_some_and(|(_, holder)| holder != org) {
                    let detail = "The host name is confirmed for another organization. Nothing was changed. Take that confirmation back first.";
                    let title = "Host name of another organization";
                    return Err(Problem::conflict("service.host_taken", title, detail).into());
                }
                if !hosts::confirm(tx, org, (&host, &proof), at).await? {
                    return Err(Problem::not_found().into());
                }
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(services_of(tx, org, &host).await?)
            }
            .boxed()
        });
        self.publish(done.await?);
        self.show(org, &host).await
    }

    fn publish(&self, services: Vec<ServiceId>) {
        for service in services {
            self.context.publish(Change::Service(service));
        }
    }

    /// Begins the proofs of hosts without one, and checks the records of the hosts with a due check. Returns true if
    /// more checks are due.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn tick_hosts(&self) -> Result<bool, StoreError> {
        let now = self.context.now();
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let unproved = hosts::list_unproved(&mut tx, HOSTS).await?;
        let due = hosts::list_due(&mut tx, now, (HOSTS, ORG_HOSTS)).await?;
        drop(conn);
        if !unproved.is_empty() {
            let context = self.context.clone();
            let added = self.context.db.write(move |tx| {
                let (unproved, context) = (unproved.clone(), context.clone());
                async move {
                    for (host, org) in &unproved {
                        let proof = new_proof(&context);
                        hosts::add(tx, *org, (host, &proof), (now, first_check(now))).await?;
                    }
                    Ok(())
                }
                .boxed()
            });
            added.await?;
        }
        let more = i64::try_from(due.len()).is_ok_and(|rows| rows >= HOSTS);
        let work: Vec<_> = due
            .into_iter()
            .map(|row| {
                let this = self.clone();
                async move {
                    let event = this.portal_event(row.org_id);
                    this.check_row(row, event, false).await
                }
            })
            .collect();
        let results: Vec<Result<(), StoreError>> =
            stream::iter(work).buffer_unordered(LOOKUPS).collect().await;
        results.into_iter().collect::<Result<(), StoreError>>()?;
        Ok(more)
    }

    /// An event of the portal itself, without its action.
    fn portal_event(&self, org: OrgId) -> AuditEvent {
        let at = self.context.now();
        AuditEvent {
            id: self.context.new_id(at),
            at,
            actor: "The portal".to_owned(),
            action: String::new(),
            subject: org.to_string(),
            detail: String::new(),
            context: AuditContext::default(),
        }
    }

    /// Checks the record of a host and applies the rule. `restarts` begins the seven days of a host without a
    /// confirmation again.
    async fn check_row(
        &self,
        asked: StoredProof,
        event: AuditEvent,
        restarts: bool,
    ) -> Result<(), StoreError> {
        let answer = find_record(&*self.dns, &asked.host, &asked.proof).await;
        let (context, now) = (self.context.clone(), self.context.now());
        let done = self.context.db.write(move |tx| {
            let (context, asked, event) = (context.clone(), asked.clone(), event.clone());
            async move {
                let org = asked.org_id;
                let found = hosts::find(tx, org, &asked.host).await?;
                // During the lookup an operator decided, or the host got another proof.
                let is_same = |row: &StoredProof| is_checked(row) && row.proof == asked.proof;
                let Some(row) = found.filter(is_same) else { return Ok(Vec::new()) };
                let owners = HostOwners::read(tx, std::iter::once(asked.host.as_str())).await?;
                // Also the host of a gateway has one confirmation at most.
                let is_taken = owners.holder(&asked.host).is_some_and(|(_, owner)| owner != org);
                let (row, step, next_check_at) = after((row, restarts), (answer, is_taken), now);
                hosts::record_check(tx, &row, next_check_at).await?;
                record_step(tx, &context, (org, &row.host), step, event).await?;
                match step {
                    Step::Confirmed | Step::Unconfirmed => services_of(tx, org, &row.host).await,
                    Step::Same | Step::Missing => Ok(Vec::new()),
                }
            }
            .boxed()
        });
        self.publish(done.await?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn org(n: u8) -> OrgId {
        format!("org_{n:026}").parse().unwrap()
    }

    fn pending() -> StoredProof {
        StoredProof {
            org_id: org(1),
            host: "models.corp.example".to_owned(),
            proof: "0a".to_owned(),
            by_dns: false,
            pending_since: at(0),
            confirmed_at: None,
            missing_since: None,
            checked_at: None,
            problem: String::new(),
        }
    }

    #[test]
    fn a_host_below_the_domain_of_another_organization_is_not_confirmed() {
        let (taken, step, _) = after((pending(), false), (Answer::Found, true), at(9));
        assert_eq!((taken.confirmed_at, taken.by_dns, step), (None, false, Step::Same));
        assert!(taken.problem.contains("another organization"), "{}", taken.problem);
        let (own, step, _) = after((taken, false), (Answer::Found, false), at(10));
        assert_eq!((own.confirmed_at, own.by_dns, step), (Some(at(10)), true, Step::Confirmed));
        assert_eq!(own.problem, "");
        // Another organization that confirms a parent later takes nothing.
        let (kept, step, _) = after((own, false), (Answer::Found, true), at(11));
        assert_eq!((kept.confirmed_at, step), (Some(at(10)), Step::Same));
    }

    #[test]
    fn a_check_by_a_person_begins_the_seven_days_again() {
        let (row, _, next) = after((pending(), true), (Answer::Missing, false), at(1_000_000));
        assert_eq!(row.pending_since, at(1_000_000));
        assert!(next.is_some());
        let (_, _, next) = after((pending(), false), (Answer::Missing, false), at(1_000_000));
        assert_eq!(next, None);
    }

    #[test]
    fn hosts_of_requests_have_one_form() {
        for host in ["models.example.org", "Models.Example.ORG", "models.example.org."] {
            assert_eq!(normal_host(host).unwrap(), "models.example.org", "{host}");
        }
        for host in ["", ".", "models..org", "models.example.org..", "a b.org", "*.example.org", "x.org:443"]
        {
            assert!(normal_host(host).is_err(), "{host}");
        }
    }

    #[test]
    fn an_organization_checks_its_hosts_ten_times_an_hour() {
        let checks = Checks::default();
        for _ in 0..MAX_CHECKS {
            assert_eq!(checks.count(org(1), 5), None);
        }
        assert_eq!(checks.count(org(1), 1_005), Some(3_599));
        assert_eq!(checks.count(org(2), 1_005), None);
        assert_eq!(checks.count(org(1), HOUR_MS + 5), None);
    }
}
