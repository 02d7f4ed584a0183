//! The change of the rule for automatic charges of the saved card.

use berth_types::ids::OrgId;
use berth_types::money::money_text;
use berth_types::payments::{AutoRecharge, PaymentSettings};
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use super::{MAX_UNITS, Payments};
use berth_foundation::{Caller, Context, Right};
use berth_store as store;
use berth_store::payments::StoredProfile;

const fn rule_of(profile: &StoredProfile) -> AutoRecharge {
    AutoRecharge {
        below_micros: profile.below_micros,
        amount_micros: profile.amount_micros,
        most_a_day: profile.most_a_day,
    }
}

/// A rule as JSON text for the audit log.
fn rule_text(rule: &AutoRecharge) -> Result<String, Problem> {
    serde_json::to_string(rule).map_err(|_| Problem::internal())
}

/// Refuses a rule whose charges of a day leave the available money below the threshold: all of them would come at once,
/// day after day, and the threshold would decide nothing. A smaller amount than the threshold fits an organization that
/// has about as much as the threshold and uses less than the charges of a day.
async fn check_reach(context: &Context, org: OrgId, rule: AutoRecharge) -> Result<(), Problem> {
    let mut conn = context.db.read().await?;
    let available = store::ledger::available(&mut conn.tx(), org).await?;
    drop(conn);
    let a_day = rule.amount_micros.saturating_mul(rule.most_a_day);
    if available.saturating_add(a_day) >= rule.below_micros {
        return Ok(());
    }
    let currency = &context.settings.currency;
    let times = match rule.most_a_day {
        1 => "one charge".to_owned(),
        most => format!("{most} charges"),
    };
    let detail = format!(
        "{} is available, and {times} of {} a day leave it below the threshold of {}, so the charges of each day would come at once. Enter a larger amount or a lower threshold.",
        money_text(available, currency),
        money_text(rule.amount_micros, currency),
        money_text(rule.below_micros, currency)
    );
    Err(Problem::invalid_field("/amount_micros", detail))
}

impl Payments {
    /// The audit event of a new rule.
    fn rule_event(&self, caller: &Caller, org: OrgId, rule: AutoRecharge) -> AuditEvent {
        let currency = &self.context.settings.currency;
        let detail = match rule.amount_micros {
            0 => "Off.".to_owned(),
            amount => format!(
                "{} below {}, at most {} a day.",
                money_text(amount, currency),
                money_text(rule.below_micros, currency),
                rule.most_a_day
            ),
        };
        self.context.audit_event(caller, "auto_recharge.set", org.to_string(), detail)
    }

    /// Sets the rule for automatic charges of the saved card.
    ///
    /// # Errors
    /// No card is saved, a number is out of its range, or the charges of a day do not reach the threshold.
    pub async fn set_auto_recharge(
        &self,
        caller: &Caller,
        org: OrgId,
        rule: AutoRecharge,
    ) -> Result<PaymentSettings, Problem> {
        self.context.authorise(caller, org, Right::Pay).await?;
        self.context.check_proof(caller)?;
        self.require_stripe()?;
        let mut errors = Vec::new();
        let is_on = rule.amount_micros != 0;
        if is_on {
            errors.extend(self.check_amount("/amount_micros", rule.amount_micros));
        }
        if !(0..=MAX_UNITS * 1_000_000).contains(&rule.below_micros) {
            let most = money_text(MAX_UNITS * 1_000_000, &self.context.settings.currency);
            let detail = format!("Enter a threshold from zero to {most}.");
            errors.push(FieldError::new("/below_micros", detail));
        }
        if !(i64::from(is_on)..=24).contains(&rule.most_a_day) {
            errors.push(FieldError::new("/most_a_day", "Enter 1 to 24 a day."));
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        if is_on {
            check_reach(&self.context, org, rule).await?;
        }
        let (event, after) = (self.rule_event(caller, org, rule), rule_text(&rule)?);
        let known = self.context.db.write(move |tx| {
            let (event, after) = (event.clone(), after.clone());
            async move {
                let before = store::payments::find_profile(tx, org).await?;
                let known = store::payments::set_recharge(tx, org, rule).await?;
                if known {
                    let before = before.and_then(|profile| rule_text(&rule_of(&profile)).ok());
                    let event = event.with_change(before, Some(after));
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(known)
            }
            .boxed()
        });
        if !known.await? && rule.amount_micros != 0 {
            let detail = "Add credit by card once and save the card. Then automatic recharge can use it.";
            return Err(Problem::conflict("payments.no_card", "No saved card", detail));
        }
        self.payment_settings(caller, org).await
    }
}
