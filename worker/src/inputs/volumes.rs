//! The volumes of an attempt on this host: downloaded before its start, each into its own directory, and mounted or
//! linked for the job. `outputs::volumes` uploads the changes.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_proto::{FetchRequest, Mount, Spec, VolumeFile};
use berth_types::paths::ROOT_VOLUMES;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::statvfs::statvfs;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::isolation::sandbox::{BindMount, HOME};
use crate::model::{AttemptKey, JobFailure, job_failure};
use crate::system::files::join_inside;
use crate::transfer::{FetchProgress, Portal, client, fetch_file, fetch_part, tree, volume_directory};

/// The directories of an attempt's volumes.
pub fn directories(dir: &Path, spec: &Spec) -> Vec<PathBuf> {
    (0..spec.volumes.len()).map(|index| volume_directory(dir, index)).collect()
}

/// Checks that the volumes fit into the job's disk limit and on the disk.
fn check_space(dir: &Path, mounts: &[Mount], most_mib: u64) -> Result<(), JobFailure> {
    let bytes = mounts.iter().map(|mount| mount.bytes).fold(0u64, u64::saturating_add);
    let no_space = |why: String| {
        let mib = bytes.div_ceil(1 << 20);
        let detail = format!("The volumes have {mib} MiB, but {why}. The job was not started.");
        job_failure("volume.no_room", detail)
    };
    if bytes > most_mib.saturating_mul(1 << 20) {
        return Err(no_space(format!("the disk limit of a job on this node is {most_mib} MiB")));
    }
    let free = statvfs(dir).map(|disk| disk.blocks_available().saturating_mul(disk.fragment_size()));
    match free {
        Ok(free) if free < bytes => {
            Err(no_space(format!("the disk of the node has {} MiB left", free >> 20)))
        }
        // If the free space is unknown, the download finds out.
        _ => Ok(()),
    }
}

fn not_fetched(name: &str, why: &str) -> JobFailure {
    let detail = format!("The volume {name} cannot be fetched: {why}. The job was not started.");
    job_failure("worker.io", detail)
}

/// Downloads the volumes of an attempt before its start, and reports the progress in sentences.
pub async fn fetch(
    dir: &Path,
    key: &AttemptKey,
    mounts: &[Mount],
    most_mib: u64,
    channel: Option<Channel>,
    report: &dyn Fn(String),
) -> Result<(), JobFailure> {
    let Some(first) = mounts.first() else { return Ok(()) };
    check_space(dir, mounts, most_mib)?;
    let Some(channel) = channel else { return Err(not_fetched(&first.name, "the portal is unreachable")) };
    let mut portal = client(channel);
    for (index, mount) in mounts.iter().enumerate() {
        let request =
            FetchRequest { attempt: Some(key.id()), volume: mount.volume.clone(), ..FetchRequest::default() };
        let target = volume_directory(dir, index);
        let action = format!("Fetching the volume {}", mount.name);
        let mut progress = FetchProgress::new(action, mount.bytes, report, Instant::now());
        let fetched = fetch_volume(&mut portal, request, target, &mut progress).await;
        fetched.map_err(|why| not_fetched(&mount.name, &why))?;
    }
    Ok(())
}

async fn blocking_io<T: Send + 'static>(
    step: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(step).await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

async fn fetch_volume(
    portal: &mut Portal,
    mut request: FetchRequest,
    target: PathBuf,
    progress: &mut FetchProgress<'_>,
) -> Result<(), String> {
    let root = blocking_io(move || {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&target)?;
        tree::open_root(&target)
    });
    let root = Arc::new(root.await?);
    loop {
        let files = fetch_part(portal, &request).await?.files;
        let Some(last) = files.last() else { return Ok(()) };
        request.after.clone_from(&last.path);
        for file in files {
            let (at, this) = (root.clone(), file.clone());
            let out = Arc::new(blocking_io(move || create_volume_file(&at, &this)).await?);
            let request = FetchRequest { file: file.file.clone(), after: String::new(), ..request.clone() };
            let (bytes, path) = (file.bytes, file.path);
            let fetched = fetch_file(portal, request, (bytes, &file.sha256), out, progress).await;
            fetched.map_err(|e| format!("{path}: {e}"))?;
        }
    }
}

/// Creates an empty file of a volume.
fn create_volume_file(root: &std::os::fd::OwnedFd, file: &VolumeFile) -> io::Result<File> {
    let plain = join_inside(Path::new(""), &file.path).is_some();
    if !plain || file.path.split('/').any(|part| matches!(part, "" | ".")) {
        return Err(io::Error::other("a path leads out of the volume"));
    }
    let (dir, name) = tree::parent_of(root, &file.path, true)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = File::from(openat(&dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    let mode = if file.executable { 0o755 } else { 0o644 };
    fchmod(&made, Mode::from_bits_truncate(mode))?;
    Ok(made)
}

/// The path of a volume inside the sandbox.
fn mount_point(mount: &Mount) -> PathBuf {
    // The join keeps an absolute path.
    Path::new(HOME).join(&mount.path)
}

/// The path of a volume without a sandbox, relative to the job's directory.
fn link_path(mount: &Mount) -> String {
    match mount.path.strip_prefix('/') {
        Some(name) => format!("{ROOT_VOLUMES}/{name}"),
        None => mount.path.clone(),
    }
}

/// Creates the mount points in the job's directory, or links without a sandbox.
pub fn create_mount_points(dir: &Path, work: &Path, spec: &Spec, isolated: bool) -> io::Result<()> {
    for (index, mount) in spec.volumes.iter().enumerate() {
        if isolated && mount.path.starts_with('/') {
            continue;
        }
        let at = join_inside(work, &if isolated { mount.path.clone() } else { link_path(mount) });
        let at = at.ok_or_else(|| io::Error::other("the path of a volume leads out of the job"))?;
        if isolated {
            std::fs::create_dir_all(at)?;
            continue;
        }
        if let Some(parent) = at.parent() {
            std::fs::create_dir_all(parent)?;
        }
        symlink(volume_directory(dir, index).canonicalize()?, at)?;
    }
    Ok(())
}

/// The mounts for the sandbox.
pub fn bind_mounts(dir: &Path, spec: &Spec) -> Vec<BindMount> {
    let bind = |(index, mount): (usize, &Mount)| BindMount {
        from: volume_directory(dir, index),
        to: mount_point(mount),
        writable: mount.writable,
    };
    spec.volumes.iter().enumerate().map(bind).collect()
}

/// Variables with the path of each volume: `BERTH_VOLUME_TRAINING_DATA=/data`.
pub fn variables(work: &Path, spec: &Spec, isolated: bool) -> Vec<(String, String)> {
    let variable = |mount: &Mount| {
        let name = mount.name.replace('-', "_").to_ascii_uppercase();
        let at = if isolated { mount_point(mount) } else { work.join(link_path(mount)) };
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
        let bound: Vec<(PathBuf, bool)> =
            bind_mounts(dir, &spec).into_iter().map(|b| (b.to, b.writable)).collect();
        assert_eq!(bound, [(PathBuf::from("/data"), false), (PathBuf::from("/home/job/runs/all"), true)]);
        create_mount_points(dir, &work, &spec, true).unwrap();
        assert!(work.join("runs/all").is_dir() && !work.join(ROOT_VOLUMES).exists());
        let variables = super::variables(&work, &spec, true);
        assert_eq!(variables[0], ("BERTH_VOLUME_TRAINING_DATA".to_owned(), "/data".to_owned()));
        std::fs::remove_dir_all(work.join("runs")).unwrap();
        create_mount_points(dir, &work, &spec, false).unwrap();
        std::fs::write(work.join("runs/all/x"), "text").unwrap();
        assert_eq!(std::fs::read_to_string(volume_directory(dir, 1).join("x")).unwrap(), "text");
        let variables = super::variables(&work, &spec, false);
        assert_eq!(variables[0].1, work.join(".volumes/data").display().to_string());
        assert!(Path::new(&variables[0].1).is_dir());
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = spec().volumes;
        assert_eq!(check_space(dir.path(), &mounts, 6), Ok(()));
        let (code, detail) = check_space(dir.path(), &mounts, 5).unwrap_err();
        assert_eq!(code, "volume.no_room");
        assert!(detail.contains("have 6 MiB") && detail.contains("5 MiB"), "{detail}");
        let vast = [Mount { bytes: u64::MAX, ..mounts[0].clone() }];
        assert!(check_space(dir.path(), &vast, u64::MAX).unwrap_err().1.contains("the disk of the node"));
    }

    #[test]
    fn no_path_leads_out_of_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        let root = tree::open_root(dir.path()).unwrap();
        let file =
            |path: &str| VolumeFile { path: path.to_owned(), executable: true, ..VolumeFile::default() };
        create_volume_file(&root, &file("a/b")).unwrap();
        assert!(dir.path().join("a/b").exists());
        for bad in ["../x", "/x", "a/../../x", "", "a//c", "a/./c", "a/b"] {
            assert!(create_volume_file(&root, &file(bad)).is_err(), "{bad:?}");
        }
        symlink("/tmp", dir.path().join("l")).unwrap();
        assert!(create_volume_file(&root, &file("l/x")).is_err(), "nor through a link");
    }
}
