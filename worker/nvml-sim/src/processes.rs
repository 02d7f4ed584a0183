//! NVML calls about processes in the older versions that monitoring programs still make, and their names.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint, c_ulonglong};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use nix::time::{ClockId, clock_gettime};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationSample_t,
};

use crate::boards::{nvml, on_whole_board, process_rows, put_processes};
use crate::fault::Fault;
use crate::load::{ClientKind, RECENT, TICKS_A_SECOND, recent, ticks};
use crate::{answer, put_rows, put_text};

/// Writes processes of the first version, which knows no instances.
///
/// # Safety
/// `count` is null or valid, and `out` is null or valid for `*count` rows.
unsafe fn put_first_version(
    count: *mut c_uint,
    out: *mut nvmlProcessInfo_v1_t,
    rows: &[nvmlProcessInfo_t],
) -> Result<(), Fault> {
    if count.is_null() {
        return Err(Fault::InvalidArgument);
    }
    let rows: Vec<_> = rows
        .iter()
        .map(|row| nvmlProcessInfo_v1_t { pid: row.pid, usedGpuMemory: row.usedGpuMemory })
        .collect();
    // SAFETY: not null, and the rest by this function's contract.
    unsafe { put_rows(count, out, &rows) }
}

/// The command line of a process, with spaces between its arguments.
fn command_line(pid: c_uint) -> Result<String, Fault> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Fault::NotFound)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " "))
}

/// A sample of the processes on one board.
struct Sample {
    at: Instant,
    /// The same time in microseconds since 1970.
    timestamp: c_ulonglong,
    /// The processor time that each process had used.
    ticks: BTreeMap<c_uint, u64>,
    /// The busy processes since the sample before, in percent.
    busy: Vec<(c_uint, c_uint)>,
}

impl Sample {
    /// A sample of the processes now. None of them is busy without an earlier sample.
    fn new(pids: &[c_uint], earlier: Option<&Self>) -> Self {
        let at = Instant::now();
        let ticks: BTreeMap<_, _> = pids.iter().map(|pid| (*pid, ticks(*pid))).collect();
        let busy = earlier.map_or_else(Vec::new, |earlier| {
            busy_since(&earlier.ticks, &ticks, at.duration_since(earlier.at).as_secs_f64())
        });
        Self { at, timestamp: now_us(), ticks, busy }
    }
}

/// The share of each busy process in the load of its board, in percent: together at most 100.
fn busy_since(
    before: &BTreeMap<c_uint, u64>,
    now: &BTreeMap<c_uint, u64>,
    seconds: f64,
) -> Vec<(c_uint, c_uint)> {
    let new_ticks =
        |pid: &c_uint, ticks: u64| ticks.saturating_sub(before.get(pid).copied().unwrap_or(ticks));
    let used: Vec<(c_uint, f64)> =
        now.iter().map(|(pid, ticks)| (*pid, new_ticks(pid, *ticks) as f64 / TICKS_A_SECOND)).collect();
    let whole = used.iter().map(|(_, processor_s)| processor_s).sum::<f64>().max(seconds);
    let percents = used.iter().map(|(pid, processor_s)| (*pid, (100.0 * processor_s / whole) as c_uint));
    percents.filter(|(_, percent)| *percent > 0).collect()
}

fn now_us() -> c_ulonglong {
    let now = clock_gettime(ClockId::CLOCK_REALTIME)
        .map_or(0, |time| time.tv_sec() * 1_000_000 + time.tv_nsec() / 1_000);
    c_ulonglong::try_from(now).unwrap_or(0)
}

/// The busy processes of a board in its last sample, behind the time of the sample.
fn busy_processes(uuid: &str, pids: &[c_uint]) -> (c_ulonglong, Vec<(c_uint, c_uint)>) {
    static LAST: Mutex<BTreeMap<String, Sample>> = Mutex::new(BTreeMap::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let earlier = last.get(uuid);
    if let Some(sample) = earlier.filter(|sample| sample.at.elapsed() < RECENT) {
        return (sample.timestamp, sample.busy.clone());
    }
    let sample = Sample::new(pids, earlier);
    let found = (sample.timestamp, sample.busy.clone());
    last.insert(uuid.to_owned(), sample);
    found
}

nvml! {
    fn nvmlSystemGetProcessName(pid: c_uint, out: *mut c_char, length: c_uint) {
        let name = command_line(pid)?;
        // SAFETY: the caller's buffer is valid for `length` bytes.
        unsafe { put_text(out, length, &name) }
    }
    fn nvmlDeviceGetComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_v1_t) {
        let rows = process_rows(device, ClientKind::Compute)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_first_version(count, out, &rows) }
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_v1_t) {
        let rows = process_rows(device, ClientKind::Graphics)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_first_version(count, out, &rows) }
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        let rows = process_rows(device, ClientKind::Compute)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_processes(count, out, &rows) }
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        let rows = process_rows(device, ClientKind::Graphics)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_processes(count, out, &rows) }
    }
    fn nvmlDeviceGetProcessUtilization(device: nvmlDevice_t, out: *mut nvmlProcessUtilizationSample_t, count: *mut c_uint, since: c_ulonglong) {
        if count.is_null() {
            return Err(Fault::InvalidArgument);
        }
        let (timestamp, busy) = on_whole_board(device, |sim, _| {
            if sim.mig {
                return Err(Fault::NotSupported);
            }
            Ok(busy_processes(&sim.uuid, recent().pids(&sim.uuid)))
        })?;
        let row = |(pid, percent): (c_uint, c_uint)| nvmlProcessUtilizationSample_t {
            pid,
            timeStamp: timestamp,
            smUtil: percent,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        let rows: Vec<_> = busy.into_iter().map(row).collect();
        // The driver has samples of busy processes only, and none that the caller has seen.
        if rows.is_empty() || timestamp <= since {
            return Err(Fault::NotFound);
        }
        // SAFETY: not null, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_rows(count, out, &rows) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_processes_share_their_board_and_idle_ones_are_left_out() {
        let ticks = |pairs: &[(c_uint, u64)]| pairs.iter().copied().collect::<BTreeMap<_, _>>();
        let before = ticks(&[(1, 500), (2, 40), (3, 7), (4, 90)]);
        let busy = |first: u64, second: u64| {
            busy_since(&before, &ticks(&[(1, first), (2, second), (3, 7), (5, 1_000)]), 2.0)
        };
        assert_eq!(busy(600, 65), [(1, 50), (2, 12)], "half of the time, and an eighth");
        assert_eq!(busy(800, 140), [(1, 75), (2, 25)], "more than one board has");
        assert!(busy(500, 41).is_empty(), "less than a hundredth");
        assert!(busy(3, 40).is_empty(), "another process with the number of the first");
        assert!(busy_since(&BTreeMap::new(), &before, 2.0).is_empty(), "new processes");
        assert!(busy_since(&before, &before, 0.0).is_empty());
    }

    #[test]
    fn a_sample_stands_for_a_moment_and_has_its_time() {
        let own = [std::process::id()];
        let mut tries = 0;
        // On a busy machine two calls can be further apart than two samples.
        let (uuid, (first, none)) = loop {
            tries += 1;
            let uuid = format!("GPU-samples-{tries}");
            let begin = Instant::now();
            let pair = (busy_processes(&uuid, &own), busy_processes(&uuid, &own));
            if begin.elapsed() < RECENT {
                assert_eq!(pair.0, pair.1, "too early for another one");
                break (uuid, pair.0);
            }
        };
        assert!(none.is_empty() && first > 1_600_000_000_000_000 && first <= now_us());
        let begin = Instant::now();
        let mut later = busy_processes(&uuid, &own);
        while later.1.is_empty() && begin.elapsed().as_secs() < 10 {
            later = busy_processes(&uuid, &own);
        }
        assert!(later.0 > first);
        assert!(matches!(later.1.as_slice(), [(pid, 1..=100)] if own.contains(pid)), "{later:?}");
    }
}
