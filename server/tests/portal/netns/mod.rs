//! Network namespaces on this machine: a hub, and numbered places with a virtual cable to the hub each.
//! Nothing reaches the machine's own network. Only root can create them.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::left_out::left_out;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

/// The prefix of every namespace's name; process id and number follow.
const PREFIX: &str = "berth-test-";
/// The directory in which `ip` keeps namespaces.
pub const NAMESPACES: &str = "/run/netns";
/// The hub's address in its network.
pub const HUB: &str = "10.213.0.1";

static OPENED: AtomicU32 = AtomicU32::new(0);

pub struct Net {
    name: String,
    made: Vec<String>,
}

/// A command of the administrator. Its path is searched by `env`: std copies this whole process for a program that it
/// has to search itself, and the process of the tests is large.
pub fn admin_command(program: &str) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.args(["PATH=/usr/sbin:/sbin:/usr/bin:/bin", program]);
    command
}

/// Runs `ip` with these arguments; returns its output or its error.
fn ip(arguments: &str) -> Result<String, String> {
    let out =
        admin_command("ip").args(arguments.split_whitespace()).output().map_err(|e| format!("ip: {e}"))?;
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&out.stderr).trim()))
    }
}

/// Kills the processes of a namespace and removes it.
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

/// Removes the namespaces of killed tests.
fn sweep() {
    for line in ip("netns list").unwrap_or_default().lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(name);
        }
    }
}

/// Runs `work` in a network namespace with a name. Processes that it starts stay there.
pub fn inside_namespace<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(Path::new(NAMESPACES).join(name)).unwrap();
    std::thread::scope(|scope| {
        let there = scope.spawn(move || {
            // The change applies to this thread only, which ends with the work.
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Net {
    /// Creates a hub and `places` places, numbered from 0. `None` with a message if this machine allows none.
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

    /// The name of the namespace of the hub (`hub`) or of a place (its number).
    pub fn namespace(&self, at: &str) -> String {
        format!("{}-{at}", self.name)
    }

    /// Runs `work` in the hub (`hub`) or in a place (its number). Processes that it starts stay there.
    pub fn inside<T: Send>(&self, at: &str, work: impl FnOnce() -> T + Send) -> T {
        inside_namespace(&self.namespace(at), work)
    }

    /// Makes an interface of this kind in the first place, and removes it.
    pub fn try_interface(&self, kind: &str) -> Result<(), String> {
        let place = self.namespace("0");
        ip(&format!("-n {place} link add trial0 type {kind}"))?;
        ip(&format!("-n {place} link del trial0")).map(|_| ())
    }

    /// The command lines of the processes in the hub or in a place, with a zero between two words.
    pub fn processes(&self, at: &str) -> Vec<String> {
        let pids = ip(&format!("netns pids {}-{at}", self.name)).unwrap();
        let command = |pid: &str| std::fs::read(format!("/proc/{pid}/cmdline")).ok();
        let commands = pids.split_whitespace().filter_map(command);
        commands.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
    }

    /// Drops all packets of a place without a reset of its connections.
    pub fn pull(&self, place: usize) {
        ip(&format!("-n {}-hub link set cable{place} down", self.name)).unwrap();
    }

    pub fn plug(&self, place: usize) {
        ip(&format!("-n {}-hub link set cable{place} up", self.name)).unwrap();
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // This also runs after a failed assertion. The hub is last because it has the ends of the cables.
        for name in self.made.iter().rev() {
            remove(name);
        }
    }
}
