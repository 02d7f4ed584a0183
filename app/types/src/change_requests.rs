//! Types of change requests: acts of operators that wait for a second operator.

use serde::{Deserialize, Serialize};

use crate::ids::{ChangeRequestId, OrgId, UserId};
use crate::operators::OperatorRight;
use crate::time::Timestamp;

/// The rule for acts of operators that move money, open a job of an organization or give a right of operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangePolicy {
    /// True if these acts wait for the approval of a second operator.
    pub second_operator: bool,
}

/// The act of a change request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeAction {
    /// Access to a running job of an organization by terminals and ports, for one hour.
    AccessJob,
    /// A new operator.
    AddOperator,
    /// A promise for services.
    AddPromise,
    /// A role with further rights for an operator.
    ChangeOperator,
    /// Other terms of a promise for services.
    ChangePromise,
    /// A debit of an organization.
    Debit,
    /// The enabling of a disabled account of an operator.
    EnableOperator,
    /// The end of the rule for a second operator.
    EndPolicy,
    /// A credit for one organization.
    GrantCredit,
    /// Credits for several organizations.
    GrantCredits,
    /// The credit of a quota request.
    GrantRequest,
    /// The payment of an invoice, with its credit.
    PayInvoice,
    /// A credit limit of an organization.
    SetCreditLimit,
    /// A price of an offering.
    SetPrice,
    /// The credit note that voids an invoice.
    VoidInvoice,
    /// The withdrawal of a price that has not begun.
    WithdrawPrice,
}

impl ChangeAction {
    pub const ALL: [Self; 16] = [
        Self::AccessJob,
        Self::AddOperator,
        Self::AddPromise,
        Self::ChangeOperator,
        Self::ChangePromise,
        Self::Debit,
        Self::EnableOperator,
        Self::EndPolicy,
        Self::GrantCredit,
        Self::GrantCredits,
        Self::GrantRequest,
        Self::PayInvoice,
        Self::SetCreditLimit,
        Self::SetPrice,
        Self::VoidInvoice,
        Self::WithdrawPrice,
    ];

    /// The right that the requester and the deciding operator need. The act itself may need more.
    pub const fn right(self) -> OperatorRight {
        match self {
            Self::AccessJob => OperatorRight::EnterJobs,
            Self::AddOperator | Self::ChangeOperator | Self::EnableOperator | Self::EndPolicy => {
                OperatorRight::ManagePortal
            }
            // Promises give credit. Requests for credit are money; all roles with this right decide requests too.
            Self::AddPromise
            | Self::ChangePromise
            | Self::Debit
            | Self::GrantCredit
            | Self::GrantCredits
            | Self::GrantRequest
            | Self::PayInvoice
            | Self::SetCreditLimit
            | Self::SetPrice
            | Self::VoidInvoice
            | Self::WithdrawPrice => OperatorRight::ManageMoney,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::AccessJob => "access_job",
            Self::AddOperator => "add_operator",
            Self::AddPromise => "add_promise",
            Self::ChangeOperator => "change_operator",
            Self::ChangePromise => "change_promise",
            Self::Debit => "debit",
            Self::EnableOperator => "enable_operator",
            Self::EndPolicy => "end_policy",
            Self::GrantCredit => "grant_credit",
            Self::GrantCredits => "grant_credits",
            Self::GrantRequest => "grant_request",
            Self::PayInvoice => "pay_invoice",
            Self::SetCreditLimit => "set_credit_limit",
            Self::SetPrice => "set_price",
            Self::VoidInvoice => "void_invoice",
            Self::WithdrawPrice => "withdraw_price",
        }
    }

    /// Returns the name of the act for people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::AccessJob => "Access to a job",
            Self::AddOperator => "New operator",
            Self::AddPromise => "New promise",
            Self::ChangeOperator => "Role of an operator",
            Self::ChangePromise => "Terms of a promise",
            Self::Debit => "Debit",
            Self::EnableOperator => "Account of an operator",
            Self::EndPolicy => "End of the second operator",
            Self::GrantCredit => "Credit",
            Self::GrantCredits => "Credit for several organizations",
            Self::GrantRequest => "Credit for a request",
            Self::PayInvoice => "Payment of an invoice",
            Self::SetCreditLimit => "Credit limit",
            Self::SetPrice => "Price",
            Self::VoidInvoice => "Void invoice",
            Self::WithdrawPrice => "Withdrawal of a price",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// The state of a change request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeState {
    /// It waits for a second operator.
    Pending,
    /// A second operator approved it, and the act took effect.
    Approved,
    /// A second operator rejected it.
    Rejected,
    /// Its requester withdrew it.
    Withdrawn,
    /// Nobody decided it within 24 hours.
    Expired,
}

impl ChangeState {
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Approved, Self::Rejected, Self::Withdrawn, Self::Expired];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Withdrawn => "withdrawn",
            Self::Expired => "expired",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// An act of an operator that waits for a second operator, or waited for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangeRequest {
    /// The id of the change request.
    pub id: ChangeRequestId,
    /// The act.
    pub action: ChangeAction,
    /// The state of the change request.
    pub state: ChangeState,
    /// The organization of the act; absent for an act about several organizations or about none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization: Option<OrgId>,
    /// The name of the organization; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_name: Option<String>,
    /// The id or the slug of the object of the act: an organization, an offering, an invoice, a quota request, a job or
    /// a user.
    pub target: String,
    /// The amount of the act in micro-units of the currency; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_micros: Option<i64>,
    /// The reason that the requester gave; empty without one.
    pub reason: String,
    /// A text about the whole act, with the state at the time of the request.
    pub detail: String,
    /// The id of the requesting operator.
    pub requested_by: UserId,
    /// The name of the requesting operator.
    pub requested_by_name: String,
    /// The time of the request.
    pub created_at: Timestamp,
    /// The end of the wait. Later nobody can approve the act.
    pub expires_at: Timestamp,
    /// The id of the deciding operator: the requester for a withdrawal. Absent without a decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<UserId>,
    /// The name of the deciding operator; absent without a decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by_name: Option<String>,
    /// The time of the decision; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Timestamp>,
    /// The reason of a rejection; empty otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub decision_reason: String,
    /// The end of an approved access to a job; absent for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_until: Option<Timestamp>,
}

/// The body of a rejection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RejectChange {
    /// The reason for the requester: 1 to 500 characters with the white space around them, and printable without it.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 500), regex(pattern = crate::patterns::NOT_BLANK))
    )]
    pub reason: String,
}

/// The result of an act that may need a second operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Outcome<T> {
    /// The act waits for a second operator. Nothing was changed.
    Requested(Box<ChangeRequest>),
    /// The act took effect.
    Done(T),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::CreditLimit;
    use crate::operators::OperatorRole;

    #[test]
    fn names_are_parsed() {
        for action in ChangeAction::ALL {
            assert_eq!(ChangeAction::parse(action.name()), Some(action));
            assert_eq!(serde_json::to_value(action).unwrap(), action.name());
        }
        for state in ChangeState::ALL {
            assert_eq!(ChangeState::parse(state.name()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
    }

    #[test]
    fn the_roles_of_an_act_may_also_do_it_alone() {
        let roles = ChangeAction::GrantRequest.right().roles_text();
        assert_eq!(roles, "owner or billing");
        for role in OperatorRole::ALL {
            let decides = OperatorRight::DecideRequests.is_granted_to(role);
            assert!(decides || !ChangeAction::GrantRequest.right().is_granted_to(role), "{role:?}");
        }
    }

    #[test]
    fn an_answer_is_the_object_or_its_change_request() {
        let request = serde_json::json!({
            "id": "chg_00000000000000000000000001", "action": "set_credit_limit", "state": "pending",
            "target": "org_00000000000000000000000001", "reason": "", "detail": "from none to $5.00",
            "requested_by": "user_00000000000000000000000001", "requested_by_name": "Ada",
            "created_at": "2026-03-01T09:00:00Z", "expires_at": "2026-03-02T09:00:00Z",
        });
        let found: Outcome<CreditLimit> = serde_json::from_value(request).unwrap();
        assert!(matches!(found, Outcome::Requested(request) if request.state == ChangeState::Pending));
        let done = serde_json::json!({ "credit_limit_micros": 5 });
        let found: Outcome<CreditLimit> = serde_json::from_value(done).unwrap();
        assert_eq!(found, Outcome::Done(CreditLimit { credit_limit_micros: 5 }));
    }
}
