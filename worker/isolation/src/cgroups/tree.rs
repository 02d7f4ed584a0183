//! A cgroup with the cgroups below it, which a container engine may make.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The directory and all directories below it, parents first.
pub(super) fn directories(root: &Path) -> Vec<PathBuf> {
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
    for dir in directories(root) {
        match fs::read_to_string(dir.join("cgroup.procs")) {
            // A process of another PID namespace reads as 0, which would mean this process's own cgroup.
            Ok(text) => all.extend(text.lines().filter_map(|l| l.parse::<i32>().ok()).filter(|pid| *pid > 0)),
            // After a restart of the host the directory is absent.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// Removes the tree. `false`: something of it is left.
pub(super) fn remove(root: &Path) -> bool {
    directories(root).into_iter().rev().all(|dir| match fs::remove_dir(&dir) {
        Ok(()) => true,
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    })
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
        // In a real hierarchy these files would not keep the directory.
        fs::remove_file(root.join("cgroup.procs")).unwrap();
        assert!(!remove(&root) && root.join("a/b").exists(), "what is not empty stays");
        fs::remove_file(root.join("a/b/cgroup.procs")).unwrap();
        assert!(remove(&root) && !root.exists() && remove(&root));
    }
}
