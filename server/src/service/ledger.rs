//! Credit, balance and statement.

use berth_types::Page;
use berth_types::accounts::{Org, OrgSummary};
use berth_types::ids::{OrgId, TransferId};
use berth_types::ledger::{Balance, NewCredit, Transfer, TransferKind};
use berth_types::money::per_hour_micros;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::{Caller, Right};
use crate::portal::Portal;
use crate::store::ledger::{Posting, TransferRow};
use crate::store::{self, StoreError};

/// The most that one grant can be: a billion units.
const MAX_GRANT_MICROS: i64 = 1_000_000_000_000_000;

impl Portal {
    /// An operator gives an organization credit.
    pub async fn grant_credit(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewCredit,
    ) -> Result<Balance, Problem> {
        self.authorise_operator(caller)?;
        if !(1..=MAX_GRANT_MICROS).contains(&input.amount_micros) {
            return Err(Problem::invalid_field(
                "/amount_micros",
                "Grant more than zero and at most a billion.",
            ));
        }
        if input.memo.chars().count() > 200 || input.memo.chars().any(char::is_control) {
            return Err(Problem::invalid_field("/memo", "Use at most 200 printable characters."));
        }
        let now = self.now();
        let id: TransferId = self.new_id(now);
        let posting = Posting {
            id,
            org,
            kind: TransferKind::Credit,
            amount_micros: input.amount_micros,
            pending: None,
            source: "grant",
            source_id: id.to_string(),
            seq: 1,
            memo: if input.memo.trim().is_empty() {
                "Credit from the operator".to_owned()
            } else {
                input.memo
            },
            at: now,
        };
        let known = self
            .db
            .write(move |tx| {
                let posting = posting.clone();
                async move {
                    if store::accounts::find_org(tx, org).await?.is_none() {
                        return Ok(false);
                    }
                    store::ledger::post(tx, &posting).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        if known { self.balance_of(org).await } else { Err(Problem::not_found()) }
    }

    pub async fn balance(&self, caller: &Caller, org: OrgId) -> Result<Balance, Problem> {
        self.authorise(caller, org, Right::SeeMoney).await?;
        self.balance_of(org).await
    }

    async fn balance_of(&self, org: OrgId) -> Result<Balance, Problem> {
        let mut conn = self.db.read().await?;
        let mut tx = conn.tx();
        let (posted, held) = store::ledger::balance(&mut tx, org).await?;
        let (accrued, rate) = store::jobs::open_use(&mut tx, org).await?;
        Ok(Balance {
            currency: self.settings.currency.clone(),
            posted_micros: posted,
            held_micros: held,
            accrued_micros: accrued,
            available_micros: posted - held,
            burn_per_hour_micros: per_hour_micros(rate).unwrap_or(i64::MAX),
        })
    }

    /// The statement, newest first.
    pub async fn list_transfers(
        &self,
        caller: &Caller,
        org: OrgId,
        cursor: Option<TransferId>,
        limit: u32,
    ) -> Result<Page<Transfer>, Problem> {
        self.authorise(caller, org, Right::SeeMoney).await?;
        let before = cursor.map_or_else(String::new, |c| c.to_string());
        let mut conn = self.db.read().await?;
        let rows = store::ledger::list(&mut conn.tx(), org, &before, i64::from(limit)).await?;
        let full = rows.len() == limit as usize;
        let items = rows.into_iter().map(|row| self.transfer(row)).collect::<Result<Vec<_>, _>>()?;
        let next_cursor = items.last().filter(|_| full).map(|t| t.id.to_string());
        Ok(Page { items, next_cursor })
    }

    fn transfer(&self, row: TransferRow) -> Result<Transfer, StoreError> {
        let kind = TransferKind::parse(&row.kind).ok_or_else(|| StoreError::Corrupt(row.kind.clone()))?;
        let sign = if matches!(kind, TransferKind::Credit | TransferKind::Release) { 1 } else { -1 };
        Ok(Transfer {
            id: row.id.parse().map_err(|_| StoreError::Corrupt(row.id.clone()))?,
            kind,
            amount_micros: sign * row.amount_micros,
            currency: self.settings.currency.clone(),
            source: row.source,
            source_id: row.source_id,
            memo: row.memo,
            at: Timestamp::from_micros(row.at),
        })
    }

    /// Every organization, for the operator.
    pub async fn list_org_summaries(&self, caller: &Caller) -> Result<Vec<OrgSummary>, Problem> {
        self.authorise_operator(caller)?;
        let mut conn = self.db.read().await?;
        let mut tx = conn.tx();
        let orgs: Vec<Org> = store::accounts::list_orgs(&mut tx).await?;
        let mut out = Vec::with_capacity(orgs.len());
        for org in orgs {
            let (posted_micros, held_micros) = store::ledger::balance(&mut tx, org.id).await?;
            let (members, queued, running) = store::jobs::counts(&mut tx, org.id).await?;
            let currency = self.settings.currency.clone();
            out.push(OrgSummary { org, members, running, queued, posted_micros, held_micros, currency });
        }
        Ok(out)
    }
}
