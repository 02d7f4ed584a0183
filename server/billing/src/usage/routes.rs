//! The route of usage reports.

use super::UsageReports;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use berth_rest::columns::Table;
use berth_rest::csv::{Format, broken, csv_answer, plain_cell, wants_csv};
use berth_rest::operations::or_csv;
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::ids::OrgId;
use berth_types::scopes::ApiScope;
use berth_types::usage::{GroupBy, Usage};
use serde::Deserialize;

pub fn routes() -> ApiRouter<UsageReports> {
    ApiRouter::new().api_route(
        "/orgs/{org}/usage",
        get_with(
            usage,
            or_csv::<Usage>(
                ApiScope::BillingRead,
                "Gives the charged use of an organization by day or group.",
            ),
        ),
    )
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct UsageQuery {
    /// The first day in UTC, such as `2026-11-21`; 29 days before `until` when absent.
    #[schemars(length(min = 10, max = 10), regex(pattern = r"^\d{4}-\d{2}-\d{2}$"))]
    from: Option<String>,
    /// The last day in UTC, not before `from` and at most 365 days after it; today when absent.
    #[schemars(length(min = 10, max = 10), regex(pattern = r"^\d{4}-\d{2}-\d{2}$"))]
    until: Option<String>,
    /// The key of the rows besides the day; `day` when absent.
    #[serde(default)]
    group: GroupBy,
    /// The key of a label, at most 63 bytes without control characters; required for `group=label`.
    #[schemars(length(max = 63), regex(pattern = r"^[^\u0000-\u001F\u007F-\u009F]*$"))]
    label: Option<String>,
    /// The format of the answer; by `Accept` when absent.
    format: Option<Format>,
}

/// The key of a row in CSV, where the use without a label has a name.
fn csv_key(key: String, group: GroupBy) -> String {
    if group == GroupBy::Label && key.is_empty() { "No label".to_owned() } else { key }
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
    file.write_record(Usage::COLUMNS).map_err(broken)?;
    for row in usage.rows {
        let cells = [
            row.day,
            plain_cell(csv_key(row.key, query.group)),
            row.device_ms.to_string(),
            row.cost_micros.to_string(),
            usage.currency.clone(),
        ];
        file.write_record(cells).map_err(broken)?;
    }
    csv_answer(file, "usage.csv")
}
