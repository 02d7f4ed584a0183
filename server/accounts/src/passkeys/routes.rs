//! The passkeys of the caller, and sign-ins and proofs by them.

use super::Passkeys;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, patch_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{NoContent, Response};
use berth_rest::answers::Created;
use berth_rest::authentication::{SignedUnenrolled, session_cookie};
use berth_rest::operations::{answers, doc, empty};
use berth_rest::scopes::ANY;
use berth_rest::{Disconnect, Failed, Json, Path, Sender};
use berth_types::accounts::User;
use berth_types::ids::PasskeyId;
use berth_types::passkeys::{
    AddedPasskey, NewPasskey, Passkey, PasskeyOptions, PasskeyProof, PasskeySignIn, Passkeys as Listed,
    RenamePasskey,
};
use berth_types::scopes::ApiScope;

use crate::accounts::SignInOrigin;
use crate::accounts::routes::{browser, signed_in};
use crate::factors::routes::proved;

pub fn routes() -> ApiRouter<Passkeys> {
    ApiRouter::new()
        .api_route(
            "/sessions/passkey/options",
            post_with(begin_sign_in, doc(ANY, "Begins a sign-in or a proof of identity by a passkey.")),
        )
        .api_route(
            "/sessions/passkey",
            post_with(
                sign_in,
                answers::<201, User>(ANY, "Signs in by a passkey, and sets the session cookie."),
            ),
        )
        .api_route(
            "/me/proof/passkey",
            post_with(
                prove,
                empty::<204>(
                    ApiScope::Admin,
                    "Proves the identity of the caller for 15 minutes by a passkey, and sets another session cookie. The \
                     former cookie ends after 30 seconds.",
                ),
            ),
        )
        .api_route(
            "/me/passkeys/options",
            post_with(begin_registration, doc(ApiScope::Admin, "Begins the registration of a passkey.")),
        )
        .api_route(
            "/me/passkeys",
            get_with(list, doc(ApiScope::Admin, "Lists the passkeys of the caller, at most 20."))
                .post_with(register, doc(ApiScope::Admin, "Adds a passkey.")),
        )
        .api_route(
            "/me/passkeys/{passkey}",
            patch_with(rename, doc(ApiScope::Admin, "Renames a passkey."))
                .delete_with(remove, doc(ApiScope::Admin, "Removes a passkey.")),
        )
}

async fn begin_sign_in(
    State(passkeys): State<Passkeys>,
    Sender(address): Sender,
) -> Result<Answer<PasskeyOptions>, Failed> {
    Ok(Answer(passkeys.begin_sign_in(address)?))
}

async fn sign_in(
    State(passkeys): State<Passkeys>,
    Sender(address): Sender,
    disconnect: Disconnect,
    headers: HeaderMap,
    body: Json<PasskeySignIn>,
) -> Result<Response, Failed> {
    let former = session_cookie(&headers, passkeys.accounts.context.settings.https);
    let from = SignInOrigin { address, disconnect, browser: browser(&headers), former };
    let (cookie, user) = passkeys.sign_in(body.value, from).await?;
    Ok(signed_in(&passkeys.accounts, &cookie, user))
}

async fn prove(
    State(passkeys): State<Passkeys>,
    SignedUnenrolled(caller): SignedUnenrolled,
    Sender(address): Sender,
    body: Json<PasskeyProof>,
) -> Result<Response, Failed> {
    Ok(proved(&passkeys.accounts.context, &passkeys.prove(&caller, body.value, address).await?))
}

async fn begin_registration(
    State(passkeys): State<Passkeys>,
    SignedUnenrolled(caller): SignedUnenrolled,
    Sender(address): Sender,
) -> Result<Answer<PasskeyOptions>, Failed> {
    Ok(Answer(passkeys.begin_registration(&caller, address).await?))
}

async fn list(
    State(passkeys): State<Passkeys>,
    SignedUnenrolled(caller): SignedUnenrolled,
) -> Result<Answer<Listed>, Failed> {
    Ok(Answer(passkeys.list(&caller).await?))
}

async fn register(
    State(passkeys): State<Passkeys>,
    SignedUnenrolled(caller): SignedUnenrolled,
    body: Json<NewPasskey>,
) -> Result<Created<AddedPasskey>, Failed> {
    Ok(Created(passkeys.register(&caller, body.value).await?))
}

async fn rename(
    State(passkeys): State<Passkeys>,
    SignedUnenrolled(caller): SignedUnenrolled,
    Path(passkey): Path<PasskeyId>,
    body: Json<RenamePasskey>,
) -> Result<Answer<Passkey>, Failed> {
    Ok(Answer(passkeys.rename(&caller, passkey, body.value).await?))
}

async fn remove(
    State(passkeys): State<Passkeys>,
    SignedUnenrolled(caller): SignedUnenrolled,
    Path(passkey): Path<PasskeyId>,
) -> Result<NoContent, Failed> {
    passkeys.remove(&caller, passkey).await?;
    Ok(NoContent)
}
