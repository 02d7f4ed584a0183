//! The posting of many credits in two statements.
//!
//! The rows are bound as JSON (SQLite) or as one array for each column (Postgres), because a statement for
//! each row would cost more than the row. Only credits are posted here. Transfers that can be refused are
//! posted one by one.

use std::collections::BTreeMap;

use berth_types::ledger::TransferKind;

use super::{GRANTS, Posting, org_account};
use crate::{StoreError, Tx};

/// Posts all credits or none.
///
/// # Errors
/// [`StoreError::Corrupt`] if a posting is not a credit, or an organization has no account.
pub async fn post_credits(tx: &mut Tx<'_>, postings: &[Posting]) -> Result<(), StoreError> {
    if let Some(other) = postings.iter().find(|p| p.kind != TransferKind::Credit) {
        return Err(StoreError::Corrupt(format!("{} is no credit", other.id)));
    }
    insert(tx, postings).await?;
    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    let overflow = || StoreError::Corrupt("credits beyond what can be counted".to_owned());
    for posting in postings {
        let sum = sums.entry(org_account(posting.org)).or_default();
        *sum = sum.checked_add(posting.amount_micros).ok_or_else(overflow)?;
    }
    if add(tx, &sums).await? == sums.len() as u64 {
        Ok(())
    } else {
        Err(StoreError::Corrupt("an organization has no account".to_owned()))
    }
}

/// Adds to balances and clears `forced_micros` as far as it is paid. Returns the number of changed accounts.
async fn add(tx: &mut Tx<'_>, sums: &BTreeMap<String, i64>) -> Result<u64, StoreError> {
    macro_rules! update {
        ($from: literal) => {
            concat!(
                "UPDATE accounts SET posted_micros = posted_micros + r.sum, forced_micros = CASE ",
                "WHEN forced_micros = 0 OR posted_micros + r.sum - held_micros + credit_limit_micros >= 0 THEN 0 ",
                "ELSE held_micros - posted_micros - r.sum - credit_limit_micros END FROM ",
                $from,
                " WHERE accounts.id = r.id"
            )
        };
    }
    match tx {
        Tx::Sqlite(c) => {
            let rows: Vec<_> = sums.iter().map(|(id, sum)| serde_json::json!([id, sum])).collect();
            let text = serde_json::to_string(&rows).map_err(|e| StoreError::Corrupt(e.to_string()))?;
            let sql = update!("(SELECT value ->> 0 AS id, value ->> 1 AS sum FROM json_each($1)) AS r");
            execute!(sqlx::query(sql).bind(text), c)
        }
        Tx::Postgres(c) => {
            let query = sqlx::query(update!("UNNEST($1::TEXT[], $2::BIGINT[]) AS r (id, sum)"))
                .bind(sums.keys().cloned().collect::<Vec<_>>())
                .bind(sums.values().copied().collect::<Vec<_>>());
            execute!(query, c)
        }
    }
}

async fn insert(tx: &mut Tx<'_>, postings: &[Posting]) -> Result<(), StoreError> {
    match tx {
        Tx::Sqlite(c) => {
            let rows: Vec<_> = postings
                .iter()
                .map(|p| {
                    let account = org_account(p.org);
                    serde_json::json!([p.id, account, p.amount_micros, p.source, p.source_id, p.seq, p.memo, p.at.micros()])
                })
                .collect();
            let text = serde_json::to_string(&rows).map_err(|e| StoreError::Corrupt(e.to_string()))?;
            let query = sqlx::query(
                "INSERT INTO transfers (id, debit, credit, amount_micros, kind, source, source_id, seq, memo, at) \
                 SELECT value ->> 0, $2, value ->> 1, value ->> 2, 'credit', value ->> 3, value ->> 4, value ->> 5, \
                 value ->> 6, value ->> 7 FROM json_each($1)",
            )
            .bind(text)
            .bind(GRANTS);
            execute!(query, c)
        }
        Tx::Postgres(c) => {
            let texts = |f: fn(&Posting) -> String| postings.iter().map(f).collect::<Vec<_>>();
            let numbers = |f: fn(&Posting) -> i64| postings.iter().map(f).collect::<Vec<_>>();
            let query = sqlx::query(
                "INSERT INTO transfers (id, debit, credit, amount_micros, kind, source, source_id, seq, memo, at) \
                 SELECT r.id, $9, r.credit, r.amount, 'credit', r.source, r.source_id, r.seq, r.memo, r.at FROM \
                 UNNEST($1::TEXT[], $2::TEXT[], $3::BIGINT[], $4::TEXT[], $5::TEXT[], $6::BIGINT[], $7::TEXT[], $8::BIGINT[]) \
                 AS r (id, credit, amount, source, source_id, seq, memo, at)",
            )
            .bind(texts(|p| p.id.to_string()))
            .bind(texts(|p| org_account(p.org)))
            .bind(numbers(|p| p.amount_micros))
            .bind(texts(|p| p.source.to_owned()))
            .bind(texts(|p| p.source_id.clone()))
            .bind(numbers(|p| p.seq))
            .bind(texts(|p| p.memo.clone()))
            .bind(numbers(|p| p.at.micros()))
            .bind(GRANTS);
            execute!(query, c)
        }
    }
    .map(|_| ())
}
