//! What the kernel limits and counts for each attempt: memory, processors, processes, device nodes.
//!
//! Version 2 is used where it has a controller, version 1 where that is mounted instead, and nothing
//! where neither can be written, which is said and not hidden. Each attempt has a directory of its own in
//! each hierarchy that does something for it. Must not decide how much anybody gets. Blocking.

mod group;
mod nested;
mod spares;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::group::limit_memory;
use self::spares::Spares;
pub use group::{Group, Memory};
pub use nested::MemoryWatch;

/// One kind of limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    Memory,
    Cpu,
    Pids,
    /// Version 1 only; with version 2 the mount namespace alone keeps device nodes apart.
    Devices,
    /// Version 1 only: stops processes while they are killed.
    Freezer,
}

impl Controller {
    const ALL: [Self; 5] = [Self::Memory, Self::Cpu, Self::Pids, Self::Devices, Self::Freezer];
    /// Those of version 2.
    const UNIFIED: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Devices => "devices",
            Self::Freezer => "freezer",
        }
    }
}

/// A directory of one hierarchy, with what is limited there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    dir: PathBuf,
    unified: bool,
    controllers: Vec<Controller>,
}

impl Place {
    fn has(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }

    /// Writes a control file; the error names it.
    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, text).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
    }

    /// The number after a word in a control file, or the file's only number when the word is empty.
    fn number(&self, file: &str, word: &str) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
    }

    /// In it and below it.
    fn processes(&self) -> io::Result<Vec<i32>> {
        nested::processes(&self.dir)
    }
}

/// What an attempt may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Thousandths of a processor; 0: as many as there are.
    pub cpu_milli: u64,
    /// 0: what the jobs of this host may have together.
    pub memory_mib: u64,
    /// Processes and threads together.
    pub pids: u64,
    /// Device nodes besides those that every process needs.
    pub devices: Vec<PathBuf>,
}

/// Where attempts are limited on this host.
#[derive(Debug, Clone, Default)]
pub struct Cgroups {
    parents: Vec<Place>,
    /// Begins the name of every directory, so that two workers on a host keep out of each other's way.
    prefix: String,
    /// The name of the parents' own directory, below each hierarchy's root.
    parent: String,
    /// The same directory in hierarchies that limit nothing here.
    others: Vec<PathBuf>,
    spares: Arc<Spares>,
}

/// Of the host's memory, what stays for everything but jobs.
const fn reserve_mib(total_mib: u64) -> u64 {
    let (part, least) = (total_mib / 20, if total_mib / 4 < 512 { total_mib / 4 } else { 512 });
    if part > least { part } else { least }
}

/// A line of the table of mounts that is a hierarchy: where, whether version 2, and its options.
fn hierarchy(line: &str) -> Option<(PathBuf, bool, Vec<&str>)> {
    let mut fields = line.split_whitespace().skip(1);
    let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
    let unified = kind == "cgroup2";
    (unified || kind == "cgroup").then(|| (PathBuf::from(at), unified, options.split(',').collect()))
}

/// What version 2 limits below this directory, after everything was asked for that is used here.
fn enabled(dir: &Path) -> Vec<Controller> {
    for controller in Controller::UNIFIED {
        // One that is not there, or belongs to version 1, is refused; the others are not.
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{}", controller.name()));
    }
    let text = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
    let there = |c: &Controller| text.split_whitespace().any(|word| word == c.name());
    Controller::UNIFIED.into_iter().filter(there).collect()
}

/// Letters, digits and hyphens: what the name of a directory may have here.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

impl Cgroups {
    /// What can be limited here, in a directory `parent` of each mounted hierarchy. `root` is the
    /// directory of this worker's attempts. Only root may move processes between cgroups; any other
    /// worker limits nothing.
    pub fn find(parent: &str, root: &Path) -> Self {
        if !nix::unistd::geteuid().is_root() {
            return Self::default();
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Self::among(&mounts, parent, root)
    }

    fn among(mounts: &str, parent: &str, root: &Path) -> Self {
        let bytes = root.as_os_str().as_encoded_bytes();
        let hash = bytes.iter().fold(2_166_136_261u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(16_777_619));
        let prefix = format!("{hash:08x}-");
        let (mut parents, mut others): (Vec<Place>, Vec<PathBuf>) = (Vec::new(), Vec::new());
        let mut found: Vec<(PathBuf, bool, Vec<&str>)> = mounts.lines().filter_map(hierarchy).collect();
        // Version 2 first: a controller is in one hierarchy only.
        found.sort_by_key(|(_, unified, _)| !unified);
        for (at, unified, options) in found {
            let dir = at.join(plain(parent));
            if fs::create_dir_all(&dir).is_err() {
                continue;
            }
            let controllers: Vec<Controller> = if unified {
                enabled(&at);
                enabled(&dir)
            } else {
                let mounted = |c: &Controller| options.contains(&c.name());
                let free = |c: &Controller| !parents.iter().any(|p| p.has(*c));
                Controller::ALL.into_iter().filter(|c| mounted(c) && free(c)).collect()
            };
            // Version 2 can kill what is in it even where it limits nothing.
            if unified || !controllers.is_empty() {
                parents.push(Place { dir, unified, controllers });
            } else {
                others.push(dir);
            }
        }
        Self { parents, prefix, parent: plain(parent), others, spares: Arc::default() }
    }

    /// Keeps the jobs of this host together below its memory, so that it outlives them.
    pub fn leave_room(&self, total_mib: u64) {
        if total_mib == 0 {
            return;
        }
        let most = total_mib - reserve_mib(total_mib);
        for place in self.parents.iter().filter(|p| p.has(Controller::Memory)) {
            if let Err(error) = limit_memory(place, most) {
                tracing::warn!(%error, "the jobs of this host are not kept below its memory");
            }
        }
    }

    /// In words: what limits this here; `None` when nothing does.
    pub fn words(&self, controller: Controller) -> Option<&'static str> {
        let place = self.parents.iter().find(|p| p.has(controller))?;
        Some(if place.unified { "cgroup v2" } else { "cgroup v1" })
    }

    /// The cgroups of an attempt, limited: those that another left empty, or made now. What was there of that
    /// name is ended first.
    pub fn create(&self, name: &str, allowance: &Allowance) -> io::Result<Group> {
        let name = format!("{}{}", self.prefix, plain(name));
        let place = |p: &Place| Place { dir: p.dir.join(&name), ..p.clone() };
        let places = self.parents.iter().filter(|p| self.needs(p)).map(place).collect();
        let mut group = Group { places, others: Vec::new() };
        if !self.spares.take(&group, allowance) {
            group = Self::set_up(group, allowance)?;
        }
        self.spares.note(&group, allowance);
        Ok(group)
    }

    /// Kills everything in an attempt's cgroups and proves them empty; then they are gone, or another may be given
    /// them. The reason when that cannot be done.
    pub fn end(&self, group: &Group) -> Result<(), String> {
        if self.spares.keep(group) { Ok(()) } else { group.end() }
    }

    /// Removes what is kept for further attempts. To be called when a daemon ends.
    pub fn end_spares(&self) {
        self.spares.end();
    }

    /// Whether this hierarchy limits or shares out something, or is the only one that can kill all at once. Each
    /// costs a job time.
    fn needs(&self, place: &Place) -> bool {
        !place.controllers.is_empty() || !self.parents.iter().any(|p| p.has(Controller::Freezer))
    }

    fn set_up(group: Group, allowance: &Allowance) -> io::Result<Group> {
        let made = match group.make(allowance) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                group.end().map_err(io::Error::other)?;
                group.make(allowance)
            }
            made => made,
        };
        if made.is_err() {
            // The error that counts is the first one; what is left is swept at the next start.
            let _ = group.end();
        }
        made.map(|()| group)
    }

    /// Ends what former daemons with this root left behind and no attempt knows.
    pub fn sweep(&self, known: &[Group]) {
        for parent in &self.parents {
            let Ok(entries) = fs::read_dir(&parent.dir) else { continue };
            for dir in entries.flatten().map(|e| e.path()) {
                let ours =
                    dir.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(&self.prefix));
                let in_use = known.iter().any(|g| g.places.iter().any(|p| p.dir == dir));
                if ours && !in_use && dir.is_dir() {
                    let left = Group { places: vec![Place { dir, ..parent.clone() }], others: Vec::new() };
                    if let Err(error) = left.end() {
                        tracing::warn!(error, "a cgroup that nobody knows is left");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_told_from_other_mounts() {
        let of = |line| hierarchy(line).map(|(at, unified, options)| (at, unified, options.len()));
        let v1 = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0";
        assert_eq!(of(v1), Some((PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"), false, 3)));
        assert_eq!(of("x /c cgroup2 rw 0 0"), Some((PathBuf::from("/c"), true, 1)));
        for other in ["tmpfs /sys/fs/cgroup tmpfs rw 0 0", "", "a", "cgroup /x"] {
            assert_eq!(of(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_controller_is_used_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["unified", "memory", "both"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        let mounts = format!(
            "cgroup {} cgroup rw,memory 0 0\ncgroup {} cgroup rw,cpu,pids,memory 0 0\ncgroup2 {} cgroup2 rw 0 0\n",
            at("memory").display(),
            at("both").display(),
            at("unified").display()
        );
        let found = Cgroups::among(&mounts, "ber/th", Path::new("/attempts"));
        let dirs: Vec<PathBuf> = found.parents.iter().map(|p| p.dir.clone()).collect();
        let expected = ["unified", "memory", "both"].map(|name| at(name).join("ber_th"));
        assert_eq!(dirs, expected, "version 2 comes first, and the name stays one name");
        let controllers: Vec<&[Controller]> =
            found.parents.iter().map(|p| p.controllers.as_slice()).collect();
        let (memory, both) = ([Controller::Memory], [Controller::Cpu, Controller::Pids]);
        assert_eq!(controllers, [&[] as &[Controller], &memory, &both], "each in one hierarchy");
        assert_eq!(found.words(Controller::Memory), Some("cgroup v1"));
        assert_eq!(found.words(Controller::Devices), None);
    }

    #[test]
    fn a_hierarchy_that_does_nothing_for_a_job_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let mount = |name: &str, kind: &str| {
            let at = dir.path().join(name);
            fs::create_dir_all(&at).unwrap();
            format!("{name} {} {kind} rw,{name} 0 0\n", at.display())
        };
        let mounts = [mount("unified", "cgroup2"), mount("cpu", "cgroup"), mount("pids", "cgroup")].concat();
        let places = |mounts: &str, name: &str| -> Vec<String> {
            let found = Cgroups::among(mounts, "berth", Path::new("/attempts"));
            let group = found.create(name, &Allowance { pids: 16, ..Allowance::default() }).unwrap();
            let hierarchy =
                |p: &Place| p.dir.strip_prefix(dir.path()).unwrap().iter().next().unwrap().to_owned();
            group.places.iter().map(|p| hierarchy(p).into_string().unwrap()).collect()
        };
        // Without one of its own a job would compete as part of the worker, not beside the other jobs.
        assert_eq!(places(&mounts, "a"), ["unified", "cpu", "pids"], "the first kills what is in it");
        let mounts = mounts + &mount("freezer", "cgroup");
        assert_eq!(places(&mounts, "b"), ["cpu", "pids", "freezer"]);
    }

    #[test]
    fn nothing_to_limit_with_is_no_group() {
        let group = Cgroups::default().create("job-1", &Allowance::default()).unwrap();
        assert_eq!(group, Group::default());
        assert_eq!(group.memory(), None);
        assert!(group.processes().unwrap().is_empty() && group.end().is_ok() && group.join().is_ok());
    }

    #[test]
    fn something_is_left_for_the_host() {
        assert_eq!(reserve_mib(1 << 20), 52_428);
        assert_eq!(reserve_mib(4_096), 512);
        assert_eq!(reserve_mib(1_024), 256);
    }
}
