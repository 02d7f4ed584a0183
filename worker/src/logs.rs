//! Sends an attempt's log to the portal, from the byte that the portal has, as it grows.
//!
//! The file is the buffer: a portal that reads slowly, or not at all, costs no memory here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use berth_proto::{AttemptId, LOG_CHUNK, LOG_LIMIT, Log, Up, up};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::agent::Key;

/// Follows `file` until its sender of `grown` is dropped and everything was sent, or the session ends.
pub async fn follow(
    file: PathBuf,
    key: Key,
    mut offset: u64,
    mut grown: watch::Receiver<()>,
    bulk: mpsc::Sender<Up>,
) {
    loop {
        // Taken before reading: what is written after the read wakes the wait below.
        grown.mark_unchanged();
        let finished = grown.has_changed().is_err();
        while offset < LOG_LIMIT {
            let data = match read_on(&file, offset).await {
                Ok(Some(data)) => data,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(file = %file.display(), %error, "a log cannot be read");
                    return;
                }
            };
            let length = data.len() as u64;
            let attempt = Some(AttemptId::new(&key.job, key.number));
            let log = Log { attempt, rank: 0, offset, data };
            if bulk.send(up::What::Log(log).into()).await.is_err() {
                return;
            }
            offset += length;
        }
        if finished {
            return;
        }
        // An error means that the sender is gone: one more round sends the rest.
        let _ = grown.changed().await;
    }
}

/// What comes next in the file; `None` when there is no more yet.
async fn read_on(file: &Path, offset: u64) -> io::Result<Option<Bytes>> {
    // Its length is in memory, and most looks find nothing new.
    let length = match std::fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        found => found?.len(),
    };
    // Most of what is new is short.
    let more = usize::try_from(length.saturating_sub(offset)).unwrap_or(LOG_CHUNK).min(LOG_CHUNK);
    if more == 0 {
        return Ok(None);
    }
    let file = file.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; more];
        let read = File::open(file)?.read_at(&mut buffer, offset)?;
        buffer.truncate(read);
        Ok(Some(Bytes::from(buffer)).filter(|data| !data.is_empty()))
    });
    read.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[tokio::test]
    async fn every_byte_arrives_once_from_where_it_was_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"0123456789").unwrap();
        let (grow, grown) = watch::channel(());
        let (bulk, mut sent) = mpsc::channel(4);
        let key = Key { job: "job".into(), number: 1 };
        let task = tokio::spawn(follow(path, key, 4, grown, bulk));
        let mut got = Vec::new();
        let mut take = async |got: &mut Vec<u8>, until: usize| {
            while got.len() < until {
                let Some(up::What::Log(log)) = sent.recv().await.unwrap().what else { panic!("not a log") };
                assert_eq!(log.offset, 4 + got.len() as u64);
                got.extend_from_slice(&log.data);
            }
        };
        take(&mut got, 6).await;
        let more = vec![b'x'; 3 * LOG_CHUNK + 17];
        file.write_all(&more).unwrap();
        grow.send_replace(());
        take(&mut got, 6 + more.len()).await;
        file.write_all(b"end").unwrap();
        drop(grow);
        take(&mut got, 9 + more.len()).await;
        task.await.unwrap();
        assert!(got.starts_with(b"456789x") && got.ends_with(b"xend"));
    }
}
