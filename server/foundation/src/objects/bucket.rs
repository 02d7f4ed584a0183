//! A bucket that speaks S3, and how a file gets into it: whole or not at all. Must not know where files are put
//! together.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path as Place;
use object_store::{ClientConfigKey, MultipartUpload, ObjectStore, ObjectStoreExt, UploadPart};

use super::ObjectError;
use crate::delivery::use_cryptography;

/// The least number of bytes of a part of an upload, and how many parts are under way at a time.
const PART: u64 = 8 << 20;
const PARTS: usize = 4;
/// An upload has 10,000 parts at most; fewer here, so that rounding never matters.
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>
const MOST_PARTS: u64 = 9_000;
/// For one request with what it carries: a part passes in it at half a megabit a second.
const TIMEOUT: &str = "300 seconds";

/// A bucket.
#[derive(Clone)]
pub struct Bucket(AmazonS3Builder);

impl Bucket {
    /// `s3://BUCKET`; credentials, region and endpoint are the environment's `AWS_*`, as everywhere with this store.
    pub fn from_env(url: &str) -> Self {
        Self(AmazonS3Builder::from_env().with_url(url))
    }

    pub(super) fn open(&self) -> Result<Arc<dyn ObjectStore>, ObjectError> {
        use_cryptography();
        let timeout = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
        let builder = self.0.clone().with_config(timeout, TIMEOUT);
        // Files are removed one by one, and not every such store knows how to remove many.
        Ok(Arc::new(builder.with_disable_bulk_delete(true).build()?))
    }
}

impl From<AmazonS3Builder> for Bucket {
    fn from(settings: AmazonS3Builder) -> Self {
        Self(settings)
    }
}

/// Bytes of one part of a file of so many.
fn part_bytes(total: u64) -> u64 {
    PART.max(total.div_ceil(MOST_PARTS))
}

/// Puts a file into the store. It goes on to its end, or takes back what it sent, also when nobody waits for it any
/// more.
pub(super) async fn upload(
    store: Arc<dyn ObjectStore>,
    place: Place,
    file: &Path,
) -> Result<(), ObjectError> {
    let file = Arc::new(File::open(file)?);
    let sending = tokio::spawn(async move {
        let mut upload = store.put_multipart(&place).await?;
        let whole = match send(upload.as_mut(), file).await {
            Ok(()) => upload.complete().await.map_err(ObjectError::from),
            Err(error) => Err(error),
        };
        // What is not completed never becomes an object, but a bucket keeps its parts, and charges for them.
        if whole.is_err()
            && let Err(error) = upload.abort().await
        {
            tracing::warn!(%place, %error, "parts of a file may be left in the bucket");
        }
        whole.map(|_| ())
    });
    sending.await.map_err(io::Error::other)?
}

/// Sends all parts, some at a time. None is under way any more when this returns, whatever it returns: a part that
/// comes after its upload was given up would be left.
async fn send(upload: &mut dyn MultipartUpload, file: Arc<File>) -> Result<(), ObjectError> {
    let total = file.metadata()?.len();
    let bytes = part_bytes(total);
    let mut under_way = FuturesUnordered::new();
    let sent = feed(upload, &mut under_way, (file, bytes)).await;
    while under_way.next().await.is_some() {}
    sent
}

async fn feed(
    upload: &mut dyn MultipartUpload,
    under_way: &mut FuturesUnordered<UploadPart>,
    (file, bytes): (Arc<File>, u64),
) -> Result<(), ObjectError> {
    let mut offset = 0;
    loop {
        let from = file.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
            let read = from.read_at(&mut buffer, offset)?;
            buffer.truncate(read);
            Ok::<_, io::Error>(buffer)
        });
        let data = read.await.map_err(io::Error::other)??;
        if data.is_empty() {
            break;
        }
        offset += data.len() as u64;
        while under_way.len() >= PARTS {
            under_way.try_next().await?;
        }
        under_way.push(upload.put_part(data.into()));
    }
    while under_way.try_next().await?.is_some() {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_has_more_parts_than_a_bucket_takes() {
        assert_eq!(part_bytes(0), 8 << 20);
        assert_eq!(part_bytes(70 << 30), 8 << 20);
        for total in [100_u64 << 30, 1 << 40, 48 << 40] {
            assert!(total.div_ceil(part_bytes(total)) <= 10_000, "{total}");
        }
    }
}
