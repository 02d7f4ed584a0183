//! The options of bubblewrap for the file system of an attempt. This module reads the host's root and writes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{BindMount, HOME, PASSWD, SECRETS_DIR, SandboxNetwork, SandboxSpec};

/// The first version with a limit for a tmpfs.
const SIZES_SINCE: (u32, u32) = (0, 7);

/// Adds the mounts of an attempt.
pub(super) fn mounts(
    add: &mut impl FnMut(&[&str]),
    spec: &SandboxSpec<'_>,
    version: (u32, u32),
    hidden: &[PathBuf],
) {
    let bytes = spec.scratch_mib.saturating_mul(1 << 20).to_string();
    let limited: Vec<&str> = if version >= SIZES_SINCE { vec!["--size", &bytes] } else { Vec::new() };
    let own_root = add_system(add, spec.volumes);
    if let Some(file) = spec.passwd {
        add(&["--ro-bind", &file.display().to_string(), PASSWD]);
    }
    add(&["--dev", "/dev", "--proc", "/proc"]);
    let private = ["/dev/shm", "/tmp", "/var/tmp"];
    for place in private {
        add(&limited);
        add(&["--perms", "1777", "--tmpfs", place]);
    }
    // Bubblewrap makes absent directories that only root can enter.
    let parents = |node: &PathBuf| {
        let above: Vec<PathBuf> = node.ancestors().skip(1).map(Path::to_path_buf).collect();
        above.into_iter().filter(|dir| dir.starts_with("/dev") && dir != Path::new("/dev"))
    };
    let folders: BTreeSet<PathBuf> = spec.devices.iter().flat_map(parents).collect();
    for folder in folders {
        add(&["--perms", "0755", "--dir", &folder.display().to_string()]);
    }
    for node in spec.devices {
        let node = node.display().to_string();
        add(&["--dev-bind", &node, &node]);
    }
    // /run has sockets of the host's services.
    let mut empty: Vec<&Path> = ["/home", "/root", "/run"].map(Path::new).into();
    // /sys/fs/cgroup has the names of other attempts.
    empty.extend(Some(Path::new("/sys/fs/cgroup")).filter(|dir| dir.exists()));
    empty.extend(hidden.iter().map(PathBuf::as_path));
    // A directory below a volume's mount point is absent and cannot be a mount point.
    empty.retain(|dir| !spec.volumes.iter().any(|bind| dir.starts_with(&bind.to)));
    // A directory below another hidden one is hidden with it and cannot be a mount point.
    let all = empty.clone();
    empty.retain(|dir| {
        let below = |other: &&Path| dir != other && dir.starts_with(other);
        !all.iter().any(below) && !private.iter().any(|place| dir.starts_with(place))
    });
    empty.sort();
    empty.dedup();
    let empty: Vec<String> = empty.iter().map(|dir| dir.display().to_string()).collect();
    for place in &empty {
        add(&["--tmpfs", place]);
    }
    match spec.network {
        // The directory has a socket that resolves names too.
        SandboxNetwork::Host => add(&["--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"]),
        SandboxNetwork::Own(namespace) => {
            for BindMount { from, to, writable: _ } in namespace.resolv_conf.iter().chain(&namespace.hosts) {
                add(&["--ro-bind", &from.display().to_string(), &to.display().to_string()]);
            }
        }
        SandboxNetwork::None => {}
    }
    add(&["--bind", &spec.work.display().to_string(), HOME]);
    if let Some(dir) = spec.secrets {
        add(&["--ro-bind", &dir.display().to_string(), SECRETS_DIR]);
    }
    for BindMount { from, to, writable } in spec.volumes {
        let how = if *writable { "--bind" } else { "--ro-bind" };
        add(&[how, &from.display().to_string(), &to.display().to_string()]);
    }
    // A writable tmpfs would take the host's memory.
    for place in &empty {
        add(&["--remount-ro", place]);
    }
    if own_root {
        add(&["--remount-ro", "/"]);
    }
}

/// Adds the host's system, read-only. For a volume directly at the root, the root is assembled from the entries of
/// the host's root, because a mount point must exist. `true`: the root was assembled.
fn add_system(add: &mut impl FnMut(&[&str]), volumes: &[BindMount]) -> bool {
    let at_root = |path: &Path| volumes.iter().any(|bind| bind.to == path);
    let listed = fs::read_dir("/").map(|dir| dir.filter_map(Result::ok).map(|e| e.path()).collect());
    let mut names: Vec<PathBuf> = match listed {
        Ok(names) if volumes.iter().any(|bind| bind.to.parent() == Some(Path::new("/"))) => names,
        // With an unreadable root the mount of a volume at the root fails, and so does the start.
        _ => {
            add(&["--ro-bind", "/", "/"]);
            return false;
        }
    };
    names.retain(|path| !at_root(path) && path != Path::new("/dev") && path != Path::new("/proc"));
    names.sort();
    for path in names {
        let place = path.display().to_string();
        match std::fs::read_link(&path) {
            Ok(target) => add(&["--symlink", &target.display().to_string(), &place]),
            Err(_) => add(&["--ro-bind-try", &place, &place]),
        }
    }
    true
}
