//! Grants of credit to many organizations in one request.

use std::collections::BTreeSet;

use berth_types::ids::TransferId;
use berth_types::ledger::{Granted, NewCredits, TransferKind};
use berth_types::money::money_text;
use berth_types::problems::Problem;
use futures::FutureExt;

use super::{Ledger, MAX_GRANT_MICROS};
use berth_foundation::{Caller, idempotency};
use berth_store::{self as store, ledger::Posting};

const MAX_GRANTS: usize = 10_000;

impl Ledger {
    /// Grants credit to many organizations, as an operator. One invalid grant refuses all of them.
    pub async fn grant_credits(&self, caller: &Caller, input: NewCredits) -> Result<Granted, Problem> {
        self.context.authorise_operator(caller)?;
        if input.grants.is_empty() || input.grants.len() > MAX_GRANTS {
            return Err(Problem::invalid_field("/grants", "Send 1 to 10,000 grants."));
        }
        let now = self.context.now();
        let is_repeat = caller.already_created().is_some();
        let mut total_micros = 0i64;
        let mut postings = Vec::with_capacity(input.grants.len());
        let mut orgs = BTreeSet::new();
        for (n, grant) in input.grants.into_iter().enumerate() {
            let invalid = |field: &str, detail: &str| {
                Err(Problem::invalid_field(&format!("/grants/{n}/{field}"), detail))
            };
            if !(1..=MAX_GRANT_MICROS).contains(&grant.amount_micros) {
                return invalid("amount_micros", "Enter more than 0 and at most 1,000,000,000.");
            }
            if grant.memo.chars().count() > 200 || grant.memo.chars().any(char::is_control) {
                return invalid("memo", "Use at most 200 printable characters.");
            }
            if !orgs.insert(grant.organization) {
                return invalid("organization", "The list has another grant for this organization.");
            }
            // The sum of ten thousand largest grants in micros exceeds an i64.
            let Some(sum) = total_micros.checked_add(grant.amount_micros) else {
                return invalid("amount_micros", "The sum of the grants is too large.");
            };
            total_micros = sum;
            let id: TransferId = self.context.new_id(now);
            let memo = match grant.memo.trim() {
                "" => "Credit from the operator".to_owned(),
                memo => memo.to_owned(),
            };
            postings.push(Posting {
                id,
                org: grant.organization,
                kind: TransferKind::Credit,
                amount_micros: grant.amount_micros,
                pending: None,
                source: "grant",
                source_id: id.to_string(),
                seq: 1,
                memo,
                at: now,
            });
        }
        let currency = self.context.settings.currency.clone();
        let organizations = i64::try_from(postings.len()).unwrap_or(i64::MAX);
        let summary = format!("{} to {organizations} organizations", money_text(total_micros, &currency));
        if is_repeat {
            return Ok(Granted { organizations, total_micros, currency });
        }
        let key = caller.idempotency_key.clone();
        let event = self.context.audit_event(caller, "credit.granted", "organizations".to_owned(), summary);
        self.context
            .db
            .write_alone(move |tx| {
                let (postings, event, key) = (postings.clone(), event.clone(), key.clone());
                async move {
                    let known: BTreeSet<_> =
                        store::accounts::list_orgs(tx).await?.into_iter().map(|org| org.id).collect();
                    if let Some(n) = postings.iter().position(|p| !known.contains(&p.org)) {
                        let pointer = format!("/grants/{n}/organization");
                        let detail = "This organization does not exist. No credit was granted.";
                        return Ok(Err(Problem::invalid_field(&pointer, detail)));
                    }
                    idempotency::claim(tx, key.as_ref(), "", now).await?;
                    store::ledger::post_credits(tx, &postings).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(Ok(()))
                }
                .boxed()
            })
            .await??;
        Ok(Granted { organizations, total_micros, currency })
    }
}
