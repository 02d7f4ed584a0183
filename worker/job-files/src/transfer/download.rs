//! Downloads of files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use berth_proto::{FetchRequest, FetchResponse};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::blocking::blocking;
use super::client::Portal;
use super::upload::ANSWER_WITHIN;

/// The tries of a download, and the time between two.
const TRIES: u32 = 30;
const BETWEEN_TRIES: Duration = Duration::from_secs(2);
/// The time between two reports of progress, and before the first: most downloads are done by then.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The progress of a download that an attempt waits for, reported as a sentence.
pub struct FetchProgress<'a> {
    action: String,
    bytes: u64,
    fetched: u64,
    from_cache: u64,
    next: Instant,
    report: &'a dyn Fn(String),
}

impl<'a> FetchProgress<'a> {
    /// `action` is such as "Fetching the volume data"; `bytes` is the size of all.
    pub fn new(action: String, bytes: u64, report: &'a dyn Fn(String), now: Instant) -> Self {
        Self { action, bytes, fetched: 0, from_cache: 0, next: now + REPORT_EVERY, report }
    }

    fn add(&mut self, bytes: u64, now: Instant) {
        self.fetched = self.fetched.saturating_add(bytes);
        self.report_if_due(now);
    }

    /// Adds bytes that the node has already.
    pub fn add_from_cache(&mut self, bytes: u64, now: Instant) {
        self.from_cache = self.from_cache.saturating_add(bytes);
        self.report_if_due(now);
    }

    /// The fetched bytes, and those from the cache of the node.
    pub fn totals(&self) -> (u64, u64) {
        (self.fetched, self.from_cache)
    }

    fn report_if_due(&mut self, now: Instant) {
        if now < self.next {
            return;
        }
        self.next = now + REPORT_EVERY;
        let (fetched, bytes) = (self.fetched / 1_000_000, self.bytes.div_ceil(1_000_000));
        let done = match self.from_cache {
            0 => format!("{fetched} of {bytes} MB"),
            cached => {
                let cached = cached / 1_000_000;
                format!("{fetched} MB fetched and {cached} MB from the cache of the node, of {bytes} MB")
            }
        };
        (self.report)(format!("{}: {done}.", self.action));
    }
}

/// Requests a part of a file or of a listing, with retries.
pub async fn fetch_part(portal: &mut Portal, request: &FetchRequest) -> Result<FetchResponse, String> {
    for _ in 0..TRIES {
        let answer = tokio::time::timeout(ANSWER_WITHIN, portal.fetch(request.clone())).await;
        match answer {
            Ok(Ok(part)) => return Ok(part.into_inner()),
            other => {
                let job = request.attempt.as_ref().map_or("", |id| id.job.as_str());
                tracing::warn!(job, answer = ?other.map(|a| a.map(|_| ())), "a file cannot be fetched; trying again");
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
        }
    }
    Err("the portal did not send the file".to_owned())
}

/// Downloads a file of this length and hash into `out`.
pub async fn fetch_file(
    portal: &mut Portal,
    mut request: FetchRequest,
    (bytes, sha256): (u64, &[u8]),
    out: Arc<File>,
    progress: &mut FetchProgress<'_>,
) -> Result<(), String> {
    let mut hash = Sha256::new();
    while request.offset < bytes {
        let data = fetch_part(portal, &request).await?.data;
        if data.is_empty() {
            return Err("the file is shorter than announced".to_owned());
        }
        hash.update(&data);
        let (to, length, offset) = (out.clone(), data.len() as u64, request.offset);
        blocking(move || to.write_all_at(&data, offset).map_err(|e| e.to_string())).await?;
        request.offset += length;
        progress.add(length, Instant::now());
    }
    if request.offset == bytes && hash.finalize().as_slice() == sha256 {
        return Ok(());
    }
    Err("the file differs from its SHA-256".to_owned())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_progress_of_a_download_is_reported_once_a_second() {
        let reported = RefCell::new(Vec::new());
        let report = |text| reported.borrow_mut().push(text);
        let begun = Instant::now();
        let action = "Fetching the volume data".to_owned();
        let mut progress = FetchProgress::new(action, 1_500_000_001, &report, begun);
        for (ms, bytes) in [(0, 1), (999, 2_999_999), (1_000, 1_000_000), (1_999, 5), (2_500, 1_400_000_000)]
        {
            progress.add(bytes, begun + Duration::from_millis(ms));
        }
        progress.add_from_cache(90_000_000, begun + Duration::from_millis(3_500));
        let cached = "1404 MB fetched and 90 MB from the cache of the node, of 1501 MB.";
        let texts =
            ["4 of 1501 MB.", "1404 of 1501 MB.", cached].map(|n| format!("Fetching the volume data: {n}"));
        assert_eq!(progress.totals(), (1_404_000_005, 90_000_000));
        assert_eq!(reported.into_inner(), texts);
    }
}
