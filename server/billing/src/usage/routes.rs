//! The route of usage reports.

use super::UsageReports;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use berth_rest::csv::{Format, broken, csv_answer, plain_cell, wants_csv};
use berth_rest::operations::or_csv;
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::ids::OrgId;
use berth_types::usage::{GroupBy, Usage};
use serde::Deserialize;

pub fn routes() -> ApiRouter<UsageReports> {
    ApiRouter::new().api_route(
        "/orgs/{org}/usage",
        get_with(usage, or_csv::<Usage>("Gives the charged use of an organization by day or group.")),
    )
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct UsageQuery {
    from: Option<String>,
    until: Option<String>,
    #[serde(default)]
    group: GroupBy,
    label: Option<String>,
    format: Option<Format>,
}

async fn usage(
    State(usage): State<UsageReports>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<UsageQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let days = (query.from.as_deref(), query.until.as_deref());
    let usage = usage.usage(&caller, org, days, query.group, query.label.as_deref()).await?;
    if !wants_csv(query.format, &headers) {
        return Ok(Answer(usage).into_response());
    }
    let mut file = csv::Writer::from_writer(Vec::new());
    file.write_record(["day", "key", "device_ms", "cost_micros", "currency"]).map_err(broken)?;
    for row in usage.rows {
        let cells = [
            row.day,
            plain_cell(row.key),
            row.device_ms.to_string(),
            row.cost_micros.to_string(),
            usage.currency.clone(),
        ];
        file.write_record(cells).map_err(broken)?;
    }
    csv_answer(file, "usage.csv")
}
