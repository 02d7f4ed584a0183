//! Storage of the bytes of files: an object store for complete files, and a staging directory on this host
//! for files that arrive in pieces.
//!
//! Without a URL the store is a directory in the data directory. Must not know the purpose of a file, and
//! must not return an incomplete file.

mod bucket;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use berth_types::problems::Problem;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use sha2::{Digest, Sha256};

pub use bucket::{Bucket, BucketWriter};

/// The bytes of a file, read as the receiver asks for them.
pub type ByteStream = BoxStream<'static, io::Result<Bytes>>;

/// Small files in concurrent writes.
const CONCURRENT_WRITES: usize = 8;
/// Bytes of one read from the store. With small reads a slow reader keeps no request to the store open.
const PIECE: u64 = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("files: {0}")]
    Io(#[from] io::Error),
    #[error("object store: {0}")]
    Store(#[from] object_store::Error),
}

impl From<ObjectError> for Problem {
    /// Logs the cause. The answer does not contain it.
    fn from(error: ObjectError) -> Self {
        tracing::error!(%error, "files");
        Self::unavailable("The file storage does not answer. Try again in a moment.", 5)
    }
}

/// The object store and the staging directory.
pub struct Objects {
    data: PathBuf,
    bucket: Option<Bucket>,
    store: Mutex<Option<Arc<dyn ObjectStore>>>,
    /// The ids of the files in writing.
    locked: Mutex<HashSet<String>>,
}

/// The exclusive right to write one file, until the lock is dropped.
pub struct WriteLock<'a> {
    objects: &'a Objects,
    id: String,
}

impl Drop for WriteLock<'_> {
    fn drop(&mut self) {
        self.objects.locked.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

fn object_path(id: &str) -> ObjectPath {
    ObjectPath::from(format!("files/{id}"))
}

/// Bytes of a file. An empty range needs no request, and a store would refuse it.
async fn get_range(
    store: &dyn ObjectStore,
    path: &ObjectPath,
    range: Range<u64>,
) -> object_store::Result<Bytes> {
    if range.is_empty() { Ok(Bytes::new()) } else { store.get_range(path, range).await }
}

/// The first piece of a range of a file.
async fn get_first_piece(
    store: &dyn ObjectStore,
    path: &ObjectPath,
    range: &Range<u64>,
) -> object_store::Result<Bytes> {
    get_range(store, path, range.start..range.end.min(range.start.saturating_add(PIECE))).await
}

/// Writes files and syncs them to the disk. Several threads share the work: several syncs take about as long
/// as one.
fn write_files(dir: &Path, files: &BTreeMap<String, Bytes>) -> io::Result<()> {
    let put = |(id, data): &(&String, &Bytes)| {
        let options = File::options().write(true).create(true).truncate(true).mode(0o600).to_owned();
        let file = options.open(dir.join(id))?;
        file.write_all_at(data, 0)?;
        file.sync_all()
    };
    let files: Vec<(&String, &Bytes)> = files.iter().collect();
    std::thread::scope(|scope| {
        let parts = files.chunks(files.len().div_ceil(CONCURRENT_WRITES).max(1));
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || part.iter().try_for_each(put))).collect();
        let panicked = |_| io::Error::other("a thread ended");
        threads.into_iter().try_for_each(|thread| thread.join().map_err(panicked)?)
    })?;
    File::open(dir)?.sync_all()
}

fn make_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl Objects {
    /// The store is opened at the first use.
    pub fn new(data: &Path, bucket: Option<Bucket>) -> Self {
        Self { data: data.to_owned(), bucket, store: Mutex::default(), locked: Mutex::default() }
    }

    /// Opens the store.
    ///
    /// # Errors
    /// The directory cannot be created, or the settings of the bucket are invalid.
    pub fn check(&self) -> Result<(), ObjectError> {
        self.store().map(|_| ())
    }

    fn objects_dir(&self) -> PathBuf {
        self.data.join("objects")
    }

    fn store(&self) -> Result<Arc<dyn ObjectStore>, ObjectError> {
        let mut opened = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = opened.as_ref() {
            return Ok(store.clone());
        }
        let store: Arc<dyn ObjectStore> = match &self.bucket {
            Some(bucket) => bucket.open()?,
            None => {
                make_dir(&self.objects_dir().join("files"))?;
                Arc::new(LocalFileSystem::new_with_prefix(self.objects_dir())?)
            }
        };
        *opened = Some(store.clone());
        Ok(store)
    }

    /// Locks a file for writing. Returns `None` while another caller has the lock.
    pub fn try_lock(&self, id: &str) -> Option<WriteLock<'_>> {
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        locked.insert(id.to_owned()).then(|| WriteLock { objects: self, id: id.to_owned() })
    }

    fn staging_path(&self, id: &str) -> PathBuf {
        self.data.join("uploads").join(id)
    }

    /// Appends a piece to the staged part of a file of `total` bytes and returns the new length of that part.
    /// A piece that does not start at the present length, or ends beyond `total`, is ignored. Blocking.
    pub fn stage(&self, id: &str, offset: u64, data: &[u8], total: u64) -> io::Result<u64> {
        make_dir(&self.data.join("uploads"))?;
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.staging_path(id))?;
        let length = file.metadata()?.len();
        if offset != length || data.len() as u64 > total.saturating_sub(length) {
            return Ok(length);
        }
        file.write_all_at(data, offset)?;
        Ok(length + data.len() as u64)
    }

    /// The SHA-256 hash of the staged bytes, in hexadecimal digits. Blocking.
    pub fn hash(&self, id: &str) -> io::Result<String> {
        let mut file = File::open(self.staging_path(id))?;
        let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
        loop {
            let read = file.read(&mut buffer)?;
            let Some(data) = buffer.get(..read).filter(|d| !d.is_empty()) else { break };
            hash.update(data);
        }
        Ok(format!("{:x}", hash.finalize()))
    }

    /// The number of staged bytes; 0 without a staged file. Blocking.
    pub fn staged_length(&self, id: &str) -> io::Result<u64> {
        match std::fs::metadata(self.staging_path(id)) {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// All staged bytes, for small files only. Blocking.
    pub fn staged_bytes(&self, id: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.staging_path(id))
    }

    /// Moves a complete staged file into the store. After the return the file survives a power cut.
    pub async fn finish(&self, id: &str) -> Result<(), ObjectError> {
        let store = self.store()?;
        let staged = self.staging_path(id);
        if self.bucket.is_none() {
            // Both directories are on the same disk, so a rename needs no copy and is atomic.
            let target = self.objects_dir().join("files").join(id);
            let moved = tokio::task::spawn_blocking(move || {
                File::open(&staged)?.sync_all()?;
                std::fs::rename(&staged, &target)?;
                target.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
            });
            return Ok(moved.await.map_err(io::Error::other)??);
        }
        bucket::upload(store, object_path(id), &staged).await?;
        self.unstage(id);
        Ok(())
    }

    /// Writes small files into the store, by id. After the return all of them survive a power cut.
    pub async fn put_all(&self, files: BTreeMap<String, Bytes>) -> Result<(), ObjectError> {
        let store = self.store()?;
        let ids: Vec<String> = files.keys().cloned().collect();
        if self.bucket.is_none() {
            let dir = self.objects_dir().join("files");
            let writing = tokio::task::spawn_blocking(move || write_files(&dir, &files));
            writing.await.map_err(io::Error::other)??;
        } else {
            let uploads = files.into_iter().map(|(id, data)| {
                let store = store.clone();
                async move { store.put(&object_path(&id), data.into()).await.map(|_| ()) }
            });
            futures::stream::iter(uploads).buffer_unordered(CONCURRENT_WRITES).try_collect::<()>().await?;
        }
        // An earlier attempt may have staged pieces of them.
        ids.iter().for_each(|id| self.unstage(id));
        Ok(())
    }

    /// Removes the staged bytes of a file.
    pub fn unstage(&self, id: &str) {
        if let Err(error) = std::fs::remove_file(self.staging_path(id))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(id, %error, "the received part of a file cannot be removed");
        }
    }

    /// A range of a file, as a stream.
    ///
    /// # Errors
    /// The first piece cannot be read, for example of a missing file.
    pub async fn read(
        &self,
        id: &str,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, io::Result<Bytes>>, ObjectError> {
        let (store, path) = (self.store()?, object_path(id));
        // The first piece is read here, so the caller gets an error before the start of its own answer.
        let first = get_first_piece(store.as_ref(), &path, &range).await?;
        let second_start = range.start + first.len() as u64;
        let rest = futures::stream::try_unfold(second_start..range.end, move |range| {
            let (store, path) = (store.clone(), path.clone());
            async move {
                let piece = get_first_piece(store.as_ref(), &path, &range).await.map_err(io::Error::other)?;
                let after = range.start + piece.len() as u64..range.end;
                Ok((!piece.is_empty()).then_some((piece, after)))
            }
        });
        Ok(futures::stream::iter((!first.is_empty()).then_some(Ok(first))).chain(rest).boxed())
    }

    /// A range of a file.
    pub async fn read_piece(&self, id: &str, range: Range<u64>) -> Result<Bytes, ObjectError> {
        Ok(get_range(self.store()?.as_ref(), &object_path(id), range).await?)
    }

    /// Removes a file from the store and from staging.
    pub async fn remove(&self, id: &str) -> Result<(), ObjectError> {
        self.unstage(id);
        match self.store()?.delete(&object_path(id)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::aws::AmazonS3Builder;

    use super::*;

    async fn whole(objects: &Objects, id: &str, range: Range<u64>) -> Vec<u8> {
        let pieces: Vec<io::Result<Bytes>> = objects.read(id, range).await.unwrap().collect().await;
        pieces.into_iter().flat_map(|piece| piece.unwrap().to_vec()).collect()
    }

    async fn store_and_read(objects: &Objects) {
        assert_eq!(objects.stage("a", 0, b"", 10).unwrap(), 0);
        assert_eq!(objects.stage("a", 0, b"01234", 10).unwrap(), 5);
        assert_eq!(objects.stage("a", 0, b"01234", 10).unwrap(), 5, "a repeated piece changes nothing");
        assert_eq!(objects.stage("a", 7, b"789", 10).unwrap(), 5, "there is no gap");
        assert_eq!(objects.stage("a", 5, b"567890", 10).unwrap(), 5, "nor anything beyond the end");
        assert_eq!(objects.stage("a", 5, b"56789", 10).unwrap(), 10);
        assert_eq!(objects.hash("a").unwrap(), format!("{:x}", Sha256::digest(b"0123456789")));
        assert!(objects.read("a", 0..1).await.is_err(), "what is not whole cannot be read");
        objects.finish("a").await.unwrap();
        assert_eq!(whole(objects, "a", 0..10).await, b"0123456789");
        assert_eq!(whole(objects, "a", 3..5).await, b"34");
        assert_eq!(whole(objects, "a", 3..3).await, b"");
        assert_eq!(objects.read_piece("a", 8..10).await.unwrap(), "89");
        assert_eq!(objects.stage("a", 0, b"", 10).unwrap(), 0, "nothing is left where it was put together");
        // `put_all` replaces staged and stored files.
        objects.stage("b-3", 0, b"half", 10).unwrap();
        let files: BTreeMap<String, Bytes> =
            (0..20_usize).map(|n| (format!("b-{n}"), Bytes::from(vec![7; n]))).collect();
        for _ in 0..2 {
            objects.put_all(files.clone()).await.unwrap();
        }
        objects.put_all(BTreeMap::new()).await.unwrap();
        for (id, data) in &files {
            assert_eq!(whole(objects, id, 0..data.len() as u64).await, *data, "{id}");
            assert_eq!(objects.stage(id, 0, b"", 10).unwrap(), 0);
            objects.remove(id).await.unwrap();
        }
        objects.remove("a").await.unwrap();
        objects.remove("a").await.unwrap();
        assert!(objects.read("a", 0..1).await.is_err());
    }

    #[tokio::test]
    async fn a_file_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        store_and_read(&Objects::new(dir.path(), None)).await;
        // The code path of all remote stores.
        let remote = Objects::new(dir.path(), Some(Bucket::from(AmazonS3Builder::new())));
        *remote.store.lock().unwrap() = Some(Arc::new(object_store::memory::InMemory::new()));
        store_and_read(&remote).await;
    }

    #[test]
    fn only_one_caller_has_the_write_lock() {
        let dir = tempfile::tempdir().unwrap();
        let objects = Objects::new(dir.path(), None);
        let first = objects.try_lock("a").unwrap();
        assert!(objects.try_lock("a").is_none() && objects.try_lock("b").is_some());
        drop(first);
        assert!(objects.try_lock("a").is_some());
    }
}
