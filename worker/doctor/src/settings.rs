//! The settings of an installed worker.

use std::path::{Path, PathBuf};

use super::host::read_begin;

/// The file of the installation below the root, with `NAME=VALUE` in each line.
const FILE: &str = "etc/berth/worker.env";

/// The settings of an installed worker. All are absent without a readable file of settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The URL of the portal for workers.
    pub portal: Option<String>,
    /// The data directory.
    pub data: Option<PathBuf>,
    /// The simulated boards.
    pub simulate: Option<String>,
    /// The names and the directories of the host mounts.
    pub host_mounts: Vec<(String, PathBuf)>,
    /// The network of jobs, `own` or `host`.
    pub job_network: Option<String>,
    /// The network between the ranks of a job: `wireguard`, `vxlan` or `host`.
    pub gang_network: Option<String>,
    /// The starts before which the memory of a GPU is cleared, such as `never`.
    pub clear_memory: Option<String>,
}

impl Settings {
    /// Reads the settings below a root.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let text = read_begin(&root.join(FILE)).unwrap_or_default();
        let value = |name: &str| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            values.next_back().filter(|value| !value.is_empty()).map(str::to_owned)
        };
        let mounts = value("BERTH_HOST_MOUNTS").unwrap_or_default();
        let mounts = mounts.split(',').filter_map(|mount| mount.split_once('='));
        Self {
            host_mounts: mounts.map(|(name, dir)| (name.to_owned(), PathBuf::from(dir))).collect(),
            portal: value("BERTH_PORTAL"),
            data: value("BERTH_WORKER_DATA").map(PathBuf::from),
            simulate: value("BERTH_SIMULATE"),
            job_network: value("BERTH_JOB_NETWORK"),
            gang_network: value("BERTH_GANG_NETWORK"),
            clear_memory: value("BERTH_CLEAR_MEMORY"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_setting_counts() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Settings::read(root.path()), Settings::default());
        std::fs::create_dir_all(root.path().join("etc/berth")).unwrap();
        let text = "BERTH_PORTAL=https://a:1\nBERTH_PORTAL=https://b:2\nBERTH_WORKER_DATA=/d\nBERTH_SIMULATE=\nBERTH_HOST_MOUNTS=a=/m/a,b=/m/b\n";
        std::fs::write(root.path().join(FILE), text).unwrap();
        let settings = Settings::read(root.path());
        assert_eq!(settings.portal.as_deref(), Some("https://b:2"));
        let mount = |name: &str, dir: &str| (name.to_owned(), PathBuf::from(dir));
        assert_eq!(settings.host_mounts, [mount("a", "/m/a"), mount("b", "/m/b")]);
        assert_eq!((settings.data, settings.simulate), (Some(PathBuf::from("/d")), None));
    }
}
