//! A pool of empty version 1 cgroups, for reuse by later attempts.
//!
//! With version 1 an attempt has a directory in each of five hierarchies, one of them with a list of device nodes:
//! their creation and removal takes longer than a short job. With version 2 it has one directory, whose memory peak
//! most kernels cannot reset, so the pool has no such group. The pool refuses a group in which a process was killed
//! for lack of memory, or could still be.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;

use berth_system::sync::lock;

use super::attempt_cgroups::AttemptCgroups;
use super::directory::{Allowance, CgroupDir, Controller};

/// More groups than become free before the next creation on a node full of short jobs.
const MOST: usize = 128;
/// The memory that may stay charged to an empty group: cached files, and the charges that each processor took in
/// advance.
const CHARGED_BYTES: u64 = 4 << 20;

/// The limits of a group. Only an attempt with an equal key reuses it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PoolKey {
    allowance: Allowance,
    /// The numbers of its device nodes: a reloaded driver may give other numbers to the same names.
    numbers: Vec<u64>,
}

impl PoolKey {
    /// `None`: a device node is gone.
    fn new(allowance: &Allowance) -> Option<Self> {
        let number = |node: &PathBuf| fs::metadata(node).ok().map(|node| node.rdev());
        let numbers = allowance.devices.iter().map(number).collect::<Option<_>>()?;
        Some(Self { allowance: allowance.clone(), numbers })
    }
}

/// The groups in use and the free groups, with their keys.
#[derive(Debug, Default)]
pub(super) struct CgroupPool(Mutex<PooledGroups>);

#[derive(Debug, Default)]
struct PooledGroups {
    /// Groups in use, by their first directory.
    used: HashMap<PathBuf, PoolKey>,
    /// Free groups, the oldest first.
    free: VecDeque<(PoolKey, AttemptCgroups)>,
}

impl CgroupPool {
    fn locked<T>(&self, act: impl FnOnce(&mut PooledGroups) -> T) -> T {
        act(&mut lock(&self.0))
    }

    /// Removes all free groups.
    pub fn clear(&self) {
        for (_, group) in self.locked(|groups| std::mem::take(&mut groups.free)) {
            // The next daemon sweeps a group that cannot be removed now.
            let _ = group.end();
        }
    }

    /// Registers a group with its limits, so the pool may take it at its end.
    pub fn register(&self, group: &AttemptCgroups, allowance: &Allowance) {
        if let Some(first) = group.places.first().filter(|_| group.places.iter().all(|p| !p.unified))
            && let Some(key) = PoolKey::new(allowance)
        {
            self.locked(|groups| groups.used.insert(first.dir.clone(), key));
        }
    }

    /// Renames a free group with this allowance to the directories of `wanted`. `false`: there is none.
    pub fn reuse(&self, wanted: &AttemptCgroups, allowance: &Allowance) -> bool {
        let Some(wanted_key) = PoolKey::new(allowance) else { return false };
        let found = self.locked(|groups| {
            // A free group with the wanted name is ended like any other existing group of that name.
            groups.free.retain(|(_, group)| group.places.first() != wanted.places.first());
            let at = groups.free.iter().position(|(key, _)| *key == wanted_key)?;
            groups.free.remove(at)
        });
        let Some((_, group)) = found else { return false };
        let mut pairs = group.places.iter().zip(&wanted.places);
        let renamed = group.places.len() == wanted.places.len()
            && pairs.all(|(from, to)| fs::rename(&from.dir, &to.dir).is_ok());
        // After the rename no process can enter by the former name.
        if renamed && has_no_task(wanted) && reset_peak(wanted) {
            return true;
        }
        // Some directories may have been renamed and some not; the caller makes new ones.
        let _ = group.end().and_then(|()| wanted.end());
        false
    }

    /// Takes an empty group into the pool. `false`: the caller must end the group.
    pub fn put_back(&self, group: &AttemptCgroups) -> bool {
        let Some(first) = group.places.first() else { return false };
        let Some(key) = self.locked(|groups| groups.used.remove(&first.dir)) else { return false };
        if !group.others.is_empty() || !is_unused(group) {
            return false;
        }
        let oldest = self.locked(|groups| {
            groups.free.push_back((key, group.clone()));
            if groups.free.len() > MOST { groups.free.pop_front() } else { None }
        });
        if let Some((_, oldest)) = oldest {
            // Attempts may need no group of this key any more. A group that cannot be removed is swept later.
            let _ = oldest.end();
        }
        true
    }
}

/// True if the group has no process, no kill for lack of memory, and little charged memory.
fn is_unused(group: &AttemptCgroups) -> bool {
    let empty = |place: &CgroupDir| {
        let none_below = fs::metadata(&place.dir).is_ok_and(|dir| dir.nlink() == 2);
        none_below && fs::read(place.dir.join("cgroup.procs")).is_ok_and(|text| text.is_empty())
    };
    let little = |place: &CgroupDir| {
        place.number("memory.usage_in_bytes", "").is_some_and(|bytes| bytes <= CHARGED_BYTES)
            && place.number("memory.oom_control", "oom_kill ") == Some(0)
    };
    let unused = |place: &CgroupDir| empty(place) && (!place.has(Controller::Memory) || little(place));
    group.places.iter().all(unused) && has_no_task(group)
}

/// True if the kernel counts no task in the group, not even an ended one that nobody has collected.
fn has_no_task(group: &AttemptCgroups) -> bool {
    let mut counted = group.places.iter().filter(|p| p.has(Controller::Pids));
    counted.all(|place| place.number("pids.current", "") == Some(0))
}

/// Makes the kernel count the memory peak from now.
fn reset_peak(group: &AttemptCgroups) -> bool {
    let mut memory = group.places.iter().filter(|p| p.has(Controller::Memory));
    memory.all(|place| place.write("memory.max_usage_in_bytes", "0").is_ok())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::super::hierarchies::Cgroups;
    use super::*;
    use crate::left_out::left_out;

    /// Real cgroups of version 1. `None`: no root rights, or a host with version 2.
    fn real(root: &Path) -> Option<Cgroups> {
        let found = Cgroups::find("berth-test", root);
        let there = found.version_text(Controller::Memory) == Some("cgroup v1");
        if !there {
            left_out("this machine limits no memory by cgroups of version 1, or only for root");
        }
        there.then_some(found)
    }

    fn allowance() -> Allowance {
        Allowance { pids: 64, memory_mib: 256, ..Allowance::default() }
    }

    /// The inodes of the directories, which a rename keeps.
    fn same(group: &AttemptCgroups) -> Vec<u64> {
        group.places.iter().map(|place| fs::metadata(&place.dir).unwrap().ino()).collect()
    }

    /// Starts a script in the group.
    fn run(group: &AttemptCgroups, script: &str) -> std::process::Child {
        let joined: Vec<String> =
            group.places.iter().map(|p| format!("echo 0 > {}/cgroup.procs", p.dir.display())).collect();
        let text = format!("{}\necho in\n{script}", joined.join("\n"));
        let mut child = Command::new("sh").args(["-c", &text]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        child
    }

    #[test]
    fn the_next_attempt_takes_what_one_left_empty_and_knows_nothing_of_it() {
        let root = tempfile::tempdir().unwrap();
        let Some(cgroups) = real(root.path()) else { return };
        let first = cgroups.create("first", &allowance()).unwrap();
        let were = same(&first);
        let text = "dd if=/dev/zero of=/dev/null bs=64M count=1 status=none";
        assert!(run(&first, text).wait().unwrap().success());
        assert!(first.memory().unwrap().peak_mib.unwrap() >= 64);
        cgroups.end(&first).unwrap();
        let next = cgroups.create("next", &allowance()).unwrap();
        assert_eq!(same(&next), were);
        assert!(first.places.iter().all(|place| !place.dir.exists()), "only their name is another");
        assert!(next.memory().unwrap().peak_mib.unwrap() < 8, "{:?}", next.memory());
        // A second creation of a name does not reuse the pooled group with that name.
        let other = cgroups.create("other", &allowance()).unwrap();
        cgroups.end(&other).unwrap();
        let again = cgroups.create("other", &allowance()).unwrap();
        let third = cgroups.create("third", &allowance()).unwrap();
        assert!(again.places.iter().chain(&third.places).all(|place| place.dir.exists()));
        cgroups.end(&again).unwrap();
        cgroups.end(&third).unwrap();
        // A second end of a group does not affect its next user.
        let mut child = run(&next, "sleep 300");
        cgroups.end(&first).unwrap();
        assert_eq!(child.try_wait().unwrap(), None);
        cgroups.end(&next).unwrap();
        child.wait().unwrap();
        cgroups.clear_pool();
    }

    #[test]
    fn what_is_not_as_new_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let Some(cgroups) = real(root.path()) else { return };
        let gone = |group: &AttemptCgroups| group.places.iter().all(|place| !place.dir.exists());
        let create = |name| cgroups.create(name, &allowance()).unwrap();

        let other = create("limited-otherwise");
        let were = same(&other);
        cgroups.end(&other).unwrap();
        let more = cgroups.create("more", &Allowance { pids: 65, ..allowance() }).unwrap();
        assert!(same(&more).iter().all(|inode| !were.contains(inode)));
        cgroups.end(&more).unwrap();
        let taken = create("limited-alike");
        assert_eq!(same(&taken), were);
        cgroups.end(&taken).unwrap();

        let busy = create("busy");
        let mut child = run(&busy, "sleep 300");
        cgroups.end(&busy).unwrap();
        assert!(gone(&busy) && !child.wait().unwrap().success());

        let hungry = create("hungry");
        run(&hungry, "exec python3 -c 'x = bytearray(512 << 20)'").wait().unwrap();
        // A host without a limit of swap would swap instead.
        if hungry.memory().unwrap().kills > 0 {
            cgroups.end(&hungry).unwrap();
            assert!(gone(&hungry));
        }

        let parent = create("parent");
        fs::create_dir(parent.places[0].dir.join("child")).unwrap();
        cgroups.end(&parent).unwrap();
        assert!(gone(&parent));

        // A daemon that ends in order leaves no cgroup.
        let last = create("last");
        cgroups.end(&last).unwrap();
        assert!(!gone(&last));
        cgroups.clear_pool();
        assert!(gone(&last) && gone(&more));
    }
}
