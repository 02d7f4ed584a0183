//! The logs of attempts on their way to the portal, from the offset that the portal has.
//!
//! The file is the buffer: a slow portal costs no memory here.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use berth_contract::{LOG_CHUNK, LOG_LIMIT};
use berth_proto::{Assignment, Log, WorkerMessage, worker_message};
use berth_shim::LOG;
use berth_shim::model::AttemptKey;
use berth_system::clock::ms_since;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::attempt::{Attempt, AttemptMap, AttemptState};

/// The followed logs of a session.
#[derive(Default)]
pub(super) struct LogFollowers {
    /// The queue of the session. `None`: there is no session.
    bulk: Option<mpsc::Sender<WorkerMessage>>,
    /// A sender for each follower, which wakes it. Its drop ends the follower after the rest of the log.
    followers: HashMap<AttemptKey, watch::Sender<()>>,
}

impl LogFollowers {
    /// Starts a session.
    pub(super) fn start_session(&mut self, bulk: mpsc::Sender<WorkerMessage>) {
        self.bulk = Some(bulk);
    }

    /// Ends a session with its followers.
    pub(super) fn end_session(&mut self) {
        self.bulk = None;
        self.followers.clear();
    }

    /// Follows the log of every desired attempt that has started.
    pub(super) fn follow_all(
        &mut self,
        desired: Option<&BTreeMap<AttemptKey, Assignment>>,
        attempts: &AttemptMap,
    ) {
        let (Some(desired), Some(bulk)) = (desired, &self.bulk) else { return };
        for (key, assignment) in desired {
            let started = |attempt: &&Attempt| attempt.state() != AttemptState::Preparing;
            let Some(attempt) = attempts.get(key).filter(started) else { continue };
            if self.followers.contains_key(key) {
                continue;
            }
            let (wake, grown) = watch::channel(());
            let file = attempt.dir.join(LOG);
            tokio::spawn(follow(file, key.clone(), assignment.log_offset, grown, bulk.clone()));
            self.followers.insert(key.clone(), wake);
        }
    }

    /// Wakes the follower of a log that has grown.
    pub(super) fn wake(&self, key: &AttemptKey) {
        if let Some(wake) = self.followers.get(key) {
            wake.send_replace(());
        }
    }

    pub(super) fn remove(&mut self, key: &AttemptKey) {
        self.followers.remove(key);
    }
}

/// Follows `file` until the sender of `grown` is dropped and the rest is sent, or until the session ends.
async fn follow(
    file: PathBuf,
    key: AttemptKey,
    mut offset: u64,
    mut grown: watch::Receiver<()>,
    bulk: mpsc::Sender<WorkerMessage>,
) {
    loop {
        // Reset before the read: a later write wakes the wait below.
        grown.mark_unchanged();
        let finished = grown.has_changed().is_err();
        while offset < LOG_LIMIT {
            let (data, written_at) = match read_on(&file, offset).await {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(file = %file.display(), %error, "a log is not readable");
                    return;
                }
            };
            let length = data.len() as u64;
            let attempt = Some(key.id());
            let log = Log { attempt, rank: 0, offset, data, age_ms: ms_since(written_at) };
            if bulk.send(worker_message::Body::Log(log).into()).await.is_err() {
                return;
            }
            offset += length;
        }
        if finished {
            return;
        }
        // After a drop of the sender one more round sends the rest.
        let _ = grown.changed().await;
    }
}

/// The next bytes of the file, and a time by which they were written. `None`: there are none yet.
async fn read_on(file: &Path, offset: u64) -> io::Result<Option<(Bytes, SystemTime)>> {
    // The length is in memory, and most reads find nothing new.
    let found = match std::fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    let (length, written_at) = (found.len(), found.modified()?);
    // Most new parts are short.
    let more = usize::try_from(length.saturating_sub(offset)).unwrap_or(LOG_CHUNK).min(LOG_CHUNK);
    if more == 0 {
        return Ok(None);
    }
    let file = file.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; more];
        let read = File::open(file)?.read_at(&mut buffer, offset)?;
        buffer.truncate(read);
        let data = Some(Bytes::from(buffer)).filter(|data| !data.is_empty());
        Ok(data.map(|data| (data, written_at)))
    });
    read.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[tokio::test]
    async fn every_byte_arrives_once_from_the_requested_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"0123456789").unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let (grow, grown) = watch::channel(());
        let (bulk, mut sent) = mpsc::channel(4);
        let key = AttemptKey { job: "job".into(), number: 1 };
        let task = tokio::spawn(follow(path, key, 4, grown, bulk));
        let mut got = Vec::new();
        let mut take = async |got: &mut Vec<u8>, until: usize| {
            while got.len() < until {
                let Some(worker_message::Body::Log(log)) = sent.recv().await.unwrap().body else {
                    panic!("not a log")
                };
                assert_eq!(log.offset, 4 + got.len() as u64);
                assert_eq!(log.age_ms > 1_000_000_000_000, log.offset < 10, "{} ms", log.age_ms);
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
