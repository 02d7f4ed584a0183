//! Requests for credit: their limits, and the credit of a grant.

use std::cmp::Ordering;

use berth_core::admission::amount_text;
use berth_foundation::{Context, OperatorAct, unverified};
use berth_store::ledger::Posting;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::change_requests::ChangeAction;
use berth_types::ids::TransferId;
use berth_types::ledger::TransferKind;
use berth_types::money::money_text;
use berth_types::problems::FieldError;
use berth_types::quotas::{AuditEvent, DecideQuotaRequest, Limits, QuotaRequest};

/// The largest amount of one request: a billion units of the currency.
const MAX_CREDIT_MICROS: i64 = 1_000_000_000_000_000;

/// Adds the error of an invalid amount.
pub(super) fn check(credit_micros: Option<i64>, currency: &str, errors: &mut Vec<FieldError>) {
    if credit_micros.is_some_and(|micros| !(1..=MAX_CREDIT_MICROS).contains(&micros)) {
        errors.push(FieldError::new("/credit_micros", amount_text(1, MAX_CREDIT_MICROS, currency)));
    }
}

/// Checks that an organization that requests credit has an owner with a verified e-mail address.
///
/// # Errors
/// 403 without such an owner.
pub(super) async fn check_owner(tx: &mut Tx<'_>, request: &QuotaRequest) -> Result<(), WriteError> {
    if request.credit_micros.is_some() && !store::people::has_verified_owner(tx, request.org).await? {
        return Err(unverified().into());
    }
    Ok(())
}

/// The text of a new request for the audit event.
pub(super) fn request_text(request: &QuotaRequest, currency: &str) -> String {
    match request.credit_micros {
        Some(micros) => format!("{} of credit: {}", money_text(micros, currency), request.reason),
        None => request.reason.clone(),
    }
}

/// The grant of a request for credit as an act of an operator.
pub(super) fn grant_act(
    context: &Context,
    request: &QuotaRequest,
    input: &DecideQuotaRequest,
    micros: i64,
) -> OperatorAct {
    let granted = money_text(micros, &context.settings.currency);
    let limits = input.limits.as_ref().unwrap_or(&request.limits);
    let limits = if *limits == Limits::default() {
        String::new()
    } else {
        format!(", with the limits {}", serde_json::to_string(limits).unwrap_or_default())
    };
    OperatorAct {
        action: ChangeAction::GrantRequest,
        org: Some(request.org),
        target: request.id.to_string(),
        amount_micros: Some(micros),
        reason: input.note.trim().to_owned(),
        // The text of the organization stays on its line, so that it does not look like a line of the act.
        detail: format!(
            "{granted} of credit{limits}, for the request: {}",
            request_text(request, &context.settings.currency).replace(char::is_control, " ")
        ),
    }
}

/// The text of the ledger for a grant.
fn memo(micros: i64, asked: i64) -> &'static str {
    match micros.cmp(&asked) {
        Ordering::Less => "Part of the requested credit",
        Ordering::Equal => "Credit as requested",
        Ordering::Greater => "More than the requested credit",
    }
}

/// Posts the credit of a granted request, with an audit event of the operator in `decision`. The ledger accepts
/// one credit for each request.
pub(super) async fn grant(
    tx: &mut Tx<'_>,
    context: &Context,
    request: &QuotaRequest,
    micros: i64,
    decision: &AuditEvent,
) -> Result<(), StoreError> {
    let id: TransferId = context.new_id(decision.at);
    let org = request.org;
    let posting = Posting {
        id,
        org,
        kind: TransferKind::Credit,
        amount_micros: micros,
        pending: None,
        source: "grant",
        source_id: request.id.to_string(),
        seq: 1,
        memo: memo(micros, request.credit_micros.unwrap_or(micros)).to_owned(),
        at: decision.at,
    };
    store::ledger::post(tx, &posting).await?;
    let event = AuditEvent {
        id: context.new_id(decision.at),
        action: "credit.granted".to_owned(),
        subject: org.to_string(),
        detail: format!("{}: {}", money_text(micros, &context.settings.currency), posting.memo),
        ..decision.clone()
    };
    store::quotas::insert_audit(tx, Some(org), &event).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_tells_a_part_from_the_whole() {
        let memos = [2, 3, 4].map(|micros| memo(micros, 3));
        let wanted =
            ["Part of the requested credit", "Credit as requested", "More than the requested credit"];
        assert_eq!(memos, wanted);
    }

    #[test]
    fn an_amount_is_positive_and_at_most_a_billion() {
        let refused = |micros: Option<i64>| {
            let mut errors = Vec::new();
            check(micros, "USD", &mut errors);
            let text = "Enter $0.000001 to $1,000,000,000.00.";
            assert!(errors.iter().all(|error| error.detail == text), "{errors:?}");
            !errors.is_empty()
        };
        for (micros, expected) in [
            (None, false),
            (Some(1), false),
            (Some(MAX_CREDIT_MICROS), false),
            (Some(0), true),
            (Some(-1), true),
            (Some(MAX_CREDIT_MICROS + 1), true),
        ] {
            assert_eq!(refused(micros), expected, "{micros:?}");
        }
    }
}
