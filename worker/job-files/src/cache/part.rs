//! Files on their way into the cache.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use berth_system::clock::boot_id;
use berth_system::sync::lock;

use super::entry::{CacheKey, EntryName, FileStamp};
use super::file_cache::{CachedFile, FileCache, PARTS, make_directory};
use super::index::CacheEntry;

/// A file that is being fetched for the cache. It is removed unless it is stored.
#[derive(Debug)]
pub struct CachePart {
    cache: Arc<FileCache>,
    path: PathBuf,
    file: Arc<File>,
    bytes: u64,
    stored: bool,
}

impl CachePart {
    /// Begins a file of this length; `beside` are the bytes that the attempt needs in addition. `None`: the cache has
    /// no room for it, or it is empty.
    pub fn begin(cache: &Arc<FileCache>, bytes: u64, beside: u64) -> Option<Self> {
        if bytes == 0 || !cache.reserve(bytes) {
            return None;
        }
        let number = cache.last_part.fetch_add(1, Ordering::Relaxed);
        let path = cache.root.join(PARTS).join(number.to_string());
        let created = if cache.make_room(bytes.saturating_add(beside)) {
            File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)
        } else {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        match created {
            Ok(file) => Some(Self { cache: cache.clone(), path, file: Arc::new(file), bytes, stored: false }),
            Err(error) => {
                lock(&cache.index).release(bytes);
                tracing::debug!(%error, "a file is not cached");
                None
            }
        }
    }

    pub fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Stores the file under its key. The caller has compared its content with the hash. It is not synced: after
    /// another start of the host its content is compared again.
    ///
    /// # Errors
    /// The file cannot be moved to its place.
    pub fn store(mut self, key: &CacheKey, executable: bool) -> io::Result<CachedFile> {
        // Only for reading, also for its owner.
        let mode = if executable { 0o555 } else { 0o444 };
        self.file.set_permissions(Permissions::from_mode(mode))?;
        let stamp = FileStamp::from_metadata(&self.file.metadata()?);
        let name = EntryName { sha256: key.sha256().to_owned(), stamp, boot: boot_id().to_owned() }.text();
        let path = self.cache.path(key, &name);
        make_directory(path.parent().unwrap_or(Path::new("/")))?;
        fs::rename(&self.path, &path)?;
        self.stored = true;
        self.cache.insert(key.clone(), CacheEntry { name, bytes: self.bytes, stamp, checked: true });
        Ok(CachedFile { path, file: self.file.clone(), executable })
    }
}

impl Drop for CachePart {
    fn drop(&mut self) {
        lock(&self.cache.index).release(self.bytes);
        if !self.stored
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "an unfinished file of the cache cannot be removed");
        }
    }
}
