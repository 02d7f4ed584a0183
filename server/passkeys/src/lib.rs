//! Passkeys (WebAuthn): the options for browsers, the open ceremonies, and the verification of the answers.
//!
//! The library has the protocol. Challenges come from its generator, seeded by the operating system, because it
//! accepts no other one. This crate does no IO and must not know a session.

mod ceremonies;
mod relying_party;

pub use ceremonies::{CEREMONY_S, Ceremonies};
pub use relying_party::{
    Begun, Credential, CredentialState, Registration, RegistrationState, RelyingParty, SignIn, SignInState,
};

/// An answer of a browser that is refused, with the detail for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PasskeyError(String);

impl PasskeyError {
    fn new(detail: impl ToString) -> Self {
        Self(detail.to_string())
    }
}
