//! Small files, written whole: a reader sees the old text or the new one, never a part.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The disk space that is set aside for a file.
const RESERVED: [u8; 4_096] = [b' '; 4_096];

fn open_part(part: &Path) -> io::Result<std::fs::File> {
    std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(part)
}

/// Blocks of an existing `.part` file stay allocated until the text is written.
fn write_part<T: Serialize>(part: &Path, value: &T) -> io::Result<std::fs::File> {
    let text = serde_json::to_vec(value).map_err(io::Error::other)?;
    let mut file = open_part(part)?;
    file.write_all(&text)?;
    // Most files are new, and setting an unchanged length costs the file system time.
    if file.metadata()?.len() > text.len() as u64 {
        file.set_len(text.len() as u64)?;
    }
    Ok(file)
}

/// Writes a small file that is rewritten often. The new and the old file change places, so the next write has
/// space even on a full disk. Not synced.
pub fn put_json_in_turn<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let part = path.with_extension("part");
    write_part(&part, value)?;
    match renameat2(AT_FDCWD, &part, AT_FDCWD, path, RenameFlags::RENAME_EXCHANGE) {
        Ok(()) => Ok(()),
        // There is no old file yet: its space is reserved now.
        Err(Errno::ENOENT) => std::fs::rename(part, path).and_then(|()| reserve(path)),
        // This file system has no exchange.
        Err(_) => std::fs::rename(part, path),
    }
}

/// Reserves disk space for a file that `put_json` writes there later, on a disk that may be full by then.
fn reserve(path: &Path) -> io::Result<()> {
    let mut file = open_part(&path.with_extension("part"))?;
    // Not synced: with delayed allocation the number of blocks is reserved now.
    file.write_all(&RESERVED)
}

/// Writes `value` as JSON into a `.part` file, then renames that. With `sync` the file survives a power cut.
pub fn put_json<T: Serialize>(path: &Path, value: &T, sync: bool) -> io::Result<()> {
    let part = path.with_extension("part");
    let file = write_part(&part, value)?;
    if sync {
        file.sync_all()?;
    }
    std::fs::rename(part, path)?;
    match path.parent() {
        // The name is stored in the directory.
        Some(dir) if sync => std::fs::File::open(dir)?.sync_all(),
        _ => Ok(()),
    }
}

/// Writes a file that does not exist yet; it survives a power cut after the return. Text and name reach the disk
/// together, in one step fewer than a replacement. A power cut on the way may leave an empty file, which reads as
/// absent.
pub fn put_new_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let part = path.with_extension("part");
    let file = write_part(&part, value)?;
    std::fs::rename(part, path)?;
    file.sync_all()?;
    path.parent().map_or(Ok(()), |dir| std::fs::File::open(dir)?.sync_all())
}

/// Reads a JSON file. `None`: it is absent, or is no `T`.
pub fn find_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = std::fs::read(path).ok()?;
    match serde_json::from_slice(&text) {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a file of this worker is not readable");
            None
        }
    }
}

/// Makes the file system spread the subdirectories of this directory over the disk. Without that, ext4 skips all
/// inodes near a new file that were freed within the last minutes, so each short job slows down the next.
pub fn spread_directories(dir: &Path) {
    // Other file systems have no such flag.
    if let Ok(dir) = std::fs::File::open(dir)
        && let Ok(flags) = ioctl_getflags(&dir)
    {
        let _ = ioctl_setflags(&dir, flags | IFlags::TOPDIR);
    }
}

/// A tenant's relative path below `root`. `None`: the path would leave it.
pub fn join_inside(root: &Path, relative: &str) -> Option<PathBuf> {
    let path = Path::new(relative);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && !relative.is_empty() && !relative.contains('\0')).then(|| root.join(path))
}

#[cfg(test)]
mod tests {
    use nix::sys::statfs::EXT4_SUPER_MAGIC;

    use super::*;

    #[test]
    fn what_is_written_replaces_all_of_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("end.json");
        reserve(&path).unwrap();
        assert_eq!(find_json::<String>(&path), None);
        assert_eq!(std::fs::metadata(path.with_extension("part")).unwrap().len(), 4_096);
        for text in ["short", "much longer than before", "s"] {
            put_json(&path, &text, true).unwrap();
            assert_eq!(find_json::<String>(&path).as_deref(), Some(text));
        }
        std::fs::remove_file(&path).unwrap();
        reserve(&path).unwrap();
        put_new_json(&path, &"new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "\"new\"");
        assert!(!path.with_extension("part").exists());
        for text in ["in turn", "in turn, and longer", "t", "in turn"] {
            put_json_in_turn(&path, &text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{text:?}"));
        }
        assert!(path.with_extension("part").exists(), "the space for the next write");
    }

    #[test]
    fn a_path_stays_inside() {
        let root = Path::new("/w");
        assert_eq!(join_inside(root, "a/b.py"), Some(PathBuf::from("/w/a/b.py")));
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "./../x", "a\0b"] {
            assert_eq!(join_inside(root, bad), None, "{bad:?}");
        }
    }

    #[test]
    fn directories_are_spread_where_that_can_be_said() {
        let dir = tempfile::tempdir().unwrap();
        spread_directories(dir.path());
        spread_directories(&dir.path().join("not there"));
        if nix::sys::statfs::statfs(dir.path()).unwrap().filesystem_type() == EXT4_SUPER_MAGIC {
            let flags = ioctl_getflags(std::fs::File::open(dir.path()).unwrap()).unwrap();
            assert!(flags.contains(IFlags::TOPDIR));
        }
    }

    #[test]
    fn what_is_half_written_is_never_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert_eq!(find_json::<u32>(&path), None);
        put_json(&path, &7u32, true).unwrap();
        std::fs::write(path.with_extension("part"), "9").unwrap();
        assert_eq!(find_json::<u32>(&path), Some(7));
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(find_json::<u32>(&path), None);
    }
}
