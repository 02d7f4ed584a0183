//! Files that hold the portal's own keys: made once, whole, and for their owner only. Must not know what is
//! in them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// What is in a file; `None` when there is none.
pub fn find(file: &Path) -> Result<Option<Vec<u8>>, String> {
    match std::fs::read(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}

/// What is in a file, which is made with this where there is none. Of several that make it at the same time
/// all read what the first of them wrote.
pub fn find_or_make(file: &Path, make: impl FnOnce() -> Result<String, String>) -> Result<Vec<u8>, String> {
    if let Some(text) = find(file)? {
        return Ok(text);
    }
    put(file, &make()?).map_err(|e| format!("{}: {e}", file.display()))?;
    find(file)?.ok_or_else(|| format!("{}: it was made and is gone", file.display()))
}

fn put(file: &Path, text: &str) -> io::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let part = file.with_extension(format!("{}.part", std::process::id()));
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    // A second portal that starts now finds the first one's: a link never replaces.
    match std::fs::hard_link(&part, file) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    std::fs::remove_file(&part)?;
    File::open(dir)?.sync_all()
}
