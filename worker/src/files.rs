//! Small files written whole: a reader sees the old text or the new one, never half of it.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes `value` as JSON beside its place, then renames it there. `sync` makes it survive a power cut.
pub fn put_json<T: Serialize>(path: &Path, value: &T, sync: bool) -> io::Result<()> {
    let text = serde_json::to_vec(value).map_err(io::Error::other)?;
    let part = path.with_extension("part");
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(&text)?;
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

/// Where a tenant's relative path lies under `root`; `None` when it would leave it.
pub fn inside(root: &Path, relative: &str) -> Option<PathBuf> {
    let path = Path::new(relative);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && !relative.is_empty() && !relative.contains('\0')).then(|| root.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_inside() {
        let root = Path::new("/w");
        assert_eq!(inside(root, "a/b.py"), Some(PathBuf::from("/w/a/b.py")));
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "./../x", "a\0b"] {
            assert_eq!(inside(root, bad), None, "{bad:?}");
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
