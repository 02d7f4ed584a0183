//! The monitoring of boards: conditions, events, the failure of attempts on a failed board, and tasks of operators.
//! `berth_gpu::board_health` and `berth_gpu::xids` decide the consequences.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_gpu::board_health::BoardHealthStore;
use berth_gpu::board_tasks::{TaskEnd, run_tasks, runs};
use berth_gpu::kernel_log::{KMSG, KernelLog, LogRead, LoggedXid};
use berth_gpu::xids::{XidVerdict, describe, verdict};
use berth_gpu::{BoardCondition, BoardEvent, BoardEventKind, event_gaps, simulation};
use berth_proto::{BoardTask, Health};
use berth_shim::model::{AttemptKey, job_failure};
use berth_system::clock::{boot_id, wall_micros};
use berth_system::sync::lock;
use tokio::time::Instant;

use super::reports::Reports;
use super::step_result::{BoardResult, ResultSender, StepResult};
use crate::attempt::{AttemptMap, AttemptState, Host};

/// The time between two reads of the conditions.
const READ_EVERY: Duration = Duration::from_secs(5);

pub(super) struct BoardMonitor {
    health: BoardHealthStore,
    read_after: Option<Instant>,
    /// A read of the conditions runs.
    reading: bool,
    /// Boards that were changed since the begin of the running read: their conditions in it may be outdated.
    changed: BTreeSet<String>,
    /// Attempts on a failed board with the description of the failure, until they are stopped.
    failed: BTreeMap<AttemptKey, String>,
    log: Arc<Mutex<KernelLog>>,
    /// The number of [`event_gaps`] at the last read of the log.
    gaps: Arc<AtomicU64>,
    /// XIDs of the log that wait for the first known board.
    logged: Option<LogRead>,
    /// Missed XIDs that wait for the address of their board.
    missed: Vec<LoggedXid>,
}

/// Receives events of boards for the life of the daemon.
pub(super) fn spawn_event_listener(host: &Host, results: ResultSender) {
    let gpus = host.gpus.clone();
    let listen = move || {
        berth_gpu::watch(&gpus, |event| results.send(StepResult::Board(BoardResult::Event(event))).is_ok());
    };
    if let Err(error) = std::thread::Builder::new().name("gpu events".to_owned()).spawn(listen) {
        tracing::error!(%error, "events of boards are unavailable");
    }
}

impl BoardMonitor {
    /// Reads the saved health, beside the directory of attempts.
    pub(super) fn open(host: &Host) -> Self {
        let log = match host.root.parent().filter(|_| host.simulated) {
            Some(data) => simulation::kernel_log(data),
            None => PathBuf::from(KMSG),
        };
        Self {
            health: BoardHealthStore::open(&host.root.with_file_name("boards.json")),
            read_after: None,
            reading: false,
            changed: BTreeSet::new(),
            failed: BTreeMap::new(),
            log: Arc::new(Mutex::new(KernelLog::new(log))),
            gaps: Arc::default(),
            logged: None,
            missed: Vec::new(),
        }
    }

    /// Starts a session: the next report and the next read are due.
    pub(super) fn start_session(&mut self) {
        self.health.start_session();
        self.read_after = None;
    }

    /// Reads the conditions and the kernel's log if that is due.
    pub(super) fn start_read_if_due(&mut self, host: &Arc<Host>, results: &ResultSender) {
        let now = Instant::now();
        if self.reading || self.read_after.is_some_and(|at| now < at) {
            return;
        }
        self.reading = true;
        self.read_after = Some(now + READ_EVERY);
        let (host, results, log) = (host.clone(), results.clone(), self.log.clone());
        let known_gaps = self.gaps.clone();
        tokio::task::spawn_blocking(move || {
            let logged = lock(&log).read_new().map(|xids| {
                let gaps = event_gaps(&host.gpus);
                let before = known_gaps.swap(gaps, Ordering::SeqCst);
                LogRead { xids, event_gap: gaps != before || gaps % 2 == 1 }
            });
            let conditions = host.gpus.conditions();
            let _ = results.send(StepResult::Board(BoardResult::Conditions(conditions, logged)));
        });
    }

    /// Ends a read. Removes the conditions that may be outdated.
    pub(super) fn finish_read(&mut self, conditions: &mut Vec<(String, BoardCondition)>) {
        self.reading = false;
        let changed = std::mem::take(&mut self.changed);
        conditions.retain(|(uuid, _)| !changed.contains(uuid));
    }

    /// Records conditions and new XIDs of the kernel's log. `true`: attempts may have been marked.
    pub(super) fn on_conditions(
        &mut self,
        conditions: Vec<(String, BoardCondition)>,
        logged: Option<LogRead>,
        attempts: &AttemptMap,
    ) -> bool {
        self.logged = match (self.logged.take(), logged) {
            (Some(before), Some(logged)) => Some(LogRead {
                xids: [before.xids, logged.xids].concat(),
                event_gap: before.event_gap || logged.event_gap,
            }),
            (before, logged) => before.or(logged),
        };
        let marked = self.handle_missed_xids(&conditions, attempts);
        self.health.record_conditions(conditions, wall_micros());
        marked
    }

    /// Handles XIDs from times without a daemon or a listener, as far as their boards are known.
    fn handle_missed_xids(&mut self, conditions: &[(String, BoardCondition)], attempts: &AttemptMap) -> bool {
        let mut marked = false;
        // The read position and the consequences are saved in the same step, so a daemon that ends misses no XID.
        if !conditions.is_empty()
            && let Some(logged) = self.logged.take()
        {
            if logged.event_gap {
                self.health.record_event_gap();
            }
            let missed = self.health.missed_xids(logged.xids, boot_id());
            self.missed.extend(missed);
        }
        for logged in std::mem::take(&mut self.missed) {
            let is_board = |(_, condition): &&(String, BoardCondition)| {
                condition.description.pci_bus_id.as_deref().is_some_and(|at| logged.is_from(at))
            };
            match conditions.iter().find(is_board) {
                Some((uuid, _)) => {
                    tracing::warn!(gpu = uuid, xid = logged.xid, "raised without a listener");
                    let (gpu_uuid, kind) = (uuid.clone(), BoardEventKind::Xid(logged.xid));
                    marked |= self.on_event(&BoardEvent { gpu_uuid, kind, start: None }, attempts);
                }
                None => self.missed.push(logged),
            }
        }
        marked
    }

    /// Records the fault of an event, and marks the attempts that it ends. `true`: attempts may have been marked.
    pub(super) fn on_event(&mut self, event: &BoardEvent, attempts: &AttemptMap) -> bool {
        let gpu = event.gpu_uuid.as_str();
        self.read_after = None;
        let BoardEventKind::Xid(xid) = event.kind else {
            // The next conditions have the number of errors.
            tracing::warn!(gpu, "ECC found an uncorrectable memory error");
            return false;
        };
        let (verdict, text) = (verdict(xid), describe(xid));
        tracing::warn!(gpu, xid, start = event.start, ?verdict, text);
        match verdict {
            XidVerdict::Application | XidVerdict::Noted => return false,
            XidVerdict::Slice => self.mark_failed(gpu, event.start, &text, attempts),
            XidVerdict::Board => self.mark_failed(gpu, None, &text, attempts),
        }
        self.health.record_fault(gpu, "gpu.xid", &text, wall_micros());
        true
    }

    /// Marks the attempts on a board, or on its slice with this start.
    fn mark_failed(&mut self, gpu_uuid: &str, start: Option<u32>, text: &str, attempts: &AttemptMap) {
        for (key, attempt) in attempts {
            let hit = attempt.record.devices.iter().any(|device| {
                let there = device.instance.is_none_or(|(_, at)| start.is_none_or(|start| start == at));
                device.gpu_uuid == gpu_uuid && there
            });
            if hit && !matches!(attempt.state(), AttemptState::Ended(_)) {
                self.failed.insert(key.clone(), text.to_owned());
            }
        }
    }

    /// Stops the marked attempts without another running step, and those that an earlier daemon had marked.
    pub(super) fn stop_failed(
        &mut self,
        attempts: &mut AttemptMap,
        busy: &HashSet<AttemptKey>,
        reports: &mut Reports,
    ) {
        for (key, attempt) in &mut *attempts {
            if busy.contains(key) {
                continue;
            }
            if let Some(text) = self.failed.remove(key) {
                attempt.refresh();
                if matches!(attempt.state(), AttemptState::Running { .. }) {
                    let detail = format!("The board of the job failed, and the job was stopped. {text}");
                    attempt.record.device_fault = Some(job_failure("device.failed", detail));
                }
            }
            let running = matches!(attempt.state(), AttemptState::Running { stop_asked: false, .. });
            if running && attempt.record.device_fault.is_some() {
                // The stop saves the record with the fault.
                attempt.stop(None);
                reports.mark(key);
            }
        }
        self.failed.retain(|key, _| attempts.contains_key(key));
    }

    /// Starts the requested tasks that are neither done nor running.
    pub(super) fn start_tasks(&mut self, requested: &[BoardTask], host: &Arc<Host>, results: &ResultSender) {
        for run in runs(self.health.start_tasks(requested)) {
            let (host, results) = (host.clone(), results.clone());
            tokio::task::spawn_blocking(move || {
                let ended = run_tasks(&host.gpus, run);
                let _ = results.send(StepResult::Board(BoardResult::TasksDone(ended)));
            });
        }
    }

    /// Records the results of a run. Returns the requested tasks: some may have waited for its end.
    pub(super) fn on_tasks_done(&mut self, ended: Vec<TaskEnd>) -> Vec<BoardTask> {
        for (task, result) in ended {
            self.health.finish_task(&task, result);
            if self.reading {
                self.changed.insert(task.gpu_uuid);
            }
        }
        self.read_after = None;
        self.health.requested().to_vec()
    }

    /// The next report of the boards' health, if the portal does not know it.
    pub(super) fn next_report(&mut self) -> Option<Health> {
        self.health.next_report()
    }
}
