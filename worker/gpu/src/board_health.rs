//! The health of boards: faults and tasks of operators, saved over restarts of the daemon.
//!
//! A fault stays until a passed check; the portal acts once on each serial. `BoardHealthStore` calls no NVML:
//! conditions come in as values. `board_tasks` does the work of tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use berth_proto::{BoardFacts, BoardFault, BoardHealth, BoardTask, Health, TaskKind, TaskResult};
use berth_system::files::{find_json, put_json};
use serde::{Deserialize, Serialize};

use super::board::MigProfile;
use super::condition::{BoardCondition, BoardDescription, ErrorCounts, complaints};
use super::fabric::{Fabric, FabricState};
use super::kernel_log::LoggedXid;

/// The result of a reset during which the daemon ended.
const UNKNOWN_RESET: &str =
    "The result of the reset is unknown, because the worker ended during it. Check the board.";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedFault {
    serial: u64,
    code: String,
    detail: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TaskOutcome {
    number: u64,
    good: bool,
    #[serde(rename = "words")]
    text: String,
}

/// The last known counts of a board: each change is a fault once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CountSnapshot {
    ecc_uncorrected: Option<u64>,
    replacement_pending: bool,
    replacement_failed: bool,
    recovery: u32,
}

impl CountSnapshot {
    fn from_counts(counts: &ErrorCounts) -> Self {
        Self {
            ecc_uncorrected: counts.ecc_uncorrected,
            replacement_pending: counts.replacement_pending == Some(true),
            replacement_failed: counts.replacement_failed == Some(true),
            recovery: counts.recovery.unwrap_or(0),
        }
    }
}

/// The saved state of a board.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct BoardState {
    /// The newest serial of a fault.
    #[serde(default)]
    serial: u64,
    fault: Option<SavedFault>,
    done: Option<TaskOutcome>,
    /// The number of the newest reset that was begun.
    #[serde(default)]
    begun_reset: u64,
    seen: Option<CountSnapshot>,
}

/// The read position in the kernel's log. A boot of the host starts the numbers anew.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct LogPosition {
    boot_id: String,
    /// The record of the newest XID.
    seq: u64,
}

/// The saved state of all boards.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SavedHealth {
    #[serde(default)]
    kernel_log: Option<LogPosition>,
    #[serde(flatten)]
    boards: BTreeMap<String, BoardState>,
}

/// The deterioration since the last snapshot: code and sentence of a fault. Without a snapshot before, the counts may
/// be old and are no fault, but a wait for a reset is one.
fn deterioration(
    before: Option<&CountSnapshot>,
    description: &BoardDescription,
    counts: &ErrorCounts,
) -> Option<(&'static str, String)> {
    let now = CountSnapshot::from_counts(counts);
    let was = |flag: fn(&CountSnapshot) -> bool| before.is_some_and(flag);
    if (now.replacement_failed && !was(|b| b.replacement_failed))
        || (now.replacement_pending && !was(|b| b.replacement_pending))
    {
        return Some(("gpu.memory", complaints(description, counts).join(" ")));
    }
    if now.recovery != 0 && before.is_none_or(|b| b.recovery == 0) {
        return Some(("gpu.recovery", complaints(description, counts).join(" ")));
    }
    let (Some(new), Some(old)) = (now.ecc_uncorrected, before.and_then(|b| b.ecc_uncorrected)) else {
        return None;
    };
    // A lower count means a reload of the driver.
    let more = new.checked_sub(old).filter(|more| *more > 0)?;
    Some(("gpu.ecc", format!("ECC found {more} more uncorrectable memory errors.")))
}

/// The health of the boards of this host.
pub struct BoardHealthStore {
    file: PathBuf,
    saved: SavedHealth,
    /// This daemon has read the kernel's log.
    log_read: bool,
    conditions: BTreeMap<String, BoardCondition>,
    /// Boards with a running task, with their newest serial at its begin.
    busy: BTreeMap<String, u64>,
    /// Boards with a running reset. NVML reports no XID of any board meanwhile.
    resetting: BTreeSet<String>,
    /// NVML was closed, or its events were not heard, since the last look at the kernel's log.
    nvml_was_closed: bool,
    /// The last report of this session.
    reported: Option<Health>,
    /// The tasks of the portal's last message.
    requested: Vec<BoardTask>,
}

impl BoardHealthStore {
    /// Reads the saved state. A reset that an earlier daemon began and did not end has an unknown result.
    pub fn open(file: &Path) -> Self {
        let mut store = Self {
            file: file.to_owned(),
            saved: find_json(file).unwrap_or_default(),
            log_read: false,
            conditions: BTreeMap::new(),
            busy: BTreeMap::new(),
            resetting: BTreeSet::new(),
            nvml_was_closed: false,
            reported: None,
            requested: Vec::new(),
        };
        let mut has_changed = false;
        for state in store.saved.boards.values_mut() {
            let number = state.begun_reset;
            if state.done.as_ref().map_or(0, |done| done.number) < number {
                state.done = Some(TaskOutcome { number, good: false, text: UNKNOWN_RESET.to_owned() });
                has_changed = true;
            }
        }
        if has_changed {
            store.save();
        }
        store
    }

    fn save(&self) {
        if let Err(error) = put_json(&self.file, &self.saved, true) {
            tracing::error!(file = %self.file.display(), %error, "the health of boards cannot be saved");
        }
    }

    /// Records a fault. Its serial is the time if that is higher, so serials grow even after a loss of the file.
    pub fn record_fault(&mut self, gpu_uuid: &str, code: &str, detail: &str, now_micros: i64) {
        tracing::warn!(gpu_uuid, code, detail, "a board has a fault");
        let state = self.saved.boards.entry(gpu_uuid.to_owned()).or_default();
        state.serial = u64::try_from(now_micros).unwrap_or(0).max(state.serial.saturating_add(1));
        state.fault =
            Some(SavedFault { serial: state.serial, code: code.to_owned(), detail: detail.to_owned() });
        self.save();
    }

    /// Selects the XIDs of the kernel's log from the time without a daemon, and moves the read position. NVML reports
    /// later ones.
    pub fn missed_xids(&mut self, logged: Vec<LoggedXid>, boot_id: &str) -> Vec<LoggedXid> {
        let known = self.saved.kernel_log.clone();
        let position = known.as_ref().filter(|position| position.boot_id == boot_id);
        let newest = logged.iter().map(|x| x.seq).max().unwrap_or(0).max(position.map_or(0, |p| p.seq));
        // An earlier daemon without a read position had received them from NVML.
        let received =
            (self.log_read && !self.nvml_was_closed) || (known.is_none() && !self.saved.boards.is_empty());
        let missed = logged.into_iter().filter(|x| !received && position.is_none_or(|p| x.seq > p.seq));
        let missed: Vec<LoggedXid> = missed.collect();
        self.log_read = true;
        self.nvml_was_closed = !self.resetting.is_empty();
        let position = Some(LogPosition { boot_id: boot_id.to_owned(), seq: newest });
        if position != known {
            self.saved.kernel_log = position;
            self.save();
        }
        missed
    }

    /// Notes that nothing listened to NVML for a time since the last look at the kernel's log.
    pub fn record_event_gap(&mut self) {
        self.nvml_was_closed = true;
    }

    /// Records the conditions of boards, and a fault for each deterioration.
    pub fn record_conditions(&mut self, conditions: Vec<(String, BoardCondition)>, now_micros: i64) {
        for (uuid, condition) in conditions {
            if condition.silent.is_none() {
                let before = self.saved.boards.get(&uuid).and_then(|state| state.seen.clone());
                let worse = deterioration(before.as_ref(), &condition.description, &condition.counts);
                let seen = Some(CountSnapshot::from_counts(&condition.counts));
                if before != seen {
                    self.saved.boards.entry(uuid.clone()).or_default().seen = seen;
                    self.save();
                }
                if let Some((code, detail)) = worse {
                    self.record_fault(&uuid, code, &detail, now_micros);
                }
            }
            self.conditions.insert(uuid, condition);
        }
    }

    /// True for a task that is not done, on a board without a running task.
    fn is_due(&self, task: &BoardTask) -> bool {
        let done = self.saved.boards.get(&task.gpu_uuid).and_then(|state| state.done.as_ref());
        done.map_or(0, |done| done.number) < task.number && !self.busy.contains_key(&task.gpu_uuid)
    }

    /// The requested tasks that are neither done nor running. They count as running from now on. The reset of a group
    /// starts on all of its boards or on none.
    pub fn start_tasks(&mut self, requested: &[BoardTask]) -> Vec<BoardTask> {
        self.requested = requested.to_vec();
        let due: Vec<&BoardTask> = requested.iter().filter(|task| self.is_due(task)).collect();
        let is_ready = |gpu_uuid: &String, task: &BoardTask| {
            due.iter().any(|other| other.gpu_uuid == *gpu_uuid && other.group == task.group)
        };
        let mut out: Vec<BoardTask> = Vec::new();
        for task in due.iter().copied() {
            let is_whole = task.group.iter().all(|gpu_uuid| is_ready(gpu_uuid, task));
            // A list may have two tasks of one board.
            if is_whole && !self.busy.contains_key(&task.gpu_uuid) {
                let serial = self.saved.boards.get(&task.gpu_uuid).map_or(0, |state| state.serial);
                self.busy.insert(task.gpu_uuid.clone(), serial);
                out.push(task.clone());
            }
        }
        let resets: Vec<&BoardTask> = out.iter().filter(|task| task.kind() == TaskKind::Reset).collect();
        for task in &resets {
            self.saved.boards.entry(task.gpu_uuid.clone()).or_default().begun_reset = task.number;
            self.resetting.insert(task.gpu_uuid.clone());
            self.nvml_was_closed = true;
        }
        if !resets.is_empty() {
            // Saved before the begin, so a later daemon does not reset the board again.
            self.save();
        }
        out
    }

    /// The tasks of the last call of [`Self::start_tasks`].
    pub fn requested(&self) -> &[BoardTask] {
        &self.requested
    }

    /// Records the result of a task. A passed check or reset ends the fault, unless that came meanwhile. The report of
    /// the task waits for the next condition of the board, because the present one is outdated.
    pub fn finish_task(&mut self, task: &BoardTask, result: Result<String, String>) {
        let known = self.busy.remove(&task.gpu_uuid).unwrap_or(0);
        self.resetting.remove(&task.gpu_uuid);
        let good = result.is_ok();
        let text = result.unwrap_or_else(|why| why);
        tracing::info!(gpu = task.gpu_uuid, number = task.number, good, text, "a task of a board has ended");
        let state = self.saved.boards.entry(task.gpu_uuid.clone()).or_default();
        if good && matches!(task.kind(), TaskKind::Check | TaskKind::Reset) {
            state.fault = state.fault.take().filter(|fault| fault.serial > known);
        }
        state.done = Some(TaskOutcome { number: task.number, good, text });
        self.conditions.remove(&task.gpu_uuid);
        self.save();
    }

    /// Starts a session: the portal has no report yet, and requests nothing until it sends its requests.
    pub fn start_session(&mut self) {
        self.reported = None;
        self.requested.clear();
    }

    /// The next report, if it differs from the last one of this session.
    pub fn next_report(&mut self) -> Option<Health> {
        let boards = self.conditions.iter().map(|(uuid, condition)| {
            let state = self.saved.boards.get(uuid);
            BoardHealth {
                gpu_uuid: uuid.clone(),
                silent: condition.silent.clone(),
                fault: state.and_then(|k| k.fault.as_ref()).map(|f| BoardFault {
                    serial: f.serial,
                    code: f.code.clone(),
                    detail: f.detail.clone(),
                }),
                task_result: state.and_then(|k| k.done.as_ref()).map(|d| TaskResult {
                    number: d.number,
                    succeeded: d.good,
                    message: d.text.clone(),
                }),
                facts: condition.silent.is_none().then(|| facts_message(condition)),
            }
        });
        let health = Health { boards: boards.collect() };
        if self.conditions.is_empty() || self.reported.as_ref() == Some(&health) {
            return None;
        }
        self.reported = Some(health.clone());
        Some(health)
    }
}

fn facts_message(condition: &BoardCondition) -> BoardFacts {
    let (facts, counts) = (condition.description.clone(), &condition.counts);
    BoardFacts {
        serial: facts.serial,
        vbios: facts.vbios,
        pci_bus_id: facts.pci_bus_id,
        compute_capability: facts.compute_capability,
        power_limit_watts: facts.power_limit_watts,
        ecc: facts.ecc,
        ecc_pending: facts.ecc_pending,
        mig: facts.mig,
        mig_pending: facts.mig_pending,
        nvlinks: facts.nvlinks,
        fabric: facts.fabric.map(fabric_message),
        reset_group: facts.reset_group,
        ecc_corrected: counts.ecc_corrected,
        ecc_uncorrected: counts.ecc_uncorrected,
        rows_corrected: counts.rows_corrected,
        rows_uncorrected: counts.rows_uncorrected,
        replacement_pending: counts.replacement_pending,
        replacement_failed: counts.replacement_failed,
        recovery: counts.recovery,
        mig_profiles: facts.mig_profiles.into_iter().map(profile_message).collect(),
    }
}

fn fabric_message(fabric: Fabric) -> berth_proto::Fabric {
    let state = match fabric.state {
        FabricState::NotStarted => berth_proto::FabricState::NotStarted,
        FabricState::InProgress => berth_proto::FabricState::InProgress,
        FabricState::Completed => berth_proto::FabricState::Completed,
    };
    berth_proto::Fabric {
        state: state.into(),
        status: fabric.status,
        clique: fabric.clique,
        cluster_uuid: fabric.cluster_uuid.to_vec(),
        health_mask: fabric.health_mask,
    }
}

fn profile_message(profile: MigProfile) -> berth_proto::MigProfile {
    let MigProfile { id, name, size, starts, memory_mib } = profile;
    berth_proto::MigProfile { id, name, size, starts, memory_mib }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(uncorrected: u64, pending: bool) -> ErrorCounts {
        ErrorCounts {
            ecc_uncorrected: Some(uncorrected),
            replacement_pending: Some(pending),
            recovery: Some(0),
            ..ErrorCounts::default()
        }
    }

    fn found(counts: ErrorCounts) -> Vec<(String, BoardCondition)> {
        vec![("gpu".to_owned(), BoardCondition { counts, ..BoardCondition::default() })]
    }

    /// The fault of the next report.
    fn fault(store: &mut BoardHealthStore) -> Option<(u64, String)> {
        store.start_session();
        if store.next_report().is_none() {
            store.record_conditions(found(counted(2, false)), 24);
        }
        store.start_session();
        let report = store.next_report().unwrap();
        report.boards[0].fault.as_ref().map(|f| (f.serial, f.code.clone()))
    }

    #[test]
    fn what_became_worse_is_a_fault_once() {
        let description = BoardDescription::default();
        let worse = |before: Option<ErrorCounts>, now: ErrorCounts| {
            deterioration(before.map(|b| CountSnapshot::from_counts(&b)).as_ref(), &description, &now)
                .map(|(code, _)| code)
        };
        assert_eq!(worse(None, counted(7, false)), None, "what it has counted may be old");
        assert_eq!(worse(None, counted(7, true)), Some("gpu.memory"));
        assert_eq!(worse(Some(counted(7, true)), counted(7, true)), None);
        assert_eq!(worse(Some(counted(7, false)), counted(8, false)), Some("gpu.ecc"));
        assert_eq!(worse(Some(counted(7, false)), counted(0, false)), None, "the driver was loaded anew");
        assert_eq!(worse(Some(counted(7, false)), ErrorCounts::default()), None, "it tells nothing");
        let asks = ErrorCounts { recovery: Some(1), ..counted(7, false) };
        assert_eq!(worse(Some(counted(7, false)), asks.clone()), Some("gpu.recovery"));
        assert_eq!(worse(Some(asks.clone()), asks), None);
    }

    #[test]
    fn a_fault_stays_until_a_check_is_passed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("boards.json");
        let mut store = BoardHealthStore::open(&file);
        store.record_conditions(found(counted(0, false)), 5);
        assert_eq!(fault(&mut store), None);
        assert!(store.next_report().is_none(), "the portal knows it");
        store.record_conditions(found(counted(2, false)), 10);
        assert_eq!(fault(&mut store), Some((10, "gpu.ecc".to_owned())));
        // A clock that went back does not lower the serial.
        store.record_fault("gpu", "gpu.xid", "79", 3);
        let mut store = BoardHealthStore::open(&file);
        store.record_conditions(found(counted(2, false)), 20);
        assert_eq!(fault(&mut store), Some((11, "gpu.xid".to_owned())), "it outlives the daemon");

        let task = |number, kind: TaskKind| BoardTask {
            gpu_uuid: "gpu".to_owned(),
            number,
            kind: kind.into(),
            group: Vec::new(),
        };
        let check = task(1, TaskKind::Check);
        assert_eq!(store.start_tasks(std::slice::from_ref(&check)).len(), 1);
        assert!(store.start_tasks(std::slice::from_ref(&check)).is_empty(), "under way");
        store.finish_task(&check, Err("a process is on it".to_owned()));
        store.start_session();
        assert!(store.next_report().is_none(), "how it is now is not known yet");
        assert!(fault(&mut store).is_some());
        assert!(store.start_tasks(std::slice::from_ref(&check)).is_empty(), "it was done");
        let mode = task(2, TaskKind::MigOn);
        assert_eq!(store.start_tasks(&[check, mode.clone()]), std::slice::from_ref(&mode));
        store.finish_task(&mode, Ok(String::new()));
        assert!(fault(&mut store).is_some(), "a mode proves nothing");
        let meanwhile = task(3, TaskKind::Check);
        assert_eq!(store.start_tasks(std::slice::from_ref(&meanwhile)).len(), 1);
        store.record_fault("gpu", "gpu.xid", "48", 25);
        store.finish_task(&meanwhile, Ok("fit".to_owned()));
        assert_eq!(fault(&mut store), Some((25, "gpu.xid".to_owned())), "the check knew nothing of it");
        let again = task(4, TaskKind::Check);
        assert_eq!(store.start_tasks(std::slice::from_ref(&again)).len(), 1);
        store.finish_task(&again, Ok("fit".to_owned()));
        assert_eq!(fault(&mut store), None);
        let mut store = BoardHealthStore::open(&file);
        assert!(store.next_report().is_none(), "nobody has looked yet");
        store.record_conditions(found(counted(2, false)), 30);
        let done = store.next_report().unwrap().boards[0].task_result.clone().unwrap();
        assert_eq!((done.number, done.succeeded, done.message.as_str()), (4, true, "fit"));
    }

    #[test]
    fn an_xid_without_a_daemon_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("boards.json");
        let log = |seqs: &[u64]| -> Vec<LoggedXid> {
            let line = |seq: &u64| format!("4,{seq},1,-;NVRM: Xid (PCI:0000:10:00): 79, it fell off");
            seqs.iter().filter_map(|seq| LoggedXid::parse(&line(seq))).collect()
        };
        let seqs = |logged: Vec<LoggedXid>| logged.into_iter().map(|r| r.seq).collect::<Vec<_>>();
        let mut store = BoardHealthStore::open(&file);
        assert_eq!(seqs(store.missed_xids(log(&[5, 7]), "boot")), [5, 7], "since the host started");
        store.record_conditions(found(counted(0, false)), 1);
        assert!(store.missed_xids(log(&[8]), "boot").is_empty(), "NVML told it");
        store.record_event_gap();
        assert_eq!(seqs(store.missed_xids(log(&[8, 9]), "boot")), [9], "nothing listened to NVML");
        assert!(store.missed_xids(log(&[10]), "boot").is_empty(), "NVML told it");
        let mut store = BoardHealthStore::open(&file);
        assert_eq!(seqs(store.missed_xids(log(&[5, 7, 8, 9, 10, 11]), "boot")), [11]);
        let mut store = BoardHealthStore::open(&file);
        assert!(store.missed_xids(log(&[5, 7, 8, 9, 10, 11]), "boot").is_empty());
        let mut store = BoardHealthStore::open(&file);
        assert_eq!(seqs(store.missed_xids(log(&[3]), "next boot")), [3], "records are counted anew");
        // The file of an earlier daemon without a read position, which received all XIDs from NVML.
        std::fs::write(&file, r#"{"gpu": {"serial": 4, "fault": null, "done": null, "seen": null}}"#)
            .unwrap();
        let mut store = BoardHealthStore::open(&file);
        assert!(store.missed_xids(log(&[3]), "boot").is_empty());
        let mut store = BoardHealthStore::open(&file);
        assert_eq!(seqs(store.missed_xids(log(&[3, 4]), "boot")), [4]);
        assert_eq!(store.saved.boards["gpu"].serial, 4, "what was kept is kept");
    }
}
