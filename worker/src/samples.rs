//! One reading of everything on the host, as the portal is told it. Blocking; decides nothing.

use std::collections::{HashMap, HashSet};

use berth_proto::{AttemptId, AttemptSample, Samples};

use crate::agent::Key;
use crate::attempts::{Attempt, Device};
use crate::daemon::Host;
use crate::evidence::Look;
use crate::gpu::{self, Gpus, Presence};
use crate::shim;
use crate::telemetry::{Found, wire};

/// What was read.
pub struct Sampled {
    /// For the portal.
    pub samples: Samples,
    /// What was found of each attempt's devices, and when, in milliseconds of the boot clock.
    pub looks: Vec<(Key, i64, Look)>,
}

/// The wall clock, for the time of a reading, in microseconds.
#[expect(clippy::disallowed_methods, reason = "readings carry the host's time")]
pub(crate) fn wall_micros() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// What NVML says of a device.
#[derive(Clone)]
struct Answer {
    presence: Presence,
    /// The compute processes on it; `None`: NVML cannot say.
    pids: Option<Vec<u32>>,
    /// When it was asked, in milliseconds of the boot clock.
    at_ms: i64,
}

/// The answers of one reading: a device is asked once, however many attempts share it.
struct Answers<'a> {
    gpus: &'a Gpus,
    /// Boards that were late a moment ago, which would only be waited for again.
    late: &'a HashSet<&'a str>,
    given: HashMap<String, Answer>,
}

impl Answers<'_> {
    fn of(&mut self, device: &Device) -> Answer {
        if let Some(known) = self.given.get(device.visible()) {
            return known.clone();
        }
        let (gpu, mig) = (device.gpu_uuid.as_str(), device.mig_uuid.as_deref());
        let presence = if self.late.contains(gpu) { Presence::Unknown } else { self.gpus.presence(gpu, mig) };
        let pids = (presence == Presence::There).then(|| self.gpus.holders(gpu, mig).ok()).flatten();
        let answer = Answer { presence, pids, at_ms: shim::boottime_ms() };
        self.given.insert(device.visible().to_owned(), answer.clone());
        answer
    }
}

/// Whether a process of the attempt computes on a device of its own, on which these are; `None`: NVML cannot say.
fn is_busy(attempt: &Attempt, device: &Device, pids: Option<&[u32]>) -> Option<bool> {
    let pids = pids?;
    if device.share_milli.is_none() || pids.is_empty() {
        return Some(!pids.is_empty());
    }
    // Others are on a shared board too.
    Some(!shim::among(pids, &attempt.dir).is_empty())
}

/// What is found of all devices of an attempt, and when.
fn look(attempt: &Attempt, answers: &mut Answers<'_>) -> (i64, Look) {
    let devices = attempt.record.devices.iter();
    let found: Vec<(&Device, Answer)> = devices.map(|device| (device, answers.of(device))).collect();
    let at_ms = found.iter().map(|(_, answer)| answer.at_ms).max().unwrap_or_else(shim::boottime_ms);
    let is_any = |presence: Presence| found.iter().any(|(_, answer)| answer.presence == presence);
    if is_any(Presence::Gone) {
        return (at_ms, Look::Lost);
    }
    if is_any(Presence::Unknown) {
        return (at_ms, Look::Unknown);
    }
    let mut busy = Some(false);
    for (device, answer) in &found {
        busy = match (busy, is_busy(attempt, device, answer.pids.as_deref())) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        };
    }
    (at_ms, Look::Answered { busy })
}

/// Reads every board, and every device of what runs. What cannot be read is left out.
pub fn sample(host: &Host, running: &[Attempt]) -> Sampled {
    let needed: Vec<&str> =
        running.iter().flat_map(|attempt| attempt.record.devices.iter().map(Device::visible)).collect();
    let found = host.telemetry.read(&host.gpus, &needed);
    let late: HashSet<&str> =
        found.iter().filter(|board| board.is_late()).map(|board| board.info.uuid.as_str()).collect();
    let mut read: HashMap<&str, gpu::Reading> = HashMap::new();
    for Found { info, read: board } in &found {
        let Ok(board) = board else { continue };
        read.insert(&info.uuid, board.board);
        let slices = board.slices.iter();
        read.extend(slices.filter_map(|s| Some((s.slice.mig_uuid.as_deref()?, s.reading))));
    }
    let mut answers = Answers { gpus: &host.gpus, late: &late, given: HashMap::new() };
    let mut attempts = Vec::new();
    let mut looks = Vec::new();
    for attempt in running {
        let (at_ms, found) = look(attempt, &mut answers);
        looks.push((attempt.key(), at_ms, found));
        for (device, d) in (0..).zip(&attempt.record.devices) {
            // One that was made a moment ago is not among the boards as they were found.
            let reading = read.get(d.visible()).copied();
            let reading = match reading {
                None if !late.contains(d.gpu_uuid.as_str()) => {
                    host.gpus.read(&d.gpu_uuid, d.mig_uuid.as_deref()).ok()
                }
                found => found,
            };
            attempts.extend(reading.map(|reading| AttemptSample {
                attempt: Some(AttemptId::new(&attempt.record.job, attempt.record.number)),
                rank: 0,
                device,
                reading: Some(wire(reading)),
            }));
        }
    }
    let (boards, slices) = host.telemetry.keep(&found, running);
    Sampled { samples: Samples { at_micros: wall_micros(), boards, attempts, slices }, looks }
}
