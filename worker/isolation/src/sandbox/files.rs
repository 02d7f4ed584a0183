//! The files that bubblewrap inherits: the filters of system calls and its status.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::COMMAND;
use crate::seccomp;

/// The option before the descriptor of a system call filter. The descriptor is known at the start.
pub(super) const FILTER: &str = "--add-seccomp-fd";
/// The option before the descriptor of the status file. The descriptor is known at the start.
pub(super) const STATUS: &str = "--json-status-fd";
/// The largest read part of a status file, in bytes.
const STATUS_BYTES: usize = 4_096;

/// The files that bubblewrap inherits.
#[derive(Debug, Default)]
pub struct SandboxFiles {
    /// The system call filters, which must stay open until bubblewrap has started.
    filters: Vec<File>,
    status: Option<File>,
}

impl SandboxFiles {
    /// Prepares the files for another start.
    pub fn rewind(&mut self) -> io::Result<()> {
        self.filters.iter_mut().chain(&mut self.status).try_for_each(Seek::rewind)
    }

    /// True if an ended sandbox was not complete, so that its command never ran. bubblewrap writes the exit code of a
    /// command that has started.
    pub fn is_incomplete(&self) -> bool {
        let Some(status) = &self.status else { return false };
        let mut text = [0; STATUS_BYTES];
        let read = status.read_at(&mut text, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(text.get(..read).unwrap_or_default());
        !text.contains("\"exit-code\"")
    }
}

/// Opens the files that bubblewrap inherits, and puts their descriptors into its arguments.
pub fn open_files(argv: &[String]) -> io::Result<(Vec<String>, SandboxFiles)> {
    let (mut argv, mut files) = (argv.to_vec(), SandboxFiles::default());
    let mut filters = seccomp::filters().map_err(io::Error::other)?.iter();
    let mut option = String::new();
    for arg in &mut argv {
        if arg.as_str() == COMMAND {
            break;
        }
        // The files have no close-on-exec flag, so bubblewrap inherits them.
        if option == FILTER {
            let filter = filters.next().ok_or(io::ErrorKind::InvalidInput)?;
            let mut file = File::from(memfd_create(c"filter", MFdFlags::empty())?);
            file.write_all(filter)?;
            file.rewind()?;
            *arg = file.as_raw_fd().to_string();
            files.filters.push(file);
        } else if option == STATUS {
            let file = File::from(memfd_create(c"status", MFdFlags::empty())?);
            *arg = file.as_raw_fd().to_string();
            files.status = Some(file);
        }
        option.clone_from(arg);
    }
    Ok((argv, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn files_are_for_bubblewrap_and_not_for_the_command() {
        let asked = argv(&["bwrap", FILTER, "-", FILTER, "-", STATUS, "-", COMMAND, "echo", FILTER, "x"]);
        let (with, files) = open_files(&asked).unwrap();
        assert_eq!(files.filters.len(), seccomp::PROGRAMS);
        let number = |file: &dyn AsRawFd| file.as_raw_fd().to_string();
        let filters: Vec<String> = files.filters.iter().map(|file| number(file)).collect();
        let status = number(files.status.as_ref().unwrap());
        let expected = [
            "bwrap",
            FILTER,
            &filters[0],
            FILTER,
            &filters[1],
            STATUS,
            &status,
            COMMAND,
            "echo",
            FILTER,
            "x",
        ];
        assert_eq!(with, expected, "the words of the job stay as they are");
        let (plain, none) = open_files(&argv(&["sh"])).unwrap();
        assert_eq!((plain, none.filters.len()), (argv(&["sh"]), 0));
        assert!(none.status.is_none() && !none.is_incomplete(), "nothing is known without a status file");
    }

    #[test]
    fn a_sandbox_without_an_exit_code_is_incomplete() {
        let (_, files) = open_files(&argv(&["bwrap", STATUS, "-", COMMAND, "true"])).unwrap();
        assert!(files.is_incomplete());
        let mut status = files.status.as_ref().unwrap();
        status.write_all(b"{ \"child-pid\": 7 }\n").unwrap();
        assert!(files.is_incomplete());
        status.write_all(b"{ \"exit-code\": 1 }\n").unwrap();
        assert!(!files.is_incomplete());
    }
}
