//! The routes of invitations.
//!
//! The secret of an invitation comes only in a body, because addresses are logged and passed on.

use super::Invitations;
use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::answers::Created;
use berth_rest::authentication::OptionallySigned;
use berth_rest::lists::ListQuery;
use berth_rest::operations::{doc, optional_sign_in};
use berth_rest::scopes::ANY;
use berth_rest::{Disconnect, Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::ids::{InvitationId, OrgId};
use berth_types::members::{
    AcceptInvitation, Invitation, InvitationInfo, Joined, LookAtInvitation, NewInvitation, SentInvitation,
};
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Invitations> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/invitations",
            get_with(list_invitations, doc(ApiScope::MembersRead, "Lists the open invitations."))
                .post_with(invite, doc(ApiScope::Admin, "Invites a person by e-mail address.")),
        )
        .api_route(
            "/orgs/{org}/invitations/{id}",
            delete_with(withdraw, doc(ApiScope::Admin, "Withdraws an invitation.")),
        )
        .api_route(
            "/orgs/{org}/invitations/{id}/resend",
            post_with(resend, doc(ApiScope::Admin, "Sends an invitation again.")),
        )
        .api_route(
            "/invitations/look",
            post_with(show_invitation, doc(ANY, "Gives the organization of an invitation.")),
        )
        .api_route(
            "/invitations/accept",
            post_with(accept, optional_sign_in(ApiScope::Admin, "Accepts an invitation.")),
        )
}

async fn list_invitations(
    State(invitations): State<Invitations>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Invitation>>, Failed> {
    Ok(Answer(invitations.list_invitations(&caller, org, &query.by_creation()?).await?))
}

async fn invite(
    State(invitations): State<Invitations>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewInvitation>,
) -> Result<Created<SentInvitation>, Failed> {
    Ok(Created(invitations.invite(&caller, org, body.value).await?))
}

async fn withdraw(
    State(invitations): State<Invitations>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, InvitationId)>,
) -> Result<NoContent, Failed> {
    invitations.withdraw_invitation(&caller, org, id).await?;
    Ok(NoContent)
}

async fn resend(
    State(invitations): State<Invitations>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, InvitationId)>,
) -> Result<Answer<SentInvitation>, Failed> {
    Ok(Answer(invitations.resend_invitation(&caller, org, id).await?))
}

async fn show_invitation(
    State(invitations): State<Invitations>,
    body: Json<LookAtInvitation>,
) -> Result<Answer<InvitationInfo>, Failed> {
    Ok(Answer(invitations.get_invitation_info(&body.value.token).await?))
}

/// Accepts an invitation with a session or, for a new user, without one.
async fn accept(
    State(invitations): State<Invitations>,
    OptionallySigned(caller): OptionallySigned,
    disconnect: Disconnect,
    body: Json<AcceptInvitation>,
) -> Result<Answer<Joined>, Failed> {
    Ok(Answer(invitations.accept_invitation(caller.as_ref(), body.value, &disconnect).await?))
}
