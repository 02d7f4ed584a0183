//! One sample of the host: readings of all boards and of the devices of all attempts. Blocking.

use std::collections::{HashMap, HashSet};

use berth_exec::attempt_processes;
use berth_gpu::{Gpus, Presence};
use berth_proto::{AttemptSample, Samples};
use berth_shim::model::AttemptKey;
use berth_system::clock::{boottime_ms, wall_micros};

use super::host_telemetry::{BoardReading, Telemetry, reading_message};
use crate::attempt::{Attempt, DeviceObservation, Host};
use crate::devices::AttemptDevice;

/// A sample of the host.
pub struct HostSample {
    /// The readings for the portal.
    pub samples: Samples,
    /// An observation of each attempt's devices, with its time in milliseconds of the boot clock.
    pub observations: Vec<(AttemptKey, i64, DeviceObservation)>,
}

/// The answer of NVML for a device.
#[derive(Clone)]
struct DeviceAnswer {
    presence: Presence,
    /// The compute processes on it. `None`: NVML cannot list them.
    pids: Option<Vec<u32>>,
    /// The time, in milliseconds of the boot clock.
    at_ms: i64,
}

/// The answers of one sample. A device is queried once for all attempts on it.
struct DeviceAnswers<'a> {
    gpus: &'a Gpus,
    /// Boards that did not answer a moment ago. They are not queried again.
    late: &'a HashSet<&'a str>,
    known: HashMap<String, DeviceAnswer>,
}

impl DeviceAnswers<'_> {
    fn get(&mut self, device: &AttemptDevice) -> DeviceAnswer {
        let Some(name) = device.visible_name() else {
            return DeviceAnswer { presence: Presence::Unknown, pids: None, at_ms: boottime_ms() };
        };
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let (gpu, mig) = (device.gpu_uuid.as_str(), device.mig_uuid.as_deref());
        let presence = if self.late.contains(gpu) { Presence::Unknown } else { self.gpus.presence(gpu, mig) };
        let pids = (presence == Presence::There).then(|| self.gpus.holders(gpu, mig).ok()).flatten();
        let answer = DeviceAnswer { presence, pids, at_ms: boottime_ms() };
        self.known.insert(name.to_owned(), answer.clone());
        answer
    }
}

/// True if a process of the attempt computes on its device with these processes. `None`: NVML cannot list them.
fn is_busy(attempt: &Attempt, device: &AttemptDevice, pids: Option<&[u32]>) -> Option<bool> {
    let pids = pids?;
    if device.share_milli.is_none() || pids.is_empty() {
        return Some(!pids.is_empty());
    }
    // A shared board has processes of other attempts too.
    Some(!attempt_processes::among(pids, &attempt.dir).is_empty())
}

/// An observation of all devices of an attempt, with its time.
fn observe(attempt: &Attempt, answers: &mut DeviceAnswers<'_>) -> (i64, DeviceObservation) {
    let devices = attempt.record.devices.iter();
    let found: Vec<(&AttemptDevice, DeviceAnswer)> =
        devices.map(|device| (device, answers.get(device))).collect();
    let at_ms = found.iter().map(|(_, answer)| answer.at_ms).max().unwrap_or_else(boottime_ms);
    let is_any = |presence: Presence| found.iter().any(|(_, answer)| answer.presence == presence);
    if is_any(Presence::Gone) {
        return (at_ms, DeviceObservation::Lost);
    }
    if is_any(Presence::Unknown) {
        return (at_ms, DeviceObservation::Unknown);
    }
    let mut busy = Some(false);
    for (device, answer) in &found {
        busy = match (busy, is_busy(attempt, device, answer.pids.as_deref())) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        };
    }
    (at_ms, DeviceObservation::Answered { busy })
}

/// Reads every board, and every device of running attempts. Unreadable devices are left out.
pub fn sample(host: &Host, telemetry: &Telemetry, running: &[Attempt]) -> HostSample {
    let devices = running.iter().flat_map(|attempt| &attempt.record.devices);
    let needed: Vec<&str> = devices.filter_map(AttemptDevice::visible_name).collect();
    let readings = telemetry.read(&host.gpus, &needed);
    let late: HashSet<&str> =
        readings.iter().filter(|board| board.is_late()).map(|board| board.info.uuid.as_str()).collect();
    let mut read: HashMap<&str, berth_gpu::Reading> = HashMap::new();
    for BoardReading { info, read: board } in &readings {
        let Ok(board) = board else { continue };
        read.insert(&info.uuid, board.board);
        let slices = board.slices.iter();
        read.extend(slices.filter_map(|s| Some((s.slice.mig_uuid.as_deref()?, s.reading))));
    }
    let mut answers = DeviceAnswers { gpus: &host.gpus, late: &late, known: HashMap::new() };
    let mut attempts = Vec::new();
    let mut observations = Vec::new();
    for attempt in running {
        let (at_ms, observation) = observe(attempt, &mut answers);
        observations.push((attempt.key(), at_ms, observation));
        for (device, d) in (0..).zip(&attempt.record.devices) {
            // A new instance is not in the inventory yet.
            let Some(name) = d.visible_name() else { continue };
            let reading = read.get(name).copied();
            let reading = match reading {
                None if !late.contains(d.gpu_uuid.as_str()) => {
                    host.gpus.read(&d.gpu_uuid, d.mig_uuid.as_deref()).ok()
                }
                found => found,
            };
            attempts.extend(reading.map(|reading| AttemptSample {
                attempt: Some(attempt.key().id()),
                rank: 0,
                device,
                reading: Some(reading_message(reading)),
            }));
        }
    }
    let (boards, slices) = telemetry.record(&readings, running);
    HostSample { samples: Samples { at_micros: wall_micros(), boards, attempts, slices }, observations }
}
