//! The reasons of refusals besides missing rights, for audit events.

use berth_types::scopes::ApiScope;

/// The reason of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The token lacks this scope.
    Scope(ApiScope),
    /// A token acts for its organization and not for its person.
    Token,
    /// The account needs a second factor and has none.
    Factor,
    /// The session has no fresh proof of identity.
    Proof,
    /// Another operator decides about a change request.
    OwnRequest,
}

impl Refusal {
    /// The text of the audit event.
    pub fn detail(self) -> String {
        match self {
            Self::Scope(scope) => format!("The token lacks the scope {}.", scope.name()),
            Self::Token => "Only the session of a person has this right.".to_owned(),
            Self::Factor => "The account needs a second factor and has none.".to_owned(),
            Self::Proof => "The session has no fresh proof of identity.".to_owned(),
            Self::OwnRequest => "Only another operator decides about a change request.".to_owned(),
        }
    }
}
