//! The second factors of the caller, proofs of identity, and the rule of an organization.

use super::{ProofOrigin, RenewedCookie, SecondFactors};
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, NoContent, Response};
use berth_foundation::Context;
use berth_rest::answers::Created;
use berth_rest::authentication::{SignedUnenrolled, set_cookie};
use berth_rest::operations::{doc, empty};
use berth_rest::{Disconnect, Failed, Json, Path, Sender, Signed};
use berth_types::factors::{
    ConfirmTotp, NewProof, RecoveryCodes, SecondFactors as Factors, SignInPolicy, TotpEnrolment,
};
use berth_types::ids::OrgId;
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<SecondFactors> {
    ApiRouter::new()
        .api_route(
            "/me/factors",
            get_with(list, doc(ApiScope::Admin, "Gives the second factors of the caller.")),
        )
        .api_route(
            "/me/totp",
            post_with(
                enrol,
                doc(
                    ApiScope::Admin,
                    "Begins the enrolment of an authenticator app; its secret is shown once.",
                ),
            )
            .delete_with(
                remove,
                doc(
                    ApiScope::Admin,
                    "Removes the authenticator app, and the recovery codes of an account without passkeys.",
                ),
            ),
        )
        .api_route(
            "/me/totp/confirm",
            post_with(
                confirm,
                doc(ApiScope::Admin, "Confirms the authenticator app by a code, and gives recovery codes."),
            ),
        )
        .api_route(
            "/me/recovery-codes",
            post_with(renew_codes, doc(ApiScope::Admin, "Replaces the recovery codes; they are shown once.")),
        )
        .api_route(
            "/me/proof",
            post_with(
                prove,
                empty::<204>(
                    ApiScope::Admin,
                    "Proves the identity of the caller for 15 minutes, and sets another session cookie. The former \
                     cookie has no proof, and ends after 30 seconds.",
                ),
            ),
        )
        .api_route(
            "/orgs/{org}/sign-in-policy",
            get_with(
                policy,
                doc(
                    ApiScope::MembersRead,
                    "Gives the rule of an organization for the sign-in of its members.",
                ),
            )
            .put_with(
                put_policy,
                doc(ApiScope::Admin, "Sets the rule of an organization for the sign-in of its members."),
            ),
        )
}

async fn list(
    State(factors): State<SecondFactors>,
    SignedUnenrolled(caller): SignedUnenrolled,
) -> Result<Answer<Factors>, Failed> {
    Ok(Answer(factors.list(&caller).await?))
}

async fn enrol(
    State(factors): State<SecondFactors>,
    SignedUnenrolled(caller): SignedUnenrolled,
) -> Result<Created<TotpEnrolment>, Failed> {
    Ok(Created(factors.enrol(&caller).await?))
}

async fn confirm(
    State(factors): State<SecondFactors>,
    SignedUnenrolled(caller): SignedUnenrolled,
    body: Json<ConfirmTotp>,
) -> Result<Answer<RecoveryCodes>, Failed> {
    Ok(Answer(factors.confirm(&caller, &body.value.code).await?))
}

async fn remove(
    State(factors): State<SecondFactors>,
    SignedUnenrolled(caller): SignedUnenrolled,
) -> Result<NoContent, Failed> {
    factors.remove(&caller).await?;
    Ok(NoContent)
}

async fn renew_codes(
    State(factors): State<SecondFactors>,
    SignedUnenrolled(caller): SignedUnenrolled,
) -> Result<Created<RecoveryCodes>, Failed> {
    Ok(Created(factors.renew_codes(&caller).await?))
}

async fn prove(
    State(factors): State<SecondFactors>,
    SignedUnenrolled(caller): SignedUnenrolled,
    Sender(address): Sender,
    disconnect: Disconnect,
    body: Json<NewProof>,
) -> Result<Response, Failed> {
    let renewed = factors.prove(&caller, body.value, ProofOrigin { address, disconnect }).await?;
    Ok(proved(&factors.context, &renewed))
}

/// The answer to a proof of identity.
pub(crate) fn proved(context: &Context, renewed: &RenewedCookie) -> Response {
    let cookie = set_cookie(context.settings.https, &renewed.value, renewed.max_age_s);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

async fn policy(
    State(factors): State<SecondFactors>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<SignInPolicy>, Failed> {
    Ok(Answer(factors.policy(&caller, org).await?))
}

async fn put_policy(
    State(factors): State<SecondFactors>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<SignInPolicy>,
) -> Result<Answer<SignInPolicy>, Failed> {
    Ok(Answer(factors.put_policy(&caller, org, body.value).await?))
}
