//! The cached files on the disk: `files/ORGANIZATION/NAME`, and `parts/` for files on their way. Blocking, except for
//! turns.

use std::collections::HashMap;
use std::fs::{self, DirEntry, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use berth_system::clock::boot_id;
use berth_system::removal::remove_tree;
use berth_system::sync::lock;
use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::entry::{CacheKey, EntryName, FileStamp};
use super::index::{CacheEntry, CacheIndex};
use super::space::{DiskSpace, default_bytes};

const FILES: &str = "files";
pub(super) const PARTS: &str = "parts";
/// The time between two checks of the free space.
const CHECK_EVERY: Duration = Duration::from_secs(30);
/// The pause after a search that found too little to evict. It reads every file, and each file of a volume would
/// repeat it.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);

/// Counts since the start of the daemon, and the present size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheTotals {
    pub files: u64,
    pub bytes: u64,
    /// Files that an attempt got from the cache, and their bytes.
    pub hits: u64,
    pub hit_bytes: u64,
    /// Files that the cache did not have.
    pub misses: u64,
    /// Files that were removed for others, or for free space.
    pub evictions: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

/// A cached file with its right content.
#[derive(Debug)]
pub struct CachedFile {
    /// For a link; the file may be removed from there meanwhile.
    pub path: PathBuf,
    /// For a copy, from the start of the content.
    pub file: Arc<File>,
    pub executable: bool,
}

/// The cache of a node.
#[derive(Debug)]
pub struct FileCache {
    pub(super) root: PathBuf,
    pub(super) most_bytes: u64,
    /// The free space that the cache leaves. `None`: a part of the file system.
    free_bytes: Option<u64>,
    measure: fn(&Path) -> Option<DiskSpace>,
    pub(super) index: Mutex<CacheIndex>,
    /// The contents that an attempt fetches now.
    turns: Mutex<HashMap<CacheKey, Weak<AsyncMutex<()>>>>,
    pub(super) last_part: AtomicU64,
    /// The time of the last search that found too little to evict.
    last_vain_search: Mutex<Option<Instant>>,
    counters: Counters,
}

/// Creates a directory for the worker's own user only.
pub(super) fn make_directory(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Removes a directory with its content, if it exists.
fn remove_directory(dir: &Path) -> io::Result<()> {
    match remove_tree(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn has_hash(file: &File, sha256: &str) -> io::Result<bool> {
    let (mut hash, mut buffer, mut offset) = (Sha256::new(), vec![0; 1 << 20], 0);
    loop {
        let read = file.read_at(&mut buffer, offset)?;
        if read == 0 {
            return Ok(format!("{:x}", hash.finalize()) == sha256);
        }
        hash.update(buffer.get(..read).unwrap_or_default());
        offset += read as u64;
    }
}

/// A file that an earlier daemon stored, with the time of its last use. `None`: it was changed, or is no cached file.
fn stored_entry(organization: &str, file: &DirEntry) -> Option<(i64, CacheKey, CacheEntry)> {
    let text = file.file_name().into_string().ok()?;
    let name = EntryName::parse(&text)?;
    let key = CacheKey::from_digits(organization, &name.sha256)?;
    let found = file.metadata().ok()?;
    if !found.is_file() || FileStamp::from_metadata(&found) != name.stamp {
        return None;
    }
    // A link and its removal change the first of these times, a copy at least sometimes the second.
    let last_use_s = found.ctime().max(found.atime());
    let checked = !name.boot.is_empty() && name.boot == boot_id();
    Some((last_use_s, key, CacheEntry { name: text, bytes: found.len(), stamp: name.stamp, checked }))
}

/// Opens the cache of a worker in the directory `root`, with limits in GiB. By default it has a part of the file system
/// of `data`. `None`: it is off (0), or its directory cannot be used.
pub fn open_or_warn(
    root: &Path,
    data: &Path,
    most_gib: Option<u64>,
    free_gib: Option<u64>,
) -> Option<Arc<FileCache>> {
    let bytes = most_gib.map_or_else(|| default_bytes(data), |gib| gib << 30);
    let opened = if bytes == 0 {
        FileCache::remove(root).map(|()| None)
    } else {
        FileCache::open(root, bytes, free_gib.map(|gib| gib << 30)).map(Some)
    };
    match opened {
        Ok(cache) => cache.map(|cache| {
            tracing::info!(mib = bytes >> 20, "files of volumes are cached");
            Arc::new(cache)
        }),
        Err(error) => {
            tracing::warn!(%error, dir = %root.display(), "the cache cannot be used");
            None
        }
    }
}

impl FileCache {
    /// Opens the cache in a directory of its own, with the files of earlier daemons. It leaves `free_bytes` of the file
    /// system free, or by default a part of it.
    ///
    /// # Errors
    /// The directory cannot be created or read.
    pub fn open(root: &Path, most_bytes: u64, free_bytes: Option<u64>) -> io::Result<Self> {
        Self::open_on(root, most_bytes, free_bytes, DiskSpace::read)
    }

    /// The same with another measurement of the disk.
    pub(crate) fn open_on(
        root: &Path,
        most_bytes: u64,
        free_bytes: Option<u64>,
        measure: fn(&Path) -> Option<DiskSpace>,
    ) -> io::Result<Self> {
        remove_directory(&root.join(PARTS))?;
        for name in [FILES, PARTS] {
            make_directory(&root.join(name))?;
        }
        fs::set_permissions(root, Permissions::from_mode(0o700))?;
        let cache = Self {
            root: root.to_owned(),
            most_bytes,
            free_bytes,
            measure,
            index: Mutex::default(),
            turns: Mutex::default(),
            last_part: AtomicU64::new(0),
            last_vain_search: Mutex::default(),
            counters: Counters::default(),
        };
        cache.load()?;
        cache.make_room(0);
        Ok(cache)
    }

    /// Removes the cache of an earlier daemon.
    ///
    /// # Errors
    /// The directory cannot be removed.
    pub fn remove(root: &Path) -> io::Result<()> {
        remove_directory(root)
    }

    fn load(&self) -> io::Result<()> {
        let mut found = Vec::new();
        for organization in fs::read_dir(self.root.join(FILES))? {
            let organization = organization?;
            let id = organization.file_name().to_string_lossy().into_owned();
            for file in fs::read_dir(organization.path())? {
                let file = file?;
                match stored_entry(&id, &file) {
                    Some(entry) => found.push(entry),
                    None => fs::remove_file(file.path())?,
                }
            }
            // A directory with files stays.
            let _ = fs::remove_dir(organization.path());
        }
        found.sort_by_key(|(last_use_s, ..)| *last_use_s);
        for (_, key, entry) in found {
            self.insert(key, entry);
        }
        // The limit may be lower than before.
        self.reserve(0);
        Ok(())
    }

    pub(super) fn path(&self, key: &CacheKey, name: &str) -> PathBuf {
        self.root.join(FILES).join(key.organization()).join(name)
    }

    /// Adds a stored file.
    pub(super) fn insert(&self, key: CacheKey, entry: CacheEntry) {
        let name = entry.name.clone();
        let replaced = lock(&self.index).insert(key.clone(), entry);
        if let Some(replaced) = replaced.filter(|old| old.name != name) {
            self.unlink(&key, &replaced.name);
        }
    }

    /// Removes a file from the disk. Attempts with a link keep it.
    fn unlink(&self, key: &CacheKey, name: &str) {
        let path = self.path(key, name);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "a file of the cache cannot be removed");
        }
    }

    /// Waits until no other attempt fetches this content. The result keeps others waiting.
    pub async fn turn(&self, key: &CacheKey) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = lock(&self.turns);
            turns.retain(|_, turn| turn.strong_count() > 0);
            let known = turns.get(key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::new(AsyncMutex::new(()));
                turns.insert(key.clone(), Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }

    /// Finds a content of this length. A damaged file is removed, and is a miss.
    pub fn find(&self, key: &CacheKey, bytes: u64) -> Option<CachedFile> {
        let entry = lock(&self.index).find_for_use(key);
        let found = entry.and_then(|entry| match self.open_entry(key, &entry, bytes) {
            Ok(found) => Some(found),
            Err(error) => {
                tracing::warn!(file = entry.name, %error, "a file of the cache is damaged and is fetched again");
                if lock(&self.index).remove_named(key, &entry.name) {
                    self.unlink(key, &entry.name);
                }
                None
            }
        });
        match found {
            Some(_) => {
                self.counters.hits.fetch_add(1, Ordering::Relaxed);
                self.counters.hit_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            None => {
                self.counters.misses.fetch_add(1, Ordering::Relaxed);
            }
        }
        found
    }

    fn open_entry(&self, key: &CacheKey, entry: &CacheEntry, bytes: u64) -> io::Result<CachedFile> {
        let path = self.path(key, &entry.name);
        let file = File::options().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path)?;
        let found = file.metadata()?;
        let same = found.is_file() && FileStamp::from_metadata(&found) == entry.stamp;
        if !same || found.len() != bytes || entry.bytes != bytes {
            return Err(io::Error::other("it was changed"));
        }
        if !entry.checked {
            if !has_hash(&file, key.sha256())? {
                return Err(io::Error::other("it differs from its SHA-256"));
            }
            lock(&self.index).set_checked(key, &entry.name);
        }
        let executable = found.mode() & 0o100 != 0;
        Ok(CachedFile { path, file: Arc::new(file), executable })
    }

    /// Reserves bytes within the limit of the cache, and evicts the least recently used files for them.
    pub(super) fn reserve(&self, bytes: u64) -> bool {
        let removed = lock(&self.index).reserve(bytes, self.most_bytes);
        let Some(removed) = removed else { return false };
        for (key, entry) in removed {
            self.counters.evictions.fetch_add(1, Ordering::Relaxed);
            self.unlink(&key, &entry.name);
        }
        true
    }

    /// The bytes that the removal of a file frees. `None`: an attempt has a link to it.
    fn freed_bytes(&self, key: &CacheKey, name: &str) -> Option<u64> {
        let found = fs::symlink_metadata(self.path(key, name)).ok()?;
        (found.nlink() == 1).then(|| found.blocks().saturating_mul(512))
    }

    /// The files, the least recently used first.
    fn oldest_first(&self) -> Vec<(CacheKey, String)> {
        let index = lock(&self.index);
        index.oldest_first().map(|(key, entry)| (key.clone(), entry.name.clone())).collect()
    }

    /// The bytes that the removal of all files would free.
    pub fn evictable_bytes(&self) -> u64 {
        let files = self.oldest_first();
        files.iter().filter_map(|(key, name)| self.freed_bytes(key, name)).fold(0, u64::saturating_add)
    }

    /// Evicts files until `bytes` more keep the free-space mark. `false`: too few files can be evicted, now or within
    /// the last second.
    pub fn make_room(&self, bytes: u64) -> bool {
        self.make_room_at(bytes, Instant::now())
    }

    pub(super) fn make_room_at(&self, bytes: u64, now: Instant) -> bool {
        // With an unknown space the next write finds out.
        let Some(space) = (self.measure)(&self.root) else { return true };
        let mut missing = space.missing_bytes(bytes, self.free_bytes);
        if missing == 0 {
            return true;
        }
        let last = *lock(&self.last_vain_search);
        if last.is_some_and(|last| now.saturating_duration_since(last) < SEARCH_PAUSE) {
            return false;
        }
        for (key, name) in self.oldest_first() {
            let Some(freed) = self.freed_bytes(&key, &name) else { continue };
            if lock(&self.index).remove_named(&key, &name) {
                self.counters.evictions.fetch_add(1, Ordering::Relaxed);
                self.unlink(&key, &name);
                missing = missing.saturating_sub(freed);
            }
            if missing == 0 {
                return true;
            }
        }
        *lock(&self.last_vain_search) = Some(now);
        false
    }

    /// Keeps the free-space mark while jobs fill the disk. It never ends.
    pub async fn watch_free_space(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let cache = self.clone();
            // The next turn repeats a failed one.
            let _ = tokio::task::spawn_blocking(move || cache.make_room(0)).await;
        }
    }

    pub fn totals(&self) -> CacheTotals {
        let (files, bytes) = {
            let index = lock(&self.index);
            (index.files() as u64, index.bytes())
        };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheTotals {
            files,
            bytes,
            hits: count(&self.counters.hits),
            hit_bytes: count(&self.counters.hit_bytes),
            misses: count(&self.counters.misses),
            evictions: count(&self.counters.evictions),
        }
    }
}
