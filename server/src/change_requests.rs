//! Change requests: the decisions of second operators, and the rule for them.
//!
//! The act of a request takes effect in the part that has it. Its gate (`berth_foundation::second_operator`) records the
//! approval in the same transaction.

pub mod routes;

use std::str::FromStr;

use berth_access::operator_access;
use berth_foundation::second_operator::{decision_states, not_pending, own_request};
use berth_foundation::{Caller, Context, Gate, OperatorAct, Refusal, record_refusal};
use berth_store as store;
use berth_store::change_requests::Readable;
use berth_types::Page;
use berth_types::change_requests::{
    ChangeAction, ChangePolicy, ChangeRequest, ChangeState, Outcome, RejectChange,
};
use berth_types::ids::ChangeRequestId;
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use futures::FutureExt;
use serde::de::DeserializeOwned;

use crate::portal::Portal;

/// The fewest owners of the portal with an enabled account under the rule: its end needs two.
const MIN_OWNERS: i64 = 2;
/// Characters of the reason of a rejection.
const MAX_REASON_CHARS: usize = 500;

/// Requires the session of an operator with this right and a fresh proof. A token of an operator has no second person
/// behind it.
async fn check_person(context: &Context, caller: &Caller, right: OperatorRight) -> Result<(), Problem> {
    context.authorise_operator(caller, right).await?;
    if caller.token.is_some() {
        record_refusal(context, caller, Refusal::Token);
        return Err(Problem::forbidden(
            "A token cannot do this. Sign in as an operator. Nothing was changed.",
        ));
    }
    context.check_person(caller)
}

/// The body of the act of a stored request.
fn parse_input<T: DeserializeOwned>(input: &str) -> Result<T, Problem> {
    serde_json::from_str(input).map_err(|error| {
        tracing::error!(%error, "the body of a change request cannot be read");
        Problem::internal()
    })
}

fn parse_target<T: FromStr>(request: &ChangeRequest) -> Result<T, Problem> {
    request.target.parse().map_err(|_| Problem::internal())
}

/// The change requests that the caller may read: the own ones and those that the role decides. A role
/// that reads the audit log reads all.
fn readable(caller: &Caller) -> Readable {
    let reads_all = caller.has_operator_right(OperatorRight::Inspect);
    let reads = |action: &ChangeAction| reads_all || caller.has_operator_right(action.right());
    Readable { actions: ChangeAction::ALL.into_iter().filter(reads).collect(), user: caller.user.id }
}

pub async fn list(
    context: &Context,
    caller: &Caller,
    pending: bool,
    options: &ListOptions<ChangeRequestId>,
) -> Result<Page<ChangeRequest>, Problem> {
    context.authorise_operator(caller, OperatorRight::View).await?;
    let mut conn = context.db.read().await?;
    let (readable, now) = (readable(caller), context.now());
    let rows = store::change_requests::list(&mut conn.tx(), &readable, pending, options, now).await?;
    Ok(options.page(rows, |request| request.id))
}

/// The number of change requests that wait for a second operator and that the caller may read.
///
/// # Errors
/// The database cannot be read.
pub async fn count_pending(context: &Context, caller: &Caller) -> Result<u64, Problem> {
    let mut conn = context.db.read().await?;
    let (readable, now) = (readable(caller), context.now());
    let pending = store::change_requests::count_readable_pending(&mut conn.tx(), &readable, now).await?;
    Ok(u64::try_from(pending).unwrap_or(0))
}

pub async fn get(context: &Context, caller: &Caller, id: ChangeRequestId) -> Result<ChangeRequest, Problem> {
    context.authorise_operator(caller, OperatorRight::View).await?;
    let mut conn = context.db.read().await?;
    let found = store::change_requests::find(&mut conn.tx(), id, context.now()).await?;
    found.filter(|request| readable(caller).includes(request)).ok_or_else(Problem::not_found)
}

/// Approves a change request: its act takes effect with all checks of the present time.
///
/// # Errors
/// 403 for tokens, for the requester, and without a fresh proof. 409 if the request does not wait, or if the object
/// changed after the request. The refusals of the act.
pub async fn approve(
    portal: &Portal,
    caller: &Caller,
    id: ChangeRequestId,
) -> Result<ChangeRequest, Problem> {
    let request = get(&portal.context, caller, id).await?;
    check_person(&portal.context, caller, request.action.right()).await?;
    // A repetition after a lost answer.
    if request.state == ChangeState::Approved && request.decided_by == Some(caller.user.id) {
        return Ok(request);
    }
    if request.requested_by == caller.user.id {
        record_refusal(&portal.context, caller, Refusal::OwnRequest);
        return Err(own_request());
    }
    if request.state != ChangeState::Pending {
        return Err(not_pending(request.state));
    }
    let mut conn = portal.context.db.read().await?;
    let input = store::change_requests::find_input(&mut conn.tx(), id).await?;
    drop(conn);
    let input = input.ok_or_else(Problem::not_found)?;
    take_effect(portal, caller, &request, &input).await?;
    get(&portal.context, caller, id).await
}

/// The act of a request, by the part that has it.
async fn take_effect(
    portal: &Portal,
    caller: &Caller,
    request: &ChangeRequest,
    input: &str,
) -> Result<(), Problem> {
    let approved = Some(request.id);
    let org = || request.organization.ok_or_else(Problem::internal);
    match request.action {
        ChangeAction::AccessJob => {
            let access = parse_input(input)?;
            operator_access::approve(&portal.context, caller, access, request).await
        }
        ChangeAction::AddOperator => {
            portal.operators.add(caller, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::AddPromise => {
            portal.services.promises.create_promise(caller, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::ChangePromise => {
            let id = parse_target(request)?;
            portal.services.promises.change_promise(caller, id, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::ChangeOperator => {
            let user = parse_target(request)?;
            portal.operators.change(caller, user, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::EnableOperator => {
            portal.users.enable(caller, parse_target(request)?, approved).await.map(drop)
        }
        ChangeAction::Debit => {
            portal.ledger.debit(caller, org()?, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::EndPolicy => {
            set_policy(&portal.context, caller, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::GrantCredit => {
            portal.ledger.grant_credit(caller, org()?, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::GrantCredits => {
            portal.ledger.grant_credits(caller, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::GrantRequest => {
            let id = parse_target(request)?;
            portal.quotas.decide_quota_request(caller, id, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::PayInvoice => {
            portal.invoices.pay_invoice(caller, parse_target(request)?, approved).await.map(drop)
        }
        ChangeAction::SetCreditLimit => {
            portal.ledger.set_credit_limit(caller, org()?, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::SetPrice => {
            portal.offerings.set_price(caller, parse_input(input)?, approved).await.map(drop)
        }
        ChangeAction::VoidInvoice => {
            portal.invoices.void_invoice(caller, parse_target(request)?, approved).await.map(drop)
        }
        ChangeAction::WithdrawPrice => {
            let price = (request.target.clone(), parse_input(input)?);
            portal.offerings.withdraw_price(caller, price, approved).await.map(drop)
        }
    }
}

/// Rejects a change request of another operator.
///
/// # Errors
/// 403 for tokens, for the requester, and without a fresh proof. 409 if the request does not wait. 422 for an invalid
/// reason.
pub async fn reject(
    context: &Context,
    caller: &Caller,
    id: ChangeRequestId,
    input: RejectChange,
) -> Result<ChangeRequest, Problem> {
    let request = get(context, caller, id).await?;
    check_person(context, caller, request.action.right()).await?;
    let reason = input.reason.trim();
    let is_long = input.reason.chars().count() > MAX_REASON_CHARS;
    if reason.is_empty() || is_long || reason.chars().any(char::is_control) {
        let detail = "Enter a reason of at most 500 printable characters. The requester reads it.";
        return Err(Problem::invalid_field("/reason", detail));
    }
    if request.requested_by == caller.user.id {
        record_refusal(context, caller, Refusal::OwnRequest);
        return Err(own_request());
    }
    close(context, caller, id, (ChangeState::Rejected, reason)).await
}

/// Withdraws an own change request.
///
/// # Errors
/// 403 for all but the requester. 409 if the request does not wait.
pub async fn withdraw(
    context: &Context,
    caller: &Caller,
    id: ChangeRequestId,
) -> Result<ChangeRequest, Problem> {
    if get(context, caller, id).await?.requested_by != caller.user.id {
        let detail = "Only its requester withdraws a change request. Nothing was changed. You can reject it.";
        return Err(Problem::forbidden(detail));
    }
    close(context, caller, id, (ChangeState::Withdrawn, "")).await
}

/// Closes a waiting request without its act. A repetition by the same operator is no error.
async fn close(
    context: &Context,
    caller: &Caller,
    id: ChangeRequestId,
    (state, reason): (ChangeState, &str),
) -> Result<ChangeRequest, Problem> {
    let action =
        if state == ChangeState::Rejected { "change_request.rejected" } else { "change_request.withdrawn" };
    let event = context.audit_event(caller, action, id.to_string(), reason.to_owned());
    let (by, reason) = (caller.user.id, reason.to_owned());
    let done = context.db.try_write(move |tx| {
        let (event, reason) = (event.clone(), reason.clone());
        async move {
            let found = store::change_requests::find(tx, id, event.at).await?;
            let request = found.ok_or_else(Problem::not_found)?;
            if request.state == state && request.decided_by == Some(by) {
                return Ok(request);
            }
            if request.state != ChangeState::Pending
                || !store::change_requests::decide(tx, id, state, (by, &reason), event.at).await?
            {
                return Err(not_pending(request.state).into());
            }
            let (before, after) = decision_states(&request, state);
            let at = event.at;
            store::quotas::insert_audit(tx, None, &event.with_change(before, after)).await?;
            let found = store::change_requests::find(tx, id, at).await?;
            Ok(found.ok_or_else(Problem::not_found)?)
        }
        .boxed()
    });
    Ok(done.await?)
}

pub async fn policy(context: &Context, caller: &Caller) -> Result<ChangePolicy, Problem> {
    context.authorise_operator(caller, OperatorRight::View).await?;
    let mut conn = context.db.read().await?;
    Ok(store::change_requests::policy(&mut conn.tx()).await?)
}

/// Sets the rule for a second operator. Its end needs a second operator too. `approved` is the change request that the
/// caller approves.
///
/// # Errors
/// 403 for tokens, for roles without the right, and without a fresh proof. 409 with fewer than two owners.
pub async fn set_policy(
    context: &Context,
    caller: &Caller,
    input: ChangePolicy,
    approved: Option<ChangeRequestId>,
) -> Result<Outcome<ChangePolicy>, Problem> {
    check_person(context, caller, OperatorRight::ManagePortal).await?;
    let gate = Gate::new(context, caller, approved, &input)?;
    let text = if input.second_operator { "second operator required" } else { "no second operator" };
    let event = context.audit_event(caller, "change_policy.set", "portal".to_owned(), text.to_owned());
    let act = OperatorAct {
        action: ChangeAction::EndPolicy,
        org: None,
        target: "portal".to_owned(),
        amount_micros: None,
        reason: String::new(),
        detail: "From now on each operator alone moves money, opens jobs of organizations and adds operators"
            .to_owned(),
    };
    let done = context.db.try_write(move |tx| {
        let (gate, event, act) = (gate.clone(), event.clone(), act.clone());
        async move {
            let before = store::change_requests::policy(tx).await?;
            if before == input && approved.is_none() {
                return Ok(Outcome::Done(input));
            }
            if input.second_operator {
                if store::operators::count_owners(tx).await? < MIN_OWNERS {
                    let detail = "The portal has one owner with an enabled account, and nobody could approve. Nothing was changed. Add a second owner first.";
                    return Err(Problem::conflict("change_policy.operators", "Too few operators", detail).into());
                }
            } else if let Some(request) = gate.pass(tx, &act).await? {
                return Ok(Outcome::Requested(request));
            }
            store::change_requests::set_policy(tx, input).await?;
            let state = |policy: ChangePolicy| serde_json::to_string(&policy).ok();
            let event = event.with_change(state(before), state(input));
            store::quotas::insert_audit(tx, None, &event).await?;
            Ok(Outcome::Done(input))
        }
        .boxed()
    });
    Ok(done.await?)
}
