//! The delivered part of the audit log, by destination.

use berth_types::operations::AuditDestinationKind;
use berth_types::time::Timestamp;

use crate::{StoreError, Tx};

/// The delivered part of the audit log at one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, sqlx::FromRow)]
pub struct Mark {
    /// The number of the last delivered event; 0 before the first.
    pub seq: i64,
    /// The number of the last delivered checkpoint; 0 before the first.
    pub checkpoint: i64,
    /// The time of the last delivery.
    pub delivered_at: Option<Timestamp>,
}

/// Finds the mark of a destination; `None` before its first delivery.
pub async fn find(tx: &mut Tx<'_>, kind: AuditDestinationKind) -> Result<Option<Mark>, StoreError> {
    let sql = "SELECT seq, checkpoint, delivered_at, destination AS row_id FROM audit_marks \
               WHERE destination = $1";
    find!(tx, Mark, sql, kind.name())
}

/// Moves the mark of a destination. A mark never returns.
pub async fn put(tx: &mut Tx<'_>, kind: AuditDestinationKind, mark: &Mark) -> Result<(), StoreError> {
    let sql = "INSERT INTO audit_marks (destination, seq, checkpoint, delivered_at) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (destination) DO UPDATE SET seq = $2, checkpoint = $3, delivered_at = $4 \
               WHERE audit_marks.seq <= $2 AND audit_marks.checkpoint <= $3";
    exec!(tx, sql, kind.name(), mark.seq, mark.checkpoint, mark.delivered_at).map(|_| ())
}
