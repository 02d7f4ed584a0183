//! A bucket with the S3 protocol, and the upload of a file as a whole or not at all. Must not know the
//! directory of incomplete files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path as ObjectPath;
use object_store::{ClientConfigKey, MultipartUpload, ObjectStore, ObjectStoreExt, RetryConfig, UploadPart};

use super::ObjectError;
use crate::delivery::install_crypto_provider;

/// Minimum bytes of a part of an upload, and the number of parts in transfer at a time.
const PART: u64 = 8 << 20;
const PARTS: usize = 4;
/// S3 permits 10,000 parts. A lower limit leaves room for rounding.
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>
const MAX_PARTS: u64 = 9_000;
/// The timeout of one request with its body. A part of 8 MiB passes within it at half a megabit per second.
const TIMEOUT: &str = "300 seconds";
/// The longest write of a small object.
const SMALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A bucket.
#[derive(Clone)]
pub struct Bucket(AmazonS3Builder);

impl Bucket {
    /// A bucket from the value `s3://BUCKET` of an option, and its address. Credentials, region and endpoint come from
    /// the usual `AWS_*` environment variables.
    ///
    /// # Errors
    /// The form of the address.
    pub fn parse(option: &str, url: &str) -> Result<(Self, String), String> {
        let name = url.strip_prefix("s3://").map(|name| name.trim_end_matches('/')).unwrap_or_default();
        if name.is_empty() || name.contains(['/', '@', '?', '#']) {
            return Err(format!("{option} needs an address such as s3://BUCKET, without a path"));
        }
        let address = format!("s3://{name}");
        let bucket = Self(AmazonS3Builder::from_env().with_url(&address));
        if !bucket.has_credentials() {
            tracing::warn!(
                "{option} has no credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the portal asks the metadata service of this host for them"
            );
        }
        Ok((bucket, address))
    }

    /// False if the credentials can come from the metadata service of the host alone.
    fn has_credentials(&self) -> bool {
        let value = |key: AmazonS3ConfigKey| self.0.get_config_value(&key);
        let sources = [
            AmazonS3ConfigKey::AccessKeyId,
            AmazonS3ConfigKey::SecretAccessKey,
            AmazonS3ConfigKey::WebIdentityTokenFile,
            AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
            AmazonS3ConfigKey::ContainerCredentialsFullUri,
        ];
        let is_unsigned = value(AmazonS3ConfigKey::SkipSignature).is_some_and(|skip| skip != "false");
        is_unsigned || sources.into_iter().any(|key| value(key).is_some())
    }

    pub(super) fn open(&self) -> Result<Arc<dyn ObjectStore>, ObjectError> {
        self.open_with(RetryConfig::default())
    }

    fn open_with(&self, retries: RetryConfig) -> Result<Arc<dyn ObjectStore>, ObjectError> {
        install_crypto_provider();
        let timeout = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
        let builder = self.0.clone().with_config(timeout, TIMEOUT).with_retry(retries);
        // Files are removed one by one, and some S3 servers have no bulk delete.
        Ok(Arc::new(builder.with_disable_bulk_delete(true).build()?))
    }
}

/// An opened bucket for small objects.
#[derive(Clone)]
pub struct BucketWriter(Arc<dyn ObjectStore>);

impl BucketWriter {
    /// Opens a bucket without a request. The caller repeats failed writes, so that it knows of each failure.
    ///
    /// # Errors
    /// The settings of the bucket are invalid.
    pub fn open(bucket: &Bucket) -> Result<Self, ObjectError> {
        bucket.open_with(RetryConfig { max_retries: 0, ..RetryConfig::default() }).map(Self)
    }

    /// Writes an object as a whole, in place of an object with this key.
    ///
    /// # Errors
    /// The bucket did not store the object within a minute.
    pub async fn put(&self, key: &str, data: Bytes) -> Result<(), ObjectError> {
        let path = ObjectPath::from(key);
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the bucket did not answer within a minute");
        tokio::time::timeout(SMALL_TIMEOUT, self.0.put(&path, data.into())).await.map_err(late)??;
        Ok(())
    }
}

impl From<AmazonS3Builder> for Bucket {
    fn from(settings: AmazonS3Builder) -> Self {
        Self(settings)
    }
}

/// Bytes of one part of a file with `total` bytes.
fn part_bytes(total: u64) -> u64 {
    PART.max(total.div_ceil(MAX_PARTS))
}

/// Uploads a file. The upload runs in its own task: it completes or removes its parts even if the caller is
/// dropped.
pub(super) async fn upload(
    store: Arc<dyn ObjectStore>,
    path: ObjectPath,
    file: &Path,
) -> Result<(), ObjectError> {
    let file = Arc::new(File::open(file)?);
    let sending = tokio::spawn(async move {
        let mut upload = store.put_multipart(&path).await?;
        let whole = match send_file(upload.as_mut(), file).await {
            Ok(()) => upload.complete().await.map_err(ObjectError::from),
            Err(error) => Err(error),
        };
        // An incomplete upload never becomes an object, but its parts stay in the bucket and cost money.
        if whole.is_err()
            && let Err(error) = upload.abort().await
        {
            tracing::warn!(place = %path, %error, "parts of a file may be left in the bucket");
        }
        whole.map(|_| ())
    });
    sending.await.map_err(io::Error::other)?
}

/// Sends all parts, up to `PARTS` at a time. No part is in transfer after the return, also after an error: a
/// part that arrives after the abort of its upload would stay in the bucket.
async fn send_file(upload: &mut dyn MultipartUpload, file: Arc<File>) -> Result<(), ObjectError> {
    let total = file.metadata()?.len();
    let bytes = part_bytes(total);
    let mut in_transfer = FuturesUnordered::new();
    let sent = send_parts(upload, &mut in_transfer, (file, bytes)).await;
    while in_transfer.next().await.is_some() {}
    sent
}

async fn send_parts(
    upload: &mut dyn MultipartUpload,
    in_transfer: &mut FuturesUnordered<UploadPart>,
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
        while in_transfer.len() >= PARTS {
            in_transfer.try_next().await?;
        }
        in_transfer.push(upload.put_part(data.into()));
    }
    while in_transfer.try_next().await?.is_some() {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_a_name_alone() {
        let (_, address) = Bucket::parse("--object-store", "s3://files/").unwrap();
        assert_eq!(address, "s3://files");
        for bad in
            ["", "files", "s3://", "s3:///files", "https://files", "s3://files/folder", "s3://key@files"]
        {
            let refused = Bucket::parse("--object-store", bad).err().unwrap();
            assert!(
                refused.starts_with("--object-store needs") && refused.contains("s3://BUCKET"),
                "{refused}"
            );
        }
    }

    #[test]
    fn absent_credentials_are_noticed() {
        let bare = AmazonS3Builder::new().with_url("s3://files");
        assert!(!Bucket(bare.clone()).has_credentials());
        for builder in [
            bare.clone().with_access_key_id("key"),
            bare.clone().with_skip_signature(true),
            bare.with_config(AmazonS3ConfigKey::WebIdentityTokenFile, "/run/token"),
        ] {
            assert!(Bucket(builder).has_credentials());
        }
    }

    #[test]
    fn no_file_has_more_parts_than_a_bucket_takes() {
        assert_eq!(part_bytes(0), 8 << 20);
        assert_eq!(part_bytes(70 << 30), 8 << 20);
        for total in [100_u64 << 30, 1 << 40, 48 << 40] {
            assert!(total.div_ceil(part_bytes(total)) <= 10_000, "{total}");
        }
    }
}
