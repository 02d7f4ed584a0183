//! The places of files in an attempt's directory.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The directory of files on their way. The watch of the attempt's directory does not cover it.
pub const KEPT_DIR: &str = "kept";
/// The archive of the checkpoint that an attempt starts with.
pub const RESTORE: &str = "kept/restore.tar";
/// The directory of the volumes.
const VOLUMES_DIR: &str = "volumes";

/// Creates the directory of files on their way, but not the attempt's directory, which may be removed already.
pub fn make_kept_dir(dir: &Path) -> io::Result<()> {
    match std::fs::create_dir(dir.join(KEPT_DIR)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Creates an empty file for the worker's own user only.
pub fn create_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// The directory of all volumes of an attempt.
pub fn volumes_directory(dir: &Path) -> PathBuf {
    dir.join(VOLUMES_DIR)
}

/// The directory of one volume, by its index among the volumes of the attempt.
pub fn volume_directory(dir: &Path, index: usize) -> PathBuf {
    volumes_directory(dir).join(index.to_string())
}
