//! The disk of the data directory.

use std::path::{Path, PathBuf};

use super::finding::Finding;
use super::host::Host;

const SPACE: &str = "disk.space";
const FILESYSTEM: &str = "disk.filesystem";
const MOUNTS: &str = "disk.mounts";

/// Free space below which jobs fail, and below which a job cannot have the default limit of its directory.
const MIN_FREE_BYTES: u64 = 1 << 30;
const GOOD_FREE_BYTES: u64 = 20 << 30;
/// File systems in memory, or of another host.
const UNFIT: [&str; 9] =
    ["tmpfs", "ramfs", "nfs", "nfs4", "cifs", "smb3", "ceph", "fuse.sshfs", "fuse.glusterfs"];

/// The checks of the disk.
pub(crate) fn findings(host: &Host) -> Vec<Finding> {
    let dir = existing_dir(host);
    vec![space(host, &dir), file_system(host, &dir), host_mounts(host)]
}

/// The data directory, or the nearest directory above it that exists.
fn existing_dir(host: &Host) -> PathBuf {
    let found = host.data.ancestors().find(|dir| host.exists(dir));
    found.map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

fn space(host: &Host, dir: &Path) -> Finding {
    let next = format!("Free space in {}, or choose another data directory with --data", dir.display());
    let place = host.place(dir);
    let place = place.to_string_lossy();
    let answer = host.ask("df", &["--output=avail", "--block-size=1", "--", &place]);
    let free: Option<u64> = answer.ok().and_then(|text| text.lines().last()?.trim().parse().ok());
    let Some(free) = free else {
        return Finding::unknown(SPACE, format!("The free space of {} is unknown.", dir.display()), next);
    };
    let gib = free >> 30;
    let text = format!("{} has {gib} GiB of free space", dir.display());
    if free < MIN_FREE_BYTES {
        Finding::problem(SPACE, format!("{text}, so new jobs fail."), next)
    } else if free < GOOD_FREE_BYTES {
        Finding::warning(SPACE, format!("{text}, less than the default limit of one job (20 GiB)."), next)
    } else {
        Finding::ok(SPACE, format!("{text}."))
    }
}

/// The file system of a mount, with its options.
struct Mount {
    kind: String,
    options: String,
}

/// The mount of a directory, by the text of `/proc/self/mountinfo`.
fn find_mount(text: &str, dir: &Path) -> Option<Mount> {
    let mut best: Option<(usize, Mount)> = None;
    for line in text.lines() {
        let Some((mount, file_system)) = line.split_once(" - ") else { continue };
        let Some(point) = mount.split(' ').nth(4) else { continue };
        let mut fields = file_system.split(' ');
        let (Some(kind), options) = (fields.next(), fields.nth(1).unwrap_or_default()) else { continue };
        // A later mount at the same point covers the earlier one.
        let is_better = best.as_ref().is_none_or(|(length, _)| point.len() >= *length);
        if dir.starts_with(point) && is_better {
            best = Some((point.len(), Mount { kind: kind.to_owned(), options: options.to_owned() }));
        }
    }
    best.map(|(_, mount)| mount)
}

fn file_system(host: &Host, dir: &Path) -> Finding {
    let mounts = host.read("/proc/self/mountinfo").unwrap_or_default();
    let name = dir.display();
    let Some(Mount { kind, options }) = find_mount(&mounts, dir) else {
        return Finding::unknown(
            FILESYSTEM,
            format!("The file system of {name} is unknown."),
            format!("findmnt --target {name}"),
        );
    };
    if UNFIT.contains(&kind.as_str()) {
        return Finding::warning(
            FILESYSTEM,
            format!("{name} is on {kind}: in memory, or on another host. Records of jobs may be lost."),
            "Choose a data directory on ext4 or xfs with --data",
        );
    }
    let has_quota = options.split(',').any(|option| matches!(option, "prjquota" | "pquota"));
    let quota = match (kind.as_str(), has_quota) {
        ("ext4" | "xfs", true) => ", with project quotas",
        ("ext4" | "xfs", false) => ", without project quotas. The worker measures the directories of jobs",
        _ => ", which has no project quotas. The worker measures the directories of jobs",
    };
    Finding::ok(FILESYSTEM, format!("{name} is on {kind}{quota}."))
}

fn host_mounts(host: &Host) -> Finding {
    if host.host_mounts.is_empty() {
        return Finding::ok(MOUNTS, "The worker has no host mounts.");
    }
    let mountinfo = host.read("/proc/self/mountinfo").unwrap_or_default();
    let is_mount_point = |dir: &Path| {
        let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
        points.map(Path::new).any(|point| point == dir)
    };
    let (mut missing, mut unmounted) = (Vec::new(), Vec::new());
    for (name, dir) in &host.host_mounts {
        let text = format!("{name} ({})", dir.display());
        if !host.exists(dir) {
            missing.push(text);
        } else if !is_mount_point(dir) {
            unmounted.push(text);
        }
    }
    let next =
        "Mount the file systems, or change BERTH_HOST_MOUNTS in /etc/berth/worker.env and restart the worker";
    if !missing.is_empty() {
        return Finding::problem(
            MOUNTS,
            format!("These host mounts are missing, so the worker does not start: {}.", missing.join(", ")),
            next,
        );
    }
    if !unmounted.is_empty() {
        return Finding::warning(
            MOUNTS,
            format!(
                "No file system is mounted at these host mounts, so their files are on the disk of the host: {}.",
                unmounted.join(", ")
            ),
            next,
        );
    }
    Finding::ok(MOUNTS, format!("All host mounts are mounted ({}).", host.host_mounts.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_counts() {
        let text = "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
            30 25 8:2 / /var rw shared:2 - xfs /dev/sda2 rw,prjquota\n\
            31 25 0:5 / /varied rw - tmpfs tmpfs rw\n\
            a broken line\n";
        let kind = |dir: &str| find_mount(text, Path::new(dir)).map(|mount| (mount.kind, mount.options));
        let pair = |kind: &str, options: &str| Some((kind.to_owned(), options.to_owned()));
        assert_eq!(kind("/var/lib/berth-worker"), pair("xfs", "rw,prjquota"));
        assert_eq!(kind("/srv"), pair("ext4", "rw,errors=remount-ro"));
        assert_eq!(kind("/varied/x"), pair("tmpfs", "rw"));
    }
}
