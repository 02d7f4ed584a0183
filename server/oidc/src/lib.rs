//! OpenID Connect: the messages to providers, and the people and sign-outs in verified tokens.
//!
//! The library has the protocol; the requests go through the transport of the portal. This crate must not know an
//! account.

mod claims;
mod issuers;
mod logout;
mod protocol;

use berth_types::sso::SsoFailure;

pub use claims::{ClaimedPerson, domain_of, role_of_groups};
pub use issuers::is_shared_issuer;
pub use logout::{Logout, find_logout_token, read_logout};
pub use protocol::{Protocol, Provider, RefreshError, SignInValues, Verified, callback_url, check_issuer};

/// A provider that does not answer, or whose answer is refused: the cause for the person, and the detail for the audit
/// log.
#[derive(Debug, PartialEq, Eq)]
pub struct OidcError {
    pub failure: SsoFailure,
    pub detail: String,
}

impl OidcError {
    pub fn new(failure: SsoFailure, detail: impl ToString) -> Self {
        Self { failure, detail: detail.to_string() }
    }
}
