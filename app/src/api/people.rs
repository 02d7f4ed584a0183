//! People's own accounts, links in mail, and the accounts of all people for operators.

use std::future::Future;

use berth_types::Page;
use berth_types::accounts::User;
use berth_types::change_requests::Outcome;
use berth_types::ids::{SessionId, UserId};
use berth_types::people::{
    BrowserSession, ChangePassword, CompletePasswordReset, CompleteVerification, DeleteAccount, DisableUser,
    EndedSessions, NewPasswordReset, PatchMe, Person, VerifiedEmail,
};

use super::escape::escaped;
use super::{Answer, get, list_all, send};

/// Changes the name of the signed-in person.
pub fn rename(input: &PatchMe) -> impl Future<Output = Answer<User>> + Send + 'static {
    send("PATCH", "/me", input, None)
}

/// Changes the password of the signed-in person.
pub fn change_password(
    input: &ChangePassword,
) -> impl Future<Output = Answer<EndedSessions>> + Send + 'static {
    send("PUT", "/me/password", input, None)
}

/// Lists the sessions of the signed-in person, newest first.
pub fn sessions() -> impl Future<Output = Answer<Page<BrowserSession>>> + Send + 'static {
    list_all("/me/sessions".to_owned())
}

/// Ends a session of the signed-in person.
pub fn end_session(session: SessionId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/me/sessions/{session}"), &(), None)
}

/// Ends all sessions of the signed-in person.
pub fn end_sessions() -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", "/me/sessions", &(), None)
}

/// Mails another link that verifies the address of the signed-in person.
pub fn send_verification() -> impl Future<Output = Answer<()>> + Send + 'static {
    send("POST", "/me/email-verification", &(), None)
}

/// Deletes the account of the signed-in person.
pub fn delete_account(input: &DeleteAccount) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("POST", "/me/deletion", input, None)
}

/// Requests a link for a new password.
pub fn request_reset(input: &NewPasswordReset) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("POST", "/password-resets", input, None)
}

/// Sets a new password by a link.
pub fn complete_reset(
    input: &CompletePasswordReset,
) -> impl Future<Output = Answer<EndedSessions>> + Send + 'static {
    send("POST", "/password-resets/complete", input, None)
}

/// Verifies an e-mail address by a link.
pub fn complete_verification(
    input: &CompleteVerification,
) -> impl Future<Output = Answer<VerifiedEmail>> + Send + 'static {
    send("POST", "/email-verifications/complete", input, None)
}

/// Lists a page of the accounts of all people with a text in their name or address, newest first.
pub fn list(
    text: &str,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Person>>> + Send + 'static + use<> {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/operator/users?limit=50&text={}{cursor}", escaped(text)))
}

/// Disables an account.
pub fn disable(user: UserId, input: &DisableUser) -> impl Future<Output = Answer<Person>> + Send + 'static {
    send("PUT", format!("/operator/users/{user}/disabled"), input, None)
}

/// Removes the second factor of an account.
pub fn remove_factors(user: UserId) -> impl Future<Output = Answer<Person>> + Send + 'static {
    send("DELETE", format!("/operator/users/{user}/factors"), &(), None)
}

/// Enables an account, or requests that of an operator from a second operator.
pub fn enable(user: UserId) -> impl Future<Output = Answer<Outcome<Person>>> + Send + 'static {
    send("DELETE", format!("/operator/users/{user}/disabled"), &(), None)
}
