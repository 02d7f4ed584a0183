//! Acts of operators that may need a second operator.
//!
//! A part passes its act through a [`Gate`] in the transaction of the act, after its checks. With the rule on, the gate
//! stores a change request in place of the effect. For an approved change request the gate records the approval in the
//! transaction of the effect, so both are committed together.

use std::sync::Arc;

use berth_store::change_requests::StoredChange;
use berth_store::{self as store, Tx, WriteError};
use berth_types::change_requests::{ChangeAction, ChangeRequest, ChangeState};
use berth_types::ids::{ChangeRequestId, OrgId, UserId};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::callers::{Caller, IdempotencyKey};
use crate::context::Context;
use crate::idempotency;

/// Seconds for which a change request waits for a second operator.
const WAIT_S: i64 = 24 * 3_600;
/// Waiting change requests of the portal, and of one operator: no operator alone takes the places of all others.
const MAX_PENDING: i64 = 100;
const MAX_PENDING_EACH: i64 = 25;
/// Bytes of the text about an act, and of the body of an act.
const MAX_DETAIL_BYTES: usize = 16_384;
const MAX_INPUT_BYTES: usize = 65_536;

/// An act that may need a second operator, with the state on which it is based.
#[derive(Debug, Clone)]
pub struct OperatorAct {
    pub action: ChangeAction,
    pub org: Option<OrgId>,
    /// The id or the slug of the object of the act.
    pub target: String,
    pub amount_micros: Option<i64>,
    /// The reason of the operator; empty without one.
    pub reason: String,
    /// A text about the whole act. It has the present state of the object, because an approval counts for this
    /// state only.
    pub detail: String,
}

/// The refusal of a decision about a change request that does not wait.
pub fn not_pending(state: ChangeState) -> Problem {
    let detail = format!(
        "The change request is {}. Only a pending one can be decided. Nothing was changed.",
        state.name()
    );
    Problem::conflict("change_request.closed", "Change request closed", detail)
}

/// The refusal of a decision about an operator's own change request.
pub fn own_request() -> Problem {
    Problem::new(
        403,
        "change_request.own",
        "Your own change request",
        "Another operator decides about your change request. Nothing was changed. You can withdraw the request.",
    )
}

/// The states before and after a decision, as JSON text.
pub fn decision_states(request: &ChangeRequest, state: ChangeState) -> (Option<String>, Option<String>) {
    let text = |state: ChangeState| {
        let all = json!({
            "state": state,
            "action": request.action,
            "target": request.target,
            "amount_micros": request.amount_micros,
            "requested_by": request.requested_by,
        });
        Some(all.to_string())
    };
    (text(ChangeState::Pending), text(state))
}

/// The way of one request of an operator into the transaction of its act.
#[derive(Debug, Clone)]
pub struct Gate {
    /// The id of a new change request.
    id: ChangeRequestId,
    user: UserId,
    /// The change request that the operator approves; absent for an act of the operator alone.
    approved: Option<ChangeRequestId>,
    key: Option<IdempotencyKey>,
    input: Arc<str>,
    event: AuditEvent,
}

impl Gate {
    /// The gate of an act. `input` is the body of the act, from which an approval repeats it. `approved` is the change
    /// request that the caller approves.
    ///
    /// # Errors
    /// The body cannot be written as JSON.
    pub fn new(
        context: &Context,
        caller: &Caller,
        approved: Option<ChangeRequestId>,
        input: &impl Serialize,
    ) -> Result<Self, Problem> {
        let input = serde_json::to_string(input).map_err(|_| Problem::internal())?;
        let id: ChangeRequestId = context.new_id(context.now());
        let action = if approved.is_some() { "change_request.approved" } else { "change_request.created" };
        let subject = approved.unwrap_or(id).to_string();
        Ok(Self {
            id,
            user: caller.user.id,
            approved,
            key: caller.idempotency_key.clone(),
            input: input.into(),
            event: context.audit_event(caller, action, subject, String::new()),
        })
    }

    /// The change request of an earlier request with the same idempotency key, if its answer was lost.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn find_requested(
        context: &Context,
        caller: &Caller,
    ) -> Result<Option<Box<ChangeRequest>>, Problem> {
        let created = caller.already_created().and_then(|id| id.parse::<ChangeRequestId>().ok());
        let Some(id) = created else { return Ok(None) };
        let mut conn = context.db.read().await?;
        Ok(store::change_requests::find(&mut conn.tx(), id, context.now()).await?.map(Box::new))
    }

    /// Passes an act in its own transaction, after its checks. `None`: the act takes effect now. Otherwise the returned
    /// change request is stored, and the transaction must change nothing else.
    ///
    /// # Errors
    /// 403 for the requester's own change request. 409 if the change request does not wait, if the object changed
    /// since the request, or if too many requests wait. 422 for an act that is too long for a change request.
    pub async fn pass(
        &self,
        tx: &mut Tx<'_>,
        act: &OperatorAct,
    ) -> Result<Option<Box<ChangeRequest>>, WriteError> {
        if let Some(id) = self.approved {
            self.approve(tx, id, act).await?;
            return Ok(None);
        }
        if !store::change_requests::policy(tx).await?.second_operator {
            return Ok(None);
        }
        self.request(tx, act).await.map(|request| Some(Box::new(request)))
    }

    /// The time of the act.
    const fn now(&self) -> Timestamp {
        self.event.at
    }

    async fn approve(
        &self,
        tx: &mut Tx<'_>,
        id: ChangeRequestId,
        act: &OperatorAct,
    ) -> Result<(), WriteError> {
        let found = store::change_requests::find(tx, id, self.now()).await?;
        let request = found.ok_or_else(Problem::not_found)?;
        if request.state != ChangeState::Pending {
            return Err(not_pending(request.state).into());
        }
        if request.requested_by == self.user {
            return Err(own_request().into());
        }
        let role = store::operators::find_enabled_role(tx, request.requested_by).await?;
        if !role.is_some_and(|role| request.action.right().is_granted_to(role)) {
            let detail = "The requester is no operator any more, or the account is disabled. Nothing was changed. Reject the request.";
            return Err(
                Problem::conflict("change_request.changed", "Requester without the right", detail).into()
            );
        }
        if (request.action, &request.target, &request.detail) != (act.action, &act.target, &act.detail) {
            let detail = format!(
                "The object changed after the request. Nothing was changed. Reject the request; the operator can send it again. The act would be now: {}",
                act.detail
            );
            return Err(Problem::conflict("change_request.changed", "Object changed", detail).into());
        }
        let approved = ChangeState::Approved;
        if !store::change_requests::decide(tx, id, approved, (self.user, ""), self.now()).await? {
            return Err(not_pending(request.state).into());
        }
        let (before, after) = decision_states(&request, approved);
        let detail = format!("requested by {}: {}", request.requested_by_name, first_line(&request.detail));
        let event = AuditEvent { detail, ..self.event.clone() }.with_change(before, after);
        store::quotas::insert_audit(tx, None, &event).await?;
        Ok(())
    }

    /// Stores a change request, or returns the waiting one of the same operator for the same act.
    async fn request(&self, tx: &mut Tx<'_>, act: &OperatorAct) -> Result<ChangeRequest, WriteError> {
        let now = self.now();
        if act.detail.len() > MAX_DETAIL_BYTES || self.input.len() > MAX_INPUT_BYTES {
            let detail = "A second operator checks this act, so it has at most 16 KiB of text. Nothing was changed. Send fewer items in one request.";
            return Err(Problem::invalid_field("", detail).into());
        }
        let new = StoredChange {
            id: self.id,
            action: act.action,
            org: act.org,
            target: act.target.clone(),
            amount_micros: act.amount_micros,
            reason: act.reason.clone(),
            detail: act.detail.clone(),
            input: self.input.to_string(),
            requested_by: self.user,
            created_at: now,
            expires_at: now.plus_seconds(WAIT_S),
        };
        if has_same_effect_twice(act.action)
            && let Some(same) = store::change_requests::find_same(tx, &new).await?
        {
            idempotency::claim(tx, self.key.as_ref(), &same.id.to_string(), now).await?;
            return Ok(same);
        }
        let (all, own) = store::change_requests::count_pending(tx, self.user, now).await?;
        if all >= MAX_PENDING || own >= MAX_PENDING_EACH {
            let detail = "The portal has at most 100 pending change requests, and 25 of one operator. Nothing was changed. Withdraw some of them, or wait for their decision.";
            return Err(Problem::conflict("change_request.limit", "Too many change requests", detail).into());
        }
        store::change_requests::insert(tx, &new).await?;
        let found = store::change_requests::find(tx, self.id, now).await?;
        let request = found.ok_or_else(Problem::not_found)?;
        let (after, _) = decision_states(&request, ChangeState::Pending);
        let event =
            AuditEvent { detail: first_line(&act.detail), ..self.event.clone() }.with_change(None, after);
        store::quotas::insert_audit(tx, None, &event).await?;
        idempotency::claim(tx, self.key.as_ref(), &self.id.to_string(), now).await?;
        Ok(request)
    }
}

/// The text of an audit event: the summary of an act. The change request has the whole text.
fn first_line(detail: &str) -> String {
    detail.lines().next().unwrap_or_default().to_owned()
}

/// True for an act with the same effect if it is done twice: a second change request would be a repetition. A second
/// credit or debit of the same amount is another one.
const fn has_same_effect_twice(action: ChangeAction) -> bool {
    match action {
        ChangeAction::AccessJob
        | ChangeAction::AddOperator
        | ChangeAction::AddPromise
        | ChangeAction::ChangeOperator
        | ChangeAction::ChangePromise
        | ChangeAction::EnableOperator
        | ChangeAction::EndPolicy
        | ChangeAction::GrantRequest
        | ChangeAction::PayInvoice
        | ChangeAction::SetCreditLimit
        | ChangeAction::VoidInvoice
        | ChangeAction::WithdrawPrice => true,
        ChangeAction::Debit
        | ChangeAction::GrantCredit
        | ChangeAction::GrantCredits
        | ChangeAction::SetPrice => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_and_debits_of_one_amount_are_different_acts() {
        assert!(!has_same_effect_twice(ChangeAction::GrantCredit));
        assert!(!has_same_effect_twice(ChangeAction::Debit));
        assert!(has_same_effect_twice(ChangeAction::SetCreditLimit));
    }
}
