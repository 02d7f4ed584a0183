//! What is in an attempt's directories when it starts, and to whom it belongs. Blocking.

use std::io;
use std::path::Path;

use berth_proto::Spec;

use crate::files::inside;
use crate::{keeping, volumes};

/// Makes the job's directory: its files, its checkpoint, and the places of its volumes.
pub(super) fn fill(dir: &Path, work: &Path, spec: &Spec, isolated: bool) -> Result<(), (String, String)> {
    let io =
        |e: io::Error| ("worker.io".to_owned(), format!("The worker cannot write the job's files: {e}."));
    std::fs::create_dir_all(work).map_err(io)?;
    for (path, text) in &spec.files {
        let to = inside(work, path)
            .ok_or_else(|| ("worker.files".to_owned(), format!("{path:?} is not a path inside the job.")))?;
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent).map_err(io)?;
        }
        std::fs::write(to, text).map_err(io)?;
    }
    keeping::restore(dir, spec).map_err(io)?;
    volumes::place(dir, work, spec, isolated).map_err(io)
}

/// Gives the job's directory and its volumes to its user.
pub(super) fn give(dir: &Path, work: &Path, spec: &Spec, uid: u32) -> io::Result<()> {
    give_tree(work, uid)?;
    volumes::directories(dir, spec).iter().try_for_each(|volume| give_tree(volume, uid))
}

/// Gives a directory and everything in it to a user.
fn give_tree(path: &Path, uid: u32) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(uid), Some(uid))?;
    if path.symlink_metadata()?.is_dir() {
        for entry in std::fs::read_dir(path)? {
            give_tree(&entry?.path(), uid)?;
        }
    }
    Ok(())
}
