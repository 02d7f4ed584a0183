//! How much a job's directory holds. The job changes it meanwhile and may try to lead this astray: no
//! link is followed, and depth, number and size have their ends. Blocking.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fstatat};

/// Directories within directories.
const MOST_DEEP: usize = 200;
/// Files and directories.
const MOST_ENTRIES: usize = 2_000_000;
/// Before the first look at the size of a job's directory, and between two.
pub const LOOK: Duration = Duration::from_secs(5);

/// What was found in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Bytes(u64),
    TooDeep,
    TooMany,
}

/// The room that everything in `root` takes on the disk; at most a little above `most` is counted.
pub fn measure(root: &Path, most: u64) -> Result<Found, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let (mut bytes, mut entries) = (0u64, 0usize);
    let mut first = Some(Dir::open(root, flags, Mode::empty())?);
    let mut waiting: Vec<(Rc<Dir>, CString, usize)> = Vec::new();
    loop {
        let (mut dir, depth) = match first.take() {
            Some(root) => (root, 0),
            None => {
                let Some((parent, name, depth)) = waiting.pop() else { return Ok(Found::Bytes(bytes)) };
                // What is gone by now, or became something else, is not counted.
                match Dir::openat(&*parent, name.as_c_str(), flags, Mode::empty()) {
                    Ok(dir) => (dir, depth),
                    Err(Errno::EMFILE | Errno::ENFILE) => return Ok(Found::TooDeep),
                    Err(_) => continue,
                }
            }
        };
        let mut names: Vec<CString> = Vec::new();
        for entry in dir.iter() {
            // A directory that cannot be read on is left as far as it was.
            let Ok(entry) = entry else { break };
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(entry.file_name().to_owned());
                entries += 1;
            }
            if entries > MOST_ENTRIES {
                return Ok(Found::TooMany);
            }
        }
        let dir = Rc::new(dir);
        for name in names {
            let Ok(stat) = fstatat(&*dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            bytes = bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
            if bytes > most {
                return Ok(Found::Bytes(bytes));
            }
            if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR {
                if depth >= MOST_DEEP {
                    return Ok(Found::TooDeep);
                }
                waiting.push((dir.clone(), name, depth + 1));
            }
        }
    }
}

/// The room that several directories take together.
fn measure_all(dirs: &[PathBuf], most: u64) -> Result<Found, Errno> {
    let mut all = 0u64;
    for dir in dirs {
        match measure(dir, most.saturating_sub(all))? {
            Found::Bytes(bytes) => all = all.saturating_add(bytes),
            other => return Ok(other),
        }
        if all > most {
            break;
        }
    }
    Ok(Found::Bytes(all))
}

/// Looks after the size of the job's directory and what counts with it, from now on; what it finds too much is set
/// once. An error when the host gives no thread for it.
pub fn watch(
    limit: Option<(PathBuf, u64)>,
    with: Vec<PathBuf>,
) -> io::Result<Arc<OnceLock<(String, String)>>> {
    let told = Arc::new(OnceLock::new());
    let Some((dir, most_mib)) = limit else { return Ok(told) };
    let tell = told.clone();
    let dirs: Vec<PathBuf> = std::iter::once(dir).chain(with).collect();
    let look = move || {
        let most = most_mib.saturating_mul(1 << 20);
        loop {
            let what = match measure_all(&dirs, most) {
                Ok(Found::Bytes(bytes)) if bytes > most => format!("holds more than {most_mib} MiB"),
                Ok(Found::TooMany) => "holds more than two million files".to_owned(),
                Ok(Found::TooDeep) => "has more than 200 directories within each other".to_owned(),
                // What cannot be looked at now is looked at again.
                Ok(Found::Bytes(_)) | Err(_) => {
                    std::thread::sleep(LOOK);
                    continue;
                }
            };
            let detail = format!("Its directory {what}, so it was stopped.");
            // Nobody else sets it.
            let _ = tell.set(("disk.exceeded".to_owned(), detail));
            return;
        }
    };
    std::thread::Builder::new().name("disk".to_owned()).spawn(look)?;
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_it_counts_and_what_is_linked_does_not() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("large"), vec![1; 1 << 20]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("a/loop")).unwrap();
        let Found::Bytes(bytes) = measure(dir.path(), u64::MAX).unwrap() else { panic!("it has an end") };
        assert!((100_000..600_000).contains(&bytes), "{bytes}");
        // A hole takes no room.
        std::fs::File::create(dir.path().join("hole")).unwrap().set_len(1 << 30).unwrap();
        let Found::Bytes(with_hole) = measure(dir.path(), u64::MAX).unwrap() else { panic!("it has an end") };
        assert!(with_hole < bytes + 100_000, "{with_hole}");
        let Found::Bytes(early) = measure(dir.path(), 10_000).unwrap() else { panic!("it has an end") };
        assert!(early > 10_000);
        let both = [dir.path().to_owned(), outside.path().to_owned()];
        let Found::Bytes(all) = measure_all(&both, u64::MAX).unwrap() else { panic!("it has an end") };
        assert!(all >= with_hole + (1 << 20), "{all}");
        let Found::Bytes(beyond) = measure_all(&both, with_hole + 1_000).unwrap() else { panic!("an end") };
        assert!(beyond > with_hole + 1_000, "what is above the limit together shows: {beyond}");
    }

    #[test]
    fn a_directory_without_end_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut at = dir.path().to_owned();
        for _ in 0..=MOST_DEEP {
            at.push("d");
        }
        std::fs::create_dir_all(&at).unwrap();
        assert_eq!(measure(dir.path(), u64::MAX), Ok(Found::TooDeep));
        assert_eq!(measure(&dir.path().join("none"), 1), Err(Errno::ENOENT));
        // The root itself must not be a link either.
        let link = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path(), link.path().join("x")).unwrap();
        assert!(measure(&link.path().join("x"), 1).is_err());
    }
}
