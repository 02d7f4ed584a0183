//! Expiry of credit: warnings before the expiry, and debits of expired credit.
//!
//! `core::expiry` decides the use of credits and the part that stays for running work.

use std::collections::BTreeSet;

use berth_core::expiry::{ExpiringCredit, WARNING_DAYS, due, warnings_due};
use berth_types::ids::OrgId;
use berth_types::ledger::TransferKind;
use berth_types::money::money_text;
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::Context;
use berth_store::ledger::Posting;
use berth_store::ledger::lots::{EXPIRY, StoredExpiringCredit};
use berth_store::{self as store, StoreError, Tx};

/// The expired credits of an organization, each with the amount to take back in micros.
async fn expired_amounts(
    tx: &mut Tx<'_>,
    org: OrgId,
    now: Timestamp,
) -> Result<Vec<(StoredExpiringCredit, i64)>, StoreError> {
    let rows = store::ledger::lots::list_live(tx, org).await?;
    let expired: BTreeSet<Timestamp> =
        rows.iter().map(|row| row.expires_at).filter(|at| *at <= now).collect();
    let held = store::ledger::lots::held_before(tx, org, &expired).await?;
    let with_hold = |row: &StoredExpiringCredit| (row.lot(), held.get(&row.expires_at).copied().unwrap_or(0));
    let lots: Vec<(ExpiringCredit, i64)> = rows.iter().map(with_hold).collect();
    let available = store::ledger::available(tx, org).await?;
    let amounts = due(&lots, available, now);
    Ok(rows.into_iter().zip(amounts).filter(|(_, amount)| *amount > 0).collect())
}

/// The memo of a debit: the grant that the debit takes back.
fn memo(row: &StoredExpiringCredit, currency: &str) -> String {
    let day: String = row.granted_at.to_string().chars().take(10).collect();
    format!("Expired: {} granted on {day} ({})", money_text(row.amount_micros, currency), row.memo)
}

/// Warnings and debits of expiring credit.
#[derive(Clone)]
pub struct CreditExpiry {
    context: Context,
}

impl CreditExpiry {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// Takes back expired credit and records the due warnings.
    pub async fn tick_credit(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let [first, last] = WARNING_DAYS.map(|days| now.plus_seconds(days * 86_400));
        let rows = {
            let mut conn = self.context.db.read().await?;
            store::ledger::lots::list_due(&mut conn.tx(), now, (last, first)).await?
        };
        let mut over: BTreeSet<OrgId> = BTreeSet::new();
        for row in rows {
            if row.expires_at <= now {
                over.insert(row.org_id);
            } else {
                self.record_warning(row, now).await?;
            }
        }
        for org in over {
            // A failure of one organization does not delay the others.
            if let Err(error) = self.expire(org, now).await {
                tracing::error!(%error, org = %org, "expired credit could not be taken back; the next look tries again");
            }
        }
        Ok(())
    }

    async fn expire(&self, org: OrgId, now: Timestamp) -> Result<(), StoreError> {
        // Credit for running work can stay for days. This read avoids a write transaction meanwhile.
        let expired = {
            let mut conn = self.context.db.read().await?;
            expired_amounts(&mut conn.tx(), org, now).await?
        };
        if expired.is_empty() {
            return Ok(());
        }
        let context = self.context.clone();
        self.context
            .db
            .write(move |tx| {
                let context = context.clone();
                async move {
                    for (row, amount_micros) in expired_amounts(tx, org, now).await? {
                        let posting = Posting {
                            id: context.new_id(now),
                            org,
                            kind: TransferKind::Debit,
                            amount_micros,
                            pending: None,
                            source: EXPIRY,
                            source_id: row.transfer_id.to_string(),
                            seq: row.expiry_debits + 1,
                            memo: memo(&row, &context.settings.currency),
                            at: now,
                        };
                        store::ledger::lots::take_back(tx, &row, &posting).await?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }

    async fn record_warning(&self, row: StoredExpiringCredit, now: Timestamp) -> Result<(), StoreError> {
        let warnings = warnings_due(row.expires_at, now);
        if warnings <= row.warnings {
            return Ok(());
        }
        let left = money_text(row.left_micros, &self.context.settings.currency);
        let expires_at = row.expires_at;
        let subject = format!("{left} of credit expires on {}", expires_at.minute());
        let detail = format!(
            "{left} of the credit \"{}\" remains. The unused part expires on {}. Money that is reserved for jobs and reservations at that time remains available to them.",
            row.memo,
            expires_at.minute()
        );
        let data = serde_json::json!({
            "grant": row.transfer_id, "left_micros": row.left_micros, "expires_at": expires_at,
        });
        let notice = self.context.notice(row.org_id, "credit.expiring", subject, detail, &data);
        let id = row.transfer_id;
        self.context
            .db
            .write(move |tx| {
                let notice = notice.clone();
                async move {
                    if store::ledger::lots::mark_warned(tx, id, warnings).await? {
                        store::budgets::insert_notice(tx, &notice).await?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }
}
