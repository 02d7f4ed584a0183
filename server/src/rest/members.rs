//! Members of an organization, and invitations into it.
//!
//! An invitation's secret comes in a body only: what is in an address is logged, and told to others.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{delete, get, patch, post};
use axum::{Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::{InvitationId, OrgId, UserId};
use berth_types::members::{
    AcceptInvitation, ChangeMember, Invitation, InvitationInfo, Joined, LookAtInvitation, Member,
    NewInvitation, SentInvitation,
};
use serde::Deserialize;

use super::extract::{Failed, Json, Path, Query, Signed, cursor, limit};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/orgs/{org}/members", get(list))
        .route("/orgs/{org}/members/{user}", patch(change).delete(remove))
        .route("/orgs/{org}/invitations", get(list_invitations).post(invite))
        .route("/orgs/{org}/invitations/{id}", delete(withdraw))
        .route("/orgs/{org}/invitations/{id}/resend", post(resend))
        .route("/invitations/look", post(look))
        .route("/invitations/accept", post(accept))
}

#[derive(Deserialize)]
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
) -> Result<StatusCode, Failed> {
    portal.members.remove_member(&caller, org, user).await?;
    Ok(StatusCode::NO_CONTENT)
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
) -> Result<(StatusCode, Answer<SentInvitation>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.invitations.invite(&caller, org, body.value).await?)))
}

async fn withdraw(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, InvitationId)>,
) -> Result<StatusCode, Failed> {
    portal.invitations.withdraw_invitation(&caller, org, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn resend(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, InvitationId)>,
) -> Result<Answer<SentInvitation>, Failed> {
    Ok(Answer(portal.invitations.resend_invitation(&caller, org, id).await?))
}

async fn look(
    State(portal): State<Portal>,
    body: Json<LookAtInvitation>,
) -> Result<Answer<InvitationInfo>, Failed> {
    Ok(Answer(portal.invitations.look_at_invitation(&body.value.token).await?))
}

/// Nobody has to be signed in to accept as somebody new.
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
