//! Small files written whole: a reader sees the old text or the new one, never half of it.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The room that is set aside for a file.
const ROOM: [u8; 4_096] = [b' '; 4_096];

fn open_part(part: &Path) -> io::Result<std::fs::File> {
    std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(part)
}

/// What is there of it already keeps its room until the text is in it.
fn write_part<T: Serialize>(part: &Path, value: &T) -> io::Result<std::fs::File> {
    let text = serde_json::to_vec(value).map_err(io::Error::other)?;
    let mut file = open_part(part)?;
    file.write_all(&text)?;
    // Most are new, and a file system does work for a length that stays as it is too.
    if file.metadata()?.len() > text.len() as u64 {
        file.set_len(text.len() as u64)?;
    }
    Ok(file)
}

/// Writes a small file whole that is written again and again: the new text and the old one change places, so
/// that there is room for the next even when the disk has none. Not synced.
pub fn put_json_in_turn<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let part = path.with_extension("part");
    write_part(&part, value)?;
    match renameat2(AT_FDCWD, &part, AT_FDCWD, path, RenameFlags::RENAME_EXCHANGE) {
        Ok(()) => Ok(()),
        // There is no old one yet: it gets its room now.
        Err(Errno::ENOENT) => std::fs::rename(part, path).and_then(|()| reserve(path)),
        // This file system cannot do that.
        Err(_) => std::fs::rename(part, path),
    }
}

/// Takes room on the disk for a file that `put_json` writes there later, however full the disk is by then.
fn reserve(path: &Path) -> io::Result<()> {
    let mut file = open_part(&path.with_extension("part"))?;
    // Not synced: where blocks are chosen later, their number is taken now.
    file.write_all(&ROOM)
}

/// Writes `value` as JSON beside its place, then renames it there. `sync` makes it survive a power cut.
pub fn put_json<T: Serialize>(path: &Path, value: &T, sync: bool) -> io::Result<()> {
    let part = path.with_extension("part");
    let file = write_part(&part, value)?;
    if sync {
        file.sync_all()?;
    }
    std::fs::rename(part, path)?;
    match path.parent() {
        // The name is the directory's to keep.
        Some(dir) if sync => std::fs::File::open(dir)?.sync_all(),
        _ => Ok(()),
    }
}

/// Writes a file of which there is no former text to keep; it survives a power cut once this returns. Text and name
/// then reach the disk together, where one that replaces another needs two steps. A power cut on the way may leave
/// it empty, which reads as if it were not there.
pub fn put_new_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let part = path.with_extension("part");
    let file = write_part(&part, value)?;
    std::fs::rename(part, path)?;
    file.sync_all()?;
    path.parent().map_or(Ok(()), |dir| std::fs::File::open(dir)?.sync_all())
}

/// Reads a JSON file; `None` when it is not there or cannot be read as `T`.
pub fn find_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = std::fs::read(path).ok()?;
    match serde_json::from_slice(&text) {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a file of this worker cannot be read");
            None
        }
    }
}

/// Has the file system put each directory that is made in this one where most room is, in place of all side
/// by side. To make a file, ext4 looks past all near it that were removed within the last minutes: short jobs
/// that follow each other would slow each other down more and more.
pub fn spread(dir: &Path) {
    // Others know no such thing, and need none.
    if let Ok(dir) = std::fs::File::open(dir)
        && let Ok(flags) = ioctl_getflags(&dir)
    {
        let _ = ioctl_setflags(&dir, flags | IFlags::TOPDIR);
    }
}

/// Where a tenant's relative path lies under `root`; `None` when it would leave it.
pub fn inside(root: &Path, relative: &str) -> Option<PathBuf> {
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
        assert!(path.with_extension("part").exists(), "the room for the next");
    }

    #[test]
    fn a_path_stays_inside() {
        let root = Path::new("/w");
        assert_eq!(inside(root, "a/b.py"), Some(PathBuf::from("/w/a/b.py")));
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "./../x", "a\0b"] {
            assert_eq!(inside(root, bad), None, "{bad:?}");
        }
    }

    #[test]
    fn directories_are_spread_where_that_can_be_said() {
        let dir = tempfile::tempdir().unwrap();
        spread(dir.path());
        spread(&dir.path().join("not there"));
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
