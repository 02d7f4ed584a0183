//! The last inventory of the boards, so a reading needs no new one; and the last readings, as the text of `/metrics`.
//! Blocking, except for the text.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use berth_contract::exposition::{Exposition, Family};
use berth_gpu::{BoardInfo, BoardSnapshot, GpuError, Gpus, Reading};
use berth_job_files::cache::{FileCache, add_cache};
use berth_proto::device_metrics::{Device, add_device};
use berth_proto::{BoardSample, SliceSample};
use berth_system::sync::lock;

use crate::attempt::Attempt;

/// The longest time between two inventories.
const INVENTORY_EVERY: Duration = Duration::from_secs(60);
/// The shortest time between two inventories, after a change.
const INVENTORY_AFTER_CHANGE: Duration = Duration::from_secs(5);
/// The age from which readings are left out.
const STALE: Duration = Duration::from_secs(10);

const ATTEMPTS: Family =
    Family { name: "berth_worker_attempts", kind: "gauge", help: "Running attempts on this host." };

/// The last inventory.
#[derive(Default)]
struct BoardLayout {
    boards: Vec<BoardInfo>,
    /// The names of profiles, by model and id.
    names: HashMap<(String, u32), String>,
    found: Option<Instant>,
    changed: bool,
}

/// The reading of one board.
pub struct BoardReading {
    pub info: BoardInfo,
    pub read: Result<BoardSnapshot, GpuError>,
}

impl BoardReading {
    /// The board did not answer in time, which proves nothing about its devices.
    pub fn is_late(&self) -> bool {
        self.read == Err(GpuError::Unresponsive)
    }
}

/// The jobs on boards (no start) and slices, with their organizations. The job is absent if several share the board.
type DeviceOwners = HashMap<(String, Option<u32>), (Option<String>, String)>;

struct LatestReadings {
    at: Instant,
    boards: Vec<BoardSample>,
    slices: Vec<SliceSample>,
    owners: DeviceOwners,
    attempts: usize,
}

/// The telemetry of this host.
pub struct Telemetry {
    /// The name of the node.
    host: String,
    /// `/metrics` is served, so the boards are always read.
    pub served: bool,
    layout: Arc<Mutex<BoardLayout>>,
    cache: Option<Arc<FileCache>>,
    /// The thread of a running inventory.
    inventory: Mutex<Option<JoinHandle<()>>>,
    latest: Mutex<Option<LatestReadings>>,
}

impl BoardLayout {
    fn knows(&self, uuid: &str) -> bool {
        let has = |b: &BoardInfo| b.slices.iter().any(|slice| slice.mig_uuid.as_deref() == Some(uuid));
        self.boards.iter().any(|b| b.uuid == uuid || has(b))
    }

    /// True if an inventory is due.
    fn is_due(&self, needed: &[&str]) -> bool {
        let missed = self.changed || needed.iter().any(|uuid| !self.knows(uuid));
        let age = self.found.map(|found| found.elapsed());
        age.is_none_or(|age| age >= INVENTORY_EVERY || (missed && age >= INVENTORY_AFTER_CHANGE))
    }
}

/// Takes an inventory, which waits for boards that do not answer.
fn take_inventory(gpus: &Gpus, layout: &Mutex<BoardLayout>) {
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
    // An inventory without an answer, or with boards that have never answered, is repeated soon.
    layout.changed = boards.is_empty() || gpus.is_incomplete();
    layout.found = Some(Instant::now());
    layout.boards = boards;
    layout.names = names;
}

/// A reading as a message.
pub(super) fn reading_message(r: Reading) -> berth_proto::Reading {
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

fn device_owners(running: &[Attempt]) -> DeviceOwners {
    let mut owners = DeviceOwners::new();
    for attempt in running {
        for device in &attempt.record.devices {
            let place = (device.gpu_uuid.clone(), device.instance.map(|(_, start)| start));
            let owner = (Some(attempt.record.job.clone()), attempt.record.organization.clone());
            // Jobs on a shared board have the same organization.
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
            cache: None,
            inventory: Mutex::default(),
            latest: Mutex::default(),
        }
    }

    /// Shows the cache of the host in `/metrics`.
    #[must_use]
    pub fn with_cache(self, cache: Option<Arc<FileCache>>) -> Self {
        Self { cache, ..self }
    }

    /// Reads every board with its slices. `needed` are the devices of jobs.
    pub fn read(&self, gpus: &Arc<Gpus>, needed: &[&str]) -> Vec<BoardReading> {
        let (first, due) = {
            let layout = lock(&self.layout);
            (layout.found.is_none(), layout.is_due(needed))
        };
        if first {
            take_inventory(gpus, &self.layout);
        } else if due {
            self.start_inventory(gpus);
        }
        let boards = lock(&self.layout).boards.clone();
        let snapshots = gpus.snapshots(&boards);
        let readings: Vec<BoardReading> =
            boards.into_iter().zip(snapshots).map(|(info, read)| BoardReading { info, read }).collect();
        // An answer of a silent board is a change, and so is the silence of another one.
        let changed = |reading: &BoardReading| match &reading.read {
            Ok(read) => read.changed || reading.info.silent.is_some(),
            Err(_) => reading.info.silent.is_none(),
        };
        let changed = readings.iter().any(changed);
        lock(&self.layout).changed |= changed;
        readings
    }

    /// Takes an inventory in a thread of its own, so a hanging board delays no reading.
    fn start_inventory(&self, gpus: &Arc<Gpus>) {
        let mut inventory = lock(&self.inventory);
        if inventory.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let (gpus, layout) = (gpus.clone(), self.layout.clone());
        let thread = std::thread::Builder::new().name("gpu layout".to_owned());
        match thread.spawn(move || take_inventory(&gpus, &layout)) {
            Ok(thread) => *inventory = Some(thread),
            Err(error) => tracing::warn!(%error, "the boards cannot be listed"),
        }
    }

    /// Records readings for `/metrics`, and returns them as messages.
    pub fn record(
        &self,
        readings: &[BoardReading],
        running: &[Attempt],
    ) -> (Vec<BoardSample>, Vec<SliceSample>) {
        let layout = lock(&self.layout);
        let (mut boards, mut slices) = (Vec::new(), Vec::new());
        for BoardReading { info, read } in readings {
            let Ok(read) = read else { continue };
            boards.push(BoardSample {
                gpu_uuid: info.uuid.clone(),
                reading: Some(reading_message(read.board)),
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
                reading: Some(reading_message(s.reading)),
            }));
        }
        drop(layout);
        let latest = LatestReadings {
            at: Instant::now(),
            boards: boards.clone(),
            slices: slices.clone(),
            owners: device_owners(running),
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
        if let Some(cache) = &self.cache {
            add_cache(&mut out, cache.totals());
        }
        for board in &latest.boards {
            let device = Device {
                gpu: board.index,
                uuid: &board.gpu_uuid,
                model: &board.name,
                host: &self.host,
                ..Device::default()
            };
            add_reading(&mut out, latest, device, None, board.reading.as_ref());
            for slice in latest.slices.iter().filter(|slice| slice.gpu_uuid == board.gpu_uuid) {
                let device = Device { instance: Some((slice.instance, &slice.profile)), ..device };
                add_reading(&mut out, latest, device, Some(slice.start), slice.reading.as_ref());
            }
        }
        out.text()
    }
}

/// Adds the reading of a device with its owner.
fn add_reading(
    out: &mut Exposition,
    latest: &LatestReadings,
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
        let owners = DeviceOwners::from([
            (on("GPU-0", Some(6)), (Some("job_1".to_owned()), "org_1".to_owned())),
            (on("GPU-1", None), (None, "org_2".to_owned())),
        ]);
        let boards = vec![board(0, None), board(1, Some(12.0))];
        *lock(&telemetry.latest) =
            Some(LatestReadings { at, boards, slices: vec![slice], owners, attempts: 3 });
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
