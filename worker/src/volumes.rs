//! The volumes of an attempt on this host: fetched before it starts, each into a directory of its own, and
//! where the job finds them. What goes back is handed over by `keeping`.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_proto::{AttemptId, Mount, Spec, VolumeFile, Wish};
use berth_types::paths::ROOT_VOLUMES;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::statvfs::statvfs;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::agent::Key;
use crate::files::inside;
use crate::keeping::transfer::{Portal, Underway, ask, client, fetch_into};
use crate::keeping::tree;
use crate::sandbox::{Bind, HOME};

/// Below the attempt's directory.
pub const PLACE: &str = "volumes";

/// A code and a sentence.
type Failure = (String, String);

/// Where one of an attempt's volumes lies.
pub fn directory(dir: &Path, index: usize) -> PathBuf {
    dir.join(PLACE).join(index.to_string())
}

/// Where all of them lie.
pub fn directories(dir: &Path, spec: &Spec) -> Vec<PathBuf> {
    (0..spec.volumes.len()).map(|index| directory(dir, index)).collect()
}

/// Whether they fit: beside the job's other files, and on the disk.
fn room(dir: &Path, mounts: &[Mount], most_mib: u64) -> Result<(), Failure> {
    let bytes = mounts.iter().map(|mount| mount.bytes).fold(0u64, u64::saturating_add);
    let no_room = |why: String| {
        let mib = bytes.div_ceil(1 << 20);
        ("volume.no_room".to_owned(), format!("Its volumes hold {mib} MiB, and {why}; it was not started."))
    };
    if bytes > most_mib.saturating_mul(1 << 20) {
        return Err(no_room(format!("a job on this node may have {most_mib} MiB")));
    }
    let free = statvfs(dir).map(|disk| disk.blocks_available().saturating_mul(disk.fragment_size()));
    match free {
        Ok(free) if free < bytes => Err(no_room(format!("its disk has room for {} MiB", free >> 20))),
        // What cannot be told is found out.
        _ => Ok(()),
    }
}

fn unfetched(name: &str, why: &str) -> Failure {
    let detail = format!("The volume {name} could not be fetched, so it was not started: {why}.");
    ("worker.io".to_owned(), detail)
}

/// Fetches the volumes of an attempt that has not started.
pub async fn fetch(
    dir: &Path,
    key: &Key,
    mounts: &[Mount],
    most_mib: u64,
    channel: Option<Channel>,
    tell: &dyn Fn(String),
) -> Result<(), Failure> {
    let Some(first) = mounts.first() else { return Ok(()) };
    room(dir, mounts, most_mib)?;
    let Some(channel) = channel else { return Err(unfetched(&first.name, "the portal is out of reach")) };
    let mut portal = client(channel);
    for (index, mount) in mounts.iter().enumerate() {
        let wish = Wish {
            attempt: Some(AttemptId::new(&key.job, key.number)),
            volume: mount.volume.clone(),
            ..Wish::default()
        };
        let target = directory(dir, index);
        let what = format!("Fetching the volume {}", mount.name);
        let mut underway = Underway::new(what, mount.bytes, tell, Instant::now());
        let fetched = fetch_one(&mut portal, wish, target, &mut underway).await;
        fetched.map_err(|why| unfetched(&mount.name, &why))?;
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    step: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(step).await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

async fn fetch_one(
    portal: &mut Portal,
    mut wish: Wish,
    target: PathBuf,
    underway: &mut Underway<'_>,
) -> Result<(), String> {
    let root = blocking(move || {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&target)?;
        tree::open_root(&target)
    });
    let root = Arc::new(root.await?);
    loop {
        let files = ask(portal, &wish).await?.files;
        let Some(last) = files.last() else { return Ok(()) };
        wish.after.clone_from(&last.path);
        for file in files {
            let (at, this) = (root.clone(), file.clone());
            let out = Arc::new(blocking(move || make(&at, &this)).await?);
            let wish = Wish { file: file.file.clone(), after: String::new(), ..wish.clone() };
            let (bytes, path) = (file.bytes, file.path);
            let fetched = fetch_into(portal, wish, (bytes, &file.sha256), out, underway).await;
            fetched.map_err(|e| format!("{path}: {e}"))?;
        }
    }
}

/// A file of a volume, empty.
fn make(root: &std::os::fd::OwnedFd, file: &VolumeFile) -> io::Result<File> {
    let plain = inside(Path::new(""), &file.path).is_some();
    if !plain || file.path.split('/').any(|part| matches!(part, "" | ".")) {
        return Err(io::Error::other("a path leads out of it"));
    }
    let (dir, name) = tree::parent_of(root, &file.path, true)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = File::from(openat(&dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    let mode = if file.executable { 0o755 } else { 0o644 };
    fchmod(&made, Mode::from_bits_truncate(mode))?;
    Ok(made)
}

/// Where a job finds a volume inside its sandbox.
fn seen_at(mount: &Mount) -> PathBuf {
    // An absolute path stays as it is.
    Path::new(HOME).join(&mount.path)
}

/// Where a job finds a volume without a sandbox, below its directory.
fn linked_at(mount: &Mount) -> String {
    match mount.path.strip_prefix('/') {
        Some(name) => format!("{ROOT_VOLUMES}/{name}"),
        None => mount.path.clone(),
    }
}

/// Makes the places in the job's directory: mount points, or links where there is no sandbox.
pub fn place(dir: &Path, work: &Path, spec: &Spec, isolated: bool) -> io::Result<()> {
    for (index, mount) in spec.volumes.iter().enumerate() {
        if isolated && mount.path.starts_with('/') {
            continue;
        }
        let at = inside(work, &if isolated { mount.path.clone() } else { linked_at(mount) });
        let at = at.ok_or_else(|| io::Error::other("the place of a volume leads out of the job"))?;
        if isolated {
            std::fs::create_dir_all(at)?;
            continue;
        }
        if let Some(parent) = at.parent() {
            std::fs::create_dir_all(parent)?;
        }
        symlink(directory(dir, index).canonicalize()?, at)?;
    }
    Ok(())
}

/// What the sandbox mounts.
pub fn binds(dir: &Path, spec: &Spec) -> Vec<Bind> {
    let bind = |(index, mount): (usize, &Mount)| Bind {
        from: directory(dir, index),
        to: seen_at(mount),
        writable: mount.writable,
    };
    spec.volumes.iter().enumerate().map(bind).collect()
}

/// Variables that say where each volume is: `BERTH_VOLUME_TRAINING_DATA=/data`.
pub fn variables(work: &Path, spec: &Spec, isolated: bool) -> Vec<(String, String)> {
    let variable = |mount: &Mount| {
        let name = mount.name.replace('-', "_").to_ascii_uppercase();
        let at = if isolated { seen_at(mount) } else { work.join(linked_at(mount)) };
        (format!("BERTH_VOLUME_{name}"), at.display().to_string())
    };
    spec.volumes.iter().map(variable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        let mount = |name: &str, path: &str, writable| Mount {
            volume: format!("vol_{name}"),
            name: name.to_owned(),
            path: path.to_owned(),
            writable,
            bytes: 3 << 20,
        };
        Spec {
            volumes: vec![mount("training-data", "/data", false), mount("out", "runs/all", true)],
            ..Spec::default()
        }
    }

    #[test]
    fn a_job_finds_them_with_a_sandbox_and_without() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, work, spec) = (dir.path(), dir.path().join("work"), spec());
        std::fs::create_dir(&work).unwrap();
        for path in directories(dir, &spec) {
            std::fs::create_dir_all(&path).unwrap();
        }
        let bound: Vec<(PathBuf, bool)> = binds(dir, &spec).into_iter().map(|b| (b.to, b.writable)).collect();
        assert_eq!(bound, [(PathBuf::from("/data"), false), (PathBuf::from("/home/job/runs/all"), true)]);
        place(dir, &work, &spec, true).unwrap();
        assert!(work.join("runs/all").is_dir() && !work.join(ROOT_VOLUMES).exists());
        let said = variables(&work, &spec, true);
        assert_eq!(said[0], ("BERTH_VOLUME_TRAINING_DATA".to_owned(), "/data".to_owned()));
        std::fs::remove_dir_all(work.join("runs")).unwrap();
        place(dir, &work, &spec, false).unwrap();
        std::fs::write(work.join("runs/all/x"), "text").unwrap();
        assert_eq!(std::fs::read_to_string(directory(dir, 1).join("x")).unwrap(), "text");
        let said = variables(&work, &spec, false);
        assert_eq!(said[0].1, work.join(".volumes/data").display().to_string());
        assert!(Path::new(&said[0].1).is_dir());
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = spec().volumes;
        assert_eq!(room(dir.path(), &mounts, 6), Ok(()));
        let (code, detail) = room(dir.path(), &mounts, 5).unwrap_err();
        assert_eq!(code, "volume.no_room");
        assert!(detail.contains("hold 6 MiB") && detail.contains("5 MiB"), "{detail}");
        let vast = [Mount { bytes: u64::MAX, ..mounts[0].clone() }];
        assert!(room(dir.path(), &vast, u64::MAX).unwrap_err().1.contains("its disk has room"));
    }

    #[test]
    fn no_path_leads_out_of_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        let root = tree::open_root(dir.path()).unwrap();
        let file =
            |path: &str| VolumeFile { path: path.to_owned(), executable: true, ..VolumeFile::default() };
        make(&root, &file("a/b")).unwrap();
        assert!(dir.path().join("a/b").exists());
        for bad in ["../x", "/x", "a/../../x", "", "a//c", "a/./c", "a/b"] {
            assert!(make(&root, &file(bad)).is_err(), "{bad:?}");
        }
        symlink("/tmp", dir.path().join("l")).unwrap();
        assert!(make(&root, &file("l/x")).is_err(), "nor through a link");
    }
}
