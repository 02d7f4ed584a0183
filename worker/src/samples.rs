//! One reading of everything on the host, as the portal is told it. Blocking; decides nothing.

use berth_proto::{AttemptId, AttemptSample, BoardSample, Reading, Samples};

use crate::attempts::Attempt;
use crate::daemon::Host;
use crate::gpu;

/// The wall clock, for the time of a reading.
#[expect(clippy::disallowed_methods, reason = "readings carry the host's time")]
fn wall_micros() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Reads every board, and every device of what runs. What cannot be read is left out.
pub fn sample(host: &Host, running: &[Attempt]) -> Samples {
    let wire = |r: gpu::Reading| Reading {
        utilization_percent: r.utilization_percent,
        memory_used_mib: r.memory_used_mib,
        memory_total_mib: r.memory_total_mib,
        power_watts: r.power_watts,
        temperature_celsius: r.temperature_celsius,
    };
    let mut attempts = Vec::new();
    for attempt in running {
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
    let boards = host.gpus.inventory().unwrap_or_default();
    let boards = boards
        .into_iter()
        .filter_map(|b| {
            let reading = host.gpus.read(&b.uuid, None).ok()?;
            Some(BoardSample { gpu_uuid: b.uuid, reading: Some(wire(reading)) })
        })
        .collect();
    Samples { at_micros: wall_micros(), boards, attempts }
}
