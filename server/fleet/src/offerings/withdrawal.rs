//! The withdrawal of a price before its begin. The version of the price stays, marked as withdrawn.

use berth_core::admission::MAX_SLUG_BYTES;
use berth_foundation::{Caller, Gate, OperatorAct};
use berth_store as store;
use berth_store::offerings::PriceRow;
use berth_types::change_requests::{ChangeAction, Outcome};
use berth_types::ids::ChangeRequestId;
use berth_types::offerings::Offering;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use super::{Offerings, price_state, stored_price_text};

impl Offerings {
    /// Withdraws a version of an offering's price before its begin. A repetition changes nothing. `approved` is the
    /// change request that the caller approves.
    ///
    /// # Errors
    /// 403 without a fresh proof of identity. 404 for an unknown price. 422 for a price that has begun.
    pub async fn withdraw_price(
        &self,
        caller: &Caller,
        (slug, version): (String, i64),
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Offering>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        self.context.check_proof(caller)?;
        if slug.len() > MAX_SLUG_BYTES {
            return Err(Problem::not_found());
        }
        let gate = Gate::new(&self.context, caller, approved, &version)?;
        let event = self.context.audit_event(caller, "price.withdrawn", slug.clone(), String::new());
        let (context, by) = (self.context.clone(), caller.user.email.clone());
        let done = self.context.db.try_write(move |tx| {
            let (context, slug, by) = (context.clone(), slug.clone(), by.clone());
            let (gate, event) = (gate.clone(), event.clone());
            async move {
                // The time of the write, because the price can begin while the write waits for others.
                let now = context.now();
                let found = store::offerings::find(tx, &slug, now).await?;
                let offering = found.ok_or_else(Problem::not_found)?;
                let found = store::offerings::find_price(tx, offering.id, version).await?;
                let row = found.ok_or_else(Problem::not_found)?;
                if row.withdrawn_at.is_some() {
                    if approved.is_none() {
                        return Ok(Outcome::Done(offering));
                    }
                } else if row.effective_from <= now {
                    return Err(has_begun(&row).into());
                }
                let act = withdrawal_act(&slug, &row, &context.settings.currency);
                if let Some(request) = gate.pass(tx, &act).await? {
                    return Ok(Outcome::Requested(request));
                }
                store::offerings::withdraw_price(tx, offering.id, version, now, &by).await?;
                let before = price_state(row.price, Some(row.effective_from));
                let event = AuditEvent { detail: act.detail, ..event }.with_change(Some(before), None);
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(Outcome::Done(offering))
            }
            .boxed()
        });
        Ok(match done.await? {
            Outcome::Requested(request) => Outcome::Requested(request),
            Outcome::Done(offering) => Outcome::Done(self.offering(offering)),
        })
    }
}

fn has_begun(row: &PriceRow) -> Problem {
    let detail = format!(
        "Version {} began at {}, so it is final. Nothing was changed. Set another price instead.",
        row.price.version,
        row.effective_from.minute()
    );
    Problem::invalid_field("/version", detail)
}

/// A withdrawal as an act of an operator. The text changes with another withdrawal of the price, so that an approval
/// after it is refused.
fn withdrawal_act(slug: &str, row: &PriceRow, currency: &str) -> OperatorAct {
    let withdrawn = if row.withdrawn_at.is_some() { "; withdrawn already" } else { "" };
    OperatorAct {
        action: ChangeAction::WithdrawPrice,
        org: None,
        target: slug.to_owned(),
        amount_micros: None,
        reason: String::new(),
        detail: format!(
            "version {}: {}; effective from {}{withdrawn}",
            row.price.version,
            stored_price_text(row.price, currency),
            row.effective_from.minute()
        ),
    }
}
