//! The routes of the portal's settings, logo and offer.

use super::Identity;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, NoContent, Response};
use berth_rest::operations::{doc, png};
use berth_rest::scopes::ANY;
use berth_rest::{Failed, Json, Path, Signed};
use berth_types::portal::{Logo, Offer, PortalIdentity, PortalSettings, PutLogo};
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Identity> {
    ApiRouter::new()
        .api_route("/portal", get_with(identity, doc(ANY, "Gives the name and the look of the portal.")))
        .api_route("/portal/logo/{sha256}", get_with(logo, png(ANY, "Gives the logo of the portal.")))
        .api_route(
            "/offer",
            get_with(offer, doc(ANY, "Gives the prices and free boards, if they are public.")),
        )
        .api_route(
            "/operator/portal-settings",
            get_with(settings, doc(ApiScope::FleetRead, "Gives the settings of the portal."))
                .put_with(set_settings, doc(ApiScope::Admin, "Replaces the settings of the portal.")),
        )
        .api_route(
            "/operator/portal-settings/logo",
            put_with(set_logo, doc(ApiScope::Admin, "Replaces the logo of the portal."))
                .delete_with(remove_logo, doc(ApiScope::Admin, "Removes the logo of the portal.")),
        )
}

async fn identity(State(identity): State<Identity>) -> Result<Answer<PortalIdentity>, Failed> {
    Ok(Answer(identity.identity().await?))
}

async fn logo(State(identity): State<Identity>, Path(sha256): Path<String>) -> Result<Response, Failed> {
    let png = identity.logo(&sha256).await?;
    let headers = [
        (header::CONTENT_TYPE, "image/png"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'; frame-ancestors 'none'"),
        // The path has the hash of the image, so the image at a path never changes.
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    Ok((headers, png).into_response())
}

async fn offer(State(identity): State<Identity>) -> Result<Answer<Offer>, Failed> {
    Ok(Answer(identity.offer().await?.as_ref().clone()))
}

async fn settings(
    State(identity): State<Identity>,
    Signed(caller): Signed,
) -> Result<Answer<PortalSettings>, Failed> {
    Ok(Answer(identity.settings(&caller).await?))
}

async fn set_settings(
    State(identity): State<Identity>,
    Signed(caller): Signed,
    body: Json<PortalSettings>,
) -> Result<Answer<PortalSettings>, Failed> {
    Ok(Answer(identity.set_settings(&caller, body.value).await?))
}

async fn set_logo(
    State(identity): State<Identity>,
    Signed(caller): Signed,
    body: Json<PutLogo>,
) -> Result<Answer<Logo>, Failed> {
    Ok(Answer(identity.set_logo(&caller, body.value).await?))
}

async fn remove_logo(State(identity): State<Identity>, Signed(caller): Signed) -> Result<NoContent, Failed> {
    identity.remove_logo(&caller).await?;
    Ok(NoContent)
}
