//! Network namespaces on this machine: a hub, and places that each have a cable to it which can be pulled.
//! Nothing of it reaches the machine's own network. Only root can make them.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::left_out::left_out;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

/// Begins the name of every namespace; the process and a number follow.
const PREFIX: &str = "berth-test-";
/// The hub's address in its own small world.
pub const HUB: &str = "10.213.0.1";

static OPENED: AtomicU32 = AtomicU32::new(0);

pub struct Net {
    name: String,
    made: Vec<String>,
}

/// Runs `ip` with these words; what it said, or why it failed.
fn ip(words: &str) -> Result<String, String> {
    let out = Command::new("ip")
        .args(words.split_whitespace())
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output()
        .map_err(|e| format!("ip: {e}"))?;
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        Err(format!("ip {words}: {}", String::from_utf8_lossy(&out.stderr).trim()))
    }
}

/// Ends what runs in a namespace of ours, and removes it.
fn remove(namespace: &str) {
    for pid in ip(&format!("netns pids {namespace}")).unwrap_or_default().split_whitespace() {
        if let Ok(pid) = pid.parse::<i32>() {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    if let Err(why) = ip(&format!("netns del {namespace}")) {
        eprintln!("{why}");
    }
}

/// What a test left whose process was killed.
fn sweep() {
    for line in ip("netns list").unwrap_or_default().lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(name);
        }
    }
}

impl Net {
    /// A hub and so many places, counted from 0. `None`, and said, where this machine makes none.
    pub fn open(places: usize) -> Option<Self> {
        if !geteuid().is_root() {
            left_out("only root makes network namespaces");
            return None;
        }
        sweep();
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let mut net = Self { name: format!("{PREFIX}{}-{number}", std::process::id()), made: Vec::new() };
        match net.build(places) {
            Ok(()) => Some(net),
            Err(why) => {
                left_out(format!("no network namespaces on this machine: {why}"));
                None
            }
        }
    }

    fn build(&mut self, places: usize) -> Result<(), String> {
        let hub = self.add("hub")?;
        ip(&format!("-n {hub} link add bridge0 type bridge"))?;
        ip(&format!("-n {hub} addr add {HUB}/24 dev bridge0"))?;
        ip(&format!("-n {hub} link set bridge0 up"))?;
        for n in 0..places {
            let place = self.add(&n.to_string())?;
            ip(&format!("-n {hub} link add cable{n} type veth peer name eth0 netns {place}"))?;
            ip(&format!("-n {hub} link set cable{n} master bridge0"))?;
            ip(&format!("-n {hub} link set cable{n} up"))?;
            ip(&format!("-n {place} addr add 10.213.0.{}/24 dev eth0", n + 10))?;
            ip(&format!("-n {place} link set eth0 up"))?;
        }
        Ok(())
    }

    fn add(&mut self, at: &str) -> Result<String, String> {
        let name = format!("{}-{at}", self.name);
        ip(&format!("netns add {name}"))?;
        self.made.push(name.clone());
        ip(&format!("-n {name} link set lo up"))?;
        Ok(name)
    }

    /// Does something in the hub (`hub`) or in a place (its number): what it starts stays there.
    pub fn inside<T: Send>(&self, at: &str, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}-{at}", self.name)).unwrap();
        std::thread::scope(|scope| {
            let there = scope.spawn(move || {
                // Of this thread alone, which ends with the work.
                setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// From now on nothing passes, and nobody is told: connections fall silent.
    pub fn pull(&self, place: usize) {
        ip(&format!("-n {}-hub link set cable{place} down", self.name)).unwrap();
    }

    pub fn plug(&self, place: usize) {
        ip(&format!("-n {}-hub link set cable{place} up", self.name)).unwrap();
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // After a failed assertion too. The hub last: the cables' ends are there.
        for name in self.made.iter().rev() {
            remove(name);
        }
    }
}
