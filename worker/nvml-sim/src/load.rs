//! What the processes on a device do: their memory, and how busy they are.
//!
//! A process holds a device when its `CUDA_VISIBLE_DEVICES` names the device's UUID.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Linux reports process times in hundredths of a second on every supported architecture.
pub const TICKS_A_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4_096;

/// What holds a device now.
#[derive(Debug, Clone, Default)]
pub struct Holders {
    pub pids: Vec<u32>,
    pub memory_bytes: u64,
    ticks: u64,
}

impl Holders {
    /// Processor time that its processes have used, in hundredths of a second.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }
}

fn held(environ: &[u8], uuid: &str) -> bool {
    environ
        .split(|b| *b == 0)
        .filter_map(|line| line.strip_prefix(b"CUDA_VISIBLE_DEVICES="))
        .flat_map(|list| list.split(|b| *b == b','))
        .any(|name| name == uuid.as_bytes())
}

/// Every process on the device with this UUID.
pub fn holders(uuid: &str) -> Holders {
    let mut out = Holders::default();
    let Ok(processes) = std::fs::read_dir("/proc") else { return out };
    for entry in processes.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let path = entry.path();
        if !std::fs::read(path.join("environ")).is_ok_and(|environ| held(&environ, uuid)) {
            continue;
        }
        out.pids.push(pid);
        let text = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        let pages = text("statm").split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        out.memory_bytes += pages * PAGE_BYTES;
        // Fields are counted after the name, which may hold spaces: utime and stime are the 12th and 13th.
        let stat = text("stat");
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        out.ticks += fields.skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>();
    }
    out
}

/// How busy a device was since it was asked about last, in percent; 0 the first time.
pub fn utilization_percent(uuid: &str, holders: &Holders) -> u32 {
    static LAST: Mutex<Option<HashMap<String, (Instant, u64, u32)>>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = last.get_or_insert_default();
    let now = Instant::now();
    let percent = match seen.get(uuid) {
        // Too short a time to measure in hundredths of a second: the last answer stands.
        Some((at, _, percent)) if now.duration_since(*at).as_millis() < 100 => return *percent,
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
        assert!(held(environ, "MIG-a") && held(environ, "MIG-b"));
        assert!(!held(environ, "MIG-c") && !held(environ, "MIG"));
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
