//! Staging: assembly of a file from chunks. This module must not know the purpose of a file.

use berth_types::problems::Problem;

use std::sync::Arc;

use berth_foundation::objects::{ObjectError, Objects};

/// The result of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// The file has this number of bytes so far. The next chunk begins there.
    Partial(u64),
    /// The whole file has another hash than announced. Its transfer begins again.
    HashMismatch,
    /// The file is whole and staged, but not in the store yet. The value is its hash in lower-case hex.
    Whole(String),
}

fn object_problem(error: std::io::Error) -> Problem {
    ObjectError::from(error).into()
}

/// The staging area for files that arrive in chunks.
#[derive(Clone)]
pub struct Staging {
    objects: Arc<Objects>,
}

impl Staging {
    pub const fn new(objects: Arc<Objects>) -> Self {
        Self { objects }
    }

    /// Adds a chunk to a file of `total` bytes and checks the hash after the last chunk. The caller has the
    /// write lock of the file. An empty `sha256` means an unknown hash.
    pub async fn add_chunk(
        &self,
        id: &str,
        offset: u64,
        data: Vec<u8>,
        total: u64,
        sha256: &str,
    ) -> Result<ChunkOutcome, Problem> {
        let (objects, name) = (self.objects.clone(), id.to_owned());
        let staging = tokio::task::spawn_blocking(move || objects.stage(&name, offset, &data, total));
        let bytes = staging.await.map_err(|_| Problem::internal())?.map_err(object_problem)?;
        if bytes < total {
            return Ok(ChunkOutcome::Partial(bytes));
        }
        let (objects, name) = (self.objects.clone(), id.to_owned());
        let hashing = tokio::task::spawn_blocking(move || objects.hash(&name));
        let hash = hashing.await.map_err(|_| Problem::internal())?.map_err(object_problem)?;
        if !sha256.is_empty() && hash != sha256 {
            tracing::warn!(file = id, "a received file is damaged; its transfer starts again");
            self.objects.unstage(id);
            return Ok(ChunkOutcome::HashMismatch);
        }
        Ok(ChunkOutcome::Whole(hash))
    }

    /// The number of received bytes of a file.
    pub async fn received_bytes(&self, id: &str, total: u64) -> Result<u64, Problem> {
        let (objects, name) = (self.objects.clone(), id.to_owned());
        let staging = tokio::task::spawn_blocking(move || objects.stage(&name, 0, &[], total));
        staging.await.map_err(|_| Problem::internal())?.map_err(object_problem)
    }

    /// The numbers of received bytes of several files.
    pub async fn list_received(&self, ids: Vec<String>) -> Result<Vec<u64>, Problem> {
        let objects = self.objects.clone();
        let reading = tokio::task::spawn_blocking(move || {
            ids.iter().map(|id| objects.staged_length(id)).collect::<std::io::Result<Vec<u64>>>()
        });
        reading.await.map_err(|_| Problem::internal())?.map_err(object_problem)
    }

    /// The received content of a small file.
    pub async fn staged_bytes(&self, id: &str) -> Result<Vec<u8>, Problem> {
        let (objects, name) = (self.objects.clone(), id.to_owned());
        let reading = tokio::task::spawn_blocking(move || objects.staged_bytes(&name));
        reading.await.map_err(|_| Problem::internal())?.map_err(object_problem)
    }
}
