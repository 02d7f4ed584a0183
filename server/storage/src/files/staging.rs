//! Putting a file together from pieces, whoever sends them. Must not know what the file is for.

use berth_types::problems::Problem;

use std::sync::Arc;

use berth_foundation::objects::{ObjectError, Objects};

/// What became of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// So many bytes are there; the next piece begins after them.
    Part(u64),
    /// All of it came and it is not what was said: it is begun anew.
    Spoilt,
    /// All of it is there, with this hash in hexadecimal digits. It is not in the store yet.
    Whole(String),
}

fn unwritten(error: std::io::Error) -> Problem {
    ObjectError::from(error).into()
}

/// The place where files arrive in pieces.
#[derive(Clone)]
pub struct Staging {
    objects: Arc<Objects>,
}

impl Staging {
    pub const fn new(objects: Arc<Objects>) -> Self {
        Self { objects }
    }

    /// Adds a piece to a file of `total` bytes, whose claim the caller has, and checks its hash when that was
    /// the last; an empty `sha256` is not known.
    pub async fn take_piece(
        &self,
        id: &str,
        offset: u64,
        data: Vec<u8>,
        total: u64,
        sha256: &str,
    ) -> Result<Taken, Problem> {
        let (objects, name) = (self.objects.clone(), id.to_owned());
        let staging = tokio::task::spawn_blocking(move || objects.stage(&name, offset, &data, total));
        let bytes = staging.await.map_err(|_| Problem::internal())?.map_err(unwritten)?;
        if bytes < total {
            return Ok(Taken::Part(bytes));
        }
        let (objects, name) = (self.objects.clone(), id.to_owned());
        let hashing = tokio::task::spawn_blocking(move || objects.hash(&name));
        let hash = hashing.await.map_err(|_| Problem::internal())?.map_err(unwritten)?;
        if !sha256.is_empty() && hash != sha256 {
            tracing::warn!(file = id, "a file did not arrive as it was sent; it is begun anew");
            self.objects.unstage(id);
            return Ok(Taken::Spoilt);
        }
        Ok(Taken::Whole(hash))
    }

    /// How much of a file has arrived.
    pub async fn arrived(&self, id: &str, total: u64) -> Result<u64, Problem> {
        let (objects, name) = (self.objects.clone(), id.to_owned());
        let staging = tokio::task::spawn_blocking(move || objects.stage(&name, 0, &[], total));
        staging.await.map_err(|_| Problem::internal())?.map_err(unwritten)
    }

    /// All of a small file that has arrived.
    pub async fn staged_bytes(&self, id: &str) -> Result<Vec<u8>, Problem> {
        let (objects, name) = (self.objects.clone(), id.to_owned());
        let reading = tokio::task::spawn_blocking(move || objects.staged_bytes(&name));
        reading.await.map_err(|_| Problem::internal())?.map_err(unwritten)
    }
}
