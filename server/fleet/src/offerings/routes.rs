//! The routes of offerings and prices.

use super::Offerings;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use berth_rest::answers::NotKept;
use berth_rest::operations::{answers_either, doc};
use berth_rest::{Failed, Json, Query, Signed};
use berth_types::Page;
use berth_types::offerings::{NewPrice, Offering, PricePreview, PriceVersion};
use serde::Deserialize;

pub fn routes() -> ApiRouter<Offerings> {
    ApiRouter::new()
        .api_route("/offerings", get_with(list_offerings, doc("Lists the offerings with their prices.")))
        .api_route(
            "/operator/prices",
            get_with(list_prices, doc("Lists the versions of all prices.")).post_with(
                set_price,
                answers_either::<201, Offering, 200, PricePreview>(
                    "Sets a price; with `preview` gives its effect only.",
                ),
            ),
        )
}

async fn list_offerings(State(offerings): State<Offerings>) -> Result<Answer<Page<Offering>>, Failed> {
    Ok(Answer(Page::whole(offerings.list_offerings().await?)))
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Preview {
    #[serde(default)]
    preview: bool,
}

async fn set_price(
    State(offerings): State<Offerings>,
    Signed(caller): Signed,
    Query(query): Query<Preview>,
    body: Json<NewPrice>,
) -> Result<Response, Failed> {
    if query.preview {
        let preview = offerings.preview_price(&caller, body.value).await?;
        return Ok((Extension(NotKept), Answer(preview)).into_response());
    }
    Ok((StatusCode::CREATED, Answer(offerings.set_price(&caller, body.value).await?)).into_response())
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfferingQuery {
    offering: String,
}

async fn list_prices(
    State(offerings): State<Offerings>,
    Signed(caller): Signed,
    Query(query): Query<OfferingQuery>,
) -> Result<Answer<Page<PriceVersion>>, Failed> {
    Ok(Answer(offerings.list_prices(&caller, &query.offering).await?))
}
