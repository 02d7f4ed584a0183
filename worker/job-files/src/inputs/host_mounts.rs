//! The host mounts: directories of the host, such as shared file systems, that the operator declared for volumes.
//!
//! A volume of a storage class is the directory `ORGANIZATION/VOLUME` below the mount of that name. A job sees only the
//! directory of its volume. The directories above it belong to the worker, so no job can put a link in the place of
//! one.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use berth_proto::Mount;
use berth_shim::model::{JobFailure, start_failure};
use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;

use crate::transfer::tree::{descend, open_root};

/// The most host mounts of a worker.
pub const MAX_HOST_MOUNTS: usize = 32;
/// The directory of a volume: its group is that of the organization, also for new files in it.
const SHARED_MODE: u32 = 0o2770;
/// The time for the answers of all file systems.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for the directory of a volume. A file system of the network may answer late after a fault of its server.
const MAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// A host mount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostMount {
    name: String,
    /// Canonical.
    path: PathBuf,
    /// The path was a mount point at the start of the worker.
    is_mount_point: bool,
}

/// The host mounts of a worker.
#[derive(Debug, Clone, Default)]
pub struct HostMounts {
    mounts: Vec<HostMount>,
    /// The groups for organizations: the first and the number.
    groups: (u32, u32),
}

/// True if a text can be the name of a storage class.
fn is_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && !name.starts_with('-')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// True if a text of the portal is one part of a path.
fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// True for the root of a file system.
fn is_mount_point(path: &Path) -> io::Result<bool> {
    let Some(parent) = path.parent() else { return Ok(true) };
    let (own, above) = (path.symlink_metadata()?, parent.symlink_metadata()?);
    Ok(own.dev() != above.dev())
}

/// The type of the file system of a path, by the text of `/proc/self/mountinfo`; empty if unknown.
fn file_system(mountinfo: &str, path: &Path) -> String {
    let mut best: Option<(usize, &str)> = None;
    for line in mountinfo.lines() {
        let Some((mount, file_system)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (mount.split(' ').nth(4), file_system.split(' ').next()) else {
            continue;
        };
        // A later mount at the same point covers the earlier one.
        if path.starts_with(point) && best.is_none_or(|(length, _)| point.len() >= length) {
            best = Some((point.len(), kind));
        }
    }
    best.map_or_else(String::new, |(_, kind)| kind.to_owned())
}

/// Runs a step on a file system that may never answer. Nothing waits for its thread after the limit.
fn answer_within<T: Send + 'static>(
    limit: Duration,
    step: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        // The caller may have given up.
        let _ = sender.send(step());
    };
    thread::Builder::new().name("host mount".to_owned()).spawn(work)?;
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the file system does not answer");
    receiver.recv_timeout(limit).unwrap_or_else(|_| Err(late()))
}

impl HostMount {
    /// Refuses a directory whose file system was unmounted: its files would go to the disk of the host.
    fn check_mounted(&self) -> io::Result<()> {
        if self.is_mount_point && !is_mount_point(&self.path)? {
            return Err(io::Error::other("the file system is not mounted"));
        }
        Ok(())
    }

    /// The description for the portal. Blocking without a limit, if the file system does not answer.
    fn describe(&self) -> io::Result<berth_proto::HostMount> {
        self.check_mounted()?;
        let disk = statvfs(&self.path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.fragment_size());
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Ok(berth_proto::HostMount {
            name: self.name.clone(),
            file_system: file_system(&mountinfo, &self.path),
            total_bytes: bytes(disk.blocks()),
            free_bytes: bytes(disk.blocks_available()),
        })
    }

    /// Makes the directory of a volume, and gives it to a group.
    fn make_directory(&self, organization: &str, volume: &str, group: Option<u32>) -> io::Result<PathBuf> {
        self.check_mounted()?;
        let root = open_root(&self.path)?;
        let directory = File::from(descend(&root, &[organization, volume], true)?);
        if let Some(group) = group {
            let found = directory.metadata()?;
            // A directory of another owner is the operator's, with the rights that the operator chose.
            let is_own = found.uid() == geteuid().as_raw();
            if is_own && (found.gid() != group || found.mode() & 0o7777 != SHARED_MODE) {
                fchown(&directory, None, Some(group))?;
                directory.set_permissions(Permissions::from_mode(SHARED_MODE))?;
            }
        }
        Ok(self.path.join(organization).join(volume))
    }
}

impl HostMounts {
    /// The mounts of the operator: names and absolute paths. `groups` are the groups for organizations, the first and
    /// the number. `private` are directories of the host that jobs must not see.
    ///
    /// # Errors
    /// A sentence about the first mount that cannot be used.
    pub fn open(
        declared: &[(String, PathBuf)],
        groups: (u32, u32),
        private: &[PathBuf],
    ) -> Result<Self, String> {
        if declared.len() > MAX_HOST_MOUNTS {
            return Err(format!("--host-mount: a worker has at most {MAX_HOST_MOUNTS} host mounts"));
        }
        let mut mounts: Vec<HostMount> = Vec::new();
        for (name, given) in declared {
            let refusal = |why: &str| format!("--host-mount {name}={}: {why}", given.display());
            if !is_name(name) {
                return Err(refusal("a name has up to 63 lower-case letters, digits and -"));
            }
            if !given.is_absolute() {
                return Err(refusal("the path is not absolute"));
            }
            let path = given.canonicalize().map_err(|error| refusal(&error.to_string()))?;
            if !path.is_dir() || path.parent().is_none() {
                return Err(refusal("the path is no directory, or is the root of the host"));
            }
            let overlaps = |other: &Path| path.starts_with(other) || other.starts_with(&path);
            if private.iter().any(|dir| overlaps(dir)) {
                return Err(refusal(
                    "the directory overlaps with the worker's data or with a hidden directory",
                ));
            }
            if mounts.iter().any(|other| other.name == *name || overlaps(&other.path)) {
                return Err(refusal("the name is in use, or the directory overlaps with another host mount"));
            }
            let is_mount_point = is_mount_point(&path).map_err(|error| refusal(&error.to_string()))?;
            mounts.push(HostMount { name: name.clone(), path, is_mount_point });
        }
        Ok(Self { mounts, groups })
    }

    /// The names and the directories.
    pub fn directories(&self) -> Vec<(String, PathBuf)> {
        self.mounts.iter().map(|mount| (mount.name.clone(), mount.path.clone())).collect()
    }

    /// The group of the organization with this number; `None` beyond the groups of this worker.
    pub fn group(&self, number: u32) -> Option<u32> {
        let (first, count) = self.groups;
        let index = number.checked_sub(1).filter(|index| *index < count)?;
        first.checked_add(index)
    }

    /// The descriptions for the portal. A file system without an answer is left out: no job can use it. Blocking, for
    /// two seconds at most.
    pub fn describe(&self) -> Vec<berth_proto::HostMount> {
        let by = Instant::now() + ANSWER_TIMEOUT;
        let mut answers = Vec::new();
        for mount in &self.mounts {
            let (sender, receiver) = mpsc::channel();
            let asked = mount.clone();
            // A call to a file system of the network may never return, so nothing waits for the thread.
            let spawned = thread::Builder::new().name("host mount".to_owned()).spawn(move || {
                let _ = sender.send(asked.describe());
            });
            match spawned {
                Ok(_) => answers.push((mount, receiver)),
                Err(error) => tracing::warn!(name = mount.name, %error, "a host mount is not examined"),
            }
        }
        let mut described = Vec::new();
        for (mount, receiver) in answers {
            let left = by.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                Ok(Ok(found)) => described.push(found),
                Ok(Err(error)) => tracing::warn!(name = mount.name, %error, "a host mount cannot be used"),
                Err(_) => tracing::warn!(name = mount.name, "a host mount does not answer"),
            }
        }
        described
    }

    /// Makes the directory of a volume on its host mount, if it is missing, and returns its path. With `own_user` each
    /// job has a user of its own, and the directory belongs to the group of the organization. Blocking, for 30 seconds
    /// at most.
    ///
    /// # Errors
    /// The failure of the attempt: the host has no such mount or group, or the directory cannot be used.
    pub fn make_directory(
        &self,
        organization: &str,
        mount: &Mount,
        own_user: bool,
    ) -> Result<PathBuf, JobFailure> {
        let Mount { name, class, volume, .. } = mount;
        let fail = |why: String| {
            start_failure(
                "worker.isolation",
                format!("The volume {name} of the storage class {class} cannot be used on this node: {why}"),
            )
        };
        let Some(host) = self.mounts.iter().find(|host| host.name == *class) else {
            return Err(fail("the worker has no host mount of this name".to_owned()));
        };
        if !is_id(organization) || !is_id(volume) {
            return Err(fail("the id of the organization or of the volume is invalid".to_owned()));
        }
        let group = match (own_user, self.group(mount.group)) {
            (false, _) => None,
            (true, Some(group)) => Some(group),
            (true, None) => {
                let why = format!("the worker has no group for organization number {}", mount.group);
                return Err(fail(format!("{why}, see --storage-groups")));
            }
        };
        let (host, organization, volume) = (host.clone(), organization.to_owned(), volume.clone());
        let make = move || host.make_directory(&organization, &volume, group);
        answer_within(MAKE_TIMEOUT, make).map_err(|error| fail(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const GROUPS: (u32, u32) = (700_000, 2);

    fn open(name: &str, path: &Path, private: &[PathBuf]) -> Result<HostMounts, String> {
        HostMounts::open(&[(name.to_owned(), path.to_owned())], GROUPS, private)
    }

    fn mount(volume: &str) -> Mount {
        let class = "scratch".to_owned();
        Mount { volume: volume.to_owned(), name: "data".to_owned(), class, group: 2, ..Mount::default() }
    }

    #[test]
    fn a_mount_is_a_directory_beside_all_private_ones() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("data/attempts")).unwrap();
        std::fs::create_dir(root.join("scratch")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        let private = [root.join("data")];
        let found = open("scratch", &root.join("scratch"), &private).unwrap();
        assert_eq!(found.directories(), [("scratch".to_owned(), root.join("scratch"))]);
        let described = found.describe();
        assert_eq!((described.len(), described[0].name.as_str()), (1, "scratch"));
        assert!(described[0].total_bytes >= described[0].free_bytes && described[0].total_bytes > 0);
        for (name, path) in [
            ("Scratch", root.join("scratch")),
            ("", root.join("scratch")),
            ("-a", root.join("scratch")),
            ("scratch", PathBuf::from("scratch")),
            ("scratch", PathBuf::from("/")),
            ("scratch", root.join("missing")),
            ("scratch", root.join("file")),
            ("scratch", root.join("data")),
            ("scratch", root.join("data/attempts")),
            ("scratch", root.clone()),
        ] {
            assert!(open(name, &path, &private).is_err(), "{name} {}", path.display());
        }
        let pair = |name: &str| (name.to_owned(), root.join("scratch"));
        assert!(HostMounts::open(&[pair("a"), pair("b")], GROUPS, &[]).is_err(), "they overlap");
        let many: Vec<(String, PathBuf)> = (0..33).map(|n| pair(&format!("m{n}"))).collect();
        assert!(HostMounts::open(&many, GROUPS, &[]).unwrap_err().contains("at most 32"));
    }

    #[test]
    fn an_organization_has_its_group() {
        let mounts = HostMounts { mounts: Vec::new(), groups: GROUPS };
        assert_eq!([0, 1, 2, 3].map(|n| mounts.group(n)), [None, Some(700_000), Some(700_001), None]);
    }

    #[test]
    fn a_volume_is_a_directory_of_its_organization_and_no_link_is_followed() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = dir.path().canonicalize().unwrap();
        let mounts = open("scratch", &root, &[]).unwrap();
        let made = mounts.make_directory("org_1", &mount("vol_1"), false).unwrap();
        assert_eq!(made, root.join("org_1/vol_1"));
        assert_eq!(root.join("org_1").metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::write(made.join("kept"), "text").unwrap();
        assert_eq!(mounts.make_directory("org_1", &mount("vol_1"), false).unwrap(), made);
        assert_eq!(std::fs::read_to_string(made.join("kept")).unwrap(), "text");
        symlink(outside.path(), root.join("org_1/vol_2")).unwrap();
        symlink(outside.path(), root.join("org_2")).unwrap();
        for (organization, volume) in
            [("org_1", "vol_2"), ("org_2", "vol_1"), ("..", "vol_1"), ("org_1", "../x"), ("", "vol_1")]
        {
            let (code, detail) = mounts.make_directory(organization, &mount(volume), false).unwrap_err();
            assert_eq!(code, "worker.isolation", "{organization}/{volume}");
            assert!(detail.contains("storage class scratch"), "{detail}");
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        let other = Mount { class: "home".to_owned(), ..mount("vol_1") };
        assert!(mounts.make_directory("org_1", &other, false).is_err());
        let beyond = Mount { group: 3, ..mount("vol_1") };
        assert!(mounts.make_directory("org_1", &beyond, true).unwrap_err().1.contains("--storage-groups"));
    }

    #[test]
    fn a_directory_belongs_to_the_group_of_the_organization() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mounts = open("scratch", dir.path(), &[]).unwrap();
        let made = mounts.make_directory("org_1", &mount("vol_1"), true).unwrap();
        let found = made.metadata().unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (0, 700_001, SHARED_MODE));
        // The files in it stay as they are.
        std::fs::write(made.join("file"), "").unwrap();
        std::os::unix::fs::chown(made.join("file"), Some(1), Some(1)).unwrap();
        std::fs::set_permissions(&made, Permissions::from_mode(0o700)).unwrap();
        mounts.make_directory("org_1", &mount("vol_1"), true).unwrap();
        assert_eq!(made.metadata().unwrap().mode() & 0o7777, SHARED_MODE);
        assert_eq!(made.join("file").metadata().unwrap().gid(), 1);
    }

    #[test]
    fn an_unmounted_file_system_gets_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut mounts = open("scratch", dir.path(), &[]).unwrap();
        mounts.mounts[0].is_mount_point = true;
        let (_, detail) = mounts.make_directory("org_1", &mount("vol_1"), false).unwrap_err();
        assert!(detail.contains("not mounted"), "{detail}");
        assert!(!dir.path().join("org_1").exists());
        assert!(mounts.describe().is_empty(), "no job comes here");
    }

    #[test]
    fn a_file_system_that_does_not_answer_ends_the_wait() {
        assert_eq!(answer_within(MAKE_TIMEOUT, || Ok(7)).unwrap(), 7);
        let (answer, never) = mpsc::channel::<()>();
        let silent = answer_within(Duration::from_millis(20), move || never.recv().map_err(io::Error::other));
        assert!(silent.unwrap_err().to_string().contains("does not answer"));
        drop(answer);
    }

    #[test]
    fn the_deepest_mount_has_the_type() {
        let text = "25 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            30 25 0:50 / /mnt/scratch rw - lustre 10.0.0.1@tcp:/fs rw\n\
            a broken line\n";
        let kind = |path: &str| file_system(text, Path::new(path));
        assert_eq!([kind("/mnt/scratch/x"), kind("/mnt/scratches")], ["lustre", "ext4"]);
        assert_eq!(file_system("", Path::new("/x")), "");
    }
}
