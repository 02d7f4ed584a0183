//! Putting a file together from pieces, whoever sends them. Must not know what the file is for.

use berth_types::problems::Problem;

use crate::depot::DepotError;
use crate::portal::Portal;

/// What became of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    /// So many bytes are there; the next piece begins after them.
    Part(u64),
    /// All of it came and it is not what was said: it is begun anew.
    Spoilt,
    /// All of it is there, with this hash in hexadecimal digits. It is not in the store yet.
    Whole(String),
}

fn unwritten(error: std::io::Error) -> Problem {
    DepotError::from(error).into()
}

impl Portal {
    /// Adds a piece to a file of `total` bytes, whose claim the caller has, and checks its hash when that was
    /// the last; an empty `sha256` is not known.
    pub(crate) async fn take_piece(
        &self,
        id: &str,
        offset: u64,
        data: Vec<u8>,
        total: u64,
        sha256: &str,
    ) -> Result<Taken, Problem> {
        let (depot, name) = (self.depot.clone(), id.to_owned());
        let staging = tokio::task::spawn_blocking(move || depot.stage(&name, offset, &data, total));
        let bytes = staging.await.map_err(|_| Problem::internal())?.map_err(unwritten)?;
        if bytes < total {
            return Ok(Taken::Part(bytes));
        }
        let (depot, name) = (self.depot.clone(), id.to_owned());
        let hashing = tokio::task::spawn_blocking(move || depot.hash(&name));
        let hash = hashing.await.map_err(|_| Problem::internal())?.map_err(unwritten)?;
        if !sha256.is_empty() && hash != sha256 {
            tracing::warn!(file = id, "a file did not arrive as it was sent; it is begun anew");
            self.depot.unstage(id);
            return Ok(Taken::Spoilt);
        }
        Ok(Taken::Whole(hash))
    }

    /// How much of a file has arrived.
    pub(crate) async fn arrived(&self, id: &str, total: u64) -> Result<u64, Problem> {
        let (depot, name) = (self.depot.clone(), id.to_owned());
        let staging = tokio::task::spawn_blocking(move || depot.stage(&name, 0, &[], total));
        staging.await.map_err(|_| Problem::internal())?.map_err(unwritten)
    }

    /// All of a small file that has arrived.
    pub(crate) async fn staged_bytes(&self, id: &str) -> Result<Vec<u8>, Problem> {
        let (depot, name) = (self.depot.clone(), id.to_owned());
        let reading = tokio::task::spawn_blocking(move || depot.staged_bytes(&name));
        reading.await.map_err(|_| Problem::internal())?.map_err(unwritten)
    }
}
