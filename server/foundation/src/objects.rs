//! Where the bytes of kept files are: an object store, and a place on this host where what arrives in parts
//! is put together first.
//!
//! Without a URL the store is a directory beside the database. Must not know what a file is for, nor hand
//! out anything that is not whole.

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
use object_store::path::Path as Place;
use object_store::{ObjectStore, ObjectStoreExt};
use sha2::{Digest, Sha256};

pub use bucket::Bucket;

/// Small files that are written at the same time.
const AT_ONCE: usize = 8;
/// What is read of a file at a time: who takes it slowly keeps no request to the store open.
const PIECE: u64 = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("files: {0}")]
    Io(#[from] io::Error),
    #[error("object store: {0}")]
    Store(#[from] object_store::Error),
}

impl From<ObjectError> for Problem {
    /// The cause goes to the log, never into the answer.
    fn from(error: ObjectError) -> Self {
        tracing::error!(%error, "files");
        Self::unavailable("Files cannot be reached now; try again.", 5)
    }
}

/// The bytes of kept files.
pub struct Objects {
    data: PathBuf,
    bucket: Option<Bucket>,
    store: Mutex<Option<Arc<dyn ObjectStore>>>,
    /// Files that somebody writes.
    claimed: Mutex<HashSet<String>>,
}

/// The right to write one file, until it is dropped.
pub struct Claim<'a> {
    objects: &'a Objects,
    id: String,
}

impl Claim<'_> {
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.objects.claimed.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

fn place(id: &str) -> Place {
    Place::from(format!("files/{id}"))
}

/// Bytes of a file; none of an empty range, which a store does not have.
async fn find_range(
    store: &dyn ObjectStore,
    place: &Place,
    range: Range<u64>,
) -> object_store::Result<Bytes> {
    if range.is_empty() { Ok(Bytes::new()) } else { store.get_range(place, range).await }
}

/// What comes first of a part of a file.
async fn next_piece(
    store: &dyn ObjectStore,
    place: &Place,
    range: &Range<u64>,
) -> object_store::Result<Bytes> {
    find_range(store, place, range.start..range.end.min(range.start.saturating_add(PIECE))).await
}

/// Writes files and waits for the disk, some at once, since it takes about as long for several as for one.
fn put_here(dir: &Path, files: &BTreeMap<String, Bytes>) -> io::Result<()> {
    let put = |(id, data): &(&String, &Bytes)| {
        let options = File::options().write(true).create(true).truncate(true).mode(0o600).to_owned();
        let file = options.open(dir.join(id))?;
        file.write_all_at(data, 0)?;
        file.sync_all()
    };
    let files: Vec<(&String, &Bytes)> = files.iter().collect();
    std::thread::scope(|scope| {
        let parts = files.chunks(files.len().div_ceil(AT_ONCE).max(1));
        let putting: Vec<_> = parts.map(|part| scope.spawn(move || part.iter().try_for_each(put))).collect();
        let broken = |_| io::Error::other("a thread ended");
        putting.into_iter().try_for_each(|thread| thread.join().map_err(broken)?)
    })?;
    File::open(dir)?.sync_all()
}

fn make_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl Objects {
    /// Opened when it is first needed.
    pub fn new(data: &Path, bucket: Option<Bucket>) -> Self {
        Self { data: data.to_owned(), bucket, store: Mutex::default(), claimed: Mutex::default() }
    }

    /// Whether it can be used at all.
    pub fn check(&self) -> Result<(), ObjectError> {
        self.store().map(|_| ())
    }

    fn objects(&self) -> PathBuf {
        self.data.join("objects")
    }

    fn store(&self) -> Result<Arc<dyn ObjectStore>, ObjectError> {
        let mut kept = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = kept.as_ref() {
            return Ok(store.clone());
        }
        let store: Arc<dyn ObjectStore> = match &self.bucket {
            Some(bucket) => bucket.open()?,
            None => {
                make_dir(&self.objects().join("files"))?;
                Arc::new(LocalFileSystem::new_with_prefix(self.objects())?)
            }
        };
        *kept = Some(store.clone());
        Ok(store)
    }

    /// The right to write a file; `None` while somebody else has it.
    pub fn claim(&self, id: &str) -> Option<Claim<'_>> {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.insert(id.to_owned()).then(|| Claim { objects: self, id: id.to_owned() })
    }

    fn staged(&self, id: &str) -> PathBuf {
        self.data.join("uploads").join(id)
    }

    /// Adds a piece to what has arrived of a file of `total` bytes; says how much that is now. A piece that
    /// does not follow on what is there, or goes beyond the end, is not taken. Blocking.
    pub fn stage(&self, id: &str, offset: u64, data: &[u8], total: u64) -> io::Result<u64> {
        make_dir(&self.data.join("uploads"))?;
        let file =
            File::options().write(true).create(true).truncate(false).mode(0o600).open(self.staged(id))?;
        let length = file.metadata()?.len();
        if offset != length || data.len() as u64 > total.saturating_sub(length) {
            return Ok(length);
        }
        file.write_all_at(data, offset)?;
        Ok(length + data.len() as u64)
    }

    /// The hash of what has arrived, in hexadecimal digits. Blocking.
    pub fn hash(&self, id: &str) -> io::Result<String> {
        let mut file = File::open(self.staged(id))?;
        let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
        loop {
            let read = file.read(&mut buffer)?;
            let Some(data) = buffer.get(..read).filter(|d| !d.is_empty()) else { break };
            hash.update(data);
        }
        Ok(format!("{:x}", hash.finalize()))
    }

    /// All that has arrived. For what is small. Blocking.
    pub fn staged_bytes(&self, id: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.staged(id))
    }

    /// Puts what has arrived into the store, where it survives a power cut when this returns.
    pub async fn finish(&self, id: &str) -> Result<(), ObjectError> {
        let store = self.store()?;
        let staged = self.staged(id);
        if self.bucket.is_none() {
            // In one step and without a copy: both are on the same disk.
            let target = self.objects().join("files").join(id);
            let moved = tokio::task::spawn_blocking(move || {
                File::open(&staged)?.sync_all()?;
                std::fs::rename(&staged, &target)?;
                target.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
            });
            return Ok(moved.await.map_err(io::Error::other)??);
        }
        bucket::upload(store, place(id), &staged).await?;
        self.unstage(id);
        Ok(())
    }

    /// Puts small files into the store, each with its id; all of them survive a power cut when this returns.
    pub async fn put_all(&self, files: BTreeMap<String, Bytes>) -> Result<(), ObjectError> {
        let store = self.store()?;
        let ids: Vec<String> = files.keys().cloned().collect();
        if self.bucket.is_none() {
            let dir = self.objects().join("files");
            let putting = tokio::task::spawn_blocking(move || put_here(&dir, &files));
            putting.await.map_err(io::Error::other)??;
        } else {
            let putting = files.into_iter().map(|(id, data)| {
                let store = store.clone();
                async move { store.put(&place(&id), data.into()).await.map(|_| ()) }
            });
            futures::stream::iter(putting).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        }
        // Of one that came in pieces before.
        ids.iter().for_each(|id| self.unstage(id));
        Ok(())
    }

    /// Forgets what has arrived of a file.
    pub fn unstage(&self, id: &str) {
        if let Err(error) = std::fs::remove_file(self.staged(id))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(id, %error, "what arrived of a file cannot be removed");
        }
    }

    /// A part of a file, as a stream.
    pub async fn read(
        &self,
        id: &str,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, io::Result<Bytes>>, ObjectError> {
        let (store, place) = (self.store()?, place(id));
        // Whether it is there is known before anything is sent on.
        let first = next_piece(store.as_ref(), &place, &range).await?;
        let begun = range.start + first.len() as u64;
        let rest = futures::stream::try_unfold(begun..range.end, move |range| {
            let (store, place) = (store.clone(), place.clone());
            async move {
                let piece = next_piece(store.as_ref(), &place, &range).await.map_err(io::Error::other)?;
                let after = range.start + piece.len() as u64..range.end;
                Ok((!piece.is_empty()).then_some((piece, after)))
            }
        });
        Ok(futures::stream::iter((!first.is_empty()).then_some(Ok(first))).chain(rest).boxed())
    }

    /// A part of a file.
    pub async fn read_piece(&self, id: &str, range: Range<u64>) -> Result<Bytes, ObjectError> {
        Ok(find_range(self.store()?.as_ref(), &place(id), range).await?)
    }

    /// Removes a file, whatever there is of it.
    pub async fn remove(&self, id: &str) -> Result<(), ObjectError> {
        self.unstage(id);
        match self.store()?.delete(&place(id)).await {
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

    async fn round(objects: &Objects) {
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
        // Many at once replace whatever there was of them.
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
        round(&Objects::new(dir.path(), None)).await;
        // The way of every remote store.
        let remote = Objects::new(dir.path(), Some(Bucket::from(AmazonS3Builder::new())));
        *remote.store.lock().unwrap() = Some(Arc::new(object_store::memory::InMemory::new()));
        round(&remote).await;
    }

    #[test]
    fn one_writes_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let objects = Objects::new(dir.path(), None);
        let first = objects.claim("a").unwrap();
        assert!(objects.claim("a").is_none() && objects.claim("b").is_some());
        drop(first);
        assert!(objects.claim("a").is_some());
    }
}
