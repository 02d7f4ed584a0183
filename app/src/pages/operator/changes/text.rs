//! The texts about change requests, and their order.

use berth_types::change_requests::{ChangeAction, ChangeRequest, ChangeState};
use berth_types::money::money_text;

/// Returns the organization or the object of an act, with its amount.
pub fn subject_text(request: &ChangeRequest, currency: &str) -> String {
    let name = request.organization_name.as_ref().unwrap_or(&request.target);
    let object = match request.action {
        ChangeAction::AccessJob => format!("{name}, {}", request.target),
        // The text about an operator begins with the address, and that about a promise with its name.
        ChangeAction::AddOperator
        | ChangeAction::AddPromise
        | ChangeAction::ChangeOperator
        | ChangeAction::ChangePromise
        | ChangeAction::EnableOperator => request.detail.split(": ").next().unwrap_or_default().to_owned(),
        _ => name.clone(),
    };
    match request.amount_micros {
        Some(micros) => format!("{object}: {}", money_text(micros, currency)),
        None => object,
    }
}

/// Returns the state of a request with its decision.
pub fn state_text(request: &ChangeRequest) -> String {
    let by = request.decided_by_name.as_deref().unwrap_or_default();
    match request.state {
        ChangeState::Pending => "waiting".to_owned(),
        ChangeState::Approved => format!("approved by {by}"),
        ChangeState::Rejected => format!("rejected by {by}: {}", request.decision_reason),
        ChangeState::Withdrawn => "withdrawn".to_owned(),
        ChangeState::Expired => "expired without a decision".to_owned(),
    }
}

/// Adds fresh requests to a list, newest first. A fresh request replaces the known one, unless its answer is from
/// before the decision.
pub fn merge(known: Vec<ChangeRequest>, fresh: Vec<ChangeRequest>) -> Vec<ChangeRequest> {
    let mut all = known;
    for request in fresh {
        match all.iter_mut().find(|one| one.id == request.id) {
            Some(one) if one.state == ChangeState::Pending || request.state != ChangeState::Pending => {
                *one = request;
            }
            Some(_) => {}
            None => all.push(request),
        }
    }
    all.sort_by_key(|one| std::cmp::Reverse(one.id));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(n: u32, state: &str) -> ChangeRequest {
        serde_json::from_value(serde_json::json!({
            "id": format!("chg_{n:026}"), "action": "debit", "state": state, "amount_micros": 5_000_000,
            "organization_name": "Kelda Lab", "target": "org_00000000000000000000000001",
            "reason": "refund", "detail": "$5.00: refund",
            "requested_by": "user_00000000000000000000000001", "requested_by_name": "Ada",
            "created_at": "2026-03-01T09:00:00Z", "expires_at": "2026-03-02T09:00:00Z",
            "decided_by_name": "Grace", "decision_reason": "no receipt",
        }))
        .unwrap()
    }

    #[test]
    fn a_request_has_one_sentence_for_its_state() {
        assert_eq!(subject_text(&request(1, "pending"), "USD"), "Kelda Lab: $5.00");
        let added = ChangeRequest {
            action: ChangeAction::AddOperator,
            organization_name: None,
            amount_micros: None,
            detail: "grace@example.org: fleet; The night shift: more hands.".to_owned(),
            ..request(1, "pending")
        };
        assert_eq!(subject_text(&added, "USD"), "grace@example.org");
        assert_eq!(state_text(&request(1, "approved")), "approved by Grace");
        assert_eq!(state_text(&request(1, "rejected")), "rejected by Grace: no receipt");
        assert_eq!(state_text(&request(1, "expired")), "expired without a decision");
    }

    #[test]
    fn a_fresh_request_replaces_the_known_one() {
        let all = merge(
            vec![request(2, "pending"), request(1, "pending")],
            vec![request(3, "pending"), request(1, "withdrawn")],
        );
        let states = |all: &[ChangeRequest]| all.iter().map(|one| one.state.name()).collect::<Vec<_>>();
        assert_eq!(states(&all), ["pending", "pending", "withdrawn"]);
        // An answer from before the decision comes late.
        let late = merge(all, vec![request(1, "pending"), request(2, "approved")]);
        assert_eq!(states(&late), ["pending", "approved", "withdrawn"]);
    }
}
