//! What time does to credit that expires: it is told of in time, and what is left of it is taken back.
//!
//! Which lots pay and what is kept for running work is decided in core.

use std::collections::BTreeSet;

use berth_core::expiry::{Lot, WARNING_DAYS, due, warnings_due};
use berth_types::ids::{OrgId, TransferId};
use berth_types::ledger::TransferKind;
use berth_types::money::money_text;
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::Context;
use berth_store::ledger::Posting;
use berth_store::ledger::lots::{EXPIRY, LotRow};
use berth_store::{self as store, StoreError, Tx};

/// What is to be taken back of the lots of an organization.
async fn takings(tx: &mut Tx<'_>, org: OrgId, now: Timestamp) -> Result<Vec<(LotRow, i64)>, StoreError> {
    let rows = store::ledger::lots::live(tx, org).await?;
    let mut lots: Vec<(Lot, i64)> = Vec::with_capacity(rows.len());
    for lot in rows.iter().map(LotRow::lot) {
        let held = if lot.expires_at <= now {
            store::ledger::lots::held_before(tx, org, lot.expires_at).await?
        } else {
            0
        };
        lots.push((lot, held));
    }
    let available = store::ledger::available(tx, org).await?;
    let amounts = due(&lots, available, now);
    Ok(rows.into_iter().zip(amounts).filter(|(_, amount)| *amount > 0).collect())
}

/// Says which credit a row of the statement takes back.
fn memo(row: &LotRow, currency: &str) -> String {
    let day: String = Timestamp::from_micros(row.granted_at).to_string().chars().take(10).collect();
    format!("Expired: {} granted on {day} ({})", money_text(row.amount_micros, currency), row.memo)
}

/// Credit that expires.
#[derive(Clone)]
pub struct CreditExpiry {
    context: Context,
}

impl CreditExpiry {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// Takes back what has expired, and tells of what is going to.
    pub async fn tick_credit(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let [first, last] = WARNING_DAYS.map(|days| now.plus_seconds(days * 86_400));
        let rows = {
            let mut conn = self.context.db.read().await?;
            store::ledger::lots::due(&mut conn.tx(), now, (last, first)).await?
        };
        let mut over: BTreeSet<String> = BTreeSet::new();
        for row in rows {
            if row.expires_at <= now.micros() {
                over.insert(row.org_id);
            } else {
                self.tell_expiry(row, now).await?;
            }
        }
        for id in over {
            let org: OrgId = id.parse().map_err(|_| StoreError::Corrupt(id.clone()))?;
            // One that cannot be looked at now keeps nobody else's credit alive.
            if let Err(error) = self.expire(org, now).await {
                tracing::error!(%error, org = %org, "expired credit could not be taken back; the next look tries again");
            }
        }
        Ok(())
    }

    async fn expire(&self, org: OrgId, now: Timestamp) -> Result<(), StoreError> {
        // What is kept for running work may stand so for days, and costs no write meanwhile.
        let found = {
            let mut conn = self.context.db.read().await?;
            takings(&mut conn.tx(), org, now).await?
        };
        if found.is_empty() {
            return Ok(());
        }
        let context = self.context.clone();
        self.context
            .db
            .write(move |tx| {
                let context = context.clone();
                async move {
                    for (row, amount_micros) in takings(tx, org, now).await? {
                        let posting = Posting {
                            id: context.new_id::<TransferId>(now),
                            org,
                            kind: TransferKind::Debit,
                            amount_micros,
                            pending: None,
                            source: EXPIRY,
                            source_id: row.transfer_id.clone(),
                            seq: row.taken + 1,
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

    async fn tell_expiry(&self, row: LotRow, now: Timestamp) -> Result<(), StoreError> {
        let told = warnings_due(row.lot().expires_at, now);
        if told <= row.told {
            return Ok(());
        }
        let left = money_text(row.left_micros, &self.context.settings.currency);
        let when = row.lot().expires_at;
        let subject = format!("{left} of credit expires on {}", when.minute());
        let detail = format!(
            "{left} is left of the credit \"{}\". What is not used by {} is taken back then; what is set aside for jobs and reservations at that time can still be used by them.",
            row.memo,
            when.minute()
        );
        let data = serde_json::json!({
            "grant": row.transfer_id, "left_micros": row.left_micros, "expires_at": when,
        });
        let notice = self.context.notice(&row.org_id, "credit.expiring", subject, detail, &data);
        let id = row.transfer_id;
        self.context
            .db
            .write(move |tx| {
                let (id, notice) = (id.clone(), notice.clone());
                async move {
                    if store::ledger::lots::tell(tx, &id, told).await? {
                        store::budgets::insert_notice(tx, &notice).await?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }
}
