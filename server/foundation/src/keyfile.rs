//! Files with the portal's own keys. A file is created once, as a whole, and only its owner can read it. Must
//! not interpret the contents.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// The contents of a file, or `None` if there is no such file.
pub fn find(file: &Path) -> Result<Option<Vec<u8>>, String> {
    match std::fs::read(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}

/// The contents of a file. A missing file is created with the text from `make`. If several processes create
/// the file at the same time, all of them read the text of the first.
pub fn find_or_make(file: &Path, make: impl FnOnce() -> Result<String, String>) -> Result<Vec<u8>, String> {
    if let Some(text) = find(file)? {
        return Ok(text);
    }
    put(file, &make()?).map_err(|e| format!("{}: {e}", file.display()))?;
    find(file)?.ok_or_else(|| format!("{}: the file was created and has disappeared", file.display()))
}

fn put(file: &Path, text: &str) -> io::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let part = file.with_extension(format!("{}.part", std::process::id()));
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    // A hard link never replaces a file, so a second portal that starts now keeps the file of the first.
    match std::fs::hard_link(&part, file) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    std::fs::remove_file(&part)?;
    File::open(dir)?.sync_all()
}
