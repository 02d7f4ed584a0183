//! The daemon's part in the health of boards: looks at them, hears their events, ends what ran on one that
//! failed, and does what operators want done.
//!
//! What follows from what is `ward`'s and `gpu::xids`' to say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_proto::{BoardTask, up};
use tokio::time::Instant;

use super::{Daemon, Done, Host};
use crate::agent::{Key, Seen};
use crate::gpu::xids::{Verdict, judge, words};
use crate::gpu::{self, Condition, Happening, What};
use crate::kernel_log::{KMSG, KernelLog, Raised};
use crate::samples::wall_micros;
use crate::shim::boot_id;
use crate::simulate;
use crate::ward::{self, Ward};

/// Between two looks at how boards are.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub(super) enum BoardNews {
    Happened(Happening),
    /// With the XIDs that the kernel's log tells of since the look before; `None`: it cannot be read.
    Looked(Vec<(String, Condition)>, Option<Vec<Raised>>),
    Done(BoardTask, Result<String, String>),
}

pub(super) struct Boards {
    ward: Ward,
    look_after: Option<Instant>,
    looking: bool,
    /// Boards that were changed since the look began that is under way: how it finds them may be how they were.
    changed: BTreeSet<String>,
    /// Attempts whose board failed, and why; each until it has been told to end.
    doomed: BTreeMap<Key, String>,
    log: Arc<Mutex<KernelLog>>,
    /// What of it waits until boards are known.
    read: Option<Vec<Raised>>,
    /// XIDs of which nobody has heard, until their board says where it is.
    missed: Vec<Raised>,
}

impl Boards {
    /// What is kept of boards lies beside the attempts.
    pub(super) fn open(host: &Host) -> Self {
        let log = match host.root.parent().filter(|_| host.simulated) {
            Some(data) => simulate::kernel_log(data),
            None => PathBuf::from(KMSG),
        };
        Self {
            ward: Ward::open(&host.root.with_file_name("boards.json")),
            look_after: None,
            looking: false,
            changed: BTreeSet::new(),
            doomed: BTreeMap::new(),
            log: Arc::new(Mutex::new(KernelLog::at(log))),
            read: None,
            missed: Vec::new(),
        }
    }

    /// A session begins.
    pub(super) fn greet(&mut self) {
        self.ward.greet();
        self.look_after = None;
    }
}

impl Daemon {
    /// Hears of events for as long as the daemon lives.
    pub(super) fn watch_boards(&self) {
        let (gpus, done) = (self.host.gpus.clone(), self.done.clone());
        let listen = move || {
            gpu::watch(&gpus, |happened| done.send(Done::Boards(BoardNews::Happened(happened))).is_ok());
        };
        if let Err(error) = std::thread::Builder::new().name("gpu events".to_owned()).spawn(listen) {
            tracing::error!(%error, "events of boards are not heard");
        }
    }

    /// Looks at the boards when that is due, and ends what ran on one that failed.
    pub(super) fn look_at_boards(&mut self) {
        self.end_doomed();
        let now = Instant::now();
        if self.boards.looking || self.boards.look_after.is_some_and(|at| now < at) {
            return;
        }
        self.boards.looking = true;
        self.boards.look_after = Some(now + LOOK_EVERY);
        let (host, done, log) = (self.host.clone(), self.done.clone(), self.boards.log.clone());
        tokio::task::spawn_blocking(move || {
            let raised = log.lock().unwrap_or_else(PoisonError::into_inner).news();
            let found = host.gpus.conditions();
            // The daemon ends only with the process.
            let _ = done.send(Done::Boards(BoardNews::Looked(found, raised)));
        });
    }

    pub(super) fn boards_news(&mut self, news: BoardNews) {
        match news {
            BoardNews::Happened(happened) => self.happened(&happened),
            BoardNews::Looked(mut found, raised) => {
                self.boards.looking = false;
                let changed = std::mem::take(&mut self.boards.changed);
                found.retain(|(uuid, _)| !changed.contains(uuid));
                self.hear_again(&found);
                self.boards.read = match (self.boards.read.take(), raised) {
                    (Some(read), Some(raised)) => Some([read, raised].concat()),
                    (read, raised) => read.or(raised),
                };
                self.hear_missed(&found);
                self.boards.ward.looked(found, wall_micros());
            }
            BoardNews::Done(task, result) => {
                self.boards.ward.done(&task, result);
                if self.boards.looking {
                    self.boards.changed.insert(task.gpu_uuid);
                }
                self.boards.look_after = None;
            }
        }
    }

    /// Hears of XIDs that were raised when no daemon was there, as far as it is known on which board.
    fn hear_missed(&mut self, found: &[(String, Condition)]) {
        // What is noted as heard is heard in the same step, so that a daemon that ends meanwhile misses nothing.
        if !found.is_empty()
            && let Some(read) = self.boards.read.take()
        {
            let missed = self.boards.ward.catch_up(read, boot_id());
            self.boards.missed.extend(missed);
        }
        for raised in std::mem::take(&mut self.boards.missed) {
            let here = |(_, condition): &&(String, Condition)| {
                condition.facts.pci_bus_id.as_deref().is_some_and(|at| raised.is_of(at))
            };
            match found.iter().find(here) {
                Some((uuid, _)) => {
                    tracing::warn!(gpu = uuid, xid = raised.xid, "raised while no daemon was there");
                    let (gpu_uuid, what) = (uuid.clone(), What::Xid(raised.xid));
                    self.happened(&Happening { gpu_uuid, what, start: None });
                }
                None => self.boards.missed.push(raised),
            }
        }
    }

    fn happened(&mut self, happened: &Happening) {
        let gpu = happened.gpu_uuid.as_str();
        self.boards.look_after = None;
        let What::Xid(xid) = happened.what else {
            // How many there were, the look says.
            tracing::warn!(gpu, "ECC found a memory error that it could not correct");
            return;
        };
        let (verdict, words) = (judge(xid), words(xid));
        tracing::warn!(gpu, xid, start = happened.start, ?verdict, words);
        match verdict {
            Verdict::Application | Verdict::Noted => return,
            Verdict::Slice => self.doom(gpu, happened.start, &words),
            Verdict::Board => self.doom(gpu, None, &words),
        }
        self.boards.ward.fault(gpu, "gpu.xid", &words, wall_micros());
        self.end_doomed();
    }

    /// Marks what is on a board, or on the slice of it that starts there.
    fn doom(&mut self, gpu_uuid: &str, start: Option<u32>, words: &str) {
        for (key, attempt) in &self.attempts {
            let hit = attempt.record.devices.iter().any(|device| {
                let there = device.instance.is_none_or(|(_, at)| start.is_none_or(|start| start == at));
                device.gpu_uuid == gpu_uuid && there
            });
            if hit && !matches!(attempt.seen(), Seen::Ended(_)) {
                self.boards.doomed.insert(key.clone(), words.to_owned());
            }
        }
    }

    /// Ends what is marked, as soon as no other step works on it; also what a former daemon had marked.
    fn end_doomed(&mut self) {
        for (key, attempt) in &mut self.attempts {
            if self.busy.contains(key) {
                continue;
            }
            if let Some(words) = self.boards.doomed.remove(key) {
                attempt.refresh();
                if matches!(attempt.seen(), Seen::Running { .. }) {
                    let detail = format!("The board failed under the job, so it was stopped. {words}");
                    attempt.record.device_fault = Some(("device.failed".to_owned(), detail));
                }
            }
            let running = matches!(attempt.seen(), Seen::Running { stop_asked: false, .. });
            if running && attempt.record.device_fault.is_some() {
                // It records the cause with it.
                attempt.stop(None);
                self.told.entry(key.clone()).or_default().dirty = true;
            }
        }
        self.boards.doomed.retain(|key, _| self.attempts.contains_key(key));
    }

    /// Begins what operators want done and nobody is at.
    pub(super) fn begin_tasks(&mut self, wanted: &[BoardTask]) {
        for task in self.boards.ward.due(wanted) {
            let (host, done) = (self.host.clone(), self.done.clone());
            tokio::task::spawn_blocking(move || {
                let result = ward::carry_out(&host.gpus, &task);
                let _ = done.send(Done::Boards(BoardNews::Done(task, result)));
            });
        }
    }

    /// Says how the boards are, when the portal does not know it.
    pub(super) fn tell_health(&mut self) {
        if self.outbox.is_some()
            && let Some(health) = self.boards.ward.news()
        {
            self.say(up::What::Health(health));
        }
    }
}
