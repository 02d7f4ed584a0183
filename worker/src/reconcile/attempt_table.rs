//! The attempts of this host, and the steps that run for them. It owns every attempt's state.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_isolation::cgroups::AttemptCgroups;
use berth_proto::Assignment;
use berth_session::link::Outbox;
use berth_shim::StopNotice;
use berth_shim::lease::LeaseRenewals;
use berth_shim::model::{AttemptKey, job_failure};
use berth_system::clock::boottime_ms;
use berth_system::files::join_inside;
use berth_system::removal::remove_tree;
use nix::sys::signal::Signal;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::decisions::{DesiredAttempt, Effect, converge};
use super::file_watch::AttemptWatch;
use super::log_follower::LogFollowers;
use super::outputs::OutputSchedule;
use super::preparation::{self, PreparationTask};
use super::reports::Reports;
use super::shim_wait;
use super::step_result::{ResultSender, StepResult};
use crate::attempt::{Attempt, AttemptMap, AttemptState, CleaningState, Host, clean};

/// The time between two proofs that a device is clean.
const CLEAN_AGAIN: Duration = Duration::from_secs(2);
/// The preparations that begin in one turn of the loop. Of many simultaneous attempts the first would otherwise have
/// ended long before the next turn, and all would be cleaned and reported together.
pub(super) const BEGUN_AT_ONCE: usize = 16;
/// The upper limit of a requested grace.
const MOST_GRACE_MS: i64 = 600_000;

type DesiredAssignments = BTreeMap<AttemptKey, Assignment>;

fn find_assignment<'a>(desired: &'a Option<DesiredAssignments>, key: &AttemptKey) -> Option<&'a Assignment> {
    desired.as_ref().and_then(|desired| desired.get(key))
}

/// The portal's choice of a signal and a grace for a stop.
fn stop_notice(assignment: &Assignment) -> Option<StopNotice> {
    let (signal, grace_ms) = (assignment.stop_signal, assignment.stop_grace_ms);
    (signal > 0).then_some(StopNotice { signal, grace_ms: grace_ms.clamp(0, MOST_GRACE_MS) })
}

pub(super) struct AttemptTable {
    host: Arc<Host>,
    results: ResultSender,
    pub attempts: AttemptMap,
    /// Attempts with a running step.
    pub busy: HashSet<AttemptKey>,
    /// Those of them without a saved record, which must not be reported.
    pub unrecorded: HashSet<AttemptKey>,
    /// Attempts in preparation, with the flags that cancel it.
    pub preparing: HashMap<AttemptKey, Arc<AtomicBool>>,
    clean_after: HashMap<AttemptKey, Instant>,
    /// Users whose files could not be removed.
    pub users_left: HashSet<u32>,
    /// The desired attempts. `None`: the portal has not sent them in this session.
    desired: Option<DesiredAssignments>,
    pub reports: Reports,
    pub logs: LogFollowers,
    pub watch: AttemptWatch,
    pub renewals: LeaseRenewals,
    pub outputs: OutputSchedule,
    /// A state changed that decisions depend on.
    pub changed: bool,
}

impl AttemptTable {
    pub fn new(host: Arc<Host>, results: ResultSender) -> Result<Self, String> {
        Ok(Self {
            attempts: BTreeMap::new(),
            busy: HashSet::new(),
            unrecorded: HashSet::new(),
            preparing: HashMap::new(),
            clean_after: HashMap::new(),
            users_left: HashSet::new(),
            desired: None,
            reports: Reports::default(),
            logs: LogFollowers::default(),
            watch: AttemptWatch::new().map_err(|e| e.to_string())?,
            renewals: LeaseRenewals::open(&host.root),
            outputs: OutputSchedule::default(),
            changed: true,
            host,
            results,
        })
    }

    /// Takes over the attempts that an earlier daemon left.
    pub fn adopt_all(&mut self) -> Result<(), String> {
        let found = Attempt::load_all(&self.host.root).map_err(|e| e.to_string())?;
        // The cgroups of a clean attempt may belong to another one.
        let unclean = found.iter().filter(|a| !a.record.clean);
        let groups: Vec<AttemptCgroups> = unclean.clone().map(|a| a.record.group.clone()).collect();
        self.host.cgroups.sweep(&groups);
        let names: HashSet<String> = unclean.map(|a| a.record.container_name()).collect();
        self.host.network.sweep(&names);
        if let Ok(podman) = &self.host.images {
            podman.sweep(&names);
        }
        for mut attempt in found {
            let key = attempt.key();
            self.host.sharers.add(&attempt.dir, &attempt.record.devices);
            let shares = attempt.record.devices.iter().filter(|device| device.share_milli.is_some());
            for device in shares.filter(|_| !attempt.record.clean) {
                self.host.clearing.adopt_share(&device.gpu_uuid, &attempt.record.organization);
            }
            if matches!(attempt.state(), AttemptState::Running { .. } | AttemptState::Preparing) {
                tracing::info!(job = key.job, "adopted");
                self.watch.add(&key, &attempt.dir).map_err(|e| e.to_string())?;
                // The end may have been recorded before the watch.
                attempt.adopt();
                if !matches!(attempt.state(), AttemptState::Ended(_)) {
                    // An earlier signal may not have reached the shim.
                    berth_shim::send_signal(&attempt.dir, Signal::SIGUSR1);
                    shim_wait::spawn(attempt.dir.clone(), key.clone(), self.results.clone());
                }
            }
            self.attempts.insert(key, attempt);
        }
        Ok(())
    }

    /// Starts a session: nothing is desired until the portal sends it.
    pub fn start_session(&mut self) {
        self.desired = None;
        self.logs.end_session();
    }

    /// Replaces the desired attempts.
    pub fn set_desired(&mut self, assignments: Vec<Assignment>) {
        let mut all = BTreeMap::new();
        for assignment in assignments {
            let Some(id) = &assignment.attempt else { continue };
            let key = AttemptKey::from(id);
            // A name that leaves the directory is no attempt.
            if join_inside(&self.host.root, &key.job).is_none() || key.job.contains('/') {
                tracing::warn!(job = key.job, "an assignment with an invalid name is ignored");
                continue;
            }
            all.insert(key, assignment);
        }
        for (key, cancelled) in &self.preparing {
            if all.get(key).is_none_or(|assignment| assignment.stop) {
                cancelled.store(true, Ordering::SeqCst);
            }
        }
        self.desired = Some(all);
        self.changed = true;
        self.follow_logs();
    }

    fn follow_logs(&mut self) {
        self.logs.follow_all(self.desired.as_ref(), &self.attempts);
    }

    pub fn on_file_change(&mut self, key: &AttemptKey, only_log: bool) {
        self.logs.wake(key);
        if !only_log && !self.busy.contains(key) {
            self.refresh(key);
        }
    }

    /// Reads the records of an attempt again, and marks it for a report after a change of its state.
    fn refresh(&mut self, key: &AttemptKey) {
        let Some(attempt) = self.attempts.get_mut(key) else { return };
        let before = attempt.state();
        attempt.refresh();
        if attempt.state() != before {
            self.changed = true;
            self.reports.mark(key);
            self.follow_logs();
        }
    }

    /// Observes all attempts; called every second.
    pub fn observe(&mut self, now: Instant) {
        for (key, attempt) in &mut self.attempts {
            attempt.observe_process();
            let running = matches!(attempt.state(), AttemptState::Running { .. });
            self.reports.mark_if_due(key, running, now);
            if self.clean_after.get(key).is_some_and(|at| *at <= now) {
                self.clean_after.remove(key);
                attempt.cleaning = CleaningState::Due;
            }
        }
    }

    /// The states of all attempts without a running step.
    pub fn idle_states(&self) -> BTreeMap<AttemptKey, AttemptState> {
        let idle = self.attempts.iter().filter(|(key, _)| !self.busy.contains(*key));
        idle.map(|(key, attempt)| (key.clone(), attempt.state())).collect()
    }

    /// Decides and carries out the next effects. Before the portal has sent the desired attempts, only ended ones are
    /// cleaned.
    pub fn converge(&mut self, present: &BTreeMap<AttemptKey, AttemptState>, channel: Option<&Channel>) {
        let effects = match &self.desired {
            Some(desired) => {
                let idle = desired.iter().filter(|(key, _)| !self.busy.contains(*key));
                let desired = idle.map(|(key, a)| {
                    let startable = a.spec.is_some();
                    (key.clone(), DesiredAttempt { stop: a.stop, limit_ms: a.limit_ms, startable })
                });
                converge(&desired.collect(), present)
            }
            None => present
                .iter()
                .filter(|(_, state)| **state == AttemptState::Ended(CleaningState::Due))
                .map(|(key, _)| Effect::Clean(key.clone()))
                .collect(),
        };
        // The next step may depend on these.
        self.changed = !effects.is_empty();
        let most = self.preparing.len() + BEGUN_AT_ONCE;
        for effect in effects {
            if self.preparing.len() < most || !matches!(effect, Effect::Prepare(_)) {
                self.carry_out(effect, channel);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect, channel: Option<&Channel>) {
        match effect {
            Effect::Prepare(key) => self.prepare(key, channel),
            Effect::Refuse { key, lost } => self.refuse(key, lost),
            Effect::Stop(key) => {
                let notice = find_assignment(&self.desired, &key).and_then(stop_notice);
                if let Some(attempt) = self.attempts.get_mut(&key) {
                    attempt.stop(notice);
                }
            }
            Effect::Limit(key, limit_ms) => {
                if let Some(attempt) = self.attempts.get_mut(&key)
                    && let Err(error) = attempt.set_limit(limit_ms)
                {
                    tracing::error!(job = key.job, %error, "a limit cannot be set");
                }
            }
            Effect::Clean(key) => self.start_cleaning(key),
            Effect::Forget(key) => self.start_forgetting(key),
        }
    }

    /// Records that an attempt never ran here.
    fn refuse(&mut self, key: AttemptKey, lost: bool) {
        let Some(assignment) = find_assignment(&self.desired, &key) else { return };
        let root = &self.host.root;
        let mut attempt = Attempt::create(root, &key, assignment)
            .unwrap_or_else(|error| Attempt::without_record(root, &key, assignment, &error.to_string()));
        // A shim of it may still run.
        self.host.sharers.add(&attempt.dir, &attempt.record.devices);
        attempt.fail(if lost {
            job_failure(
                "attempt.unknown_outcome",
                "The worker lost its record of the job. The job was not started again.",
            )
        } else {
            job_failure("attempt.not_started", "The job was stopped before its start.")
        });
        self.reports.mark(&key);
        self.attempts.insert(key, attempt);
    }

    fn prepare(&mut self, key: AttemptKey, channel: Option<&Channel>) {
        let Some(assignment) = find_assignment(&self.desired, &key).cloned() else { return };
        let Some(spec) = assignment.spec.clone() else { return };
        let Some(lease) = self.renewals.lease_for_start(&assignment, boottime_ms()) else { return };
        let begun = Attempt::begin(&self.host.root, &key, &assignment)
            .and_then(|attempt| self.watch.add(&key, &attempt.dir).map(|()| attempt));
        let mut attempt = match begun {
            Ok(attempt) => attempt,
            Err(error) => {
                tracing::error!(job = key.job, %error, "an attempt cannot be recorded");
                self.fail_unrecorded(key, &assignment, &error.to_string());
                return;
            }
        };
        let with_users = self.attempts.values().filter_map(|a| a.record.uid);
        let taken: HashSet<u32> = with_users.chain(self.users_left.iter().copied()).collect();
        attempt.record.uid = self.host.sandbox.pick_user(&key.job, &taken);
        self.host.sharers.add(&attempt.dir, &attempt.record.devices);
        self.attempts.insert(key.clone(), attempt.clone());
        self.reports.mark_unknown(&key);
        self.busy.insert(key.clone());
        self.unrecorded.insert(key.clone());
        let cancelled = Arc::new(AtomicBool::new(false));
        self.preparing.insert(key, cancelled.clone());
        let task = PreparationTask { attempt, assignment, spec, lease, cancelled, channel: channel.cloned() };
        preparation::spawn(task, self.host.clone(), self.results.clone());
    }

    pub fn on_recorded(&mut self, key: AttemptKey, result: Result<(), (Box<Assignment>, String)>) {
        self.unrecorded.remove(&key);
        if let Err((assignment, why)) = result {
            self.busy.remove(&key);
            self.preparing.remove(&key);
            self.watch.remove(&key);
            self.fail_unrecorded(key, &assignment, &why);
        }
    }

    /// Fails an attempt whose record cannot be saved: nothing of it was started, and a full or broken disk would fail
    /// every further try.
    fn fail_unrecorded(&mut self, key: AttemptKey, assignment: &Assignment, why: &str) {
        let attempt = Attempt::without_record(&self.host.root, &key, assignment, why);
        self.reports.mark_unknown(&key);
        self.attempts.insert(key, attempt);
    }

    pub fn on_progress(&mut self, key: AttemptKey, text: String) {
        // The progress of a finished preparation is outdated.
        let Some(attempt) = self.attempts.get_mut(&key).filter(|_| self.preparing.contains_key(&key)) else {
            return;
        };
        if attempt.progress != text {
            attempt.progress = text;
            self.reports.mark(&key);
        }
    }

    pub fn on_prepared(&mut self, attempt: Attempt) {
        let key = attempt.key();
        self.busy.remove(&key);
        self.preparing.remove(&key);
        // The preparation was reported before; only a reported progress must be replaced. Each report costs the
        // portal a transaction.
        let had_progress = self.attempts.get(&key).is_some_and(|known| known.progress != attempt.progress);
        if had_progress || attempt.state() != AttemptState::Preparing {
            self.reports.mark(&key);
        }
        self.attempts.insert(key.clone(), attempt);
        self.refresh(&key);
        self.follow_logs();
    }

    pub fn on_shim_gone(&mut self, key: AttemptKey) {
        self.refresh(&key);
        if let Some(attempt) = self.attempts.get_mut(&key)
            && !matches!(attempt.state(), AttemptState::Ended(_))
        {
            attempt.adopt();
            if !matches!(attempt.state(), AttemptState::Ended(_)) {
                shim_wait::spawn_again(attempt.dir.clone(), key.clone(), self.results.clone());
            }
            self.reports.mark(&key);
        }
    }

    fn start_cleaning(&mut self, key: AttemptKey) {
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        attempt.cleaning = CleaningState::UnderWay;
        self.busy.insert(key.clone());
        // The follower sends the rest of the log.
        self.logs.wake(&key);
        let (mut attempt, host, results) = (attempt.clone(), self.host.clone(), self.results.clone());
        tokio::task::spawn_blocking(move || {
            let result = clean(&mut attempt, &host);
            let _ = results.send(StepResult::Cleaned(key, result));
        });
    }

    pub fn on_cleaned(&mut self, key: AttemptKey, result: Result<(), String>) {
        self.busy.remove(&key);
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        match result {
            Ok(()) => {
                self.reports.note_cleaned();
                attempt.cleaning = CleaningState::Done;
                attempt.record.clean = true;
                attempt.unclean = None;
            }
            Err(reason) => {
                tracing::warn!(job = key.job, reason, "a device is not proved clean");
                attempt.cleaning = CleaningState::UnderWay;
                attempt.unclean = Some(reason);
                self.clean_after.insert(key.clone(), Instant::now() + CLEAN_AGAIN);
            }
        }
        self.reports.mark(&key);
    }

    /// Starts the hand-overs that are due.
    pub fn hand_over_outputs(&mut self, outbox: &Outbox) {
        self.outputs.start_due(&self.attempts, &self.busy, &self.host.limits, outbox, &self.results);
    }

    pub fn on_outputs_handed_over(&mut self, key: &AttemptKey, over: bool, result: &Result<(), String>) {
        let idle = !self.busy.contains(key);
        let attempt = self.attempts.get_mut(key).filter(|_| idle);
        if self.outputs.finish(key, over, result, attempt, &self.results) {
            self.reports.mark(key);
        }
    }

    /// Removes the directory of an attempt beside the loop. The attempt stays in the table until then, so no other
    /// attempt gets its user or its place.
    fn start_forgetting(&mut self, key: AttemptKey) {
        // Decided again after the removal of the job's files.
        let removing = self.outputs.removing.contains(&key);
        let Some(attempt) = self.attempts.get(&key).filter(|_| !removing) else { return };
        let (dir, results) = (attempt.dir.clone(), self.results.clone());
        self.drop_reporting(&key);
        self.watch.remove(&key);
        self.busy.insert(key.clone());
        tokio::task::spawn_blocking(move || {
            let _ = results.send(StepResult::Forgotten(key, remove_tree(&dir)));
        });
    }

    pub fn on_forgotten(&mut self, key: &AttemptKey, result: io::Result<()>) {
        self.busy.remove(key);
        self.drop_reporting(key);
        let Some(attempt) = self.attempts.remove(key) else { return };
        self.host.sharers.remove(&attempt.dir);
        if let Err(error) = result
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %attempt.dir.display(), %error, "the directory of an attempt cannot be removed");
            self.users_left.extend(attempt.record.uid);
        }
    }

    fn drop_reporting(&mut self, key: &AttemptKey) {
        self.logs.remove(key);
        self.reports.remove(key);
        self.outputs.remove(key);
    }
}
