//! The verification of the audit log: numbers, hashes, checkpoints and the end. It reads in pages of bounded size.

use std::collections::VecDeque;

use berth_store::audit::{self, Checkpoint, FIRST_HASH, StoredEvent};
use berth_store::{Db, StoreError};

use crate::audit_key::{AuditKey, LastCheckpoint};

const PAGE: i64 = 1_000;

/// The first fault of an audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The number of the event.
    pub seq: i64,
    /// The id of the event; empty without a row.
    pub id: String,
    /// The difference.
    pub difference: String,
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The number of intact events before the first fault.
    pub events: i64,
    /// The number of intact checkpoints before the first fault.
    pub checkpoints: i64,
    pub fault: Option<Fault>,
}

/// A fault of the log, or a failure of the store.
enum Stop {
    Fault(Fault),
    Store(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn fault(seq: i64, id: &str, difference: impl Into<String>) -> Stop {
    Stop::Fault(Fault { seq, id: id.to_owned(), difference: difference.into() })
}

/// Verifies the log from event `from` on. The hash before it is trusted. `last` is the last checkpoint outside of
/// the database, if it is known.
///
/// # Errors
/// The database cannot be read.
pub async fn verify(
    db: &Db,
    key: &AuditKey,
    last: Option<&LastCheckpoint>,
    from: i64,
) -> Result<Report, StoreError> {
    let mut check = Check {
        db,
        events: 0,
        next: from.max(1),
        hash: FIRST_HASH.to_owned(),
        signatures: Signatures { db, key, page: VecDeque::new(), number: 0, signature: String::new() },
    };
    let fault = match check.run(last).await {
        Ok(()) => None,
        Err(Stop::Fault(fault)) => Some(fault),
        Err(Stop::Store(error)) => return Err(error),
    };
    Ok(Report { events: check.events, checkpoints: check.signatures.number, fault })
}

/// The checkpoints in their order, each after a check of its number and its signature.
struct Signatures<'a> {
    db: &'a Db,
    key: &'a AuditKey,
    page: VecDeque<Checkpoint>,
    /// The number of the last intact checkpoint.
    number: i64,
    /// The signature of the last intact checkpoint.
    signature: String,
}

impl Signatures<'_> {
    async fn next(&mut self) -> Result<Option<Checkpoint>, Stop> {
        if self.page.is_empty() {
            let mut conn = self.db.read().await?;
            self.page = audit::list_checkpoints(&mut conn.tx(), self.number, PAGE).await?.into();
        }
        let Some(checkpoint) = self.page.pop_front() else { return Ok(None) };
        let number = self.number + 1;
        if checkpoint.number != number {
            return Err(fault(checkpoint.seq, "", format!("checkpoint {number} is missing")));
        }
        if !self.key.has_signed(&checkpoint, &self.signature) {
            let difference =
                format!("the signature of checkpoint {number} is not of this key and this content");
            return Err(fault(checkpoint.seq, "", difference));
        }
        self.number = number;
        self.signature.clone_from(&checkpoint.signature);
        Ok(Some(checkpoint))
    }
}

struct Check<'a> {
    db: &'a Db,
    events: i64,
    /// The number of the next event.
    next: i64,
    /// The hash of the event before it.
    hash: String,
    signatures: Signatures<'a>,
}

impl Check<'_> {
    async fn run(&mut self, last: Option<&LastCheckpoint>) -> Result<(), Stop> {
        // Read first, because a running portal adds events during the verification.
        let head = audit::get_head(&mut self.db.read().await?.tx()).await?;
        let end = last.map_or(head.seq, |last| last.seq.max(head.seq));
        let mut due = self.start(end).await?;
        let mut limit = PAGE;
        loop {
            let rows = match self.read(limit).await {
                Ok(rows) => rows,
                // A row that cannot be read is found by reading one row at a time.
                Err(StoreError::Corrupt(_)) if limit > 1 => {
                    limit = 1;
                    continue;
                }
                Err(StoreError::Corrupt(error)) => return Err(fault(self.next, "", error)),
                Err(error) => return Err(error.into()),
            };
            if rows.is_empty() {
                break;
            }
            for row in rows {
                self.check_row(&row).await?;
                while let Some(checkpoint) = due.take_if(|checkpoint| checkpoint.seq < self.next) {
                    self.compare(&checkpoint, &row.id)?;
                    due = self.signatures.next().await?;
                }
            }
        }
        if let Some(checkpoint) = due {
            let difference = format!(
                "the end of the log is missing: checkpoint {} has the hash of event {}",
                checkpoint.number, checkpoint.seq
            );
            return Err(fault(self.next, "", difference));
        }
        self.check_end(&head, last).await
    }

    async fn read(&self, limit: i64) -> Result<Vec<StoredEvent>, StoreError> {
        let mut conn = self.db.read().await?;
        audit::list_from(&mut conn.tx(), self.next, limit).await
    }

    /// Takes over the hash before the first event of the verification. Returns the next checkpoint. `end` is the number
    /// of the last event by the recorded end and the last checkpoint outside of the database.
    async fn start(&mut self, end: i64) -> Result<Option<Checkpoint>, Stop> {
        let before = self.next - 1;
        let mut id = String::new();
        if before > 0 {
            let mut conn = self.db.read().await?;
            let row = audit::list_from(&mut conn.tx(), before, 1).await?.into_iter().next();
            let Some(row) = row.filter(|row| row.seq == Some(before)) else {
                let signed = audit::find_last_checkpoint(&mut conn.tx()).await?;
                let end = signed.map_or(end, |signed| signed.seq.max(end));
                let difference = if before > end {
                    format!("the log ends at event {end}, so begin at an earlier one")
                } else {
                    "the row is missing".to_owned()
                };
                return Err(fault(before, "", difference));
            };
            self.hash = row.hash.unwrap_or_default();
            id = row.id;
        }
        let mut due = self.signatures.next().await?;
        while let Some(checkpoint) = due.take_if(|checkpoint| checkpoint.seq <= before) {
            if checkpoint.seq == before {
                self.compare(&checkpoint, &id)?;
            }
            due = self.signatures.next().await?;
        }
        Ok(due)
    }

    /// Compares a checkpoint with the hash of the last event.
    fn compare(&self, checkpoint: &Checkpoint, id: &str) -> Result<(), Stop> {
        let seq = self.next - 1;
        if checkpoint.seq == seq && checkpoint.hash == self.hash {
            return Ok(());
        }
        let difference =
            format!("the hash is not the one of checkpoint {}: events were written anew", checkpoint.number);
        Err(fault(seq, id, difference))
    }

    async fn check_row(&mut self, row: &StoredEvent) -> Result<(), Stop> {
        let seq = self.next;
        if row.seq != Some(seq) {
            return Err(fault(seq, "", "the row is missing"));
        }
        let hash = row.hash_after(&self.hash, seq);
        if row.hash.as_ref() != Some(&hash) {
            return Err(self.describe(row, &hash).await?);
        }
        self.hash = hash;
        self.next += 1;
        self.events += 1;
        Ok(())
    }

    /// The fault of a row whose hash differs from `computed`. The next event shows which one is the original.
    async fn describe(&self, row: &StoredEvent, computed: &str) -> Result<Stop, StoreError> {
        let after = self.next + 1;
        let mut conn = self.db.read().await?;
        let next = match audit::list_from(&mut conn.tx(), after, 1).await {
            Ok(rows) => rows.into_iter().next(),
            Err(StoreError::Corrupt(_)) => None,
            Err(error) => return Err(error),
        };
        let follows =
            |hash: &str| next.as_ref().is_some_and(|n| n.hash.as_ref() == Some(&n.hash_after(hash, after)));
        let difference = if follows(row.hash.as_deref().unwrap_or_default()) {
            "the content was changed: it does not have the hash of the row"
        } else if follows(computed) {
            "the hash was changed: the content and the next row have another one"
        } else {
            "the content does not have the hash of the row"
        };
        Ok(fault(self.next, &row.id, difference))
    }

    /// Checks the end of the log against the recorded end and against the last checkpoint outside of the database.
    async fn check_end(&self, head: &audit::Head, last: Option<&LastCheckpoint>) -> Result<(), Stop> {
        let end = self.next - 1;
        if head.seq > end {
            let difference = format!("the end of the log is missing: it has {} events", head.seq);
            return Err(fault(self.next, "", difference));
        }
        if head.seq == end && head.hash != self.hash {
            return Err(fault(end, "", "the recorded end of the log has another hash"));
        }
        if let Some(last) = last {
            let number = self.signatures.number;
            if last.number > number {
                let difference = format!("checkpoint {} is missing", last.number);
                return Err(fault(last.seq, "", difference));
            }
            if last.number == number && last.signature != self.signatures.signature {
                return Err(fault(last.seq, "", format!("checkpoint {number} was replaced")));
            }
        }
        let mut conn = self.db.read().await?;
        match audit::find_unchained(&mut conn.tx()).await? {
            Some(row) => Err(fault(self.next, &row.id, "the row has no number")),
            None => Ok(()),
        }
    }
}
