//! The routes of a person's own account.

use super::OwnAccount;
use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with, post_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, NoContent, Response};
use berth_rest::authentication::set_cookie;
use berth_rest::lists::ListQuery;
use berth_rest::operations::{doc, empty};
use berth_rest::{Disconnect, Failed, Json, Path, Query, Sender, Signed};
use berth_types::Page;
use berth_types::ids::SessionId;
use berth_types::people::{BrowserSession, ChangePassword, DeleteAccount, EndedSessions};
use berth_types::scopes::ApiScope;

use crate::factors::ProofOrigin;

pub fn routes() -> ApiRouter<OwnAccount> {
    ApiRouter::new()
        .api_route(
            "/me/password",
            put_with(
                change_password,
                doc(ApiScope::Admin, "Changes the caller's password and ends all other sessions."),
            ),
        )
        .api_route(
            "/me/sessions",
            get_with(list_sessions, doc(ApiScope::Admin, "Lists the caller's sessions."))
                .delete_with(end_sessions, empty::<204>(ApiScope::Admin, "Ends all sessions of the caller.")),
        )
        .api_route(
            "/me/sessions/{session}",
            delete_with(end_session, doc(ApiScope::Admin, "Ends a session of the caller.")),
        )
        .api_route(
            "/me/email-verification",
            post_with(
                send_verification,
                empty::<202>(ApiScope::Admin, "Mails another link that verifies the caller's address."),
            ),
        )
        .api_route(
            "/me/deletion",
            post_with(delete_account, empty::<204>(ApiScope::Admin, "Deletes the caller's account.")),
        )
}

async fn change_password(
    State(own): State<OwnAccount>,
    Signed(caller): Signed,
    Sender(address): Sender,
    disconnect: Disconnect,
    body: Json<ChangePassword>,
) -> Result<Answer<EndedSessions>, Failed> {
    let from = ProofOrigin { address, disconnect };
    Ok(Answer(own.change_password(&caller, body.value, &from).await?))
}

async fn list_sessions(
    State(own): State<OwnAccount>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<BrowserSession>>, Failed> {
    Ok(Answer(own.list_sessions(&caller, &query.by_creation()?).await?))
}

/// 204 without the cookie of the ended session.
fn signed_out(own: &OwnAccount) -> Response {
    let cookie = set_cookie(own.accounts.context.settings.https, "", 0);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

async fn end_sessions(State(own): State<OwnAccount>, Signed(caller): Signed) -> Result<Response, Failed> {
    own.end_sessions(&caller).await?;
    Ok(signed_out(&own))
}

async fn end_session(
    State(own): State<OwnAccount>,
    Signed(caller): Signed,
    Path(session): Path<SessionId>,
) -> Result<NoContent, Failed> {
    own.end_session(&caller, session).await?;
    Ok(NoContent)
}

async fn send_verification(
    State(own): State<OwnAccount>,
    Signed(caller): Signed,
    Sender(address): Sender,
) -> Result<Response, Failed> {
    own.send_verification(&caller, address).await?;
    Ok(StatusCode::ACCEPTED.into_response())
}

async fn delete_account(
    State(own): State<OwnAccount>,
    Signed(caller): Signed,
    Sender(address): Sender,
    disconnect: Disconnect,
    body: Json<DeleteAccount>,
) -> Result<Response, Failed> {
    let from = ProofOrigin { address, disconnect };
    own.delete_account(&caller, body.value, &from).await?;
    Ok(signed_out(&own))
}
