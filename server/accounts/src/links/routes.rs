//! The routes of links in mails.

use super::MailLinks;
use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use berth_rest::operations::{doc, empty};
use berth_rest::scopes::ANY;
use berth_rest::{Disconnect, Failed, Json, Sender};
use berth_types::people::{
    CompletePasswordReset, CompleteVerification, EndedSessions, NewPasswordReset, VerifiedEmail,
};

pub fn routes() -> ApiRouter<MailLinks> {
    ApiRouter::new()
        .api_route(
            "/password-resets",
            post_with(request_reset, empty::<202>(ANY, "Mails a link for a new password to an address.")),
        )
        .api_route(
            "/password-resets/complete",
            post_with(complete_reset, doc(ANY, "Sets a new password by a link and ends all sessions.")),
        )
        .api_route(
            "/email-verifications/complete",
            post_with(complete_verification, doc(ANY, "Verifies an e-mail address by a link.")),
        )
}

async fn request_reset(
    State(links): State<MailLinks>,
    Sender(address): Sender,
    body: Json<NewPasswordReset>,
) -> Result<Response, Failed> {
    links.request_reset(&body.value, address)?;
    Ok(StatusCode::ACCEPTED.into_response())
}

async fn complete_reset(
    State(links): State<MailLinks>,
    disconnect: Disconnect,
    body: Json<CompletePasswordReset>,
) -> Result<Answer<EndedSessions>, Failed> {
    Ok(Answer(links.complete_reset(body.value, &disconnect).await?))
}

async fn complete_verification(
    State(links): State<MailLinks>,
    body: Json<CompleteVerification>,
) -> Result<Answer<VerifiedEmail>, Failed> {
    Ok(Answer(links.complete_verification(body.value).await?))
}
