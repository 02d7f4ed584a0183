//! Parcels on their way to the portal and back. Broken off, they go on where they were.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_proto::portal_client::PortalClient;
use berth_proto::{AttemptId, MESSAGE_LIMIT, PIECE, Parcel, Part, Piece, Restore, Wish};
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

use super::{RESTORE, blocking, create, failed, make_place};
use crate::agent::Key;

/// A portal that does not give what is to be restored is asked so often.
const FETCHES: u32 = 30;
const BETWEEN_FETCHES: Duration = Duration::from_secs(2);
/// For one piece.
const ANSWER: Duration = Duration::from_secs(60);

pub(crate) type Portal = PortalClient<Channel>;

pub(crate) fn client(channel: Channel) -> Portal {
    PortalClient::new(channel)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT)
}

/// Where the bytes of a parcel are.
pub(super) enum Source {
    Path(PathBuf),
    Open(File),
}

impl Source {
    fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
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

/// Hands over a parcel from where the portal is.
pub(super) async fn send(portal: &mut Portal, parcel: Parcel, source: Source) -> Result<(), String> {
    let (source, bytes) = (Arc::new(source), parcel.bytes);
    // The first asks only where to begin.
    let (mut offset, mut data) = (0, Vec::new());
    loop {
        let asked = data.is_empty();
        let piece = Piece { parcel: Some(parcel.clone()), offset, data };
        let answer = tokio::time::timeout(ANSWER, portal.keep(piece)).await;
        let kept = answer.map_err(|_| "the portal does not answer")?.map_err(|s| s.message().to_owned())?;
        let kept = kept.into_inner();
        if kept.done {
            return Ok(());
        }
        if kept.bytes > bytes || (!asked && kept.bytes <= offset) {
            return Err("the portal does not take a file".to_owned());
        }
        offset = kept.bytes;
        let length = usize::try_from(bytes - offset).unwrap_or(PIECE).min(PIECE);
        let from = source.clone();
        data = blocking(move || from.read_at(offset, length).map_err(|e| failed(&e))).await?;
        if data.is_empty() {
            return Err("a file is shorter than it was".to_owned());
        }
    }
}

/// Fetches what an attempt begins with into its directory, and goes on where it was broken off.
pub async fn fetch(dir: PathBuf, key: Key, restore: Restore, channel: Channel) -> Result<(), String> {
    let file = dir.join(RESTORE);
    let out = blocking(move || make_place(&dir).and_then(|()| create(&file)).map_err(|e| e.to_string()));
    let out = out.await?;
    let wish =
        Wish { attempt: Some(AttemptId::new(&key.job, key.number)), file: restore.file, ..Wish::default() };
    fetch_into(&mut client(channel), wish, (restore.bytes, &restore.sha256), Arc::new(out)).await
}

/// Asks for something until it comes, or was not given for long.
pub(crate) async fn ask(portal: &mut Portal, wish: &Wish) -> Result<Part, String> {
    for _ in 0..FETCHES {
        let answer = tokio::time::timeout(ANSWER, portal.fetch(wish.clone())).await;
        match answer {
            Ok(Ok(part)) => return Ok(part.into_inner()),
            other => {
                let job = wish.attempt.as_ref().map_or("", |id| id.job.as_str());
                tracing::warn!(job, answer = ?other.map(|a| a.map(|_| ())), "a file cannot be fetched; trying again");
                tokio::time::sleep(BETWEEN_FETCHES).await;
            }
        }
    }
    Err("the portal did not give it".to_owned())
}

/// Fetches a file of this length and hash.
pub(crate) async fn fetch_into(
    portal: &mut Portal,
    mut wish: Wish,
    (bytes, sha256): (u64, &[u8]),
    out: Arc<File>,
) -> Result<(), String> {
    let mut hash = Sha256::new();
    while wish.offset < bytes {
        let data = ask(portal, &wish).await?.data;
        if data.is_empty() {
            return Err("it is shorter than was said".to_owned());
        }
        hash.update(&data);
        let (to, length, offset) = (out.clone(), data.len() as u64, wish.offset);
        blocking(move || to.write_all_at(&data, offset).map_err(|e| e.to_string())).await?;
        wish.offset += length;
    }
    if wish.offset == bytes && hash.finalize().as_slice() == sha256 {
        return Ok(());
    }
    Err("it is not what was kept".to_owned())
}
