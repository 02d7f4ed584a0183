//! The boards of this host, read once a second: how they were found, so that a reading does not look for them
//! anew, and what was read last, as `/metrics` tells it.
//!
//! Blocking but for the text. Who may read that, `metrics` decides.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use berth_proto::exposition::{Device, Exposition, Family, add_device};
use berth_proto::{BoardSample, SliceSample};

use crate::attempts::Attempt;
use crate::gpu::{BoardInfo, BoardRead, GpuError, Gpus, Reading};

/// The boards are looked for again at least this often.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// And no more often than this, whatever seems to have changed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// What is older is not told.
const STALE: Duration = Duration::from_secs(10);

const ATTEMPTS: Family = Family {
    name: "berth_worker_attempts",
    kind: "gauge",
    help: "Attempts whose process runs on this host.",
};

/// How the boards were found.
#[derive(Default)]
struct Layout {
    boards: Vec<BoardInfo>,
    /// Of profiles, by model and id.
    names: HashMap<(String, u32), String>,
    found: Option<Instant>,
    changed: bool,
}

/// A board with what was read of it, or why nothing was.
pub struct Found {
    pub info: BoardInfo,
    pub read: Result<BoardRead, GpuError>,
}

impl Found {
    /// It had no answer in time, which says nothing about what is on it.
    pub fn is_late(&self) -> bool {
        self.read == Err(GpuError::Unresponsive)
    }
}

/// Who is on a board (no start) or a slice of it: the job, when it is one, and its organization.
type Owners = HashMap<(String, Option<u32>), (Option<String>, String)>;

struct Latest {
    at: Instant,
    boards: Vec<BoardSample>,
    slices: Vec<SliceSample>,
    owners: Owners,
    attempts: usize,
}

/// One for the daemon.
pub struct Telemetry {
    /// What this host is called in the portal.
    host: String,
    /// Somebody may ask at any time, so the boards are always read.
    pub served: bool,
    layout: Arc<Mutex<Layout>>,
    /// Looks for the boards.
    looking: Mutex<Option<JoinHandle<()>>>,
    latest: Mutex<Option<Latest>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Layout {
    fn knows(&self, uuid: &str) -> bool {
        let has = |b: &BoardInfo| b.slices.iter().any(|slice| slice.mig_uuid.as_deref() == Some(uuid));
        self.boards.iter().any(|b| b.uuid == uuid || has(b))
    }

    /// Whether the boards are to be looked for again.
    fn is_due(&self, needed: &[&str]) -> bool {
        let missed = self.changed || needed.iter().any(|uuid| !self.knows(uuid));
        let age = self.found.map(|found| found.elapsed());
        age.is_none_or(|age| age >= LOOK_EVERY || (missed && age >= LOOK_AGAIN))
    }
}

/// Looks for the boards, which takes as long as a board takes that does not answer.
fn look(gpus: &Gpus, layout: &Mutex<Layout>) {
    let boards = gpus.inventory().unwrap_or_default();
    let mut names = lock(layout).names.clone();
    for board in &boards {
        if board.slices.iter().all(|s| names.contains_key(&(board.name.clone(), s.profile_id))) {
            continue;
        }
        let found = gpus.profile_names(&board.uuid).unwrap_or_default();
        names.extend(found.into_iter().map(|(id, name)| ((board.name.clone(), id), name)));
    }
    let mut layout = lock(layout);
    // A driver that could not be asked is asked again soon, and so is a board that has never answered.
    layout.changed = boards.is_empty() || gpus.is_incomplete();
    layout.found = Some(Instant::now());
    layout.boards = boards;
    layout.names = names;
}

/// A reading as it is sent.
pub fn wire(r: Reading) -> berth_proto::Reading {
    berth_proto::Reading {
        utilization_percent: r.utilization_percent,
        memory_used_mib: r.memory_used_mib,
        memory_total_mib: r.memory_total_mib,
        power_watts: r.power_watts,
        temperature_celsius: r.temperature_celsius,
        sm_clock_mhz: r.sm_clock_mhz,
        memory_clock_mhz: r.memory_clock_mhz,
        energy_millijoules: r.energy_millijoules,
        engine_active: r.engine_active,
        throttle_reasons: r.throttle_reasons,
        pcie_received_kb_s: r.pcie_received_kb_s,
        pcie_sent_kb_s: r.pcie_sent_kb_s,
        nvlink_received_kib_s: r.nvlink_received_kib_s,
        nvlink_sent_kib_s: r.nvlink_sent_kib_s,
    }
}

fn owners(running: &[Attempt]) -> Owners {
    let mut owners = Owners::new();
    for attempt in running {
        for device in &attempt.record.devices {
            let place = (device.gpu_uuid.clone(), device.instance.map(|(_, start)| start));
            let owner = (Some(attempt.record.job.clone()), attempt.record.organization.clone());
            // Jobs that share a board are of one organization.
            owners.entry(place).and_modify(|known| known.0 = None).or_insert(owner);
        }
    }
    owners
}

impl Telemetry {
    pub fn new(host: &str, served: bool) -> Self {
        Self {
            host: host.to_owned(),
            served,
            layout: Arc::default(),
            looking: Mutex::default(),
            latest: Mutex::default(),
        }
    }

    /// Reads every board with its slices; `needed` are the devices that jobs are on.
    pub fn read(&self, gpus: &Arc<Gpus>, needed: &[&str]) -> Vec<Found> {
        let (first, due) = {
            let layout = lock(&self.layout);
            (layout.found.is_none(), layout.is_due(needed))
        };
        if first {
            look(gpus, &self.layout);
        } else if due {
            self.look_aside(gpus);
        }
        let boards = lock(&self.layout).boards.clone();
        let read = gpus.read_all(&boards);
        let found: Vec<Found> =
            boards.into_iter().zip(read).map(|(info, read)| Found { info, read }).collect();
        // One that was silent when it was found is looked for when it answers, not while it is silent.
        let changed = |f: &Found| match &f.read {
            Ok(read) => read.changed || f.info.silent.is_some(),
            Err(_) => f.info.silent.is_none(),
        };
        let changed = found.iter().any(changed);
        lock(&self.layout).changed |= changed;
        found
    }

    /// Looks for the boards beside the readings, so that a board that hangs holds up none of them.
    fn look_aside(&self, gpus: &Arc<Gpus>) {
        let mut looking = lock(&self.looking);
        if looking.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let (gpus, layout) = (gpus.clone(), self.layout.clone());
        let thread = std::thread::Builder::new().name("gpu layout".to_owned());
        match thread.spawn(move || look(&gpus, &layout)) {
            Ok(thread) => *looking = Some(thread),
            Err(error) => tracing::warn!(%error, "the boards are not looked for"),
        }
    }

    /// What was read as it is sent; kept for whoever asks on this host.
    pub fn keep(&self, found: &[Found], running: &[Attempt]) -> (Vec<BoardSample>, Vec<SliceSample>) {
        let layout = lock(&self.layout);
        let (mut boards, mut slices) = (Vec::new(), Vec::new());
        for Found { info, read } in found {
            let Ok(read) = read else { continue };
            boards.push(BoardSample {
                gpu_uuid: info.uuid.clone(),
                reading: Some(wire(read.board)),
                index: info.index,
                name: info.name.clone(),
            });
            slices.extend(read.slices.iter().map(|s| SliceSample {
                gpu_uuid: info.uuid.clone(),
                instance: s.slice.gi,
                profile_id: s.slice.profile_id,
                start: s.slice.start,
                profile:
                    layout.names.get(&(info.name.clone(), s.slice.profile_id)).cloned().unwrap_or_default(),
                reading: Some(wire(s.reading)),
            }));
        }
        drop(layout);
        let latest = Latest {
            at: Instant::now(),
            boards: boards.clone(),
            slices: slices.clone(),
            owners: owners(running),
            attempts: running.len(),
        };
        *lock(&self.latest) = Some(latest);
        (boards, slices)
    }

    /// The text of `/metrics`.
    pub fn text(&self) -> String {
        let mut out = Exposition::default();
        let latest = lock(&self.latest);
        let Some(latest) = latest.as_ref().filter(|latest| latest.at.elapsed() < STALE) else {
            return out.text();
        };
        out.add(ATTEMPTS, &[], latest.attempts as f64);
        for board in &latest.boards {
            let device = Device {
                gpu: board.index,
                uuid: &board.gpu_uuid,
                model: &board.name,
                host: &self.host,
                ..Device::default()
            };
            tell(&mut out, latest, device, None, board.reading.as_ref());
            for slice in latest.slices.iter().filter(|slice| slice.gpu_uuid == board.gpu_uuid) {
                let device = Device { instance: Some((slice.instance, &slice.profile)), ..device };
                tell(&mut out, latest, device, Some(slice.start), slice.reading.as_ref());
            }
        }
        out.text()
    }
}

fn tell(
    out: &mut Exposition,
    latest: &Latest,
    device: Device<'_>,
    start: Option<u32>,
    reading: Option<&berth_proto::Reading>,
) {
    let Some(reading) = reading else { return };
    let owner = latest.owners.get(&(device.uuid.to_owned(), start));
    let job = owner.and_then(|(job, _)| job.as_deref());
    let organization = owner.map(|(_, organization)| organization.as_str()).filter(|o| !o.is_empty());
    add_device(out, &Device { job, organization, ..device }, reading);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(utilization_percent: Option<f64>) -> Option<berth_proto::Reading> {
        Some(berth_proto::Reading {
            utilization_percent,
            memory_used_mib: Some(10.0),
            memory_total_mib: 100.0,
            power_watts: Some(70.0),
            ..berth_proto::Reading::default()
        })
    }

    fn telemetry(at: Instant) -> Telemetry {
        let telemetry = Telemetry::new("quay", true);
        let board = |n: u32, percent| BoardSample {
            gpu_uuid: format!("GPU-{n}"),
            reading: reading(percent),
            index: n,
            name: "NVIDIA H100".to_owned(),
        };
        let slice = SliceSample {
            gpu_uuid: "GPU-0".to_owned(),
            instance: 9,
            profile_id: 19,
            start: 6,
            profile: "1g.10gb".to_owned(),
            reading: reading(Some(50.0)),
        };
        let on = |uuid: &str, start: Option<u32>| (uuid.to_owned(), start);
        let owners = Owners::from([
            (on("GPU-0", Some(6)), (Some("job_1".to_owned()), "org_1".to_owned())),
            (on("GPU-1", None), (None, "org_2".to_owned())),
        ]);
        let boards = vec![board(0, None), board(1, Some(12.0))];
        *lock(&telemetry.latest) = Some(Latest { at, boards, slices: vec![slice], owners, attempts: 3 });
        telemetry
    }

    #[test]
    fn each_device_is_told_with_who_is_on_it() {
        let text = telemetry(Instant::now()).text();
        let row = |name: &str, what: &str| {
            let found = text.lines().find(|l| l.starts_with(&format!("{name}{{")) && l.contains(what));
            found.unwrap_or_else(|| panic!("{name} {what}: {text}")).to_owned()
        };
        let slice = row("DCGM_FI_DEV_FB_USED", "GPU_I_ID=\"9\"");
        assert!(
            slice.contains("job=\"job_1\",organization=\"org_1\"") && slice.contains("Hostname=\"quay\""),
            "{slice}"
        );
        let shared = row("DCGM_FI_DEV_GPU_UTIL", "gpu=\"1\"");
        assert!(shared.contains("organization=\"org_2\"") && !shared.contains("job="), "{shared}");
        assert!(!row("DCGM_FI_DEV_POWER_USAGE", "gpu=\"0\"").contains("organization"), "{text}");
        assert_eq!(text.matches("DCGM_FI_DEV_GPU_UTIL{").count(), 1, "none under MIG: {text}");
        assert!(text.contains("\nberth_worker_attempts 3\n"), "{text}");
    }

    #[test]
    fn what_is_stale_is_not_told() {
        let old = Instant::now().checked_sub(STALE).unwrap();
        assert_eq!(telemetry(old).text(), "");
        assert_eq!(Telemetry::new("quay", true).text(), "");
    }
}
