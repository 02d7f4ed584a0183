//! The state of the logs of attempts: complete or not, and open for which node.

use berth_types::ids::{JobId, NodeId};
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::Context;
use berth_recordings::Recordings;
use berth_store::attempts::StoredAttempt;
use berth_store::{self as store, StoreError};

/// An open rank of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRank {
    pub rank: u32,
    /// The time of the attempt's assignment: no output is older.
    pub assigned_at: Timestamp,
}

/// The logs of attempts.
#[derive(Clone)]
pub struct Logs {
    context: Context,
    recordings: Recordings,
}

impl Logs {
    pub fn new(context: Context, recordings: Recordings) -> Self {
        Self { context, recordings }
    }

    /// Returns true if the portal has all of a rank's log. `length` is its reported length in bytes, if
    /// known.
    pub fn is_log_complete(&self, job: JobId, row: &StoredAttempt, length: Option<u64>) -> bool {
        let (Some(length), Ok(number), Ok(rank)) =
            (length, u32::try_from(row.number), u32::try_from(row.rank))
        else {
            return false;
        };
        self.recordings.log_length(job, number, rank) >= length
    }

    /// The open rank of an attempt on a node. A closed rank and a job that retention has removed accept no more
    /// output.
    pub async fn find_open_rank(
        &self,
        node: NodeId,
        job: JobId,
        number: u32,
    ) -> Result<Option<OpenRank>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let row = store::attempts::find_node_rank(&mut conn.tx(), job, number, node).await?;
        Ok(row.filter(|r| r.is_open).and_then(|r| {
            u32::try_from(r.rank).ok().map(|rank| OpenRank { rank, assigned_at: r.created_at })
        }))
    }

    /// Closes an attempt that only waited for its log. Returns true if the log of `length` bytes is complete.
    pub async fn close_log(
        &self,
        node: NodeId,
        job: JobId,
        number: u32,
        length: u64,
    ) -> Result<bool, StoreError> {
        self.context
            .db
            .write(move |tx| {
                async move {
                    let Some(mut row) = store::attempts::find(tx, job, number, node).await? else {
                        return Ok(false);
                    };
                    let complete = row.log_bytes.is_some_and(|n| u64::try_from(n).is_ok_and(|n| length >= n));
                    if complete && row.ended && row.clean && row.is_open && !row.saving {
                        row.is_open = false;
                        store::attempts::update(tx, &row).await?;
                    }
                    Ok(complete)
                }
                .boxed()
            })
            .await
    }
}
