//! The checkpoint that an attempt starts with: fetched from the portal, then restored into the job's directory.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_proto::{FetchRequest, Restore, Spec};
use berth_shim::model::AttemptKey;
use berth_system::files::join_inside;
use berth_system::removal::remove_tree;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::transfer::{
    FetchProgress, RESTORE, archive, blocking, client, create_file, fetch_file, make_kept_dir, tree,
};

/// Downloads the checkpoint into the attempt's directory, and reports the progress in sentences.
pub async fn fetch(
    dir: PathBuf,
    key: AttemptKey,
    restore: Restore,
    channel: Channel,
    report: &dyn Fn(String),
) -> Result<(), String> {
    let file = dir.join(RESTORE);
    let out =
        blocking(move || make_kept_dir(&dir).and_then(|()| create_file(&file)).map_err(|e| e.to_string()));
    let out = out.await?;
    let request = FetchRequest { attempt: Some(key.id()), file: restore.file, ..FetchRequest::default() };
    let action = "Restoring the checkpoint".to_owned();
    let mut progress = FetchProgress::new(action, restore.bytes, report, Instant::now());
    let expected = (restore.bytes, restore.sha256.as_slice());
    fetch_file(&mut client(channel), request, expected, Arc::new(out), &mut progress).await
}

/// Creates the checkpoint directory of an attempt before its start, with the downloaded checkpoint.
pub fn restore(dir: &Path, spec: &Spec) -> io::Result<()> {
    if spec.checkpoint_dir.is_empty() {
        return Ok(());
    }
    let work = dir.join("work");
    let root = tree::open_root(&work)?;
    let parts: Vec<&str> = spec.checkpoint_dir.split('/').collect();
    if spec.restore.is_some()
        && let Some(place) = join_inside(&work, &spec.checkpoint_dir)
    {
        // Its present content is of the job's own files, which were there at the first start. No job has run here
        // yet.
        match remove_tree(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let root = tree::descend(&root, &parts, true)?;
    if spec.restore.is_some() {
        let file = dir.join(RESTORE);
        archive::unpack(io::BufReader::with_capacity(1 << 20, File::open(&file)?), &root)?;
        std::fs::remove_file(file)?;
    }
    Ok(())
}
