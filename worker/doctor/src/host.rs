//! The host of the checks: its files below a root, its programs, and NVML's answer.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::commands::{CommandError, Commands, HostCommands};

/// The most bytes of a file. The rest is not read.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The most entries of a directory.
const MAX_ENTRIES: usize = 65_536;
/// The directories of programs.
const PROGRAM_DIRS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// NVML's answer to its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NvmlStart {
    /// NVML was not started.
    Untried,
    /// The version of the driver.
    Started(String),
    /// The reason, as a part of a sentence.
    Failed(String),
}

/// A host to examine.
pub struct Host {
    /// The directory in place of `/`. All other paths are those of the host.
    pub root: PathBuf,
    /// The data directory of the worker. It may not exist yet.
    pub data: PathBuf,
    /// The URL of the portal for workers. `None`: its address is not checked.
    pub portal: Option<String>,
    /// True if the worker has simulated boards, which need no driver.
    pub simulated: bool,
    /// The names and the directories of the host mounts.
    pub host_mounts: Vec<(String, PathBuf)>,
    pub nvml: NvmlStart,
    /// True if NVML has answered that the persistence mode of all boards is on. `None`: `nvidia-smi` is asked.
    pub persistence: Option<bool>,
    /// The number of whole boards without a complete registration with their NVLink fabric, by NVML.
    pub unregistered_boards: usize,
    /// The reason for which the kernel refused the filter of device nodes to the daemon. `None`: it did not, or no
    /// daemon asks.
    pub device_filter_refusal: Option<String>,
    pub commands: Box<dyn Commands>,
}

impl Host {
    /// This host, with a data directory and NVML's answer. The address of the portal is not checked.
    pub fn local(data: PathBuf, nvml: NvmlStart) -> Self {
        let root = PathBuf::from("/");
        let commands = Box::new(HostCommands::default());
        Self {
            root,
            data,
            portal: None,
            simulated: false,
            host_mounts: Vec::new(),
            nvml,
            persistence: None,
            unregistered_boards: 0,
            device_filter_refusal: None,
            commands,
        }
    }

    /// The place of a path of the host.
    pub(crate) fn place(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.place(path).exists()
    }

    /// The begin of a file; `None` if it cannot be read.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        read_begin(&self.place(path))
    }

    /// The begin of a file without space around it.
    pub(crate) fn read_line(&self, path: impl AsRef<Path>) -> Option<String> {
        self.read(path).map(|text| text.trim().to_owned())
    }

    /// The sorted names in a directory; none if it cannot be read.
    pub(crate) fn names(&self, dir: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.place(dir)) else { return Vec::new() };
        let entries = entries.take(MAX_ENTRIES).flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The place of a program.
    pub(crate) fn find_program(&self, name: &str) -> Option<PathBuf> {
        let runs = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        PROGRAM_DIRS.iter().map(|dir| self.place(dir).join(name)).find(runs)
    }

    /// The output of a program by its name.
    ///
    /// # Errors
    /// The program is missing, fails, or does not answer in time.
    pub(crate) fn ask(&self, name: &str, args: &[&str]) -> Result<String, CommandError> {
        let program = self.find_program(name).ok_or(CommandError::Missing)?;
        self.commands.run(&program, args)
    }

    /// The processes by id, with their names of at most 15 bytes.
    pub(crate) fn processes(&self) -> Vec<(u32, String)> {
        let mut ids: Vec<u32> = self.names("/proc").iter().filter_map(|name| name.parse().ok()).collect();
        ids.sort_unstable();
        let named = |id: u32| Some((id, self.read_line(format!("/proc/{id}/comm"))?));
        ids.into_iter().filter_map(named).collect()
    }

    /// True if this process is root: the worker is the same user.
    pub(crate) fn is_root(&self) -> bool {
        let status = self.read("/proc/self/status").unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        ids.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
    }
}

/// The begin of a file; `None` if it cannot be read.
pub(crate) fn read_begin(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
