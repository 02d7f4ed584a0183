//! A benchmark of the bytes on disk for a stored value: a day of eight boards in training, read every second
//! and settled every minute, as in a portal. Prints `{"bytes_per_value": …, "values": …, "bytes": …}`.

use std::path::Path;

use berth_recordings::{Recorded, Recordings};
use berth_types::ids::JobId;
use berth_types::metrics::{Sample, Series};
use berth_types::time::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

const START_S: i64 = 1_800_000_000;
const DAY_S: i64 = 86_400;
const BOARDS: u32 = 8;

/// The reading of a training board in one second: busy, except for a checkpoint every ten minutes.
fn reading(rng: &mut ChaCha20Rng, second: i64, device: u32) -> Recorded {
    let pause = second % 600 < 12;
    let (busy, watts, celsius) = if pause { (4.0, 130.0, 52.0) } else { (94.0, 640.0, 64.0) };
    let utilization: f64 = busy + rng.random_range(-4.0..5.0);
    let step = (second / 300 % 3) as f64;
    let sample = Sample {
        at: Timestamp::from_micros((START_S + second) * 1_000_000 + rng.random_range(0..40_000)),
        rank: 0,
        device,
        utilization_percent: Some(utilization.clamp(0.0, 100.0).round()),
        memory_used_mib: Some(61_204.0 + 512.0 * step),
        power_watts: Some(watts + rng.random_range(-30.0..30.0)),
        temperature_celsius: Some(celsius + f64::from(rng.random_range(-1i8..=1))),
    };
    Recorded { sample, memory_total_mib: 81_559.0 }
}

/// The bytes of all files below a directory.
fn size(dir: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}

fn values(series: &[Series]) -> usize {
    let count = |s: &Series| {
        let columns = [&s.utilization_percent, &s.memory_used_mib, &s.power_watts, &s.temperature_celsius];
        columns.into_iter().flatten().flatten().count()
    };
    series.iter().map(count).sum()
}

fn main() -> std::io::Result<()> {
    let dir = std::env::temp_dir().join(format!("berth-readings-{}", std::process::id()));
    let measured = measure(&dir);
    // This program has made everything in the directory.
    let _ = std::fs::remove_dir_all(&dir);
    let (values, bytes) = measured?;
    let each = bytes as f64 / values as f64;
    println!("{{\"bytes_per_value\": {each:.3}, \"values\": {values}, \"bytes\": {bytes}}}");
    Ok(())
}

fn measure(dir: &Path) -> std::io::Result<(usize, u64)> {
    let recordings = Recordings::new(dir);
    let job = JobId::from_uuid(uuid::Uuid::from_u128(1));
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    for second in 0..DAY_S {
        let rows: Vec<Recorded> = (0..BOARDS).map(|device| reading(&mut rng, second, device)).collect();
        recordings.append_readings(job, 1, &rows)?;
        if second % 60 == 0 {
            recordings.compact(Timestamp::from_micros((START_S + second) * 1_000_000))?;
        }
    }
    // An hour at steps of a second is below the limit of a series, so every stored value is counted.
    let mut kept = 0;
    for from in (0..DAY_S).step_by(3_600) {
        let at = |second: i64| Some(Timestamp::from_micros((START_S + second) * 1_000_000));
        kept += values(&recordings.series(job, 1, at(from), at(from + 3_599), 1)?.1);
    }
    Ok((kept, size(dir)?))
}
