//! Grants of credit to many organizations in one request.

use std::collections::BTreeSet;

use berth_core::admission::amount_text;
use berth_types::change_requests::{ChangeAction, Outcome};
use berth_types::ids::{ChangeRequestId, TransferId};
use berth_types::ledger::{Granted, NewCredits, TransferKind};
use berth_types::money::money_text;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::{Ledger, MAX_GRANT_MICROS};
use berth_foundation::{Caller, Gate, OperatorAct, idempotency};
use berth_store::{self as store, WriteError, ledger::Posting};

const MAX_GRANTS: usize = 10_000;

/// Each grant in one line.
fn grant_lines(postings: &[Posting], currency: &str) -> String {
    let line =
        |one: &Posting| format!("\n{} to {}: {}", money_text(one.amount_micros, currency), one.org, one.memo);
    postings.iter().map(line).collect()
}

impl Ledger {
    /// Grants credit to many organizations, as an operator. One invalid grant refuses all of them. `approved` is the
    /// change request that the caller approves.
    pub async fn grant_credits(
        &self,
        caller: &Caller,
        input: NewCredits,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Granted>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        let gate = Gate::new(&self.context, caller, approved, &input)?;
        let now = self.context.now();
        let (postings, total_micros) = self.grant_postings(input, now)?;
        let currency = self.context.settings.currency.clone();
        let organizations = i64::try_from(postings.len()).unwrap_or(i64::MAX);
        let granted = Granted { organizations, total_micros, currency: currency.clone() };
        let summary = format!("{} to {organizations} organizations", money_text(total_micros, &currency));
        if caller.already_created().is_some() {
            let requested = Gate::find_requested(&self.context, caller).await?;
            return Ok(requested.map_or(Outcome::Done(granted), Outcome::Requested));
        }
        let key = caller.idempotency_key.clone();
        let event =
            self.context.audit_event(caller, "credit.granted", "organizations".to_owned(), summary.clone());
        let act = OperatorAct {
            action: ChangeAction::GrantCredits,
            org: None,
            target: "organizations".to_owned(),
            amount_micros: Some(total_micros),
            reason: String::new(),
            detail: format!("{summary}{}", grant_lines(&postings, &currency)),
        };
        let requested = self
            .context
            .db
            .write_alone(move |tx| {
                let (postings, event, key) = (postings.clone(), event.clone(), key.clone());
                let (gate, act) = (gate.clone(), act.clone());
                async move {
                    let known: BTreeSet<_> =
                        store::accounts::list_orgs(tx).await?.into_iter().map(|org| org.id).collect();
                    if let Some(n) = postings.iter().position(|p| !known.contains(&p.org)) {
                        let pointer = format!("/grants/{n}/organization");
                        let detail = "This organization does not exist. No credit was granted.";
                        return Ok(Err(Problem::invalid_field(&pointer, detail)));
                    }
                    // A refusal of the gate comes before any change.
                    match gate.pass(tx, &act).await {
                        Ok(None) => {}
                        Ok(Some(request)) => return Ok(Ok(Some(request))),
                        Err(WriteError::Refused(problem)) => return Ok(Err(problem)),
                        Err(WriteError::Store(error)) => return Err(error),
                    }
                    idempotency::claim(tx, key.as_ref(), "", now).await?;
                    store::ledger::post_credits(tx, &postings).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(Ok(None))
                }
                .boxed()
            })
            .await??;
        Ok(requested.map_or(Outcome::Done(granted), Outcome::Requested))
    }

    /// The transfers of checked grants, and the sum of their amounts.
    fn grant_postings(&self, input: NewCredits, now: Timestamp) -> Result<(Vec<Posting>, i64), Problem> {
        if input.grants.is_empty() || input.grants.len() > MAX_GRANTS {
            return Err(Problem::invalid_field("/grants", "Send 1 to 10,000 grants."));
        }
        let mut total_micros = 0i64;
        let mut postings = Vec::with_capacity(input.grants.len());
        let mut orgs = BTreeSet::new();
        for (n, grant) in input.grants.into_iter().enumerate() {
            let invalid = |field: &str, detail: &str| {
                Err(Problem::invalid_field(&format!("/grants/{n}/{field}"), detail))
            };
            if !(1..=MAX_GRANT_MICROS).contains(&grant.amount_micros) {
                let range = amount_text(1, MAX_GRANT_MICROS, &self.context.settings.currency);
                return invalid("amount_micros", &range);
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
        Ok((postings, total_micros))
    }
}
