//! The options for host mounts.

use std::path::PathBuf;

use berth_job_files::inputs::host_mounts::HostMounts;

/// The options for host mounts.
#[derive(Debug, clap::Args)]
pub struct HostMountArgs {
    /// A directory of the host for the volumes of a storage class, such as scratch=/mnt/lustre. Repeatable, at most 32.
    #[arg(
        long = "host-mount",
        env = "BERTH_HOST_MOUNTS",
        value_name = "NAME=PATH",
        value_delimiter = ',',
        value_parser = host_mount
    )]
    host_mounts: Vec<(String, PathBuf)>,
    /// The groups for organizations with volumes on host mounts, for a worker that runs as root. They must be unused,
    /// and the same on all nodes with the file system.
    #[arg(
        long,
        env = "BERTH_STORAGE_GROUPS",
        value_name = "FIRST-LAST",
        default_value = "700000-799999",
        value_parser = id_range
    )]
    storage_groups: (u32, u32),
}

impl HostMountArgs {
    /// The host mounts. `private` are directories of the host that jobs must not see, and `users` is the range of users
    /// for jobs: first and number.
    ///
    /// # Errors
    /// A sentence about the first mount that cannot be used, or about the groups.
    pub fn open(&self, private: &[PathBuf], users: (u32, u32)) -> Result<HostMounts, String> {
        let (first, count) = self.storage_groups;
        let end = |(first, count): (u32, u32)| first.saturating_add(count);
        // The group of an attempt has the number of its user.
        if !self.host_mounts.is_empty() && first < end(users) && users.0 < end((first, count)) {
            return Err("--storage-groups overlaps with --job-users. Choose another range".to_owned());
        }
        HostMounts::open(&self.host_mounts, self.storage_groups, private)
    }
}

/// `NAME=PATH`.
fn host_mount(text: &str) -> Result<(String, PathBuf), String> {
    let parts = text.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty());
    let (name, path) = parts.ok_or("expected NAME=PATH, such as scratch=/mnt/lustre")?;
    Ok((name.to_owned(), PathBuf::from(path)))
}

/// `FIRST-LAST` as the first and the number, for users or groups of jobs.
///
/// # Errors
/// A sentence about the form.
pub fn id_range(text: &str) -> Result<(u32, u32), String> {
    let range: Option<(u32, u32)> =
        text.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match range {
        // Lower numbers are users and groups of the system.
        Some((first, last)) if first >= 1_000 && last >= first && last - first < u32::MAX / 2 => {
            Ok((first, last - first + 1))
        }
        _ => Err("expected FIRST-LAST, such as 600000-699999, with FIRST at least 1000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_a_range() {
        assert_eq!(id_range("200000-265535"), Ok((200_000, 65_536)));
        assert_eq!(id_range("1000-1000"), Ok((1_000, 1)));
        for bad in ["", "5", "0-10", "2000-1999", "1000-4294967295", "a-b", "-"] {
            assert!(id_range(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_mount_is_a_name_with_a_path() {
        assert_eq!(host_mount("a=/x=y"), Ok(("a".to_owned(), PathBuf::from("/x=y"))));
        for bad in ["a", "=/x", "a=", ""] {
            assert!(host_mount(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn groups_are_no_users_of_jobs() {
        let dir = tempfile::tempdir().unwrap();
        let host_mounts = vec![("a".to_owned(), dir.path().to_owned())];
        let mut args = HostMountArgs { host_mounts, storage_groups: (700_000, 100) };
        assert!(args.open(&[], (600_000, 100_000)).is_ok());
        assert!(args.open(&[], (700_099, 5)).is_err());
        args.host_mounts.clear();
        assert!(args.open(&[], (700_099, 5)).is_ok(), "no job has such a group");
    }
}
