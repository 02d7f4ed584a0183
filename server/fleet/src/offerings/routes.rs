//! The routes of offerings and prices.

use super::Offerings;
use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use berth_rest::answers::{MayWait, NotKept};
use berth_rest::lists::{ListQuery, page_in_memory};
use berth_rest::operations::{answers_either, doc};
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::change_requests::ChangeRequest;
use berth_types::ids::OrgId;
use berth_types::offerings::{NewPrice, Offering, PricePreview, PriceVersion};
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use serde::Deserialize;

pub fn routes() -> ApiRouter<Offerings> {
    ApiRouter::new()
        .api_route(
            "/offerings",
            get_with(
                list_offerings,
                doc(
                    ApiScope::JobsRead,
                    "Lists the offerings with their prices and with the devices of the nodes of all organizations.",
                ),
            ),
        )
        .api_route(
            "/orgs/{org}/offerings",
            get_with(
                list_org_offerings,
                doc(
                    ApiScope::JobsRead,
                    "Lists the offerings with their prices and with the devices of the nodes that the organization may use.",
                ),
            ),
        )
        .api_route(
            "/operator/prices",
            get_with(list_prices, doc(ApiScope::BillingRead, "Lists the versions of an offering's price."))
                .post_with(set_price, |op| {
                    answers_either::<201, Offering, 200, PricePreview>(
                        ApiScope::BillingWrite,
                        "Sets a price; with `preview` gives its effect only.",
                    )(op)
                    .response::<202, Answer<ChangeRequest>>()
                }),
        )
        .api_route(
            "/operator/prices/planned",
            get_with(
                list_planned_prices,
                doc(
                    ApiScope::BillingRead,
                    "Lists the prices of all offerings that have not begun, by offering and begin.",
                ),
            ),
        )
        .api_route(
            "/operator/prices/{offering}/{version}",
            delete_with(
                withdraw_price,
                doc(ApiScope::BillingWrite, "Withdraws a price that has not begun."),
            ),
        )
}

async fn list_offerings(
    State(offerings): State<Offerings>,
    // The operator decides about public prices (`/offer`).
    Signed(_): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Offering>>, Failed> {
    let options = query.by_name()?;
    Ok(Answer(page_in_memory(offerings.list_offerings().await?, &options, offering_key)))
}

async fn list_org_offerings(
    State(offerings): State<Offerings>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Offering>>, Failed> {
    let options = query.by_name()?;
    Ok(Answer(page_in_memory(offerings.list_org_offerings(&caller, org).await?, &options, offering_key)))
}

/// The board model, then the size from the largest on, then the slug.
fn offering_key(offering: &Offering) -> String {
    format!("{}\u{1f}{:010}\u{1f}{}", offering.gpu_model, u32::MAX - offering.cells, offering.slug)
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewPriceQuery {
    /// True for the effect of the price on past jobs, without a new price.
    #[serde(default)]
    preview: bool,
}

async fn set_price(
    State(offerings): State<Offerings>,
    Signed(caller): Signed,
    Query(query): Query<NewPriceQuery>,
    body: Json<NewPrice>,
) -> Result<Response, Failed> {
    if query.preview {
        let preview = offerings.preview_price(&caller, body.value).await?;
        return Ok((Extension(NotKept), Answer(preview)).into_response());
    }
    Ok(MayWait::<201, Offering>(offerings.set_price(&caller, body.value, None).await?).into_response())
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct PriceQuery {
    /// The slug of an offering, at most 100 bytes.
    #[schemars(length(min = 1, max = 100))]
    offering: String,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_prices(
    State(offerings): State<Offerings>,
    Signed(caller): Signed,
    Query(query): Query<PriceQuery>,
) -> Result<Answer<Page<PriceVersion>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }
        .by_creation_with(&query.offering)?;
    Ok(Answer(offerings.list_prices(&caller, &query.offering, &options).await?))
}

async fn list_planned_prices(
    State(offerings): State<Offerings>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<PriceVersion>>, Failed> {
    let options = query.by_name()?;
    let planned = offerings.list_planned_prices(&caller).await?;
    Ok(Answer(page_in_memory(planned, &options, planned_key)))
}

/// The slug of the offering, then the begin, then the version.
fn planned_key(price: &PriceVersion) -> String {
    let (slug, from, version) = (&price.offering, price.effective_from.micros(), price.version);
    format!("{slug}\u{1f}{from:020}\u{1f}{version:020}")
}

async fn withdraw_price(
    State(offerings): State<Offerings>,
    Signed(caller): Signed,
    Path(price): Path<(String, i64)>,
) -> Result<MayWait<200, Offering>, Failed> {
    Ok(MayWait(offerings.withdraw_price(&caller, price, None).await?))
}
