//! What the processes on a device do: their memory, and how busy they are.
//!
//! A process holds a device when its `CUDA_VISIBLE_DEVICES` names the device's UUID. One scan of all
//! processes serves every device for a moment; what decides whether a device is free looks anew. Who asks
//! while a scan is under way waits for the next one, together with everybody else who does.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::DirEntryExt;
use std::str::SplitWhitespace;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::read_whole;

/// Linux reports process times in hundredths of a second on every supported architecture.
pub const TICKS_A_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4_096;
/// Linux's flag of its own threads, which have no environment and never get one.
const PF_KTHREAD: u64 = 0x0020_0000;
/// How old a scan may be for a reading.
pub const RECENT: Duration = Duration::from_millis(100);
/// So long a scan waits for others to ask for it: several boards are often asked about at the same time.
const TOGETHER: Duration = Duration::from_millis(1);

/// The kinds of processes that NVML lists apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientKind {
    Compute,
    Graphics,
    /// A client of the driver's sharing service.
    Mps,
}

/// The variables that name the devices of a process, by its kind.
const VARIABLES: [(&[u8], ClientKind); 3] = [
    (b"CUDA_VISIBLE_DEVICES=", ClientKind::Compute),
    (b"BERTH_NVML_SIM_GRAPHICS=", ClientKind::Graphics),
    (b"BERTH_NVML_SIM_MPS=", ClientKind::Mps),
];

/// The names of devices in an environment, each once for each kind.
fn named(environ: &[u8]) -> BTreeSet<(&str, ClientKind)> {
    let lists = environ.split(|b| *b == 0).filter_map(|line| {
        VARIABLES.iter().find_map(|(variable, kind)| Some((line.strip_prefix(*variable)?, *kind)))
    });
    lists
        .flat_map(|(list, kind)| list.split(|b| *b == b',').map(move |name| (name, kind)))
        .filter_map(|(name, kind)| Some((std::str::from_utf8(name).ok()?, kind)))
        .filter(|(name, _)| !name.is_empty())
        .collect()
}

fn stat(pid: u32) -> String {
    // The name of a process need not be a text.
    let text = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// The fields after a process's name, which may hold spaces.
fn fields(stat: &str) -> SplitWhitespace<'_> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace()
}

fn is_kernel_thread(pid: u32) -> bool {
    let flags = fields(&stat(pid)).nth(6).and_then(|n| n.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// The memory of a process.
pub fn memory_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    PAGE_BYTES * text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0)
}

/// The processor time that a process has used, in hundredths of a second.
pub fn ticks(pid: u32) -> u64 {
    // utime and stime.
    fields(&stat(pid)).skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum()
}

/// What the processes on a device use together.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub at: Instant,
    pub memory_bytes: u64,
    /// Processor time that they have used, in hundredths of a second.
    pub ticks: u64,
}

/// The processes on one device.
#[derive(Default)]
struct Held {
    pids: Vec<u32>,
    /// The same processes by their kinds; one process may be of several.
    clients: Vec<(ClientKind, u32)>,
    /// Looked for when somebody asks: whether a device is free does not depend on it.
    load: OnceLock<Load>,
}

/// What holds every device at one time.
pub struct Scan {
    /// When it began.
    pub at: Instant,
    on: HashMap<String, Held>,
    /// What was sampled from it: a handle and a GPU instance.
    sampled: Mutex<HashSet<(usize, Option<u32>)>>,
}

impl Scan {
    /// Looks at every process but those that are known as threads of the kernel, and learns who is one. Each is
    /// known by its number and the inode of its directory: the next process with that number has another.
    fn of_all_processes(kernel_threads: &mut HashSet<(u32, u64)>) -> Self {
        let at = Instant::now();
        let mut on: HashMap<String, Held> = HashMap::new();
        let mut there = HashSet::new();
        let (mut path, mut buffer) = (String::new(), Vec::new());
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let this = (pid, entry.ino());
            if kernel_threads.contains(&this) {
                there.insert(this);
                continue;
            }
            path.clear();
            // Writing to a text cannot fail.
            let _ = write!(path, "/proc/{pid}/environ");
            let Ok(file) = File::open(&path) else { continue };
            let Ok(environ) = read_whole(&file, &mut buffer) else { continue };
            // Who has ended has none either, nor who is only being started.
            if environ.is_empty() && is_kernel_thread(pid) {
                there.insert(this);
            }
            for (name, kind) in named(environ) {
                let held = on.entry(name.to_owned()).or_default();
                if held.pids.last() != Some(&pid) {
                    held.pids.push(pid);
                }
                held.clients.push((kind, pid));
            }
        }
        *kernel_threads = there;
        Self { at, on, sampled: Mutex::default() }
    }

    /// Every process on the device with this UUID.
    pub fn pids(&self, uuid: &str) -> &[u32] {
        self.on.get(uuid).map(|held| held.pids.as_slice()).unwrap_or_default()
    }

    /// The processes of a kind on the device with this UUID.
    pub fn clients(&self, uuid: &str, kind: ClientKind) -> Vec<u32> {
        let clients = self.on.get(uuid).map(|held| held.clients.as_slice()).unwrap_or_default();
        clients.iter().filter(|(of, _)| *of == kind).map(|(_, pid)| *pid).collect()
    }

    /// What they use, as it was when it was asked for first.
    pub fn load(&self, uuid: &str) -> Load {
        let Some(held) = self.on.get(uuid) else { return Load { at: self.at, memory_bytes: 0, ticks: 0 } };
        *held.load.get_or_init(|| Load {
            at: Instant::now(),
            memory_bytes: held.pids.iter().map(|pid| memory_bytes(*pid)).sum(),
            ticks: held.pids.iter().map(|pid| ticks(*pid)).sum(),
        })
    }

    /// True if this is the first sample of `what` from this scan.
    fn sample(&self, what: (usize, Option<u32>)) -> bool {
        self.sampled.lock().unwrap_or_else(PoisonError::into_inner).insert(what)
    }
}

/// The newest scan, and what spares the next one some work.
#[derive(Default)]
struct Scans {
    latest: Option<Arc<Scan>>,
    kernel_threads: HashSet<(u32, u64)>,
}

impl Scans {
    /// The newest scan if it began then or later, else a new one, which begins after so long.
    fn begun(&mut self, since: Instant, after: Duration) -> Arc<Scan> {
        if let Some(scan) = self.latest.as_ref().filter(|scan| scan.at >= since) {
            return Arc::clone(scan);
        }
        std::thread::sleep(after);
        let scan = Arc::new(Scan::of_all_processes(&mut self.kernel_threads));
        self.latest = Some(Arc::clone(&scan));
        scan
    }
}

/// A scan that began then or later; a new one begins after so long.
fn begun(since: Instant, after: Duration) -> Arc<Scan> {
    static SCANS: Mutex<Option<Scans>> = Mutex::new(None);
    // Held during the scan: a later scan is never replaced by an earlier one, and those who ask meanwhile find
    // that the next one began after they all asked.
    let mut scans = SCANS.lock().unwrap_or_else(PoisonError::into_inner);
    scans.get_or_insert_default().begun(since, after)
}

/// What holds every device now, for what must not be missed: nothing of it was looked at before this was called.
/// It is asked for before the boards' file is locked, or those who wait for the file could not share it.
pub fn fresh() -> Arc<Scan> {
    begun(Instant::now(), TOGETHER)
}

/// What held every device a moment ago at most, for readings.
pub fn recent() -> Arc<Scan> {
    let now = Instant::now();
    begun(now.checked_sub(RECENT).unwrap_or(now), Duration::ZERO)
}

/// A scan for a sample of `what`: a recent one, but none that `what` was sampled from already, since
/// nothing lies between a sample and itself.
pub fn for_sample(what: (usize, Option<u32>)) -> Arc<Scan> {
    let mut scan = recent();
    while !scan.sample(what) {
        scan = fresh();
    }
    scan
}

/// How busy a device was since it was asked about last, in percent; 0 the first time.
pub fn utilization_percent(uuid: &str, load: Load) -> u32 {
    static LAST: Mutex<Option<HashMap<String, (Instant, u64, u32)>>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = last.get_or_insert_default();
    let now = load.at;
    let percent = match seen.get(uuid) {
        // Too short a time to measure in hundredths of a second: the last answer stands.
        Some((at, _, percent)) if now.duration_since(*at) < RECENT => return *percent,
        Some((at, ticks, _)) => {
            let busy = load.ticks.saturating_sub(*ticks) as f64 / TICKS_A_SECOND;
            (100.0 * busy / now.duration_since(*at).as_secs_f64()).clamp(0.0, 100.0) as u32
        }
        None => 0,
    };
    seen.insert(uuid.to_owned(), (now, load.ticks, percent));
    percent
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn a_process_holds_what_its_environment_names() {
        let environ = b"HOME=/\0CUDA_VISIBLE_DEVICES=MIG-a,MIG-b\0X=MIG-c\0";
        let held = |uuid: &str| named(environ).contains(&(uuid, ClientKind::Compute));
        assert!(held("MIG-a") && held("MIG-b"));
        assert!(!held("MIG-c") && !held("MIG"));
        assert_eq!(named(b"CUDA_VISIBLE_DEVICES=a,,a\0CUDA_VISIBLE_DEVICES=a\0").len(), 1);
        let kinds = named(b"BERTH_NVML_SIM_MPS=a\0CUDA_VISIBLE_DEVICES=a\0BERTH_NVML_SIM_GRAPHICS=b\0");
        let expected = [("a", ClientKind::Compute), ("a", ClientKind::Mps), ("b", ClientKind::Graphics)];
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn one_device_is_never_sampled_twice_from_one_scan() {
        let samples: Vec<Instant> = (0..3).map(|_| for_sample((usize::MAX, None)).at).collect();
        assert!(samples[0] < samples[1] && samples[1] < samples[2]);
        assert!(recent().at >= samples[2]);
    }

    #[test]
    fn who_asks_hears_of_a_scan_that_began_later_and_shares_it() {
        let mut scans = Scans::default();
        let (one, other) = (Instant::now(), Instant::now());
        let first = scans.begun(one, TOGETHER);
        assert!(
            first.at >= other && Arc::ptr_eq(&first, &scans.begun(other, TOGETHER)),
            "both asked before it began"
        );
        let asked = Instant::now();
        let second = scans.begun(asked, TOGETHER);
        assert!(second.at >= asked && !Arc::ptr_eq(&first, &second), "the first began before that");
        assert!(Arc::ptr_eq(&second, &scans.begun(one, TOGETHER)), "there is a newer one");
        std::thread::scope(|scope| {
            let ask = || {
                for _ in 0..20 {
                    let asked = Instant::now();
                    assert!(fresh().at >= asked);
                }
            };
            for _ in 0..4 {
                scope.spawn(ask);
            }
        });
    }

    /// A process on a device, there under its own environment; ended and reaped when this is dropped.
    struct Tenant(Child);

    impl Tenant {
        fn on(uuid: &str, command: &mut Command) -> Self {
            let tenant = Self(command.env("CUDA_VISIBLE_DEVICES", uuid).spawn().unwrap());
            // It has it once exec has happened.
            let deadline = Instant::now() + Duration::from_secs(10);
            while fresh().pids(uuid).is_empty() && Instant::now() < deadline {}
            tenant
        }
    }

    impl Drop for Tenant {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_device_is_found_behind_a_long_environment() {
        let uuid = format!("MIG-behind-{}", std::process::id());
        let tenant =
            Tenant::on(&uuid, Command::new("sleep").arg("60").env_clear().env("A", "x".repeat(40_000)));
        assert_eq!(fresh().pids(&uuid), [tenant.0.id()]);
    }

    #[test]
    fn only_threads_of_the_kernel_are_passed_over() {
        let uuid = format!("MIG-passed-{}", std::process::id());
        let tenant = Tenant::on(&uuid, Command::new("sleep").arg("60"));
        let pid = tenant.0.id();
        let mut known = HashSet::from([(pid, 0)]);
        for _ in 0..2 {
            let scan = Scan::of_all_processes(&mut known);
            assert_eq!(scan.pids(&uuid), [pid], "a thread that had its number was another process");
            let others = known.iter().filter(|(pid, _)| !is_kernel_thread(*pid) && !stat(*pid).is_empty());
            assert_eq!(others.count(), 0);
        }
    }

    #[test]
    fn a_busy_process_is_seen() {
        let uuid = format!("MIG-test-{}", std::process::id());
        let tenant = Tenant::on(&uuid, Command::new("sh").args(["-c", "while :; do :; done"]));
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut percent = 0;
        while percent == 0 && Instant::now() < deadline {
            percent = utilization_percent(&uuid, fresh().load(&uuid));
        }
        let scan = fresh();
        assert_eq!(scan.pids(&uuid), [tenant.0.id()]);
        assert!(scan.load(&uuid).memory_bytes > 0 && percent > 0);
        drop(tenant);
        assert!(fresh().pids(&uuid).is_empty());
    }
}
