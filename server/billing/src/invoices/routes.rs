//! The routes of invoices and of their settings.

use super::Invoices;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use berth_foundation::Scope;
use berth_rest::answers::{Created, MayWait};
use berth_rest::columns::Table;
use berth_rest::csv::{Format, broken, csv_answer, plain_cell, wants_csv};
use berth_rest::downloads::pdf_answer;
use berth_rest::lists::ListQuery;
use berth_rest::operations::{doc, or_csv, pdf};
use berth_rest::{Disconnect, Failed, Json, Path, Query, Signed};
use berth_types::documents::invoice_file_stem;
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::invoices::{BillingDetails, BillingSettings, Invoice, InvoiceState, MonthStatement};
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use serde::{Deserialize, Serialize};

pub fn routes() -> ApiRouter<Invoices> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/invoices",
            get_with(list, doc(ApiScope::BillingRead, "Lists the invoices of an organization.")),
        )
        .api_route(
            "/orgs/{org}/invoices/{id}",
            get_with(show, or_csv::<Invoice>(ApiScope::BillingRead, "Gives an invoice.")),
        )
        .api_route(
            "/orgs/{org}/invoices/{id}/pdf",
            get_with(show_pdf, pdf(ApiScope::BillingRead, "Gives an invoice as PDF.")),
        )
        .api_route(
            "/orgs/{org}/billing-details",
            get_with(
                details,
                doc(ApiScope::BillingRead, "Gives the details of an organization on new invoices."),
            )
            .put_with(
                set_details,
                doc(ApiScope::BillingWrite, "Replaces the details of an organization on new invoices."),
            ),
        )
        .api_route(
            "/orgs/{org}/statement",
            get_with(
                statement,
                or_csv::<MonthStatement>(
                    ApiScope::BillingRead,
                    "Gives the statement of an organization for a month.",
                ),
            ),
        )
        .api_route(
            "/orgs/{org}/statement/pdf",
            get_with(
                statement_pdf,
                pdf(ApiScope::BillingRead, "Gives the statement of an organization for a month as PDF."),
            ),
        )
        .api_route(
            "/operator/invoices",
            get_with(list_all, doc(ApiScope::BillingRead, "Lists all invoices."))
                .post_with(bill, doc(ApiScope::BillingWrite, "Bills the months that have ended.")),
        )
        .api_route(
            "/operator/invoices/{id}/paid",
            post_with(pay, doc(ApiScope::BillingWrite, "Marks an invoice as paid.")),
        )
        .api_route(
            "/operator/invoices/{id}/void",
            post_with(void, doc(ApiScope::BillingWrite, "Voids an invoice by a credit note.")),
        )
        .api_route(
            "/operator/billing-settings",
            get_with(settings, doc(ApiScope::BillingRead, "Gives the settings of invoices."))
                .put_with(set_settings, doc(ApiScope::Admin, "Replaces the settings of invoices.")),
        )
}

/// The query of an organization's invoices.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct InvoiceQuery {
    /// Only invoices in this state.
    state: Option<InvoiceState>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<InvoiceQuery>,
) -> Result<Answer<Page<Invoice>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }
        .by_creation_with(&query.state)?;
    Ok(Answer(invoices.list_invoices(&caller, Scope::Org(org), query.state, &options).await?))
}

/// The query of one invoice.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct FormatQuery {
    /// The format of the answer; by `Accept` when absent.
    format: Option<Format>,
}

async fn show(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, InvoiceId)>,
    Query(query): Query<FormatQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let invoice = invoices.get_invoice(&caller, org, id).await?;
    if !wants_csv(query.format, &headers) {
        return Ok(Answer(invoice).into_response());
    }
    invoice_csv(invoice)
}

/// An invoice as CSV.
fn invoice_csv(invoice: Invoice) -> Result<Response, Failed> {
    let name = format!("{}.csv", invoice_file_stem(&invoice));
    let (number, month, document) = (invoice.number.to_string(), invoice.month, invoice.document);
    let parties = [
        document.seller,
        document.seller_tax_id,
        document.buyer,
        document.buyer_address,
        document.buyer_tax_id,
    ]
    .map(plain_cell);
    let currency = document.currency;
    let mut file = csv::Writer::from_writer(Vec::new());
    file.write_record(Invoice::COLUMNS).map_err(broken)?;
    let mut write = |kind: &str, cells: [String; 5]| {
        let first = [number.as_str(), month.as_str(), kind];
        let cells = cells.iter().map(String::as_str);
        let rest = parties.iter().map(String::as_str);
        file.write_record(first.into_iter().chain(cells).chain([currency.as_str()]).chain(rest))
    };
    for line in document.lines {
        let price = line.unit_nano_per_second.map(|rate| rate.to_string()).unwrap_or_default();
        let (device_ms, amount) = (line.device_ms.to_string(), line.amount_micros.to_string());
        write("line", [plain_cell(line.item), line.mode, device_ms, price, amount]).map_err(broken)?;
    }
    for tax in document.taxes {
        let amount = tax.amount_micros.to_string();
        let cells = [plain_cell(tax.name), String::new(), "0".to_owned(), String::new(), amount];
        write("tax", cells).map_err(broken)?;
    }
    csv_answer(file, &name)
}

async fn details(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<BillingDetails>, Failed> {
    Ok(Answer(invoices.billing_details(&caller, org).await?))
}

async fn set_details(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<BillingDetails>,
) -> Result<Answer<BillingDetails>, Failed> {
    Ok(Answer(invoices.set_billing_details(&caller, org, body.value).await?))
}

async fn show_pdf(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    disconnect: Disconnect,
    Path((org, id)): Path<(OrgId, InvoiceId)>,
) -> Result<Response, Failed> {
    let file = invoices.invoice_pdf(&caller, org, id, &disconnect).await?;
    Ok(pdf_answer(file.bytes, &file.name))
}

/// The query of a statement.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct StatementQuery {
    /// A month in UTC that has begun, as `YYYY-MM`; the present month when absent.
    #[schemars(length(min = 7, max = 7), regex(pattern = r"^\d{4}-\d{2}$"))]
    month: Option<String>,
    /// The format of the answer; by `Accept` when absent.
    format: Option<Format>,
}

async fn statement(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<StatementQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let statement = invoices.statement(&caller, org, query.month.as_deref()).await?;
    if !wants_csv(query.format, &headers) {
        return Ok(Answer(statement).into_response());
    }
    statement_csv(statement)
}

/// The query of a statement as PDF.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct StatementPdfQuery {
    /// A month in UTC that has begun, as `YYYY-MM`; the present month when absent.
    #[schemars(length(min = 7, max = 7), regex(pattern = r"^\d{4}-\d{2}$"))]
    month: Option<String>,
}

async fn statement_pdf(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<StatementPdfQuery>,
    disconnect: Disconnect,
) -> Result<Response, Failed> {
    let file = invoices.statement_pdf(&caller, org, query.month.as_deref(), &disconnect).await?;
    Ok(pdf_answer(file.bytes, &file.name))
}

/// A statement as CSV. The amounts have the sign of their effect on the balance.
fn statement_csv(statement: MonthStatement) -> Result<Response, Failed> {
    let MonthStatement { month, currency, lines, entries, .. } = statement;
    let mut file = csv::Writer::from_writer(Vec::new());
    file.write_record(MonthStatement::COLUMNS).map_err(broken)?;
    for line in lines {
        let amount = line.amount_micros.saturating_neg().to_string();
        let device_ms = line.device_ms.to_string();
        let price = line.unit_nano_per_second.map(|rate| rate.to_string()).unwrap_or_default();
        let cells = [
            month.as_str(),
            "charge",
            line.item.as_str(),
            line.mode.as_str(),
            device_ms.as_str(),
            amount.as_str(),
            currency.as_str(),
            price.as_str(),
        ];
        file.write_record(cells).map_err(broken)?;
    }
    for entry in entries {
        let amount = entry.amount_micros.to_string();
        let cells = [
            month.as_str(),
            entry.kind.name(),
            entry.source.as_str(),
            "",
            "0",
            amount.as_str(),
            currency.as_str(),
            "",
        ];
        file.write_record(cells).map_err(broken)?;
    }
    csv_answer(file, &format!("statement-{month}.csv"))
}

/// The query of all invoices.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct AllInvoicesQuery {
    /// Only invoices of this organization.
    org: Option<OrgId>,
    /// Only invoices in this state.
    state: Option<InvoiceState>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_all(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    Query(query): Query<AllInvoicesQuery>,
) -> Result<Answer<Page<Invoice>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }
        .by_creation_with(&(query.org, query.state))?;
    let scope = Scope::Operator(query.org);
    Ok(Answer(invoices.list_invoices(&caller, scope, query.state, &options).await?))
}

/// The body of a billing run.
#[derive(Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = BilledMonth { month: "2026-08".to_owned() })]
struct BilledMonth {
    /// A month in UTC that is over, as `YYYY-MM`.
    #[schemars(regex(pattern = r"^\d{4}-\d{2}$"))]
    month: String,
}

/// The result of a billing run.
#[derive(Serialize, schemars::JsonSchema)]
struct BilledInvoices {
    /// The number of new invoices.
    made: usize,
}

async fn bill(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    body: Json<BilledMonth>,
) -> Result<Created<BilledInvoices>, Failed> {
    let made = invoices.bill_month(&caller, &body.value.month).await?;
    Ok(Created(BilledInvoices { made }))
}

async fn pay(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    Path(id): Path<InvoiceId>,
) -> Result<MayWait<200, Invoice>, Failed> {
    Ok(MayWait(invoices.pay_invoice(&caller, id, None).await?))
}

async fn void(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    Path(id): Path<InvoiceId>,
) -> Result<MayWait<200, Invoice>, Failed> {
    Ok(MayWait(invoices.void_invoice(&caller, id, None).await?))
}

async fn settings(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
) -> Result<Answer<BillingSettings>, Failed> {
    Ok(Answer(invoices.billing_settings(&caller).await?))
}

async fn set_settings(
    State(invoices): State<Invoices>,
    Signed(caller): Signed,
    body: Json<BillingSettings>,
) -> Result<Answer<BillingSettings>, Failed> {
    Ok(Answer(invoices.set_billing_settings(&caller, body.value).await?))
}
