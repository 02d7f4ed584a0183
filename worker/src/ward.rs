//! What is wrong with boards, and what operators want done about it, kept over restarts of the daemon.
//!
//! A fault stays until a check has found the board fit; the portal acts once on each, by its serial. The
//! ward itself never calls NVML: what was found comes in as values. The functions beside it do what a task
//! or a clean proof needs, through `gpu`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use berth_proto::{BoardFacts, BoardFault, BoardHealth, BoardTask, Health, TaskDone, TaskKind};
use serde::{Deserialize, Serialize};

use crate::attempts::Device;
use crate::files::{find_json, put_json};
use crate::gpu::{Condition, Counts, Facts, GpuError, Gpus, complaints, is_given_back};
use crate::kernel_log::Raised;
use crate::sharing::Sharers;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Fault {
    serial: u64,
    code: String,
    detail: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Done {
    number: u64,
    good: bool,
    words: String,
}

/// What was seen of a board's counts, so that each thing is a fault once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    ecc_uncorrected: Option<u64>,
    replacement_pending: bool,
    replacement_failed: bool,
    recovery: u32,
}

impl Seen {
    fn of(counts: &Counts) -> Self {
        Self {
            ecc_uncorrected: counts.ecc_uncorrected,
            replacement_pending: counts.replacement_pending == Some(true),
            replacement_failed: counts.replacement_failed == Some(true),
            recovery: counts.recovery.unwrap_or(0),
        }
    }
}

/// What is kept of a board.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// The newest serial that was given.
    #[serde(default)]
    serial: u64,
    fault: Option<Fault>,
    done: Option<Done>,
    seen: Option<Seen>,
}

/// How far the kernel's log is known. Its records are counted anew when the host starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Mark {
    boot_id: String,
    /// The newest XID's record.
    seq: u64,
}

/// All that is kept.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Book {
    #[serde(default)]
    kernel_log: Option<Mark>,
    #[serde(flatten)]
    boards: BTreeMap<String, Kept>,
}

/// What became worse since the board was looked at last: a fault's code and sentence. `None` before: it was
/// never looked at, so what it has counted may be old, but what waits for a reset still waits.
fn worsened(before: Option<&Seen>, facts: &Facts, counts: &Counts) -> Option<(&'static str, String)> {
    let now = Seen::of(counts);
    let was = |of: fn(&Seen) -> bool| before.is_some_and(of);
    if (now.replacement_failed && !was(|b| b.replacement_failed))
        || (now.replacement_pending && !was(|b| b.replacement_pending))
    {
        return Some(("gpu.memory", complaints(facts, counts).join(" ")));
    }
    if now.recovery != 0 && before.is_none_or(|b| b.recovery == 0) {
        return Some(("gpu.recovery", complaints(facts, counts).join(" ")));
    }
    let (Some(new), Some(old)) = (now.ecc_uncorrected, before.and_then(|b| b.ecc_uncorrected)) else {
        return None;
    };
    // Fewer than before: the driver was loaded anew.
    let more = new.checked_sub(old).filter(|more| *more > 0)?;
    Some(("gpu.ecc", format!("ECC found {more} more memory errors that it could not correct.")))
}

/// The boards of this host, as far as something is the matter with them.
pub struct Ward {
    file: PathBuf,
    book: Book,
    /// The kernel's log was read since this daemon began.
    caught_up: bool,
    conditions: BTreeMap<String, Condition>,
    /// Boards that a task is at work on, with their newest serial when it began.
    busy: BTreeMap<String, u64>,
    /// What the portal was told in this session.
    told: Option<Health>,
}

impl Ward {
    /// Reads what is kept in a file.
    pub fn open(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            book: find_json(file).unwrap_or_default(),
            caught_up: false,
            conditions: BTreeMap::new(),
            busy: BTreeMap::new(),
            told: None,
        }
    }

    fn save(&self) {
        if let Err(error) = put_json(&self.file, &self.book, true) {
            tracing::error!(file = %self.file.display(), %error, "what is wrong with boards cannot be kept");
        }
    }

    /// Records a fault. Its serial is the time where that is newer, so that it grows even if the file is lost.
    pub fn fault(&mut self, gpu_uuid: &str, code: &str, detail: &str, now_micros: i64) {
        tracing::warn!(gpu_uuid, code, detail, "a board is not fit for work");
        let kept = self.book.boards.entry(gpu_uuid.to_owned()).or_default();
        kept.serial = u64::try_from(now_micros).unwrap_or(0).max(kept.serial.saturating_add(1));
        kept.fault = Some(Fault { serial: kept.serial, code: code.to_owned(), detail: detail.to_owned() });
        self.save();
    }

    /// Takes in the XIDs that the kernel's log tells of, and gives those back of which nobody has heard: they
    /// were raised when no daemon was there. What comes later NVML tells.
    pub fn catch_up(&mut self, raised: Vec<Raised>, boot_id: &str) -> Vec<Raised> {
        let known = self.book.kernel_log.clone();
        let here = known.as_ref().filter(|mark| mark.boot_id == boot_id);
        let newest = raised.iter().map(|r| r.seq).max().unwrap_or(0).max(here.map_or(0, |mark| mark.seq));
        // A daemon that kept no mark had heard them, if there was one.
        let heard = self.caught_up || (known.is_none() && !self.book.boards.is_empty());
        let missed = raised.into_iter().filter(|r| !heard && here.is_none_or(|mark| r.seq > mark.seq));
        let missed: Vec<Raised> = missed.collect();
        self.caught_up = true;
        let mark = Some(Mark { boot_id: boot_id.to_owned(), seq: newest });
        if mark != known {
            self.book.kernel_log = mark;
            self.save();
        }
        missed
    }

    /// Takes in how boards were found.
    pub fn looked(&mut self, found: Vec<(String, Condition)>, now_micros: i64) {
        for (uuid, condition) in found {
            if condition.silent.is_none() {
                let before = self.book.boards.get(&uuid).and_then(|kept| kept.seen.clone());
                let worse = worsened(before.as_ref(), &condition.facts, &condition.counts);
                let seen = Some(Seen::of(&condition.counts));
                if before != seen {
                    self.book.boards.entry(uuid.clone()).or_default().seen = seen;
                    self.save();
                }
                if let Some((code, detail)) = worse {
                    self.fault(&uuid, code, &detail, now_micros);
                }
            }
            self.conditions.insert(uuid, condition);
        }
    }

    /// The tasks to begin now, of those that are wanted: neither done nor under way.
    pub fn due(&mut self, wanted: &[BoardTask]) -> Vec<BoardTask> {
        let mut out: Vec<BoardTask> = Vec::new();
        for task in wanted {
            let kept = self.book.boards.get(&task.gpu_uuid);
            let done = kept.and_then(|kept| kept.done.as_ref()).map_or(0, |done| done.number);
            if done < task.number && !self.busy.contains_key(&task.gpu_uuid) {
                self.busy.insert(task.gpu_uuid.clone(), kept.map_or(0, |kept| kept.serial));
                out.push(task.clone());
            }
        }
        out
    }

    /// Records how a task went. A check that was passed ends the fault, unless that came meanwhile. How the board was
    /// before no longer counts: the portal is told of the task with how it is found next.
    pub fn done(&mut self, task: &BoardTask, result: Result<String, String>) {
        let known = self.busy.remove(&task.gpu_uuid).unwrap_or(0);
        let good = result.is_ok();
        let words = result.unwrap_or_else(|why| why);
        tracing::info!(gpu = task.gpu_uuid, number = task.number, good, words, "a task for a board is done");
        let kept = self.book.boards.entry(task.gpu_uuid.clone()).or_default();
        if good && task.kind() == TaskKind::Check {
            kept.fault = kept.fault.take().filter(|fault| fault.serial > known);
        }
        kept.done = Some(Done { number: task.number, good, words });
        self.conditions.remove(&task.gpu_uuid);
        self.save();
    }

    /// A session begins: the portal knows nothing yet.
    pub fn greet(&mut self) {
        self.told = None;
    }

    /// What the portal is to be told, if it does not know it.
    pub fn news(&mut self) -> Option<Health> {
        let boards = self.conditions.iter().map(|(uuid, condition)| {
            let kept = self.book.boards.get(uuid);
            BoardHealth {
                gpu_uuid: uuid.clone(),
                silent: condition.silent.clone(),
                fault: kept.and_then(|k| k.fault.as_ref()).map(|f| BoardFault {
                    serial: f.serial,
                    code: f.code.clone(),
                    detail: f.detail.clone(),
                }),
                done: kept.and_then(|k| k.done.as_ref()).map(|d| TaskDone {
                    number: d.number,
                    good: d.good,
                    words: d.words.clone(),
                }),
                facts: condition.silent.is_none().then(|| wire(condition)),
            }
        });
        let health = Health { boards: boards.collect() };
        if self.conditions.is_empty() || self.told.as_ref() == Some(&health) {
            return None;
        }
        self.told = Some(health.clone());
        Some(health)
    }
}

fn wire(condition: &Condition) -> BoardFacts {
    let (facts, counts) = (condition.facts.clone(), &condition.counts);
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
        ecc_corrected: counts.ecc_corrected,
        ecc_uncorrected: counts.ecc_uncorrected,
        rows_corrected: counts.rows_corrected,
        rows_uncorrected: counts.rows_uncorrected,
        replacement_pending: counts.replacement_pending,
        replacement_failed: counts.replacement_failed,
        recovery: counts.recovery,
    }
}

/// Carries out a task: what is to be known of it, or why it did not work. Blocking.
pub fn carry_out(gpus: &Gpus, task: &BoardTask) -> Result<String, String> {
    let switch = |on: bool| match gpus.set_mig(&task.gpu_uuid, on) {
        Ok(()) => Ok(format!("MIG mode is {}.", if on { "on" } else { "off" })),
        Err(GpuError::ResetRequired) => {
            Err("The mode changes when the board is reset; check it again after that.".to_owned())
        }
        Err(GpuError::InUse) => {
            Err("Something holds the board or an instance on it, so its mode stays.".to_owned())
        }
        Err(error) => Err(format!("The mode cannot be changed: {error}.")),
    };
    match task.kind() {
        TaskKind::Check => gpus.check(&task.gpu_uuid).map(|()| "The board is fit for work.".to_owned()),
        TaskKind::MigOn => switch(true),
        TaskKind::MigOff => switch(false),
        TaskKind::Unspecified => Err("This worker does not know how; it is too old.".to_owned()),
    }
}

/// The processes that are on a device of the attempt in `dir`, but for those of attempts with which it is shared.
pub fn left_on(gpus: &Gpus, device: &Device, sharers: &Sharers, dir: &Path) -> Result<Vec<u32>, String> {
    let look = || gpus.holders(&device.gpu_uuid, device.mig_uuid.as_deref());
    match device.share_milli {
        Some(_) => strangers(sharers, &device.gpu_uuid, dir, look),
        None => known(look()),
    }
}

/// A device that was never made holds nobody.
fn known<T>(found: Result<Vec<T>, GpuError>) -> Result<Vec<T>, String> {
    match found {
        Err(GpuError::NotFound(_)) => Ok(Vec::new()),
        found => found.map_err(|error| error.to_string()),
    }
}

/// Those that `look` finds on a shared board and that are of the attempt in `dir`, or nobody's.
fn strangers(
    sharers: &Sharers,
    gpu_uuid: &str,
    dir: &Path,
    look: impl Fn() -> Result<Vec<u32>, GpuError>,
) -> Result<Vec<u32>, String> {
    let find = || {
        let found = known(sharers.on_board(gpu_uuid, &look))?.into_iter();
        let strange = found.filter(|(_, of)| of.as_deref().is_none_or(|of| of == dir));
        Ok::<Vec<u32>, String>(strange.map(|(pid, _)| pid).collect())
    };
    let left = find()?;
    // A neighbour's process whose parents end while they are looked for seems to be nobody's. Not twice.
    if left.is_empty() { Ok(left) } else { find() }
}

/// Whether the memory of a whole board is given back, once nobody is on it. Why not, when it is not.
pub fn given_back(gpus: &Gpus, device: &Device) -> Result<(), String> {
    // What it had in an instance goes with the instance; what it had of a share cannot be told from others'.
    if device.instance.is_some() || device.share_milli.is_some() {
        return Ok(());
    }
    match gpus.used_mib(&device.gpu_uuid) {
        Ok(used) if is_given_back(used, device.idle_mib) => Ok(()),
        Ok(used) => Err(format!("{used} MiB are still in use on it, and no process is")),
        Err(GpuError::NotFound(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn counted(uncorrected: u64, pending: bool) -> Counts {
        Counts {
            ecc_uncorrected: Some(uncorrected),
            replacement_pending: Some(pending),
            recovery: Some(0),
            ..Counts::default()
        }
    }

    fn found(counts: Counts) -> Vec<(String, Condition)> {
        vec![("gpu".to_owned(), Condition { counts, ..Condition::default() })]
    }

    /// What the portal hears next.
    fn fault(ward: &mut Ward) -> Option<(u64, String)> {
        ward.greet();
        if ward.news().is_none() {
            ward.looked(found(counted(2, false)), 24);
        }
        ward.greet();
        let health = ward.news().unwrap();
        health.boards[0].fault.as_ref().map(|f| (f.serial, f.code.clone()))
    }

    #[test]
    fn who_is_a_stranger_on_a_shared_board_is_found_twice() {
        let (sharers, dir) = (Sharers::default(), tempfile::tempdir().unwrap());
        let this = std::process::id();
        let after = |answers: Vec<Result<Vec<u32>, GpuError>>| {
            let answers = RefCell::new(answers);
            let found = strangers(&sharers, "GPU-1", dir.path(), || answers.borrow_mut().remove(0));
            (found, answers.into_inner().len())
        };
        assert_eq!(after(vec![Ok(vec![])]), (Ok(vec![]), 0), "nobody is looked for once");
        assert_eq!(after(vec![Ok(vec![this]), Ok(vec![])]), (Ok(vec![]), 0), "it only seemed so");
        assert_eq!(after(vec![Ok(vec![this]), Ok(vec![this])]), (Ok(vec![this]), 0));
        let gone = Err(GpuError::NotFound("GPU-1".to_owned()));
        assert_eq!(after(vec![gone]), (Ok(vec![]), 0), "there is no such device");
        assert!(after(vec![Ok(vec![this]), Err(GpuError::Lost)]).0.is_err(), "nothing is proved");
    }

    #[test]
    fn what_became_worse_is_a_fault_once() {
        let facts = Facts::default();
        let worse = |before: Option<Counts>, now: Counts| {
            worsened(before.map(|b| Seen::of(&b)).as_ref(), &facts, &now).map(|(code, _)| code)
        };
        assert_eq!(worse(None, counted(7, false)), None, "what it has counted may be old");
        assert_eq!(worse(None, counted(7, true)), Some("gpu.memory"));
        assert_eq!(worse(Some(counted(7, true)), counted(7, true)), None);
        assert_eq!(worse(Some(counted(7, false)), counted(8, false)), Some("gpu.ecc"));
        assert_eq!(worse(Some(counted(7, false)), counted(0, false)), None, "the driver was loaded anew");
        assert_eq!(worse(Some(counted(7, false)), Counts::default()), None, "it tells nothing");
        let asks = Counts { recovery: Some(1), ..counted(7, false) };
        assert_eq!(worse(Some(counted(7, false)), asks.clone()), Some("gpu.recovery"));
        assert_eq!(worse(Some(asks.clone()), asks), None);
    }

    #[test]
    fn a_fault_stays_until_a_check_is_passed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("boards.json");
        let mut ward = Ward::open(&file);
        ward.looked(found(counted(0, false)), 5);
        assert_eq!(fault(&mut ward), None);
        assert!(ward.news().is_none(), "the portal knows it");
        ward.looked(found(counted(2, false)), 10);
        assert_eq!(fault(&mut ward), Some((10, "gpu.ecc".to_owned())));
        // A clock that went back does not make it an old one.
        ward.fault("gpu", "gpu.xid", "79", 3);
        let mut ward = Ward::open(&file);
        ward.looked(found(counted(2, false)), 20);
        assert_eq!(fault(&mut ward), Some((11, "gpu.xid".to_owned())), "it outlives the daemon");

        let task =
            |number, kind: TaskKind| BoardTask { gpu_uuid: "gpu".to_owned(), number, kind: kind.into() };
        let check = task(1, TaskKind::Check);
        assert_eq!(ward.due(std::slice::from_ref(&check)).len(), 1);
        assert!(ward.due(std::slice::from_ref(&check)).is_empty(), "under way");
        ward.done(&check, Err("a process is on it".to_owned()));
        ward.greet();
        assert!(ward.news().is_none(), "how it is now is not known yet");
        assert!(fault(&mut ward).is_some());
        assert!(ward.due(std::slice::from_ref(&check)).is_empty(), "it was done");
        let mode = task(2, TaskKind::MigOn);
        assert_eq!(ward.due(&[check, mode.clone()]), std::slice::from_ref(&mode));
        ward.done(&mode, Ok(String::new()));
        assert!(fault(&mut ward).is_some(), "a mode proves nothing");
        let meanwhile = task(3, TaskKind::Check);
        assert_eq!(ward.due(std::slice::from_ref(&meanwhile)).len(), 1);
        ward.fault("gpu", "gpu.xid", "48", 25);
        ward.done(&meanwhile, Ok("fit".to_owned()));
        assert_eq!(fault(&mut ward), Some((25, "gpu.xid".to_owned())), "the check knew nothing of it");
        let again = task(4, TaskKind::Check);
        assert_eq!(ward.due(std::slice::from_ref(&again)).len(), 1);
        ward.done(&again, Ok("fit".to_owned()));
        assert_eq!(fault(&mut ward), None);
        let mut ward = Ward::open(&file);
        assert!(ward.news().is_none(), "nobody has looked yet");
        ward.looked(found(counted(2, false)), 30);
        let done = ward.news().unwrap().boards[0].done.clone().unwrap();
        assert_eq!((done.number, done.good, done.words.as_str()), (4, true, "fit"));
    }

    #[test]
    fn an_xid_that_nobody_heard_is_heard_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("boards.json");
        let log = |seqs: &[u64]| -> Vec<Raised> {
            let line = |seq: &u64| format!("4,{seq},1,-;NVRM: Xid (PCI:0000:10:00): 79, it fell off");
            seqs.iter().filter_map(|seq| Raised::read(&line(seq))).collect()
        };
        let seqs = |raised: Vec<Raised>| raised.into_iter().map(|r| r.seq).collect::<Vec<_>>();
        let mut ward = Ward::open(&file);
        assert_eq!(seqs(ward.catch_up(log(&[5, 7]), "boot")), [5, 7], "since the host started");
        ward.looked(found(counted(0, false)), 1);
        assert!(ward.catch_up(log(&[8]), "boot").is_empty(), "NVML told it");
        let mut ward = Ward::open(&file);
        assert_eq!(seqs(ward.catch_up(log(&[5, 7, 8, 9]), "boot")), [9]);
        let mut ward = Ward::open(&file);
        assert!(ward.catch_up(log(&[5, 7, 8, 9]), "boot").is_empty());
        let mut ward = Ward::open(&file);
        assert_eq!(seqs(ward.catch_up(log(&[3]), "next boot")), [3], "records are counted anew");
        // The file of a daemon that kept no mark, and heard what there was.
        std::fs::write(&file, r#"{"gpu": {"serial": 4, "fault": null, "done": null, "seen": null}}"#)
            .unwrap();
        let mut ward = Ward::open(&file);
        assert!(ward.catch_up(log(&[3]), "boot").is_empty());
        let mut ward = Ward::open(&file);
        assert_eq!(seqs(ward.catch_up(log(&[3, 4]), "boot")), [4]);
        assert_eq!(ward.book.boards["gpu"].serial, 4, "what was kept is kept");
    }
}
