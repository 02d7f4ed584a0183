//! Empty cgroups of version 1 that one attempt leaves and the next one takes.
//!
//! There an attempt has a directory in each of five hierarchies, with a list of device nodes in one: to make and to
//! remove them takes longer than a short job. In version 2 it is one directory, whose peak of memory most kernels
//! cannot set back, so nothing is kept. Must not keep what anything was ever killed in, or could still be in.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::{Allowance, Controller, Group, Place};

/// More than become free before the next is made, on a node full of short jobs.
const MOST: usize = 128;
/// What may stay charged to an empty one: files that its processes read or wrote and the kernel still caches, and
/// what each processor was charged ahead.
const CHARGED_BYTES: u64 = 4 << 20;

/// How attempts are limited that may have the same ones after each other.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Terms {
    allowance: Allowance,
    /// What its device nodes stand for: a driver that is loaded anew may give other numbers to the same names.
    numbers: Vec<u64>,
}

impl Terms {
    /// `None` where a device node has gone.
    fn of(allowance: &Allowance) -> Option<Self> {
        let number = |node: &PathBuf| fs::metadata(node).ok().map(|node| node.rdev());
        let numbers = allowance.devices.iter().map(number).collect::<Option<_>>()?;
        Some(Self { allowance: allowance.clone(), numbers })
    }
}

/// What was made on which terms, and what of it is free.
#[derive(Debug, Default)]
pub(super) struct Spares(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// In use, by their first directory.
    used: HashMap<PathBuf, Terms>,
    /// The one that has been free for longest first.
    free: VecDeque<(Terms, Group)>,
}

impl Spares {
    fn with<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes all that are free.
    pub fn end(&self) {
        for (_, group) in self.with(|known| std::mem::take(&mut known.free)) {
            // What cannot be removed now is swept by the next daemon, as after one that was killed.
            let _ = group.end();
        }
    }

    /// Notes who is limited how, so that it may be kept at its end.
    pub fn note(&self, group: &Group, allowance: &Allowance) {
        if let Some(first) = group.places.first().filter(|_| group.places.iter().all(|p| !p.unified))
            && let Some(terms) = Terms::of(allowance)
        {
            self.with(|known| known.used.insert(first.dir.clone(), terms));
        }
    }

    /// Gives an empty one of this allowance the directories of `wanted`. `false`: there is none.
    pub fn take(&self, wanted: &Group, allowance: &Allowance) -> bool {
        let Some(terms) = Terms::of(allowance) else { return false };
        let found = self.with(|known| {
            // One that is still called so is ended as whatever else is there of that name.
            known.free.retain(|(_, group)| group.places.first() != wanted.places.first());
            let at = known.free.iter().position(|(with, _)| *with == terms)?;
            known.free.remove(at)
        });
        let Some((_, group)) = found else { return false };
        let mut pairs = group.places.iter().zip(&wanted.places);
        let renamed = group.places.len() == wanted.places.len()
            && pairs.all(|(from, to)| fs::rename(&from.dir, &to.dir).is_ok());
        // Nobody can know it by its former name any more.
        if renamed && wanted.has_no_task() && wanted.forget_peak() {
            return true;
        }
        // What was renamed already and what was not; the rest is made anew.
        let _ = group.end().and_then(|()| wanted.end());
        false
    }

    /// Keeps one that is empty for the next. `false`: it is to be removed.
    pub fn keep(&self, group: &Group) -> bool {
        let Some(first) = group.places.first() else { return false };
        let Some(terms) = self.with(|known| known.used.remove(&first.dir)) else { return false };
        if !group.others.is_empty() || !group.is_unused() {
            return false;
        }
        let oldest = self.with(|known| {
            known.free.push_back((terms, group.clone()));
            if known.free.len() > MOST { known.free.pop_front() } else { None }
        });
        if let Some((_, oldest)) = oldest {
            // It may be of a kind that nobody asks for again. What cannot be removed now is swept later.
            let _ = oldest.end();
        }
        true
    }
}

impl Group {
    /// Whether nothing is in it, was killed in it for want of memory, or is left of what its processes held.
    fn is_unused(&self) -> bool {
        let empty = |place: &Place| {
            let none_below = fs::metadata(&place.dir).is_ok_and(|dir| dir.nlink() == 2);
            none_below && fs::read(place.dir.join("cgroup.procs")).is_ok_and(|text| text.is_empty())
        };
        let little = |place: &Place| {
            place.number("memory.usage_in_bytes", "").is_some_and(|bytes| bytes <= CHARGED_BYTES)
                && place.number("memory.oom_control", "oom_kill ") == Some(0)
        };
        let unused = |place: &Place| empty(place) && (!place.has(Controller::Memory) || little(place));
        self.places.iter().all(unused) && self.has_no_task()
    }

    /// Whether nothing counts in it, not even what has ended and was not waited for.
    fn has_no_task(&self) -> bool {
        let mut counted = self.places.iter().filter(|p| p.has(Controller::Pids));
        counted.all(|place| place.number("pids.current", "") == Some(0))
    }

    /// Has the most memory that was in use counted from now.
    fn forget_peak(&self) -> bool {
        let mut memory = self.places.iter().filter(|p| p.has(Controller::Memory));
        memory.all(|place| place.write("memory.max_usage_in_bytes", "0").is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::super::Cgroups;
    use super::*;
    use crate::left_out::left_out;

    /// Real ones of version 1; `None` where a plain user or a host with version 2 has none.
    fn real(root: &Path) -> Option<Cgroups> {
        let found = Cgroups::find("berth-test", root);
        let there = found.words(Controller::Memory) == Some("cgroup v1");
        if !there {
            left_out("this machine limits no memory by cgroups of version 1, or only for root");
        }
        there.then_some(found)
    }

    fn allowance() -> Allowance {
        Allowance { pids: 64, memory_mib: 256, ..Allowance::default() }
    }

    /// Which directories they are, whatever they are called.
    fn same(group: &Group) -> Vec<u64> {
        group.places.iter().map(|place| fs::metadata(&place.dir).unwrap().ino()).collect()
    }

    /// Runs a script in it to its end, or starts it.
    fn run(group: &Group, script: &str) -> std::process::Child {
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
        // One that is made twice is not the spare that still has its name.
        let other = cgroups.create("other", &allowance()).unwrap();
        cgroups.end(&other).unwrap();
        let again = cgroups.create("other", &allowance()).unwrap();
        let third = cgroups.create("third", &allowance()).unwrap();
        assert!(again.places.iter().chain(&third.places).all(|place| place.dir.exists()));
        cgroups.end(&again).unwrap();
        cgroups.end(&third).unwrap();
        // What was cleaned once may be cleaned again, when another has it already.
        let mut child = run(&next, "sleep 300");
        cgroups.end(&first).unwrap();
        assert_eq!(child.try_wait().unwrap(), None);
        cgroups.end(&next).unwrap();
        child.wait().unwrap();
        cgroups.end_spares();
    }

    #[test]
    fn what_is_not_as_new_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let Some(cgroups) = real(root.path()) else { return };
        let gone = |group: &Group| group.places.iter().all(|place| !place.dir.exists());
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
        // A host that does not count swap would have swapped it out.
        if hungry.memory().unwrap().kills > 0 {
            cgroups.end(&hungry).unwrap();
            assert!(gone(&hungry));
        }

        let parent = create("parent");
        fs::create_dir(parent.places[0].dir.join("child")).unwrap();
        cgroups.end(&parent).unwrap();
        assert!(gone(&parent));

        // Nothing of a daemon that ends in order stays.
        let last = create("last");
        cgroups.end(&last).unwrap();
        assert!(!gone(&last));
        cgroups.end_spares();
        assert!(gone(&last) && gone(&more));
    }
}
