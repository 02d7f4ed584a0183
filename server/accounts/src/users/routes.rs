//! The routes of the accounts of all people.

use super::Users;
use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::answers::MayWait;
use berth_rest::lists::ListQuery;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::ids::UserId;
use berth_types::people::{DisableUser, Person};
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use serde::Deserialize;

/// The most characters of the text of the filter.
const MAX_TEXT_CHARS: usize = 100;

pub fn routes() -> ApiRouter<Users> {
    ApiRouter::new()
        .api_route(
            "/operator/users",
            get_with(list, doc(ApiScope::MembersRead, "Lists the accounts of all people.")),
        )
        .api_route(
            "/operator/users/{user}/disabled",
            put_with(disable, doc(ApiScope::Admin, "Disables an account and ends its sessions."))
                .delete_with(enable, doc(ApiScope::Admin, "Enables an account.")),
        )
        .api_route(
            "/operator/users/{user}/factors",
            delete_with(
                remove_factors,
                doc(ApiScope::Admin, "Removes the second factor of an account and ends its sessions."),
            ),
        )
}

/// The query of the list of people.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct PeopleQuery {
    /// Only people with this text in their name or address, without regard to case; at most 100 characters.
    #[schemars(length(max = 100))]
    text: Option<String>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order by the creation of the account; `desc` when absent.
    sort: Option<Sort>,
}

async fn list(
    State(users): State<Users>,
    Signed(caller): Signed,
    Query(query): Query<PeopleQuery>,
) -> Result<Answer<Page<Person>>, Failed> {
    let text = query.text.unwrap_or_default();
    if text.chars().count() > MAX_TEXT_CHARS {
        return Err(Failed(Problem::invalid_field("/text", "Use at most 100 characters.")));
    }
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }.by_creation()?;
    Ok(Answer(users.list_people(&caller, &text, &options).await?))
}

async fn disable(
    State(users): State<Users>,
    Signed(caller): Signed,
    Path(user): Path<UserId>,
    body: Json<DisableUser>,
) -> Result<Answer<Person>, Failed> {
    Ok(Answer(users.disable(&caller, user, body.value).await?))
}

async fn remove_factors(
    State(users): State<Users>,
    Signed(caller): Signed,
    Path(user): Path<UserId>,
) -> Result<Answer<Person>, Failed> {
    Ok(Answer(users.remove_factors(&caller, user).await?))
}

async fn enable(
    State(users): State<Users>,
    Signed(caller): Signed,
    Path(user): Path<UserId>,
) -> Result<MayWait<200, Person>, Failed> {
    Ok(MayWait(users.enable(&caller, user, None).await?))
}
