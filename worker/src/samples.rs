//! One reading of everything on the host, as the portal is told it. Blocking; decides nothing.

use berth_proto::{AttemptId, AttemptSample, BoardSample, Reading, Samples};

use crate::agent::Key;
use crate::attempts::{Attempt, Device};
use crate::daemon::Host;
use crate::evidence::Look;
use crate::gpu::{self, Presence};
use crate::shim;

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

/// Asks every device of an attempt.
fn look(host: &Host, attempt: &Attempt) -> Look {
    let devices = &attempt.record.devices;
    let ask = |d: &Device| host.gpus.presence(&d.gpu_uuid, d.mig_uuid.as_deref());
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
    let wire = |r: gpu::Reading| Reading {
        utilization_percent: r.utilization_percent,
        memory_used_mib: r.memory_used_mib,
        memory_total_mib: r.memory_total_mib,
        power_watts: r.power_watts,
        temperature_celsius: r.temperature_celsius,
        sm_clock_mhz: r.sm_clock_mhz,
        memory_clock_mhz: r.memory_clock_mhz,
        throttle_reasons: r.throttle_reasons,
        pcie_received_kb_s: r.pcie_received_kb_s,
        pcie_sent_kb_s: r.pcie_sent_kb_s,
        nvlink_received_kib_s: r.nvlink_received_kib_s,
        nvlink_sent_kib_s: r.nvlink_sent_kib_s,
    };
    let mut attempts = Vec::new();
    let mut looks = Vec::new();
    for attempt in running {
        let found = look(host, attempt);
        looks.push((attempt.key(), shim::boottime_ms(), found));
        for (device, d) in (0..).zip(&attempt.record.devices) {
            if let Ok(reading) = host.gpus.read(&d.gpu_uuid, d.mig_uuid.as_deref()) {
                attempts.push(AttemptSample {
                    attempt: Some(AttemptId::new(&attempt.record.job, attempt.record.number)),
                    rank: 0,
                    device,
                    reading: Some(wire(reading)),
                });
            }
        }
    }
    let boards = host
        .gpus
        .known()
        .into_iter()
        .filter_map(|gpu_uuid| {
            let reading = host.gpus.read(&gpu_uuid, None).ok()?;
            Some(BoardSample { gpu_uuid, reading: Some(wire(reading)) })
        })
        .collect();
    Sampled { samples: Samples { at_micros: wall_micros(), boards, attempts }, looks }
}
