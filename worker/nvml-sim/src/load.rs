//! What the processes on a device do: their memory, and how busy they are.
//!
//! A process holds a device when its `CUDA_VISIBLE_DEVICES` names the device's UUID. One scan of all
//! processes serves every device for a moment; what decides whether a device is free looks anew.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Linux reports process times in hundredths of a second on every supported architecture.
pub const TICKS_A_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4_096;
/// How old a scan may be for a reading.
const RECENT: Duration = Duration::from_millis(100);

/// What holds a device at one time.
#[derive(Debug, Clone)]
pub struct Holders {
    at: Instant,
    pub pids: Vec<u32>,
    pub memory_bytes: u64,
    ticks: u64,
}

impl Holders {
    fn none(at: Instant) -> Self {
        Self { at, pids: Vec::new(), memory_bytes: 0, ticks: 0 }
    }

    /// Processor time that its processes have used, in hundredths of a second.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }
}

/// The names of devices in an environment, each once.
fn named(environ: &[u8]) -> BTreeSet<&str> {
    environ
        .split(|b| *b == 0)
        .filter_map(|line| line.strip_prefix(b"CUDA_VISIBLE_DEVICES="))
        .flat_map(|list| list.split(|b| *b == b','))
        .filter_map(|name| std::str::from_utf8(name).ok())
        .filter(|name| !name.is_empty())
        .collect()
}

/// A process's environment, in as few calls as can be: every process is looked at whenever a device is asked
/// about. What is read short is at its end.
fn read_environ<'a>(file: &Path, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    const BLOCK: usize = 16 << 10;
    let mut file = File::open(file).ok()?;
    let mut length = 0;
    loop {
        buffer.resize(length + BLOCK, 0);
        let read = file.read(buffer.get_mut(length..)?).ok()?;
        length += read;
        if read < BLOCK {
            return buffer.get(..length);
        }
    }
}

/// What holds every device at one time.
pub struct Scan {
    pub at: Instant,
    on: HashMap<String, Holders>,
    /// What was sampled from it: a handle and a GPU instance.
    sampled: Mutex<HashSet<(usize, Option<u32>)>>,
}

impl Scan {
    fn of_all_processes() -> Self {
        let at = Instant::now();
        let mut on: HashMap<String, Holders> = HashMap::new();
        let mut buffer = Vec::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let path = entry.path();
            let Some(environ) = read_environ(&path.join("environ"), &mut buffer) else { continue };
            let names = named(environ);
            if names.is_empty() {
                continue;
            }
            let text = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
            let pages = text("statm").split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            // Fields are counted after the name, which may hold spaces: utime and stime are the 12th
            // and 13th.
            let stat = text("stat");
            let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
            let ticks = fields.skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>();
            for name in names {
                let held = on.entry(name.to_owned()).or_insert_with(|| Holders::none(at));
                held.pids.push(pid);
                held.memory_bytes += pages * PAGE_BYTES;
                held.ticks += ticks;
            }
        }
        Self { at, on, sampled: Mutex::default() }
    }

    /// Every process on the device with this UUID.
    pub fn of(&self, uuid: &str) -> Holders {
        self.on.get(uuid).cloned().unwrap_or_else(|| Holders::none(self.at))
    }

    /// Whether this is the first sample of `what` from this scan.
    fn sample(&self, what: (usize, Option<u32>)) -> bool {
        self.sampled.lock().unwrap_or_else(PoisonError::into_inner).insert(what)
    }
}

fn younger_than(age: Duration) -> Arc<Scan> {
    static LATEST: Mutex<Option<Arc<Scan>>> = Mutex::new(None);
    // Held during the scan: a later scan is never replaced by an earlier one.
    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(scan) = latest.as_ref().filter(|scan| scan.at.elapsed() < age) {
        return Arc::clone(scan);
    }
    let scan = Arc::new(Scan::of_all_processes());
    *latest = Some(Arc::clone(&scan));
    scan
}

/// What holds every device now, for what must not be missed.
pub fn fresh() -> Arc<Scan> {
    younger_than(Duration::ZERO)
}

/// What held every device a moment ago at most, for readings.
pub fn recent() -> Arc<Scan> {
    younger_than(RECENT)
}

/// A scan for a sample of `what`: a recent one, but none that `what` was sampled from already, since
/// nothing lies between a sample and itself.
pub fn for_sample(what: (usize, Option<u32>)) -> Arc<Scan> {
    let scan = recent();
    if scan.sample(what) {
        return scan;
    }
    let scan = fresh();
    scan.sample(what);
    scan
}

/// Every process on the device with this UUID now.
pub fn holders(uuid: &str) -> Holders {
    fresh().of(uuid)
}

/// How busy a device was since it was asked about last, in percent; 0 the first time.
pub fn utilization_percent(uuid: &str, holders: &Holders) -> u32 {
    static LAST: Mutex<Option<HashMap<String, (Instant, u64, u32)>>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = last.get_or_insert_default();
    let now = holders.at;
    let percent = match seen.get(uuid) {
        // Too short a time to measure in hundredths of a second: the last answer stands.
        Some((at, _, percent)) if now.duration_since(*at) < RECENT => return *percent,
        Some((at, ticks, _)) => {
            let busy = holders.ticks.saturating_sub(*ticks) as f64 / TICKS_A_SECOND;
            (100.0 * busy / now.duration_since(*at).as_secs_f64()).clamp(0.0, 100.0) as u32
        }
        None => 0,
    };
    seen.insert(uuid.to_owned(), (now, holders.ticks, percent));
    percent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_holds_what_its_environment_names() {
        let environ = b"HOME=/\0CUDA_VISIBLE_DEVICES=MIG-a,MIG-b\0X=MIG-c\0";
        let held = |uuid: &str| named(environ).contains(uuid);
        assert!(held("MIG-a") && held("MIG-b"));
        assert!(!held("MIG-c") && !held("MIG"));
        assert_eq!(named(b"CUDA_VISIBLE_DEVICES=a,,a\0CUDA_VISIBLE_DEVICES=a\0").len(), 1);
    }

    #[test]
    fn one_device_is_never_sampled_twice_from_one_scan() {
        let samples: Vec<Instant> = (0..3).map(|_| for_sample((usize::MAX, None)).at).collect();
        assert!(samples[0] < samples[1] && samples[1] < samples[2]);
        assert!(recent().at >= samples[2]);
    }

    #[test]
    fn a_device_is_found_behind_a_long_environment() {
        let uuid = format!("MIG-behind-{}", std::process::id());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env_clear()
            .envs([("A", "x".repeat(40_000)), ("CUDA_VISIBLE_DEVICES", uuid.clone())])
            .spawn()
            .unwrap();
        // It is there under its own environment once exec has happened.
        let deadline = Instant::now() + Duration::from_secs(10);
        while holders(&uuid).pids.is_empty() && Instant::now() < deadline {}
        let found = holders(&uuid).pids;
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [child.id()]);
    }

    #[test]
    fn a_busy_process_is_seen() {
        let uuid = format!("MIG-test-{}", std::process::id());
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .env("CUDA_VISIBLE_DEVICES", &uuid)
            .spawn()
            .unwrap();
        // The child is there under its own environment once exec has happened.
        let deadline = Instant::now() + std::time::Duration::from_secs(10);
        let mut percent = 0;
        while percent == 0 && Instant::now() < deadline {
            percent = utilization_percent(&uuid, &holders(&uuid));
        }
        let found = holders(&uuid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.pids, [child.id()]);
        assert!(found.memory_bytes > 0 && percent > 0);
        assert!(holders(&uuid).pids.is_empty());
    }
}
