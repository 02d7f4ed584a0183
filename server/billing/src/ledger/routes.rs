//! The routes of credits, debits, balances and transfers.

use super::Ledger;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use berth_foundation::Caller;
use berth_rest::answers::MayWait;
use berth_rest::columns::Table;
use berth_rest::csv::{Format, broken, csv_answer, plain_cell, wants_csv};
use berth_rest::lists::{ListQuery, parse_cursor};
use berth_rest::operations::{doc, or_csv};
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::accounts::{OrgFilter, OrgOrder, OrgSummary};
use berth_types::ids::OrgId;
use berth_types::ledger::{Balance, CreditLimit, Granted, NewCredit, NewCredits, NewDebit, Transfer};
use berth_types::lists::ListOptions;
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use serde::Deserialize;

pub fn routes() -> ApiRouter<Ledger> {
    ApiRouter::new()
        .api_route(
            "/operator/orgs",
            get_with(list_orgs, doc(ApiScope::BillingRead, "Lists the organizations with their balances.")),
        )
        .api_route(
            "/operator/credits",
            post_with(grant_credits, doc(ApiScope::BillingWrite, "Grants credit to several organizations.")),
        )
        .api_route(
            "/operator/orgs/{org}/credits",
            post_with(grant_credit, doc(ApiScope::BillingWrite, "Grants credit to an organization.")),
        )
        .api_route(
            "/operator/orgs/{org}/debits",
            post_with(debit, doc(ApiScope::BillingWrite, "Debits an organization.")),
        )
        .api_route(
            "/operator/orgs/{org}/credit-limit",
            put_with(
                set_credit_limit,
                doc(ApiScope::BillingWrite, "Sets the credit limit of an organization."),
            ),
        )
        .api_route(
            "/orgs/{org}/balance",
            get_with(balance, doc(ApiScope::BillingRead, "Gives the balance of an organization.")),
        )
        .api_route(
            "/orgs/{org}/transfers",
            get_with(
                list_transfers,
                or_csv::<Page<Transfer>>(ApiScope::BillingRead, "Lists the transfers of an organization."),
            ),
        )
}

async fn grant_credit(
    State(ledger): State<Ledger>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewCredit>,
) -> Result<MayWait<201, Balance>, Failed> {
    Ok(MayWait(ledger.grant_credit(&caller, org, body.value, None).await?))
}

async fn grant_credits(
    State(ledger): State<Ledger>,
    Signed(caller): Signed,
    body: Json<NewCredits>,
) -> Result<MayWait<201, Granted>, Failed> {
    Ok(MayWait(ledger.grant_credits(&caller, body.value, None).await?))
}

async fn debit(
    State(ledger): State<Ledger>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewDebit>,
) -> Result<MayWait<201, Balance>, Failed> {
    Ok(MayWait(ledger.debit(&caller, org, body.value, None).await?))
}

async fn set_credit_limit(
    State(ledger): State<Ledger>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<CreditLimit>,
) -> Result<MayWait<200, Balance>, Failed> {
    Ok(MayWait(ledger.set_credit_limit(&caller, org, body.value, None).await?))
}

async fn balance(
    State(ledger): State<Ledger>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Balance>, Failed> {
    Ok(Answer(ledger.balance(&caller, org).await?))
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListTransfers {
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
    /// The format of the answer; by `Accept` when absent.
    format: Option<Format>,
}

async fn list_transfers(
    State(ledger): State<Ledger>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListTransfers>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    if wants_csv(query.format, &headers) {
        return transfers_csv(&ledger, &caller, org).await;
    }
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }.by_creation()?;
    Ok(Answer(ledger.list_transfers(&caller, org, &options).await?).into_response())
}

/// All transfers of an organization as CSV, newest first.
async fn transfers_csv(ledger: &Ledger, caller: &Caller, org: OrgId) -> Result<Response, Failed> {
    let mut file = csv::Writer::from_writer(Vec::new());
    file.write_record(Page::<Transfer>::COLUMNS).map_err(broken)?;
    let mut options = ListOptions::newest(200);
    loop {
        let page = ledger.list_transfers(caller, org, &options).await?;
        for t in page.items {
            let cells = [
                t.at.to_string(),
                t.id.to_string(),
                t.kind.name().to_owned(),
                t.amount_micros.to_string(),
                t.currency,
                t.source,
                t.source_id,
                plain_cell(t.memo),
                t.expires_at.map_or_else(String::new, |at| at.to_string()),
            ];
            file.write_record(cells).map_err(broken)?;
        }
        let Some(next) = page.next_cursor else { break };
        options.cursor = Some(parse_cursor(next)?);
    }
    csv_answer(file, "statement.csv")
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct OrgQuery {
    /// Only this organization.
    org: Option<OrgId>,
    /// Only the organization with this slug: 1 to 100 bytes.
    #[schemars(length(min = 1, max = 100))]
    slug: Option<String>,
    /// A part of the name or of the slug without regard to the case of A to Z: 1 to 100 printable characters.
    #[schemars(length(min = 1, max = 100))]
    name: Option<String>,
    /// True for organizations that had credit and have no available money only.
    #[serde(default)]
    without_credit: bool,
    /// The key of the order; `created` when absent. Organizations with the same key are in the order of their ids.
    order_by: Option<OrgOrder>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_orgs(
    State(ledger): State<Ledger>,
    Signed(caller): Signed,
    Query(query): Query<OrgQuery>,
) -> Result<Answer<Page<OrgSummary>>, Failed> {
    let filter = OrgFilter {
        org: query.org,
        slug: query.slug,
        name: query.name,
        without_credit: query.without_credit,
    };
    let order = query.order_by.unwrap_or_default();
    let list = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort };
    let options = match order {
        OrgOrder::Created => list.by_creation_with(&(&filter, order))?,
        OrgOrder::Name | OrgOrder::Balance | OrgOrder::Spent => list.by_name_with(&(&filter, order))?,
    };
    Ok(Answer(ledger.list_org_summaries(&caller, &filter, order, &options).await?))
}
