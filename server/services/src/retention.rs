//! The retention of the records of services: use by hour, ended replicas, deleted services and revoked keys.
//!
//! The use by hour is the evidence of bills, so a deleted service and a revoked key stay as long as their use.

use berth_store::services::{gateway_faults, hosts, retention};
use berth_store::{StoreError, Tx};
use berth_types::ids::ServiceId;
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::Services;

/// Rows of one transaction.
const BATCH: i64 = 1_000;
/// Batches of one kind in a run. The next run goes on.
const MAX_BATCHES: usize = 200;
const DAY_S: i64 = 86_400;
/// The days for which the use stays at least: the evidence of promises.
const LEAST_USE_DAYS: i64 = 41;

/// The records with a retention, in the order of their deletion: the objects go after what refers to them.
#[derive(Debug, Clone, Copy)]
enum Records {
    Use,
    Replicas,
    Blocks,
    Keys,
}

impl Records {
    const ALL: [Self; 4] = [Self::Use, Self::Replicas, Self::Blocks, Self::Keys];

    /// The days for which these records stay with this option.
    fn days(self, option: i64) -> i64 {
        match self {
            Self::Use => option.max(LEAST_USE_DAYS),
            Self::Replicas | Self::Blocks | Self::Keys => option,
        }
    }

    /// Deletes the first old ones. Returns their number.
    async fn delete(self, tx: &mut Tx<'_>, before: Timestamp) -> Result<u64, StoreError> {
        match self {
            Self::Use => retention::delete_use(tx, before, BATCH).await,
            Self::Replicas => retention::delete_replicas(tx, before, BATCH).await,
            Self::Blocks => retention::delete_blocks(tx, before, BATCH).await,
            Self::Keys => retention::delete_keys(tx, before, BATCH).await,
        }
    }
}

/// True if there may be more than this number of deleted rows.
fn is_full(deleted: u64) -> bool {
    i64::try_from(deleted).is_ok_and(|deleted| deleted >= BATCH)
}

impl Services {
    /// Deletes the records of services after their retention, and what is of no use already: the charges of gateways by
    /// hour after a day, their faults after the time of the evidence of promises, and the proofs of hosts that no service
    /// names.
    ///
    /// # Errors
    /// The database refused one of the deletions; the later ones were not tried.
    pub async fn forget_old(&self) -> Result<(), StoreError> {
        let day_ago = self.context.now().plus_seconds(-DAY_S);
        let evidence_begin = self.context.now().plus_seconds(-LEAST_USE_DAYS * DAY_S);
        for _ in 0..MAX_BATCHES {
            let work = self.context.db.write(move |tx| {
                async move {
                    let charges = retention::delete_gateway_hours(tx, day_ago, BATCH).await?;
                    Ok(charges.max(gateway_faults::delete_hours(tx, evidence_begin, BATCH).await?))
                }
                .boxed()
            });
            if !is_full(work.await?) {
                break;
            }
        }
        let work = self.context.db.write(move |tx| async move { hosts::delete_unnamed(tx).await }.boxed());
        work.await?;
        let Some(days) = self.context.settings.keep_service_records_days else { return Ok(()) };
        let before = |days: i64| self.context.now().plus_seconds(-days.saturating_mul(DAY_S));
        for records in Records::ALL {
            self.forget(records, before(records.days(days))).await?;
        }
        self.forget_services(before(days)).await
    }

    /// Deletes old records of one kind in batches.
    async fn forget(&self, records: Records, before: Timestamp) -> Result<(), StoreError> {
        for _ in 0..MAX_BATCHES {
            let work =
                self.context.db.write(move |tx| async move { records.delete(tx, before).await }.boxed());
            if !is_full(work.await?) {
                break;
            }
        }
        Ok(())
    }

    /// Deletes old services, each in a transaction of its own: a service that something else refers to stays, and does
    /// not stop the others.
    async fn forget_services(&self, before: Timestamp) -> Result<(), StoreError> {
        let mut after: Option<ServiceId> = None;
        for _ in 0..MAX_BATCHES {
            let mut conn = self.context.db.read().await?;
            let batch = retention::list_services(&mut conn.tx(), before, after, BATCH).await?;
            drop(conn);
            let Some(last) = batch.last().copied() else { break };
            after = Some(last);
            for service in batch {
                let work = self
                    .context
                    .db
                    .write(move |tx| async move { retention::delete_service(tx, service).await }.boxed());
                if let Err(error) = work.await {
                    tracing::error!(%service, %error, "a deleted service cannot be removed after its retention");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_use_stays_as_long_as_promises_need_it() {
        for (option, use_days) in [(1, 41), (40, 41), (41, 41), (400, 400)] {
            for records in Records::ALL {
                let expected = if matches!(records, Records::Use) { use_days } else { option };
                assert_eq!(records.days(option), expected, "{records:?}");
            }
        }
    }
}
