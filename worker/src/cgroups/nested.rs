//! Cgroups in which somebody else makes further ones, as programs for containers do.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Allowance, Cgroups, Controller, Group, Place, plain};

/// The directory and everything below it, parents first.
fn tree(root: &Path) -> Vec<PathBuf> {
    let mut all = vec![root.to_owned()];
    let mut next = 0;
    while let Some(dir) = all.get(next) {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let below: Vec<PathBuf> =
            entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect();
        all.extend(below);
        next += 1;
    }
    all
}

/// Every process in a cgroup and below it.
pub(super) fn processes(root: &Path) -> io::Result<Vec<i32>> {
    let mut all = Vec::new();
    for dir in tree(root) {
        match fs::read_to_string(dir.join("cgroup.procs")) {
            // A process of another PID namespace has no number here, and 0 would mean this process's own.
            Ok(text) => all.extend(text.lines().filter_map(|l| l.parse::<i32>().ok()).filter(|pid| *pid > 0)),
            // After a restart of the host there are none.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// Whether it and everything below it is gone now.
pub(super) fn remove(root: &Path) -> bool {
    tree(root).into_iter().rev().all(|dir| match fs::remove_dir(&dir) {
        Ok(()) => true,
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    })
}

/// Hears from the kernel that memory ran out in a cgroup or below it. Version 1 counts that only in the
/// cgroup of the process that was killed, which is gone with its container.
#[derive(Debug)]
pub struct MemoryWatch {
    event: EventFd,
    /// What is heard from is open as long.
    _control: File,
}

impl MemoryWatch {
    /// Whether it did since the watch began or was last asked.
    pub fn ran_out(&self) -> bool {
        self.event.read().is_ok_and(|times| times > 0)
    }
}

impl Group {
    /// `None` where nobody tells, or the group's own count is enough.
    pub fn watch_memory(&self) -> Option<MemoryWatch> {
        let place = self.places.iter().find(|p| p.has(Controller::Memory) && !p.unified)?;
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).ok()?;
        let control = File::open(place.dir.join("memory.oom_control")).ok()?;
        let line = format!("{} {}", event.as_fd().as_raw_fd(), control.as_raw_fd());
        place.write("cgroup.event_control", &line).ok()?;
        Some(MemoryWatch { event, _control: control })
    }
}

impl Group {
    /// Moves the calling process to where another one is, in it or below it, so that what holds for that one
    /// holds for it too. To be called where both have numbers.
    pub fn join_beside(&self, pid: i32) -> io::Result<()> {
        for place in &self.places {
            let holds = |dir: &PathBuf| {
                let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                text.lines().any(|line| line.parse::<i32>() == Ok(pid))
            };
            match tree(&place.dir).into_iter().find(holds) {
                Some(dir) => fs::write(dir.join("cgroup.procs"), "0")?,
                // Whoever makes a container need not care for what limits nothing.
                None if place.controllers.is_empty() => {}
                None => return Err(io::ErrorKind::NotFound.into()),
            }
        }
        Ok(())
    }
}

impl Cgroups {
    /// Whether there is any hierarchy in which somebody else could make cgroups.
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// The cgroups of an attempt whose processes others put into cgroups of their own below them, and their
    /// name below the root of each hierarchy. Device nodes are then for those others to limit, since no
    /// cgroup may allow what the one above it denies, which they try.
    pub fn create_nested(&self, name: &str, allowance: &Allowance) -> io::Result<(Group, String)> {
        let name = format!("{}{}", self.prefix, plain(name));
        let place = |p: &Place| {
            let controllers = p.controllers.iter().copied().filter(|c| *c != Controller::Devices).collect();
            Place { dir: p.dir.join(&name), unified: p.unified, controllers }
        };
        let places = self.parents.iter().map(place).collect();
        let others = self.others.iter().map(|dir| dir.join(&name)).collect();
        let group = Self::set_up(Group { places, others }, allowance)?;
        Ok((group, format!("/{}/{name}", self.parent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_counts_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("job");
        fs::create_dir_all(root.join("a/b")).unwrap();
        assert_eq!(processes(&root).unwrap(), Vec::<i32>::new());
        fs::write(root.join("cgroup.procs"), "7\n0\n").unwrap();
        fs::write(root.join("a/b/cgroup.procs"), "9\n").unwrap();
        assert_eq!(processes(&root).unwrap(), [7, 9]);
        let place = |dir: &str, controllers: &[Controller]| Place {
            dir: dir.into(),
            unified: true,
            controllers: controllers.to_vec(),
        };
        let at = root.display().to_string();
        let places = vec![place(&at, &[Controller::Memory]), place("/none", &[])];
        let group = Group { places, others: Vec::new() };
        group.join_beside(9).unwrap();
        assert_eq!(fs::read_to_string(root.join("a/b/cgroup.procs")).unwrap(), "0");
        assert_eq!(fs::read_to_string(root.join("cgroup.procs")).unwrap(), "7\n0\n", "beside it, not above");
        assert!(group.join_beside(8).is_err(), "who is nowhere is followed nowhere");
        // A directory of a real hierarchy holds no files that keep it.
        fs::remove_file(root.join("cgroup.procs")).unwrap();
        assert!(!remove(&root) && root.join("a/b").exists(), "what is not empty stays");
        fs::remove_file(root.join("a/b/cgroup.procs")).unwrap();
        assert!(remove(&root) && !root.exists() && remove(&root));
    }
}
