//! The next steps of a service: a world comes in and a plan goes out. Clocks, messages and the database are absent on
//! purpose.

mod rollout;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use berth_autoscaling::ReplicaId;
use berth_autoscaling::rollout::{Event, RevisionNumber, Rollout};
use berth_autoscaling::scaling::{self, Drain, DrainReport, replicas_to_drain};
use berth_service_types::services::ServiceState;
use berth_types::ids::{JobId, RevisionId};
use berth_types::time::Timestamp;

use berth_services::loads::GatewayView;

use super::world::{Replica, ReplicaJob, Revision, World};

/// Failures in sequence after which a revision counts as not able to start.
pub const MOST_FAILURES: u32 = 3;
/// New replicas of a service in one run.
pub const MOST_NEW: usize = 10;
/// The longest pause after failures, and after refusals, in seconds.
pub const MOST_PAUSE_S: i64 = 300;
/// The longest pause after refusals in seconds while requests wait.
pub const WAITED_PAUSE_S: i64 = 15;
/// A replica that was ready for this time in seconds, also one that failed after it, counts as a new beginning.
const PROVED_S: i64 = 300;
/// The longest drain in seconds.
pub const DRAIN_S: i64 = 600;
/// The time in seconds after which a gateway has answered to a new snapshot.
const SNAPSHOT_S: i64 = 5;
/// A replica is replaced this time in seconds before its end, or at half of a shorter life.
const REPLACED_BEFORE_S: i64 = 600;

/// The judgement of a canary at a percentage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    pub revision: RevisionNumber,
    pub percent: u8,
    /// The fault as a sentence; absent for a good canary.
    pub fault: Option<String>,
}

/// The refusal of the last submission of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub until: Timestamp,
    pub detail: String,
}

/// The inputs of the plan besides the rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    pub now: Timestamp,
    /// The replicas that the requests need.
    pub wanted: u32,
    /// The end of the delay after which the number changes.
    pub delay_ends: Option<Timestamp>,
    pub judged: Option<Judged>,
    /// `None` as long as the gateways had no time to report.
    pub gateways: Option<Vec<GatewayView>>,
    pub refused: BTreeMap<RevisionId, Refusal>,
}

/// A replica with its revision.
pub type Named = (JobId, RevisionId);

/// The next steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub rollout: Rollout,
    /// The reasons for new states of revisions.
    pub details: BTreeMap<RevisionNumber, String>,
    /// Replicas that ended, each with its failure.
    pub ended: Vec<(Named, bool)>,
    /// Replicas that were not ready in time.
    pub late: Vec<JobId>,
    pub drained: Vec<JobId>,
    /// The revision of each new replica.
    pub created: Vec<RevisionId>,
    /// Replicas without a job.
    pub submitted: Vec<Named>,
    /// Replicas whose job ends now.
    pub cancelled: Vec<JobId>,
    pub state: ServiceState,
    pub detail: String,
    /// The time of the next step without another change.
    pub next: Option<Timestamp>,
}

/// The failures of a revision in sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failures {
    count: u32,
    /// Those that the revision itself caused.
    own: u32,
    last: Timestamp,
    /// The id of the last job that failed; empty without one.
    job: String,
    detail: String,
    /// The same of those that the revision caused.
    own_job: String,
    own_detail: String,
}

impl Failures {
    /// The time before which no replica follows.
    fn pause_ends(&self) -> Timestamp {
        let doublings = self.count.saturating_sub(1).min(16);
        self.last.plus_seconds((1_i64 << doublings).min(MOST_PAUSE_S))
    }
}

/// A plan in progress.
struct Work<'a> {
    world: &'a World,
    inputs: &'a Inputs,
    /// The replicas that go on: they have not ended, are not draining and not late.
    kept: Vec<&'a Replica>,
    plan: Plan,
}

/// Plans the next steps of a service.
pub fn plan(world: &World, inputs: &Inputs) -> Plan {
    let plan = Plan {
        rollout: world.rollout.clone(),
        details: BTreeMap::new(),
        ended: Vec::new(),
        late: Vec::new(),
        drained: Vec::new(),
        created: Vec::new(),
        submitted: Vec::new(),
        cancelled: Vec::new(),
        state: ServiceState::Asleep,
        detail: String::new(),
        next: None,
    };
    let mut work = Work { world, inputs, kept: Vec::new(), plan };
    if let Some(at) = inputs.delay_ends {
        work.due(at);
    }
    work.sort_replicas();
    work.roll();
    let needs = work.needs();
    for revision in &world.revisions {
        let need = needs.get(&revision.number).copied().unwrap_or(0);
        work.balance(revision, need);
    }
    work.submit();
    work.end_drained();
    work.find_state(&needs);
    work.plan
}

impl<'a> Work<'a> {
    fn due(&mut self, at: Timestamp) {
        self.plan.next = Some(self.plan.next.map_or(at, |next| next.min(at)));
    }

    /// Finds the replicas that ended or are late, and those that go on.
    fn sort_replicas(&mut self) {
        let world = self.world;
        for replica in world.replicas.iter().filter(|replica| replica.ended_at.is_none()) {
            let draining = replica.draining_since.is_some();
            match replica.job {
                ReplicaJob::Ended { own_fault } => {
                    let failed = replica.failed || (own_fault && !draining);
                    self.plan.ended.push(((replica.id, replica.revision), failed));
                }
                // Nothing was submitted, so nothing ends.
                ReplicaJob::Absent if draining => {
                    self.plan.ended.push(((replica.id, replica.revision), false));
                }
                ReplicaJob::Running { since, .. } if !draining && !replica.ready => {
                    let since = replica.unready_since.map_or(since, |unready| unready.max(since));
                    let within = self.terms_of(replica).map_or(0, |revision| revision.terms.ready_within_s);
                    let deadline = since.plus_seconds(i64::from(within));
                    if self.inputs.now >= deadline {
                        self.plan.late.push(replica.id);
                    } else {
                        self.due(deadline);
                        self.kept.push(replica);
                    }
                }
                ReplicaJob::Absent | ReplicaJob::Waiting | ReplicaJob::Running { .. } if !draining => {
                    self.kept.push(replica);
                }
                _ => {}
            }
        }
    }

    fn terms_of(&self, replica: &Replica) -> Option<&'a Revision> {
        self.world.revisions.iter().find(|revision| revision.id == replica.revision)
    }

    /// The failure of a replica with its time; `None` for a replica that did not fail.
    fn failure_at(&self, replica: &Replica) -> Option<Timestamp> {
        let now = self.inputs.now;
        let fails_now = self.plan.late.contains(&replica.id)
            || self.plan.ended.iter().any(|((id, _), failed)| *id == replica.id && *failed);
        // Without a pause the replacement would meet the same node again and again.
        let of_node = replica.is_of_node && replica.draining_since.is_none();
        if !fails_now && !replica.failed && !of_node {
            return None;
        }
        // The pause after a late replica begins with its drain, not with its end.
        Some(replica.draining_since.or(replica.ended_at).unwrap_or(now))
    }

    /// The failures of a revision since its last good replica.
    fn failures(&self, revision: RevisionId) -> Failures {
        let mut known: Vec<&Replica> =
            self.world.replicas.iter().filter(|replica| replica.revision == revision).collect();
        known.sort_by_key(|replica| (std::cmp::Reverse(replica.created_at), replica.id));
        let mut failures = Failures {
            count: 0,
            own: 0,
            last: Timestamp::from_micros(0),
            job: String::new(),
            detail: String::new(),
            own_job: String::new(),
            own_detail: String::new(),
        };
        for replica in known {
            let is_proved = |at: Timestamp| {
                let first = replica.first_ready_at;
                first.is_some_and(|ready| at.millis_since(ready) >= PROVED_S.saturating_mul(1_000))
            };
            match self.failure_at(replica) {
                Some(at) if is_proved(at) => break,
                Some(at) => {
                    let is_own = !replica.is_of_node;
                    let is_late = self.plan.late.contains(&replica.id) || replica.fault.is_empty();
                    let detail = if is_late { "It was not ready in time." } else { replica.fault.as_str() };
                    if failures.count == 0 {
                        failures.job = replica.id.to_string();
                        detail.clone_into(&mut failures.detail);
                    }
                    if is_own && failures.own == 0 {
                        failures.own_job = replica.id.to_string();
                        detail.clone_into(&mut failures.own_detail);
                    }
                    failures.count += 1;
                    failures.own += u32::from(is_own);
                    failures.last = failures.last.max(at);
                }
                None if replica.ended_at.is_some() && replica.first_ready_at.is_some() => break,
                // It is as good as one that ended well.
                None if replica.ready && is_proved(self.inputs.now) => break,
                None => {}
            }
        }
        failures
    }

    /// The replicas of a revision that go on and are ready.
    fn ready(&self, revision: RevisionId) -> u32 {
        let ready = self.kept.iter().filter(|replica| replica.revision == revision && replica.ready);
        u32::try_from(ready.count()).unwrap_or(u32::MAX)
    }

    /// The replicas that each revision needs.
    fn needs(&self) -> BTreeMap<RevisionNumber, u32> {
        if self.world.halted {
            return BTreeMap::new();
        }
        let mut needs = self.plan.rollout.replicas(self.inputs.wanted);
        // Each further try could preempt a job. The next request, or a person, tries it again.
        if self.inputs.wanted == 0
            && let Some(candidate) = self.plan.rollout.candidate()
            && self.fails(candidate, |failures| failures.count)
        {
            needs.insert(candidate, 0);
        }
        needs
    }

    /// True for a revision whose last replicas failed by its fault, and that has none that is ready.
    fn never_starts(&self, number: RevisionNumber) -> bool {
        self.fails(number, |failures| failures.own)
    }

    /// True for a revision with enough of these failures, and without a ready replica.
    fn fails(&self, number: RevisionNumber, count: fn(&Failures) -> u32) -> bool {
        let found = self.world.revisions.iter().find(|revision| revision.number == number);
        found.is_some_and(|revision| {
            count(&self.failures(revision.id)) >= MOST_FAILURES && self.ready(revision.id) == 0
        })
    }

    /// True for a replica near the end of its life. Its replacement starts now.
    fn is_old(&mut self, replica: &Replica, revision: &Revision) -> bool {
        let ReplicaJob::Running { until, .. } = replica.job else { return false };
        let before_s = REPLACED_BEFORE_S.min(revision.terms.max_duration_s / 2);
        let replaced_at = until.plus_seconds(-before_s);
        if self.inputs.now >= replaced_at {
            return true;
        }
        self.due(replaced_at);
        false
    }

    /// Creates and drains the replicas of a revision so that it has `need`. An old replica goes after its
    /// replacement is ready.
    fn balance(&mut self, revision: &Revision, need: u32) {
        let own: Vec<&'a Replica> =
            self.kept.iter().copied().filter(|replica| replica.revision == revision.id).collect();
        let (mut old, fresh): (Vec<&Replica>, Vec<&Replica>) =
            own.into_iter().partition(|replica| self.is_old(replica, revision));
        let choice: Vec<scaling::Replica> =
            (0..).zip(&fresh).map(|(n, replica)| candidate(n, replica)).collect();
        let surplus: BTreeSet<ReplicaId> = replicas_to_drain(&choice, need, 0).into_iter().collect();
        let mut ready = 0;
        for (choice, replica) in choice.iter().zip(&fresh) {
            if surplus.contains(&choice.id) {
                self.plan.drained.push(replica.id);
            } else {
                ready += u32::from(replica.ready);
            }
        }
        old.sort_by_key(|replica| (!replica.ready, std::cmp::Reverse(replica.created_at), replica.id));
        let still_needed = usize::try_from(need.saturating_sub(ready)).unwrap_or(usize::MAX);
        self.plan.drained.extend(old.iter().skip(still_needed).map(|replica| replica.id));
        let fresh_count = u32::try_from(fresh.len()).unwrap_or(u32::MAX);
        let missing = usize::try_from(need.saturating_sub(fresh_count)).unwrap_or(usize::MAX);
        let tries = fresh.iter().any(|replica| !replica.ready);
        self.create(revision, missing, tries);
    }

    /// Creates missing replicas. After a failure one replica at a time shows whether the revision starts.
    fn create(&mut self, revision: &Revision, missing: usize, tries: bool) {
        if missing == 0 {
            return;
        }
        let failures = self.failures(revision.id);
        let mut most = MOST_NEW.saturating_sub(self.plan.created.len());
        if failures.count > 0 {
            if tries {
                return;
            }
            let pause_ends = failures.pause_ends();
            if self.inputs.now < pause_ends {
                self.due(pause_ends);
                return;
            }
            most = most.min(1);
        }
        if missing > most {
            self.due(self.inputs.now);
        }
        self.plan.created.extend(std::iter::repeat_n(revision.id, missing.min(most)));
    }

    /// Submits the jobs of replicas that have none, except after a refusal.
    fn submit(&mut self) {
        let inputs = self.inputs;
        for replica in self.kept.clone() {
            if replica.job != ReplicaJob::Absent || self.plan.drained.contains(&replica.id) {
                continue;
            }
            match inputs.refused.get(&replica.revision) {
                Some(refusal) if inputs.now < refusal.until => self.due(refusal.until),
                _ => self.plan.submitted.push((replica.id, replica.revision)),
            }
        }
    }

    /// Ends the jobs of drained replicas: of those that were never ready, wait again or failed at once, of the others
    /// after their last request.
    fn end_drained(&mut self) {
        let world = self.world;
        for replica in world.replicas.iter().filter(|replica| replica.ended_at.is_none()) {
            if !matches!(replica.job, ReplicaJob::Waiting | ReplicaJob::Running { .. }) {
                continue;
            }
            let late = replica.failed || self.plan.late.contains(&replica.id);
            let drained_now = self.plan.drained.contains(&replica.id);
            // A job that returned to the queue has no request of its former attempt.
            let has_requests = replica.first_ready_at.is_some() && replica.job != ReplicaJob::Waiting;
            let unused = (drained_now || replica.draining_since.is_some()) && !has_requests;
            if late || unused || self.is_drained(replica) {
                self.plan.cancelled.push(replica.id);
            }
        }
    }

    /// True if no gateway has a request of a draining replica, or its drain is over.
    fn is_drained(&mut self, replica: &Replica) -> bool {
        let Some(since) = replica.draining_since else { return false };
        let drain = Drain { deadline: since.plus_seconds(DRAIN_S) };
        let unknown = vec![DrainReport { knows: false, outstanding: 0 }];
        let reports = self.inputs.gateways.as_ref().map_or(unknown, |gateways| {
            gateways.iter().map(|gateway| drain_report(gateway, replica.id, since)).collect()
        });
        let is_drained = drain.end(&reports, self.inputs.now).is_some();
        if !is_drained {
            self.due(drain.deadline);
        }
        is_drained
    }
}

/// A gateway's view of a draining replica. A gateway with a later snapshot knows of the drain. Without a request of the
/// whole service it has none of the replica.
fn drain_report(gateway: &GatewayView, replica: JobId, since: Timestamp) -> DrainReport {
    let newer = i64::try_from(gateway.snapshot).is_ok_and(|number| number >= since.millis());
    let quiet = gateway.requests == 0 && newer && gateway.at >= since.plus_seconds(SNAPSHOT_S);
    let knows = quiet || gateway.drained.contains(&replica);
    DrainReport { knows, outstanding: u32::from(!knows) }
}

fn candidate(number: u64, replica: &Replica) -> scaling::Replica {
    // No report has the requests of one replica.
    let (ready, created) = (replica.ready, replica.created_at);
    scaling::Replica { id: ReplicaId(number), ready, created, outstanding: 0 }
}

#[cfg(test)]
mod tests;
