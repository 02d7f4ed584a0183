//! The disk space of a job's directory. The job changes the directory meanwhile and may be hostile: no link is
//! followed, and depth, number and size are limited. Blocking.

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

/// The deepest nesting of directories.
const MOST_DEEP: usize = 200;
/// Files and directories together.
const MOST_ENTRIES: usize = 2_000_000;
/// The time before the first measurement of a job's directory, and between two.
pub const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// The result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskUsage {
    Bytes(u64),
    TooDeep,
    TooMany,
}

/// The disk space of everything in `root`. The count ends a little above `most`.
pub fn measure(root: &Path, most: u64) -> Result<DiskUsage, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let (mut bytes, mut entries) = (0u64, 0usize);
    let mut first = Some(Dir::open(root, flags, Mode::empty())?);
    let mut waiting: Vec<(Rc<Dir>, CString, usize)> = Vec::new();
    loop {
        let (mut dir, depth) = match first.take() {
            Some(root) => (root, 0),
            None => {
                let Some((parent, name, depth)) = waiting.pop() else { return Ok(DiskUsage::Bytes(bytes)) };
                // A directory that is gone or replaced by now is not counted.
                match Dir::openat(&*parent, name.as_c_str(), flags, Mode::empty()) {
                    Ok(dir) => (dir, depth),
                    Err(Errno::EMFILE | Errno::ENFILE) => return Ok(DiskUsage::TooDeep),
                    Err(_) => continue,
                }
            }
        };
        let mut names: Vec<CString> = Vec::new();
        for entry in dir.iter() {
            // The rest of an unreadable directory is not counted.
            let Ok(entry) = entry else { break };
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(entry.file_name().to_owned());
                entries += 1;
            }
            if entries > MOST_ENTRIES {
                return Ok(DiskUsage::TooMany);
            }
        }
        let dir = Rc::new(dir);
        for name in names {
            let Ok(stat) = fstatat(&*dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            bytes = bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
            if bytes > most {
                return Ok(DiskUsage::Bytes(bytes));
            }
            if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR {
                if depth >= MOST_DEEP {
                    return Ok(DiskUsage::TooDeep);
                }
                waiting.push((dir.clone(), name, depth + 1));
            }
        }
    }
}

/// The disk space of several directories together.
fn measure_all(dirs: &[PathBuf], most: u64) -> Result<DiskUsage, Errno> {
    let mut all = 0u64;
    for dir in dirs {
        match measure(dir, most.saturating_sub(all))? {
            DiskUsage::Bytes(bytes) => all = all.saturating_add(bytes),
            other => return Ok(other),
        }
        if all > most {
            break;
        }
    }
    Ok(DiskUsage::Bytes(all))
}

/// Measures the job's directory and those that count with it from now on, in a thread of its own. The first excess is
/// set once.
///
/// # Errors
/// The host has no thread for it.
pub fn watch(
    limit: Option<(PathBuf, u64)>,
    counted_too: Vec<PathBuf>,
) -> io::Result<Arc<OnceLock<(String, String)>>> {
    let excess = Arc::new(OnceLock::new());
    let Some((dir, most_mib)) = limit else { return Ok(excess) };
    let found = excess.clone();
    let dirs: Vec<PathBuf> = std::iter::once(dir).chain(counted_too).collect();
    let measure = move || {
        let most = most_mib.saturating_mul(1 << 20);
        loop {
            let what = match measure_all(&dirs, most) {
                Ok(DiskUsage::Bytes(bytes)) if bytes > most => format!("exceeded {most_mib} MiB"),
                Ok(DiskUsage::TooMany) => "exceeded two million files".to_owned(),
                Ok(DiskUsage::TooDeep) => "exceeded 200 nested directories".to_owned(),
                // An unreadable directory is measured again later.
                Ok(DiskUsage::Bytes(_)) | Err(_) => {
                    std::thread::sleep(MEASURE_EVERY);
                    continue;
                }
            };
            let detail = format!("The directory of the job {what}, and the job was stopped.");
            // Only this thread sets it.
            let _ = found.set(("disk.exceeded".to_owned(), detail));
            return;
        }
    };
    std::thread::Builder::new().name("disk".to_owned()).spawn(measure)?;
    Ok(excess)
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
        let DiskUsage::Bytes(bytes) = measure(dir.path(), u64::MAX).unwrap() else { panic!("it has an end") };
        assert!((100_000..600_000).contains(&bytes), "{bytes}");
        // A hole takes no space.
        std::fs::File::create(dir.path().join("hole")).unwrap().set_len(1 << 30).unwrap();
        let DiskUsage::Bytes(with_hole) = measure(dir.path(), u64::MAX).unwrap() else {
            panic!("it has an end")
        };
        assert!(with_hole < bytes + 100_000, "{with_hole}");
        let DiskUsage::Bytes(early) = measure(dir.path(), 10_000).unwrap() else { panic!("it has an end") };
        assert!(early > 10_000);
        let both = [dir.path().to_owned(), outside.path().to_owned()];
        let DiskUsage::Bytes(all) = measure_all(&both, u64::MAX).unwrap() else { panic!("it has an end") };
        assert!(all >= with_hole + (1 << 20), "{all}");
        let DiskUsage::Bytes(beyond) = measure_all(&both, with_hole + 1_000).unwrap() else {
            panic!("an end")
        };
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
        assert_eq!(measure(dir.path(), u64::MAX), Ok(DiskUsage::TooDeep));
        assert_eq!(measure(&dir.path().join("none"), 1), Err(Errno::ENOENT));
        // The root must not be a link.
        let link = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path(), link.path().join("x")).unwrap();
        assert!(measure(&link.path().join("x"), 1).is_err());
    }
}
