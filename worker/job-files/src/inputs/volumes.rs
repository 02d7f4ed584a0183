//! The volumes of an attempt on this host: downloaded before its start, each into its own directory, and mounted or
//! linked for the job. `outputs::volumes` uploads the changes.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use berth_isolation::sandbox::{BindMount, HOME};
use berth_proto::{FetchRequest, Mount, Spec};
use berth_shim::model::{AttemptKey, JobFailure, job_failure};
use berth_system::files::join_inside;
use berth_types::paths::ROOT_VOLUMES;
use nix::sys::statvfs::statvfs;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::host_mounts::HostMounts;
pub use super::volume_files::AttemptCache;
use super::volume_files::fetch_volume;
use crate::transfer::{FetchProgress, client, tree, volume_directory, volumes_directory};

/// The directories of an attempt's volumes, without those on host mounts.
pub fn directories(dir: &Path, spec: &Spec) -> Vec<PathBuf> {
    own_volumes(&spec.volumes).map(|(index, _)| volume_directory(dir, index)).collect()
}

/// The volumes whose files the portal has, by their index.
fn own_volumes(mounts: &[Mount]) -> impl Iterator<Item = (usize, &Mount)> {
    mounts.iter().enumerate().filter(|(_, mount)| mount.class.is_empty())
}

/// Makes the directories of the volumes on host mounts, and links them into the attempt's directory, which no job
/// sees.
///
/// # Errors
/// The failure of the attempt: this host has no such mount, or a directory cannot be used.
pub fn link_host_volumes(
    dir: &Path,
    spec: &Spec,
    organization: &str,
    mounts: &HostMounts,
    own_user: bool,
) -> Result<(), JobFailure> {
    let on_hosts = spec.volumes.iter().enumerate().filter(|(_, mount)| !mount.class.is_empty());
    for (index, mount) in on_hosts {
        let target = mounts.make_directory(organization, mount, own_user)?;
        let linked = std::fs::create_dir_all(volumes_directory(dir))
            .and_then(|()| symlink(&target, volume_directory(dir, index)));
        linked.map_err(|error| {
            job_failure("worker.io", format!("The worker cannot write the files of the job: {error}."))
        })?;
    }
    Ok(())
}

/// Gives the volumes of an attempt to its user. The files of a read-only volume stay the worker's, because the cache
/// of the node and other attempts may have links to them.
pub fn change_owner(dir: &Path, spec: &Spec, uid: u32) -> io::Result<()> {
    for (index, mount) in own_volumes(&spec.volumes) {
        tree::change_owner(&volume_directory(dir, index), uid, mount.writable)?;
    }
    Ok(())
}

/// Checks that the volumes fit into the job's disk limit and on the disk. The files of the cache give way.
fn check_space(
    dir: &Path,
    mounts: &[Mount],
    most_mib: u64,
    cache: Option<&AttemptCache>,
) -> Result<(), JobFailure> {
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
            let free = free.saturating_add(cache.map_or(0, AttemptCache::evictable_bytes));
            if free >= bytes {
                return Ok(());
            }
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

/// Brings the volumes of an attempt before its start, from the cache of the node or from the portal, and reports the
/// progress in sentences.
pub async fn fetch(
    dir: &Path,
    key: &AttemptKey,
    mounts: &[Mount],
    most_mib: u64,
    cache: Option<&AttemptCache>,
    channel: Option<Channel>,
    report: &dyn Fn(String),
) -> Result<(), JobFailure> {
    let Some((_, first)) = own_volumes(mounts).next() else { return Ok(()) };
    check_space(dir, mounts, most_mib, cache)?;
    let Some(channel) = channel else { return Err(not_fetched(&first.name, "the portal is unreachable")) };
    let mut portal = client(channel);
    for (index, mount) in own_volumes(mounts) {
        let request =
            FetchRequest { attempt: Some(key.id()), volume: mount.volume.clone(), ..FetchRequest::default() };
        let target = volume_directory(dir, index);
        let action = format!("Fetching the volume {}", mount.name);
        let mut progress = FetchProgress::new(action, mount.bytes, report, Instant::now());
        let writable = mount.writable;
        let fetched = fetch_volume(&mut portal, request, target, (cache, writable), &mut progress).await;
        fetched.map_err(|why| not_fetched(&mount.name, &why))?;
        let (fetched_bytes, cached_bytes) = progress.totals();
        tracing::info!(
            job = key.job,
            volume = mount.volume,
            fetched_bytes,
            cached_bytes,
            "a volume is ready"
        );
    }
    Ok(())
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
    let bind = |(index, mount): (usize, &Mount)| {
        let place = volume_directory(dir, index);
        // A volume on a host mount is a link of the worker.
        let from = std::fs::read_link(&place).unwrap_or(place);
        BindMount { from, to: mount_point(mount), writable: mount.writable }
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
            ..Mount::default()
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
    fn a_volume_on_a_host_mount_is_mounted_and_neither_measured_nor_removed() {
        let (dir, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let declared = [("scratch".to_owned(), disk.path().to_owned())];
        let mounts = HostMounts::open(&declared, (700_000, 10), &[]).unwrap();
        let mut spec = spec();
        for (mount, volume) in spec.volumes.iter_mut().zip(["vol_1", "vol_2"]) {
            (mount.class, mount.volume) = ("scratch".to_owned(), volume.to_owned());
        }
        link_host_volumes(dir.path(), &spec, "org_1", &mounts, false).unwrap();
        let root = disk.path().canonicalize().unwrap().join("org_1");
        let bound: Vec<(PathBuf, bool)> =
            bind_mounts(dir.path(), &spec).into_iter().map(|bind| (bind.from, bind.writable)).collect();
        assert_eq!(bound, [(root.join("vol_1"), false), (root.join("vol_2"), true)]);
        assert!(directories(dir.path(), &spec).is_empty());
        // The removal of the attempt's files removes the links only.
        std::fs::write(root.join("vol_2/kept"), "text").unwrap();
        berth_system::removal::remove_tree(&volumes_directory(dir.path())).unwrap();
        assert_eq!(std::fs::read_to_string(root.join("vol_2/kept")).unwrap(), "text");
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = spec().volumes;
        assert_eq!(check_space(dir.path(), &mounts, 6, None), Ok(()));
        let (code, detail) = check_space(dir.path(), &mounts, 5, None).unwrap_err();
        assert_eq!(code, "volume.no_room");
        assert!(detail.contains("have 6 MiB") && detail.contains("5 MiB"), "{detail}");
        let vast = [Mount { bytes: u64::MAX, ..mounts[0].clone() }];
        assert!(
            check_space(dir.path(), &vast, u64::MAX, None).unwrap_err().1.contains("the disk of the node")
        );
    }
}
