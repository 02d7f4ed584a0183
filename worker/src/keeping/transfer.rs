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
use tokio::time::Instant;
use tonic::transport::Channel;

use super::{RESTORE, blocking, create, failed, make_place};
use crate::agent::Key;

/// A portal that does not give what is to be restored is asked so often.
const FETCHES: u32 = 30;
const BETWEEN_FETCHES: Duration = Duration::from_secs(2);
/// For one piece, with as many others as may be under way.
pub(super) const ANSWER: Duration = Duration::from_secs(60 * UNDER_WAY as u64);
/// Pieces and bundles that are handed over at the same time.
pub(super) const UNDER_WAY: usize = 4;

/// Between two words of how much is fetched, and before the first: most is fetched by then.
const TOLD_EVERY: Duration = Duration::from_secs(1);

pub(crate) type Portal = PortalClient<Channel>;

/// How much is fetched of something that an attempt waits for, told in a sentence.
pub(crate) struct Underway<'a> {
    what: String,
    bytes: u64,
    fetched: u64,
    next: Instant,
    tell: &'a dyn Fn(String),
}

impl<'a> Underway<'a> {
    /// `what` is done, such as "Fetching the volume data", with so many bytes.
    pub fn new(what: String, bytes: u64, tell: &'a dyn Fn(String), now: Instant) -> Self {
        Self { what, bytes, fetched: 0, next: now + TOLD_EVERY, tell }
    }

    fn add(&mut self, bytes: u64, now: Instant) {
        self.fetched = self.fetched.saturating_add(bytes);
        if now >= self.next {
            self.next = now + TOLD_EVERY;
            let (fetched, bytes) = (self.fetched / 1_000_000, self.bytes.div_ceil(1_000_000));
            (self.tell)(format!("{}: {fetched} of {bytes} MB.", self.what));
        }
    }
}

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

/// A portal's refusal in words.
pub(super) fn words(status: &tonic::Status) -> String {
    status.message().to_owned()
}

/// Hands over a parcel from where the portal is.
pub(super) async fn send(portal: &mut Portal, parcel: Parcel, source: Source) -> Result<(), String> {
    // The first asks only where to begin.
    send_from(portal, parcel, source, Vec::new()).await
}

/// The same of a parcel of which the portal has nothing, as far as is known: `first` is its beginning.
pub(super) async fn send_from(
    portal: &mut Portal,
    parcel: Parcel,
    source: Source,
    first: Vec<u8>,
) -> Result<(), String> {
    let (source, bytes) = (Arc::new(source), parcel.bytes);
    let (mut offset, mut data) = (0, first);
    loop {
        let asked = data.is_empty();
        let piece = Piece { parcel: Some(parcel.clone()), offset, data };
        let answer = tokio::time::timeout(ANSWER, portal.keep(piece)).await;
        let kept = answer.map_err(|_| "the portal does not answer")?.map_err(|s| words(&s))?;
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
pub async fn fetch(
    dir: PathBuf,
    key: Key,
    restore: Restore,
    channel: Channel,
    tell: &dyn Fn(String),
) -> Result<(), String> {
    let file = dir.join(RESTORE);
    let out = blocking(move || make_place(&dir).and_then(|()| create(&file)).map_err(|e| e.to_string()));
    let out = out.await?;
    let wish =
        Wish { attempt: Some(AttemptId::new(&key.job, key.number)), file: restore.file, ..Wish::default() };
    let what = "Restoring its checkpoint".to_owned();
    let mut underway = Underway::new(what, restore.bytes, tell, Instant::now());
    let expected = (restore.bytes, restore.sha256.as_slice());
    fetch_into(&mut client(channel), wish, expected, Arc::new(out), &mut underway).await
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
    underway: &mut Underway<'_>,
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
        underway.add(length, Instant::now());
    }
    if wish.offset == bytes && hash.finalize().as_slice() == sha256 {
        return Ok(());
    }
    Err("it is not what was kept".to_owned())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn how_far_a_fetch_is_is_told_once_a_second() {
        let told = RefCell::new(Vec::new());
        let tell = |words| told.borrow_mut().push(words);
        let begun = Instant::now();
        let mut underway = Underway::new("Fetching the volume data".to_owned(), 1_500_000_001, &tell, begun);
        for (ms, bytes) in [(0, 1), (999, 2_999_999), (1_000, 1_000_000), (1_999, 5), (2_500, 1_400_000_000)]
        {
            underway.add(bytes, begun + Duration::from_millis(ms));
        }
        let words = ["4 of 1501 MB.", "1404 of 1501 MB."].map(|n| format!("Fetching the volume data: {n}"));
        assert_eq!(told.into_inner(), words);
    }
}
