//! Credit for many organizations in one request.

use std::collections::BTreeSet;

use berth_types::ids::TransferId;
use berth_types::ledger::{Granted, NewCredits, TransferKind};
use berth_types::money::money_text;
use berth_types::problems::Problem;
use futures::FutureExt;

use super::{Ledger, MAX_GRANT_MICROS};
use berth_foundation::{Caller, idempotency};
use berth_store::{self as store, ledger::Posting};

const MOST: usize = 10_000;

impl Ledger {
    /// An operator gives credit to many organizations, or to none when one of the grants is wrong.
    pub async fn grant_credits(&self, caller: &Caller, input: NewCredits) -> Result<Granted, Problem> {
        self.context.authorise_operator(caller)?;
        if input.grants.is_empty() || input.grants.len() > MOST {
            return Err(Problem::invalid_field("/grants", "Send 1 to 10,000 grants."));
        }
        let now = self.context.now();
        let again = caller.done_before().is_some();
        let mut total_micros = 0i64;
        let mut postings = Vec::with_capacity(input.grants.len());
        let mut orgs = BTreeSet::new();
        for (n, grant) in input.grants.into_iter().enumerate() {
            let wrong = |field: &str, detail: &str| {
                Err(Problem::invalid_field(&format!("/grants/{n}/{field}"), detail))
            };
            if !(1..=MAX_GRANT_MICROS).contains(&grant.amount_micros) {
                return wrong("amount_micros", "Grant more than zero and at most a billion.");
            }
            if grant.memo.chars().count() > 200 || grant.memo.chars().any(char::is_control) {
                return wrong("memo", "Use at most 200 printable characters.");
            }
            if !orgs.insert(grant.organization) {
                return wrong("organization", "It is granted credit above already.");
            }
            // Ten thousand of the largest grants are more than an i64 of micros holds.
            let Some(sum) = total_micros.checked_add(grant.amount_micros) else {
                return wrong("amount_micros", "All of it together is beyond what can be counted.");
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
        let what = format!("{} to {organizations} organizations", money_text(total_micros, &currency));
        if again {
            return Ok(Granted { organizations, total_micros, currency });
        }
        let once = caller.once.clone();
        let event = self.context.audit_event(caller, "credit.granted", "organizations".to_owned(), what);
        self.context
            .db
            .write_alone(move |tx| {
                let (postings, event, once) = (postings.clone(), event.clone(), once.clone());
                async move {
                    let known: BTreeSet<_> =
                        store::accounts::list_orgs(tx).await?.into_iter().map(|org| org.id).collect();
                    if let Some(n) = postings.iter().position(|p| !known.contains(&p.org)) {
                        let pointer = format!("/grants/{n}/organization");
                        let detail = "There is no such organization. Nobody was granted anything.";
                        return Ok(Err(Problem::invalid_field(&pointer, detail)));
                    }
                    idempotency::claim(tx, once.as_ref(), "", now).await?;
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
