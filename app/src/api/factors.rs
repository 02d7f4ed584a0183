//! Second factors of the user, proofs of identity, and the rule of an organization.

use std::future::Future;

use berth_types::factors::{
    ConfirmTotp, NewProof, RecoveryCodes, SecondFactors, SignInPolicy, TotpEnrolment,
};
use berth_types::ids::OrgId;

use super::{Answer, get, send};

/// Gets the second factors of the user.
pub fn list() -> impl Future<Output = Answer<SecondFactors>> + Send + 'static {
    get("/me/factors")
}

/// Begins the enrolment of an authenticator app; only the answer has its secret.
pub fn enrol() -> impl Future<Output = Answer<TotpEnrolment>> + Send + 'static {
    send("POST", "/me/totp", &(), None)
}

/// Confirms the authenticator app by a code.
pub fn confirm(code: String) -> impl Future<Output = Answer<RecoveryCodes>> + Send + 'static {
    let body = ConfirmTotp { code };
    async move { send("POST", "/me/totp/confirm", &body, None).await }
}

/// Removes the authenticator app and the recovery codes.
pub fn remove() -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", "/me/totp", &(), None)
}

/// Replaces the recovery codes; only the answer has them.
pub fn renew_codes() -> impl Future<Output = Answer<RecoveryCodes>> + Send + 'static {
    send("POST", "/me/recovery-codes", &(), None)
}

/// Proves the identity of the user for 15 minutes.
pub fn prove(proof: &NewProof) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("POST", "/me/proof", proof, None)
}

/// Gets the rule of an organization for the sign-in of its members.
pub fn policy(org: OrgId) -> impl Future<Output = Answer<SignInPolicy>> + Send + 'static {
    get(format!("/orgs/{org}/sign-in-policy"))
}

/// Sets the rule of an organization for the sign-in of its members.
pub fn put_policy(
    org: OrgId,
    policy: &SignInPolicy,
) -> impl Future<Output = Answer<SignInPolicy>> + Send + 'static {
    send("PUT", format!("/orgs/{org}/sign-in-policy"), policy, None)
}
