//! The routes of members.

use super::Members;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, patch_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::lists::ListQuery;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::ids::{OrgId, UserId};
use berth_types::members::{ChangeMember, Member};
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Members> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/members",
            get_with(list, doc(ApiScope::MembersRead, "Lists the members of an organization.")),
        )
        .api_route(
            "/orgs/{org}/members/{user}",
            patch_with(change, doc(ApiScope::Admin, "Changes the role of a member."))
                .delete_with(remove, doc(ApiScope::Admin, "Removes a member.")),
        )
}

async fn list(
    State(members): State<Members>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Member>>, Failed> {
    Ok(Answer(members.list_members(&caller, org, &query.by_creation()?).await?))
}

async fn change(
    State(members): State<Members>,
    Signed(caller): Signed,
    Path((org, user)): Path<(OrgId, UserId)>,
    body: Json<ChangeMember>,
) -> Result<Answer<Member>, Failed> {
    Ok(Answer(members.change_member(&caller, org, user, body.value).await?))
}

async fn remove(
    State(members): State<Members>,
    Signed(caller): Signed,
    Path((org, user)): Path<(OrgId, UserId)>,
) -> Result<NoContent, Failed> {
    members.remove_member(&caller, org, user).await?;
    Ok(NoContent)
}
