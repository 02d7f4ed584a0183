//! The words by which bubblewrap makes the files that an attempt sees. Must not touch them: it only looks at what
//! is in the host's root.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Bind, HOME, PASSWD, Terms};
use crate::secrets;

/// From this version on a tmpfs can be limited.
const SIZES_SINCE: (u32, u32) = (0, 7);

/// What the attempt sees of the host's files.
pub(super) fn mounts(
    add: &mut impl FnMut(&[&str]),
    terms: &Terms<'_>,
    version: (u32, u32),
    hidden: &[PathBuf],
) {
    let bytes = terms.scratch_mib.saturating_mul(1 << 20).to_string();
    let limited: Vec<&str> = if version >= SIZES_SINCE { vec!["--size", &bytes] } else { Vec::new() };
    let own_root = system(add, terms.volumes);
    if let Some(file) = terms.passwd {
        add(&["--ro-bind", &file.display().to_string(), PASSWD]);
    }
    add(&["--dev", "/dev", "--proc", "/proc"]);
    let private = ["/dev/shm", "/tmp", "/var/tmp"];
    for place in private {
        add(&limited);
        add(&["--perms", "1777", "--tmpfs", place]);
    }
    for node in terms.devices {
        let node = node.display().to_string();
        add(&["--dev-bind", &node, &node]);
    }
    // Sockets of the host's services are in /run; only the resolver's file is needed there.
    let mut empty: Vec<&Path> = ["/home", "/root", "/run"].map(Path::new).into();
    // The names of other attempts are there.
    empty.extend(Some(Path::new("/sys/fs/cgroup")).filter(|dir| dir.exists()));
    empty.extend(hidden.iter().map(PathBuf::as_path));
    // What is below a volume's place is not there, and cannot be mounted there.
    empty.retain(|dir| !terms.volumes.iter().any(|bind| dir.starts_with(&bind.to)));
    // What lies below another of them is gone with it, and cannot be mounted there any more.
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
    add(&["--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"]);
    add(&["--bind", &terms.work.display().to_string(), HOME]);
    if let Some(dir) = terms.secrets {
        add(&["--ro-bind", &dir.display().to_string(), secrets::INSIDE]);
    }
    for Bind { from, to, writable } in terms.volumes {
        let how = if *writable { "--bind" } else { "--ro-bind" };
        add(&[how, &from.display().to_string(), &to.display().to_string()]);
    }
    // What is made up and not for writing would take the host's memory.
    for place in &empty {
        add(&["--remount-ro", place]);
    }
    if own_root {
        add(&["--remount-ro", "/"]);
    }
}

/// The host's system, read-only. Where a volume is to be at the root, the root is made up of what is in the
/// host's, because nothing can be mounted where there is no directory; says whether it was.
fn system(add: &mut impl FnMut(&[&str]), volumes: &[Bind]) -> bool {
    let at_root = |path: &Path| volumes.iter().any(|bind| bind.to == path);
    let listed = fs::read_dir("/").map(|dir| dir.filter_map(Result::ok).map(|e| e.path()).collect());
    let mut names: Vec<PathBuf> = match listed {
        Ok(names) if volumes.iter().any(|bind| bind.to.parent() == Some(Path::new("/"))) => names,
        // The mount of a volume at the root fails then, and with it the start.
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
