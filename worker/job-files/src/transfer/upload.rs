//! Uploads of single files. An interrupted upload resumes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_contract::FILE_CHUNK;
use berth_proto::{OutputFile, UploadChunk};

use super::blocking::{blocking, unreadable};
use super::client::Portal;

/// The uploads in parallel.
pub(super) const PARALLEL: usize = 4;
/// The time limit for the answer to one message, with the other uploads in parallel.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(60 * PARALLEL as u64);

/// The content of an upload.
pub enum UploadSource {
    Path(PathBuf),
    Open(File),
}

impl UploadSource {
    pub(super) fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let opened;
        let file = match self {
            Self::Open(file) => file,
            Self::Path(path) => {
                opened = File::open(path)?;
                &opened
            }
        };
        let mut data = vec![0; length];
        let read = file.read_at(&mut data, offset)?;
        data.truncate(read);
        Ok(data)
    }
}

/// The text of a refusal by the portal.
pub(super) fn status_text(status: &tonic::Status) -> String {
    status.message().to_owned()
}

/// Uploads a file from the offset that the portal has.
pub async fn upload(portal: &mut Portal, file: OutputFile, source: UploadSource) -> Result<(), String> {
    // The first message has no data and asks for the offset.
    upload_from_start(portal, file, source, Vec::new()).await
}

/// Uploads a file of which the portal probably has nothing. `first` is its beginning.
pub(super) async fn upload_from_start(
    portal: &mut Portal,
    file: OutputFile,
    source: UploadSource,
    first: Vec<u8>,
) -> Result<(), String> {
    let (source, bytes) = (Arc::new(source), file.bytes);
    let (mut offset, mut data) = (0, first);
    loop {
        let is_query = data.is_empty();
        let chunk = UploadChunk { file: Some(file.clone()), offset, data };
        let answer = tokio::time::timeout(ANSWER_WITHIN, portal.upload(chunk)).await;
        let progress = answer.map_err(|_| "the portal does not answer")?.map_err(|s| status_text(&s))?;
        let progress = progress.into_inner();
        if progress.done {
            return Ok(());
        }
        if progress.received_bytes > bytes || (!is_query && progress.received_bytes <= offset) {
            return Err("the portal does not accept a file".to_owned());
        }
        offset = progress.received_bytes;
        let length = usize::try_from(bytes - offset).unwrap_or(FILE_CHUNK).min(FILE_CHUNK);
        let from = source.clone();
        data = blocking(move || from.read_at(offset, length).map_err(|e| unreadable(&e))).await?;
        if data.is_empty() {
            return Err("a file became shorter during its transfer".to_owned());
        }
    }
}
