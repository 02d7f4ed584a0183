//! Members of an organization, and invitations into it.
//!
//! The secret of an invitation comes only in a body, because addresses are logged and passed on.

use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with, patch_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_types::Page;
use berth_types::ids::{InvitationId, OrgId, UserId};
use berth_types::members::{
    AcceptInvitation, ChangeMember, Invitation, InvitationInfo, Joined, LookAtInvitation, Member,
    NewInvitation, SentInvitation,
};
use serde::Deserialize;

use super::answers::Created;
use super::extract::{Failed, Json, Path, Query, Signed, cursor, limit};
use super::openapi::{doc, optional_sign_in};
use crate::portal::Portal;

pub fn routes() -> ApiRouter<Portal> {
    ApiRouter::new()
        .api_route("/orgs/{org}/members", get_with(list, doc("Lists the members of an organization.")))
        .api_route(
            "/orgs/{org}/members/{user}",
            patch_with(change, doc("Changes the role of a member."))
                .delete_with(remove, doc("Removes a member.")),
        )
        .api_route(
            "/orgs/{org}/invitations",
            get_with(list_invitations, doc("Lists the open invitations."))
                .post_with(invite, doc("Invites somebody by e-mail address.")),
        )
        .api_route("/orgs/{org}/invitations/{id}", delete_with(withdraw, doc("Withdraws an invitation.")))
        .api_route(
            "/orgs/{org}/invitations/{id}/resend",
            post_with(resend, doc("Sends an invitation again.")),
        )
        .api_route(
            "/invitations/look",
            post_with(show_invitation, doc("Gives the organization of an invitation.")),
        )
        .api_route("/invitations/accept", post_with(accept, optional_sign_in("Accepts an invitation.")))
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn list(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<List>,
) -> Result<Answer<Page<Member>>, Failed> {
    let page = portal.members.list_members(&caller, org, cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(page.await?))
}

async fn change(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, user)): Path<(OrgId, UserId)>,
    body: Json<ChangeMember>,
) -> Result<Answer<Member>, Failed> {
    Ok(Answer(portal.members.change_member(&caller, org, user, body.value).await?))
}

async fn remove(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, user)): Path<(OrgId, UserId)>,
) -> Result<NoContent, Failed> {
    portal.members.remove_member(&caller, org, user).await?;
    Ok(NoContent)
}

async fn list_invitations(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Page<Invitation>>, Failed> {
    Ok(Answer(portal.invitations.list_invitations(&caller, org).await?))
}

async fn invite(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewInvitation>,
) -> Result<Created<SentInvitation>, Failed> {
    Ok(Created(portal.invitations.invite(&caller, org, body.value).await?))
}

async fn withdraw(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, InvitationId)>,
) -> Result<NoContent, Failed> {
    portal.invitations.withdraw_invitation(&caller, org, id).await?;
    Ok(NoContent)
}

async fn resend(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, InvitationId)>,
) -> Result<Answer<SentInvitation>, Failed> {
    Ok(Answer(portal.invitations.resend_invitation(&caller, org, id).await?))
}

async fn show_invitation(
    State(portal): State<Portal>,
    body: Json<LookAtInvitation>,
) -> Result<Answer<InvitationInfo>, Failed> {
    Ok(Answer(portal.invitations.get_invitation_info(&body.value.token).await?))
}

/// Accepts an invitation with a session or, for a new user, without one.
async fn accept(
    State(portal): State<Portal>,
    signed: Result<Signed, Failed>,
    body: Json<AcceptInvitation>,
) -> Result<Answer<Joined>, Failed> {
    let caller = match signed {
        Ok(Signed(caller)) => Some(caller),
        Err(Failed(problem)) if problem.status == 401 => None,
        Err(failed) => return Err(failed),
    };
    Ok(Answer(portal.invitations.accept_invitation(caller.as_ref(), body.value).await?))
}
