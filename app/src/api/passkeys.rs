//! Passkeys of the user, and sign-ins and proofs by them.

use std::future::Future;

use berth_types::accounts::User;
use berth_types::ids::PasskeyId;
use berth_types::passkeys::{
    AddedPasskey, NewPasskey, Passkey, PasskeyOptions, PasskeyProof, PasskeySignIn, Passkeys, RenamePasskey,
};

use super::{Answer, get, send};

/// Lists the passkeys of the user.
pub fn list() -> impl Future<Output = Answer<Passkeys>> + Send + 'static {
    get("/me/passkeys")
}

/// Begins the registration of a passkey.
pub fn begin_registration() -> impl Future<Output = Answer<PasskeyOptions>> + Send + 'static {
    send("POST", "/me/passkeys/options", &(), None)
}

/// Adds a passkey.
pub fn register(new: &NewPasskey) -> impl Future<Output = Answer<AddedPasskey>> + Send + 'static {
    send("POST", "/me/passkeys", new, None)
}

/// Renames a passkey.
pub fn rename(
    id: PasskeyId,
    input: &RenamePasskey,
) -> impl Future<Output = Answer<Passkey>> + Send + 'static {
    send("PATCH", format!("/me/passkeys/{id}"), input, None)
}

/// Removes a passkey.
pub fn remove(id: PasskeyId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/me/passkeys/{id}"), &(), None)
}

/// Begins a sign-in or a proof of identity.
pub fn begin_sign_in() -> impl Future<Output = Answer<PasskeyOptions>> + Send + 'static {
    send("POST", "/sessions/passkey/options", &(), None)
}

/// Starts a session; the browser stores its cookie.
pub fn sign_in(input: &PasskeySignIn) -> impl Future<Output = Answer<User>> + Send + 'static {
    send("POST", "/sessions/passkey", input, None)
}

/// Proves the identity of the user for 15 minutes.
pub fn prove(input: &PasskeyProof) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("POST", "/me/proof/passkey", input, None)
}
