//! The hierarchies of this host in which attempts are limited.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::attempt_cgroups::{AttemptCgroups, limit_memory};
use super::device_filter;
use super::device_rules::device_rules;
use super::directory::{Allowance, CgroupDir, Controller};
use super::pool::CgroupPool;

/// The parent directories of all attempts' cgroups.
#[derive(Debug, Clone, Default)]
pub struct Cgroups {
    parents: Vec<CgroupDir>,
    /// The start of every directory name. It separates two workers on one host.
    prefix: String,
    /// The name of the parents below the root of each hierarchy.
    parent: String,
    /// The parents in hierarchies that limit nothing here.
    others: Vec<PathBuf>,
    /// The reason for which the kernel refuses the filter of device nodes in version 2. `None`: it permits the filter,
    /// or none is needed.
    device_filter_refusal: Option<String>,
    pool: Arc<CgroupPool>,
}

/// The memory of the host that jobs never get.
const fn reserve_mib(total_mib: u64) -> u64 {
    let (part, least) = (total_mib / 20, if total_mib / 4 < 512 { total_mib / 4 } else { 512 });
    if part > least { part } else { least }
}

/// A hierarchy from a line of the mount table: its directory, whether it is of version 2, and its options.
fn parse_hierarchy(line: &str) -> Option<(PathBuf, bool, Vec<&str>)> {
    let mut fields = line.split_whitespace().skip(1);
    let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
    let unified = kind == "cgroup2";
    (unified || kind == "cgroup").then(|| (PathBuf::from(at), unified, options.split(',').collect()))
}

/// Enables the controllers of version 2 below this directory, and returns those that are enabled.
fn enable_controllers(dir: &Path) -> Vec<Controller> {
    for controller in Controller::UNIFIED {
        // The kernel refuses an absent controller and one of version 1, without effect on the others.
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{}", controller.name()));
    }
    let text = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
    let there = |c: &Controller| text.split_whitespace().any(|name| name == c.name());
    Controller::UNIFIED.into_iter().filter(there).collect()
}

/// Tries a filter of device nodes below a directory of version 2.
///
/// # Errors
/// The kernel refuses the filter.
fn try_device_filter(parent: &Path, prefix: &str) -> io::Result<()> {
    // The next start of the daemon sweeps a directory that is left.
    let dir = parent.join(format!("{prefix}probe"));
    fs::create_dir_all(&dir)?;
    let attached = device_rules(&[]).and_then(|rules| device_filter::attach(&dir, &rules));
    let _ = fs::remove_dir(&dir);
    attached
}

/// A name with only letters, digits, hyphens and underscores.
fn plain_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

impl Cgroups {
    /// The hierarchies of this host, with a directory `parent` in each. `root` is the directory of this worker's
    /// attempts. Only root may move processes between cgroups: any other worker limits nothing.
    pub fn find(parent: &str, root: &Path) -> Self {
        if !nix::unistd::geteuid().is_root() {
            return Self::default();
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Self::from_mounts(&mounts, parent, root)
    }

    pub(super) fn from_mounts(mounts: &str, parent: &str, root: &Path) -> Self {
        let bytes = root.as_os_str().as_encoded_bytes();
        let hash = bytes.iter().fold(2_166_136_261u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(16_777_619));
        let prefix = format!("{hash:08x}-");
        let (mut parents, mut others): (Vec<CgroupDir>, Vec<PathBuf>) = (Vec::new(), Vec::new());
        let mut found: Vec<(PathBuf, bool, Vec<&str>)> = mounts.lines().filter_map(parse_hierarchy).collect();
        // Version 2 first: a controller is in one hierarchy only.
        found.sort_by_key(|(_, unified, _)| !unified);
        for (at, unified, options) in found {
            let dir = at.join(plain_name(parent));
            if fs::create_dir_all(&dir).is_err() {
                continue;
            }
            let controllers: Vec<Controller> = if unified {
                enable_controllers(&at);
                enable_controllers(&dir)
            } else {
                let mounted = |c: &Controller| options.contains(&c.name());
                let free = |c: &Controller| !parents.iter().any(|p| p.has(*c));
                Controller::ALL.into_iter().filter(|c| mounted(c) && free(c)).collect()
            };
            // Version 2 can kill a whole cgroup, also without a controller.
            if unified || !controllers.is_empty() {
                parents.push(CgroupDir { dir, unified, controllers });
            } else {
                others.push(dir);
            }
        }
        let mut device_filter_refusal = None;
        if !parents.iter().any(|p| p.has(Controller::Devices))
            && let Some(place) = parents.iter_mut().find(|p| p.unified)
        {
            match try_device_filter(&place.dir, &prefix) {
                Ok(()) => place.controllers.push(Controller::Devices),
                Err(error) => {
                    tracing::warn!(%error, "the kernel refuses the filter of device nodes");
                    device_filter_refusal = Some(error.to_string());
                }
            }
        }
        let parent = plain_name(parent);
        Self { parents, prefix, parent, others, device_filter_refusal, pool: Arc::default() }
    }

    /// Limits the memory of all jobs together, so some stays for the host.
    pub fn limit_all_jobs(&self, total_mib: u64) {
        if total_mib == 0 {
            return;
        }
        let most = total_mib - reserve_mib(total_mib);
        for place in self.parents.iter().filter(|p| p.has(Controller::Memory)) {
            if let Err(error) = limit_memory(place, most) {
                tracing::warn!(%error, "the memory of all jobs together cannot be limited");
            }
        }
    }

    /// The version of cgroups that has this controller here, as text. `None`: nothing limits this.
    pub fn version_text(&self, controller: Controller) -> Option<&'static str> {
        let place = self.parents.iter().find(|p| p.has(controller))?;
        Some(match (place.unified, controller) {
            (true, Controller::Devices) => "cgroup v2 (BPF)",
            (true, _) => "cgroup v2",
            (false, _) => "cgroup v1",
        })
    }

    /// The reason for which the kernel refuses the filter of device nodes in version 2, as a part of a sentence.
    /// `None`: it permits the filter, or none is needed.
    pub fn device_filter_refusal(&self) -> Option<&str> {
        self.device_filter_refusal.as_deref()
    }

    /// The cgroups of an attempt with its limits: empty ones of an earlier attempt, or new ones. Existing cgroups of
    /// that name are ended first.
    pub fn create(&self, name: &str, allowance: &Allowance) -> io::Result<AttemptCgroups> {
        let name = format!("{}{}", self.prefix, plain_name(name));
        let place = |p: &CgroupDir| CgroupDir { dir: p.dir.join(&name), ..p.clone() };
        let places = self.parents.iter().filter(|p| self.needs(p)).map(place).collect();
        let mut group = AttemptCgroups { places, others: Vec::new() };
        if !self.pool.reuse(&group, allowance) {
            group = Self::set_up(group, allowance)?;
        }
        self.pool.register(&group, allowance);
        Ok(group)
    }

    /// Kills all processes in an attempt's cgroups and proves them empty; then they are removed or pooled.
    ///
    /// # Errors
    /// The reason why processes are left.
    pub fn end(&self, group: &AttemptCgroups) -> Result<(), String> {
        if self.pool.put_back(group) { Ok(()) } else { group.end() }
    }

    /// Removes the pooled cgroups. The daemon calls this at its end.
    pub fn clear_pool(&self) {
        self.pool.clear();
    }

    /// True if an attempt needs a cgroup in this hierarchy: it has controllers, or is the only one that can kill all
    /// processes at once. Each further cgroup costs a job time.
    fn needs(&self, place: &CgroupDir) -> bool {
        !place.controllers.is_empty() || !self.parents.iter().any(|p| p.has(Controller::Freezer))
    }

    fn set_up(group: AttemptCgroups, allowance: &Allowance) -> io::Result<AttemptCgroups> {
        let made = match group.make(allowance) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                group.end().map_err(io::Error::other)?;
                group.make(allowance)
            }
            made => made,
        };
        if made.is_err() {
            // The first error counts; the next start of the daemon sweeps the rest.
            let _ = group.end();
        }
        made.map(|()| group)
    }

    /// True if this host has no hierarchy for cgroups.
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// The cgroups of an attempt in a container, whose engine makes further cgroups below them; and their name below
    /// the root of each hierarchy. The engine limits device nodes: it fails below a cgroup that denies a node.
    pub fn create_nested(&self, name: &str, allowance: &Allowance) -> io::Result<(AttemptCgroups, String)> {
        let name = format!("{}{}", self.prefix, plain_name(name));
        let place = |p: &CgroupDir| {
            let controllers = p.controllers.iter().copied().filter(|c| *c != Controller::Devices).collect();
            CgroupDir { dir: p.dir.join(&name), unified: p.unified, controllers }
        };
        let places = self.parents.iter().map(place).collect();
        let others = self.others.iter().map(|dir| dir.join(&name)).collect();
        let group = Self::set_up(AttemptCgroups { places, others }, allowance)?;
        Ok((group, format!("/{}/{name}", self.parent)))
    }

    /// Ends the cgroups that earlier daemons with this root left and that no attempt has.
    pub fn sweep(&self, known: &[AttemptCgroups]) {
        for parent in &self.parents {
            let Ok(entries) = fs::read_dir(&parent.dir) else { continue };
            for dir in entries.flatten().map(|e| e.path()) {
                let ours =
                    dir.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(&self.prefix));
                let in_use = known.iter().any(|g| g.places.iter().any(|p| p.dir == dir));
                if ours && !in_use && dir.is_dir() {
                    let left = AttemptCgroups {
                        places: vec![CgroupDir { dir, ..parent.clone() }],
                        others: Vec::new(),
                    };
                    if let Err(error) = left.end() {
                        tracing::warn!(error, "an unknown cgroup cannot be removed");
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
        let parsed = |line| parse_hierarchy(line).map(|(at, unified, options)| (at, unified, options.len()));
        let v1 = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0";
        assert_eq!(parsed(v1), Some((PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"), false, 3)));
        assert_eq!(parsed("x /c cgroup2 rw 0 0"), Some((PathBuf::from("/c"), true, 1)));
        for other in ["tmpfs /sys/fs/cgroup tmpfs rw 0 0", "", "a", "cgroup /x"] {
            assert_eq!(parsed(other), None, "{other:?}");
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
        let found = Cgroups::from_mounts(&mounts, "ber/th", Path::new("/attempts"));
        let dirs: Vec<PathBuf> = found.parents.iter().map(|p| p.dir.clone()).collect();
        let expected = ["unified", "memory", "both"].map(|name| at(name).join("ber_th"));
        assert_eq!(dirs, expected, "version 2 comes first, and the name stays one name");
        let controllers: Vec<&[Controller]> =
            found.parents.iter().map(|p| p.controllers.as_slice()).collect();
        let (memory, both) = ([Controller::Memory], [Controller::Cpu, Controller::Pids]);
        assert_eq!(controllers, [&[] as &[Controller], &memory, &both], "each in one hierarchy");
        assert_eq!(found.version_text(Controller::Memory), Some("cgroup v1"));
        assert_eq!(found.version_text(Controller::Devices), None);
        assert!(found.device_filter_refusal().is_some(), "a plain directory takes no filter");
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
            let found = Cgroups::from_mounts(mounts, "berth", Path::new("/attempts"));
            let group = found.create(name, &Allowance { pids: 16, ..Allowance::default() }).unwrap();
            let hierarchy =
                |p: &CgroupDir| p.dir.strip_prefix(dir.path()).unwrap().iter().next().unwrap().to_owned();
            group.places.iter().map(|p| hierarchy(p).into_string().unwrap()).collect()
        };
        // Without its own cgroup a job would share the worker's processor time.
        assert_eq!(places(&mounts, "a"), ["unified", "cpu", "pids"], "the first kills what is in it");
        let mounts = mounts + &mount("freezer", "cgroup");
        assert_eq!(places(&mounts, "b"), ["cpu", "pids", "freezer"]);
    }

    #[test]
    fn nothing_to_limit_with_is_no_group() {
        let group = Cgroups::default().create("job-1", &Allowance::default()).unwrap();
        assert_eq!(group, AttemptCgroups::default());
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
