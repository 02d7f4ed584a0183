//! The files of one volume on their way into an attempt's directory: from the cache of the node, or from the portal.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_proto::{FetchRequest, VolumeFile};
use berth_system::files::join_inside;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::linkat;
use tokio::time::Instant;

use crate::cache::{CacheKey, CachePart, CachedFile, FileCache};
use crate::transfer::{FetchProgress, Portal, fetch_file, fetch_part, tree};

/// The bytes of one step of a copy. An attempt that is given up ends its copy after the present step.
const COPY_STEP: u64 = 256 << 20;

/// The cache of the node for one attempt.
#[derive(Debug)]
pub struct AttemptCache {
    files: Arc<FileCache>,
    /// The id of the attempt's organization.
    organization: String,
    /// The attempt has a user of its own, which cannot write to the worker's files.
    own_user: bool,
}

impl AttemptCache {
    pub fn new(files: Arc<FileCache>, organization: &str, own_user: bool) -> Self {
        Self { files, organization: organization.to_owned(), own_user }
    }

    /// The bytes that the cache can free for the volumes.
    pub(super) fn evictable_bytes(&self) -> u64 {
        self.files.evictable_bytes()
    }
}

/// The attempt's volume: its directory, the cache, and the permission to link its files to those of the cache.
struct VolumeTarget<'a> {
    root: Arc<OwnedFd>,
    cache: Option<&'a AttemptCache>,
    links: bool,
}

async fn blocking_io<T: Send + 'static>(
    step: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(step).await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// Brings all files of a volume into the directory `target`.
pub(super) async fn fetch_volume(
    portal: &mut Portal,
    mut request: FetchRequest,
    target: PathBuf,
    (cache, writable): (Option<&AttemptCache>, bool),
    progress: &mut FetchProgress<'_>,
) -> Result<(), String> {
    let root = blocking_io(move || {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&target)?;
        tree::open_root(&target)
    });
    let root = Arc::new(root.await?);
    let links = !writable && cache.is_some_and(|cache| cache.own_user);
    let target = VolumeTarget { root, cache, links };
    loop {
        let files = fetch_part(portal, &request).await?.files;
        let Some(last) = files.last() else { return Ok(()) };
        request.after.clone_from(&last.path);
        for file in files {
            let request = FetchRequest { file: file.file.clone(), after: String::new(), ..request.clone() };
            let fetched = target.put(portal, request, &file, progress).await;
            fetched.map_err(|e| format!("{}: {e}", file.path))?;
        }
    }
}

impl VolumeTarget<'_> {
    /// Puts one file into its place.
    async fn put(
        &self,
        portal: &mut Portal,
        request: FetchRequest,
        file: &VolumeFile,
        progress: &mut FetchProgress<'_>,
    ) -> Result<(), String> {
        if let Some(cached) = self.obtain(portal, &request, file, progress).await? {
            return if self.links && self.link(&cached, file).await {
                Ok(())
            } else {
                self.copy(&cached, file).await
            };
        }
        let out = self.create(file).await?;
        fetch_file(portal, request, (file.bytes, &file.sha256), out, progress).await
    }

    /// The file in the cache, fetched into it if necessary. `None`: it is not cached.
    async fn obtain(
        &self,
        portal: &mut Portal,
        request: &FetchRequest,
        file: &VolumeFile,
        progress: &mut FetchProgress<'_>,
    ) -> Result<Option<CachedFile>, String> {
        let key = self.cache.and_then(|cache| CacheKey::new(&cache.organization, &file.sha256));
        let (Some(cache), Some(key), true) = (self.cache, key, file.bytes > 0) else { return Ok(None) };
        // Others with the same file wait here for this fetch.
        let _turn = cache.files.turn(&key).await;
        let (files, wanted, bytes) = (cache.files.clone(), key.clone(), file.bytes);
        if let Some(found) = blocking_io(move || Ok(files.find(&wanted, bytes))).await? {
            progress.add_from_cache(bytes, Instant::now());
            return Ok(Some(found));
        }
        let (files, beside) = (cache.files.clone(), if self.links { 0 } else { bytes });
        let Some(part) = blocking_io(move || Ok(CachePart::begin(&files, bytes, beside))).await? else {
            return Ok(None);
        };
        fetch_file(portal, request.clone(), (bytes, &file.sha256), part.file(), progress).await?;
        let executable = file.executable;
        blocking_io(move || part.store(&key, executable)).await.map(Some)
    }

    /// Links a file of the cache into the volume. `false`: it must be copied.
    async fn link(&self, cached: &CachedFile, file: &VolumeFile) -> bool {
        // A link has the permissions of the cached file.
        if cached.executable != file.executable {
            return false;
        }
        let (root, from, path) = (self.root.clone(), cached.path.clone(), file.path.clone());
        // Without a link there are several causes, such as another file system; a copy reports the lasting ones.
        blocking_io(move || link_volume_file(&root, &path, &from)).await.is_ok()
    }

    async fn copy(&self, cached: &CachedFile, file: &VolumeFile) -> Result<(), String> {
        let out = self.create(file).await?;
        let mut copied = 0;
        loop {
            let (from, to) = (cached.file.clone(), out.clone());
            // The kernel copies, and shares the blocks where the file system can.
            let step = blocking_io(move || io::copy(&mut (&*from).take(COPY_STEP), &mut &*to)).await?;
            copied += step;
            if step == 0 {
                break;
            }
        }
        if copied == file.bytes { Ok(()) } else { Err("the cached file was changed".to_owned()) }
    }

    /// Creates the file in its place, with room on the disk.
    async fn create(&self, file: &VolumeFile) -> Result<Arc<File>, String> {
        let cache = self.cache.map(|cache| cache.files.clone());
        let (root, file) = (self.root.clone(), file.clone());
        let create = move || {
            if let Some(cache) = cache {
                cache.make_room(file.bytes);
            }
            create_volume_file(&root, &file)
        };
        blocking_io(create).await.map(Arc::new)
    }
}

/// Opens the directory of a file of a volume, and returns it with the name.
fn place<'a>(root: &OwnedFd, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
    let plain = join_inside(Path::new(""), path).is_some();
    if !plain || path.split('/').any(|part| matches!(part, "" | ".")) {
        return Err(io::Error::other("a path leads out of the volume"));
    }
    tree::parent_of(root, path, true)
}

/// Creates an empty file of a volume.
fn create_volume_file(root: &OwnedFd, file: &VolumeFile) -> io::Result<File> {
    let (dir, name) = place(root, &file.path)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = File::from(openat(&dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    let mode = if file.executable { 0o755 } else { 0o644 };
    fchmod(&made, Mode::from_bits_truncate(mode))?;
    Ok(made)
}

/// Makes a file of a volume a link to `from`.
fn link_volume_file(root: &OwnedFd, path: &str, from: &Path) -> io::Result<()> {
    let (dir, name) = place(root, path)?;
    Ok(linkat(AT_FDCWD, from, &dir, name, AtFlags::empty())?)
}

#[cfg(test)]
mod tests;
