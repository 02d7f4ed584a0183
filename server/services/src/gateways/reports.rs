//! The intake of reports. Each report counts once, and its figures are bounded.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use berth_service_types::services::ServiceAccess;
use berth_serving::reports::{BUCKETS, GatewayReport, MAX_VERSION_BYTES, ReportAnswer, ServiceFaults, Use};
use berth_store::services::gateway_faults;
use berth_store::services::promise_evidence::{self as evidence, FaultyService};
use berth_store::services::uses_intake::{self as intake, StoredCaller, StoredUse, UsedKey, UsedRevision};
use berth_store::types::JsonColumn;
use berth_store::{StoreError, Tx};
use berth_types::ids::{InferenceKeyId, RevisionId, ServiceId};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::GatewaySync;
use super::callers::{Call, CallingGateway, LIFE_AHEAD, is_plausible_life};

/// The greatest figure of a use in one report. A row with a greater one is not plausible.
const MAX_FIGURE: u64 = 1_000_000_000_000;
/// The greatest sum of an hour. Sums of many hours then stay below 2^63.
const MAX_SUM: i64 = 100_000_000_000_000;
/// The precision of the recorded last report of a gateway without use.
const SEEN_EVERY_MS: i64 = 10_000;
/// The precision of the recorded last use of a key.
const USED_EVERY_MS: i64 = 60_000;
/// Milliseconds after the end of public access for which uses of its time are plausible: a day, as for blocks of credit.
const OPEN_USES_MS: i64 = 86_400_000;
const HOUR_MICROS: i64 = 3_600_000_000;
/// Seconds for which the faults of a service do not count after a replica failed by its own fault.
const FAILED_S: i64 = 300;

/// The outcome of a report.
#[derive(Debug, Default)]
struct Counted {
    /// False if it was counted before.
    is_new: bool,
    uses: Vec<Use>,
    /// Rows about unknown or foreign objects, or with figures that are not plausible.
    ignored: usize,
}

/// The revisions and keys that a report names.
struct Known {
    revisions: HashMap<RevisionId, UsedRevision>,
    keys: HashMap<InferenceKeyId, UsedKey>,
}

impl Known {
    async fn read(tx: &mut Tx<'_>, uses: &[Use]) -> Result<Self, StoreError> {
        let revisions: BTreeSet<RevisionId> = uses.iter().map(|used| used.revision).collect();
        let keys: BTreeSet<InferenceKeyId> = uses.iter().filter_map(|used| used.key).collect();
        let revisions = revisions.iter().map(ToString::to_string).collect();
        let keys = keys.iter().map(ToString::to_string).collect();
        let revisions = intake::list_revisions(tx, revisions).await?;
        let keys = intake::list_keys(tx, keys).await?;
        Ok(Self {
            revisions: revisions.into_iter().map(|row| (row.id, row)).collect(),
            keys: keys.into_iter().map(|row| (row.id, row)).collect(),
        })
    }

    /// The revision of a use that the portal can count. The key of another organization can use a public service.
    fn find(&self, used: &Use, now: Timestamp) -> Option<&UsedRevision> {
        let revision = self.revisions.get(&used.revision).filter(|row| row.service_id == used.service)?;
        let is_open = was_open(revision, now);
        let fits = match used.key {
            None => is_open,
            Some(key) => self.keys.get(&key).is_some_and(|key| is_open || key.org_id == revision.org_id),
        };
        let figures =
            [used.requests, used.errors, used.prompt_tokens, used.completion_tokens, used.token_nanos];
        let plausible = figures.iter().chain(&used.first_byte).all(|figure| *figure <= MAX_FIGURE);
        (fits && plausible).then_some(revision)
    }
}

/// True if a request of another organization, or without a key, may have begun at this service. A gateway without contact
/// to the portal reports it later.
fn was_open(row: &UsedRevision, now: Timestamp) -> bool {
    let until = row.public_until;
    row.access == ServiceAccess::Public || until.is_some_and(|until| now.millis_since(until) < OPEN_USES_MS)
}

/// The begin of the hour of a time.
const fn hour(now: Timestamp) -> Timestamp {
    Timestamp::from_micros(now.micros().div_euclid(HOUR_MICROS).saturating_mul(HOUR_MICROS))
}

/// The faults that count: (requests without a replica, requests whose replica was lost). With `is_excused` those without
/// a replica waited for the organization. A row with a figure that is not plausible counts nothing.
fn counted_faults(row: &ServiceFaults, is_excused: bool) -> (i64, i64) {
    if [row.asleep, row.unreached, row.lost].into_iter().any(|figure| figure > MAX_FIGURE) {
        return (0, 0);
    }
    let asleep = if is_excused { 0 } else { row.asleep };
    let (mut refused, mut lost) = (0, 0);
    add(&mut refused, asleep.saturating_add(row.unreached));
    add(&mut lost, row.lost);
    (refused, lost)
}

/// Counts the faults of a report in the present hour, except those that the organization made: it stopped the service, or
/// its program or its submission failed. They count until the token of their gateway ends, which may be stolen.
async fn count_faults(
    tx: &mut Tx<'_>,
    gateway: i64,
    faults: &[ServiceFaults],
    now: Timestamp,
) -> Result<(), StoreError> {
    let services: BTreeSet<ServiceId> = faults.iter().map(|row| row.service).collect();
    let services = services.iter().map(ToString::to_string).collect();
    let found = evidence::list_faulty(tx, services, now.plus_seconds(-FAILED_S)).await?;
    let known: HashMap<ServiceId, FaultyService> = found.into_iter().map(|row| (row.id, row)).collect();
    for row in faults {
        let Some(service) = known.get(&row.service) else { continue };
        let counts = counted_faults(row, service.is_excused);
        if counts != (0, 0) {
            evidence::add_faults(tx, (service.id, hour(now)), counts, MAX_SUM).await?;
            gateway_faults::add(tx, (gateway, service.id, hour(now)), counts, MAX_SUM).await?;
        }
    }
    Ok(())
}

/// Adds a figure to the sum of an hour.
fn add(sum: &mut i64, figure: u64) {
    let figure = i64::try_from(figure).unwrap_or(MAX_SUM);
    *sum = sum.saturating_add(figure).clamp(0, MAX_SUM);
}

/// Adds a use to the row of its hour.
fn add_use(row: &mut StoredUse, used: &Use) {
    add(&mut row.requests, used.requests);
    add(&mut row.errors, used.errors);
    add(&mut row.prompt_tokens, used.prompt_tokens);
    add(&mut row.completion_tokens, used.completion_tokens);
    add(&mut row.token_nanos, used.token_nanos);
    row.first_byte.0.resize(BUCKETS, 0);
    for (sum, figure) in row.first_byte.0.iter_mut().zip(&used.first_byte) {
        add(sum, *figure);
    }
}

fn new_row(used: &Use, revision: &UsedRevision, hour_at: Timestamp) -> StoredUse {
    StoredUse {
        service_id: revision.service_id,
        revision_id: revision.id,
        key_id: used.key.map(|key| key.to_string()).unwrap_or_default(),
        hour_at,
        org_id: revision.org_id,
        requests: 0,
        errors: 0,
        prompt_tokens: 0,
        completion_tokens: 0,
        token_nanos: 0,
        first_byte: JsonColumn(vec![0; BUCKETS]),
    }
}

/// Counts the uses of a report in the rows of the present hour. Returns the counted ones.
async fn count_uses(tx: &mut Tx<'_>, uses: &[Use], now: Timestamp) -> Result<Vec<Use>, StoreError> {
    let known = Known::read(tx, uses).await?;
    let hour_at = hour(now);
    let revisions = known.revisions.keys().map(ToString::to_string).collect();
    let stored = intake::list_hour(tx, revisions, hour_at).await?;
    let mut rows: BTreeMap<(RevisionId, String), StoredUse> =
        stored.into_iter().map(|row| ((row.revision_id, row.key_id.clone()), row)).collect();
    let mut touched: BTreeSet<(RevisionId, String)> = BTreeSet::new();
    let mut counted = Vec::new();
    for used in uses {
        let Some(revision) = known.find(used, now) else { continue };
        let place = (revision.id, used.key.map(|key| key.to_string()).unwrap_or_default());
        add_use(rows.entry(place.clone()).or_insert_with(|| new_row(used, revision, hour_at)), used);
        touched.insert(place);
        counted.push(used.clone());
    }
    for row in touched.iter().filter_map(|place| rows.get(place)) {
        intake::put(tx, row).await?;
    }
    let used_keys: BTreeSet<InferenceKeyId> = counted.iter().filter_map(|used| used.key).collect();
    for key in used_keys.iter().filter_map(|key| known.keys.get(key)) {
        if key.last_used_at.is_none_or(|at| now.millis_since(at) >= USED_EVERY_MS) {
            intake::touch_key(tx, key.id, now).await?;
        }
    }
    Ok(counted)
}

/// Counts a report, unless it is counted already or its token is replaced.
async fn count(
    tx: &mut Tx<'_>,
    gateway: &StoredCaller,
    (life, number): (i64, i64),
    report: &GatewayReport,
    now: Timestamp,
) -> Result<Counted, StoreError> {
    let caller = (gateway.id, gateway.token_hash.as_str());
    if !intake::record_report(tx, caller, (life, number), &report.version, now).await? {
        return Ok(Counted::default());
    }
    if !report.faults.is_empty() {
        count_faults(tx, gateway.number, &report.faults, now).await?;
    }
    let uses = if report.uses.is_empty() { Vec::new() } else { count_uses(tx, &report.uses, now).await? };
    let ignored = report.uses.len().saturating_sub(uses.len());
    Ok(Counted { is_new: true, uses, ignored })
}

/// The life and the number of a report.
///
/// # Errors
/// 422 for a number beyond the range of the database, a life in the future, and a bad version.
fn check(report: &GatewayReport, now: Timestamp) -> Result<(i64, i64), Problem> {
    let number = |pointer: &str, number: u64| {
        let found = i64::try_from(number).ok().filter(|number| *number > 0);
        found.ok_or_else(|| Problem::invalid_field(pointer, "Send a number from 1 to 2^63 - 1."))
    };
    if report.version.len() > MAX_VERSION_BYTES || report.version.chars().any(char::is_control) {
        return Err(Problem::invalid_field("/version", "Send at most 60 printable characters."));
    }
    let life = number("/life", report.life)?;
    if !is_plausible_life(life, now) {
        return Err(Problem::invalid_field("/life", LIFE_AHEAD));
    }
    Ok((life, number("/number", report.number)?))
}

/// Logs a report of a former life. The lives of a gateway with its directory rise, so a later one is another's.
fn log_former_life(row: &StoredCaller, life: i64) {
    if life < row.life {
        tracing::warn!(
            gateway = row.number,
            life,
            last = row.life,
            "a report of a former life counts nothing: another holder of the token has a later one, or the clock of a new directory is behind"
        );
    }
}

impl GatewaySync {
    /// Counts the report of a gateway once, and passes its loads on.
    ///
    /// # Errors
    /// 422 for a bad field. 429 if the gateway sends reports already. 401 if its token ended while its body came.
    pub(super) async fn count_report(
        &self,
        gateway: &CallingGateway,
        report: GatewayReport,
    ) -> Result<ReportAnswer, Problem> {
        let _place = self.callers.find_place(gateway, Call::Report)?;
        let (row, now) = (&gateway.row, self.context.now());
        let (life, number) = check(&report, now)?;
        let last = (row.life, row.last_report);
        let is_seen = row.last_seen_at.is_some_and(|at| now.millis_since(at) < SEEN_EVERY_MS);
        let is_idle = report.uses.is_empty() && report.faults.is_empty();
        let is_known = (life, number) <= last;
        if !is_idle {
            log_former_life(row, life);
        }
        let is_short = is_idle && is_seen && life == row.life && report.version == row.version;
        let (counted, is_stored) = if is_known || is_short {
            (Counted { is_new: !is_known, ..Counted::default() }, false)
        } else {
            let work = Arc::new((row.clone(), report.clone()));
            let done = self.context.db.write(move |tx| {
                let work = work.clone();
                async move { count(tx, &work.0, (life, number), &work.1, now).await }.boxed()
            });
            let counted = done.await?;
            let is_stored = counted.is_new;
            (counted, is_stored)
        };
        if !is_stored {
            self.check_still_valid(gateway).await?;
        }
        if counted.ignored > 0 {
            tracing::warn!(
                gateway = row.number,
                ignored = counted.ignored,
                "uses in the report of a gateway are unknown, foreign or not plausible"
            );
        }
        if counted.is_new {
            self.pass_on(gateway, &report, &counted.uses, now);
        }
        Ok(ReportAnswer { counted_through: report.number })
    }

    /// Passes the loads of a new report on. Services and replicas that no snapshot has are left out.
    fn pass_on(&self, gateway: &CallingGateway, report: &GatewayReport, uses: &[Use], now: Timestamp) {
        let number = gateway.number();
        let services = self.snapshots.services();
        for load in report.loads.iter().filter(|load| services.contains(&load.service)) {
            self.loads.report(number, *load, now);
        }
        for replica in report.drained.iter().filter(|replica| self.wakes.has_replica(replica.job)) {
            self.loads.drained(number, *replica, now);
        }
        for used in uses {
            self.loads.evidence(used);
        }
        self.loads.seen(number, report.snapshot, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_the_platform_count_and_waits_for_a_program_do_not() {
        let service = ServiceId::from_uuid(uuid::Uuid::from_u128(1));
        let row = |asleep, unreached, lost| ServiceFaults { service, asleep, unreached, lost };
        for (row, is_excused, expected) in [
            (row(7, 2, 1), false, (9, 1)),
            (row(7, 2, 1), true, (2, 1)),
            (row(0, 0, 0), false, (0, 0)),
            (row(MAX_FIGURE, 0, 0), false, (i64::try_from(MAX_FIGURE).unwrap(), 0)),
            (row(MAX_FIGURE + 1, 2, 1), false, (0, 0)),
            (row(7, 2, u64::MAX), false, (0, 0)),
        ] {
            assert_eq!(counted_faults(&row, is_excused), expected, "{row:?} {is_excused}");
        }
    }

    #[test]
    fn uses_of_a_public_service_count_for_a_day_after_its_end() {
        let now = Timestamp::from_micros(0).plus_seconds(1_000_000);
        let row = |access, public_until| UsedRevision {
            id: RevisionId::from_uuid(uuid::Uuid::from_u128(1)),
            service_id: ServiceId::from_uuid(uuid::Uuid::from_u128(1)),
            org_id: berth_types::ids::OrgId::from_uuid(uuid::Uuid::from_u128(1)),
            access,
            public_until,
        };
        for (access, ended_s, expected) in [
            (ServiceAccess::Public, None, true),
            (ServiceAccess::Organization, None, false),
            (ServiceAccess::Organization, Some(0), true),
            (ServiceAccess::Organization, Some(86_399), true),
            (ServiceAccess::Organization, Some(86_400), false),
        ] {
            let until = ended_s.map(|ended_s: i64| now.plus_seconds(-ended_s));
            assert_eq!(was_open(&row(access, until), now), expected, "{access:?} {ended_s:?}");
        }
    }

    #[test]
    fn sums_are_bounded_whatever_a_gateway_reports() {
        for (sum, figure, expected) in [
            (0, 5, 5),
            (7, 0, 7),
            (MAX_SUM - 1, 1, MAX_SUM),
            (MAX_SUM - 1, 2, MAX_SUM),
            (MAX_SUM, u64::MAX, MAX_SUM),
            (i64::MAX, u64::MAX, MAX_SUM),
        ] {
            let mut found = sum;
            add(&mut found, figure);
            assert_eq!(found, expected, "{sum} {figure}");
        }
    }
}
