//! One reading of everything on the host, as the portal is told it. Blocking; decides nothing.

use std::collections::{HashMap, HashSet};

use berth_proto::{AttemptId, AttemptSample, Samples};

use crate::agent::Key;
use crate::attempts::{Attempt, Device};
use crate::daemon::Host;
use crate::evidence::Look;
use crate::gpu::{self, Presence};
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

/// Whether a process of the attempt computes on a device of its own; `None`: NVML cannot say.
fn is_busy(host: &Host, attempt: &Attempt, device: &Device) -> Option<bool> {
    let pids = host.gpus.holders(&device.gpu_uuid, device.mig_uuid.as_deref()).ok()?;
    if device.share_milli.is_none() || pids.is_empty() {
        return Some(!pids.is_empty());
    }
    // Others are on a shared board too.
    let own = shim::processes(&attempt.dir);
    Some(pids.iter().any(|pid| own.contains(pid)))
}

/// Asks every device of an attempt but those of boards that were late a moment ago, which would only be waited
/// for again.
fn look(host: &Host, attempt: &Attempt, late: &HashSet<&str>) -> Look {
    let devices = &attempt.record.devices;
    let ask = |d: &Device| match late.contains(d.gpu_uuid.as_str()) {
        true => Presence::Unknown,
        false => host.gpus.presence(&d.gpu_uuid, d.mig_uuid.as_deref()),
    };
    let found: Vec<Presence> = devices.iter().map(ask).collect();
    if found.contains(&Presence::Gone) {
        return Look::Lost;
    }
    if found.contains(&Presence::Unknown) {
        return Look::Unknown;
    }
    let mut busy = Some(false);
    for device in devices {
        busy = match (busy, is_busy(host, attempt, device)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        };
    }
    Look::Answered { busy }
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
    let mut attempts = Vec::new();
    let mut looks = Vec::new();
    for attempt in running {
        let found = look(host, attempt, &late);
        looks.push((attempt.key(), shim::boottime_ms(), found));
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
