//! The statements of months: the running one of the present month, and those of the months before. A statement
//! is no invoice.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::invoices::{MonthStatement, StatementEntry};
use berth_types::ledger::TransferKind;
use berth_types::money::{column_decimals, column_text, money_text, signed_column_text, signed_money};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;
use serde::{Deserialize, Serialize};

use super::super::days::{iso_day, iso_month, month_before, month_text};
use super::super::limits::replace;
use super::super::parts::{Loading, NoOrg, every_visible, when_some};
use super::document::{PrintButton, line};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::identity::window_title;
use crate::session::use_session;
use crate::ui::*;

/// The most listed months before the present one.
const MAX_MONTHS: usize = 12;

/// Lists the months before `month` back to `first`, newest first.
fn earlier_months(month: &str, first: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    while out.len() < MAX_MONTHS {
        let last = out.last().map_or(month, String::as_str);
        match month_before(&format!("{last}-01")).filter(|before| before.as_str() >= first) {
            Some(before) => out.push(before),
            None => break,
        }
    }
    out
}

/// Returns the causes of the sum of one source.
fn entry_text(entry: &StatementEntry) -> String {
    let text = match (entry.kind, entry.source.as_str()) {
        (TransferKind::Credit, "grant") => "Granted credit",
        (TransferKind::Credit, "stripe") => "Card payments",
        (TransferKind::Credit, "invoice") => "Credit for closed invoices",
        (TransferKind::Debit, "debit") => "Debits by the operator",
        (TransferKind::Debit, "expiry") => "Expired credit",
        (TransferKind::Debit, "stripe") => "Refunded card payments",
        (_, other) => other,
    };
    text.to_owned()
}

/// Returns the sum of the credits and debits in micro-units of the currency.
fn moved_micros(statement: &MonthStatement) -> i64 {
    statement.entries.iter().map(|entry| entry.amount_micros).fold(0, i64::saturating_add)
}

/// Returns the title: `Statement of October 2026`, `November 2026 so far`.
fn title(statement: &MonthStatement) -> String {
    let month = month_text(&statement.month);
    if statement.complete { format!("Statement of {month}") } else { format!("{month} so far") }
}

/// The card of the present month, and the list of the months before.
#[component]
pub fn Statements(
    /// The organization of the statements.
    org: OrgId,
    /// The first statement of the present month.
    first: MonthStatement,
) -> impl IntoView {
    let session = use_session();
    let membership = session.me.memberships.iter().find(|member| member.org.id == org);
    let begin = membership.map(|member| iso_month(&iso_day(member.org.created_at)));
    let months = earlier_months(&first.month, begin.as_deref().unwrap_or(&first.month));
    let current = RwSignal::new(first);
    every_visible(60_000, move || {
        let fresh = api::invoices::statement(org, None);
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                replace(current, fresh);
            }
        });
    });
    let rows: Vec<AnyView> = months.iter().map(|month| month_row(org, month)).collect();
    let heads = [("Month", ""), ("File", "num")];
    let earlier = (!rows.is_empty()).then(|| table_of("Statements of earlier months", &heads, rows));
    view! {
        <section class="section">
            <div class="section__head"><h2>"Statements"</h2></div>
            <div class="stack">
                {move || current.with(card)}
                {earlier}
            </div>
        </section>
    }
}

fn month_row(org: OrgId, month: &str) -> AnyView {
    let (path, csv) =
        (org_link(&format!("/statements/{month}")), api::invoices::statement_csv_path(org, month));
    let (name, file) = (month_text(month), format!("statement-{month}.csv"));
    let label = format!("Download CSV of {name}");
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><a href=path>{name}</a></th>
            <td role="cell" class="num" data-label="File">
                <a href=csv rel="external" download=file aria-label=label>"Download CSV"</a>
            </td>
        </tr>
    }
    .into_any()
}

fn card(statement: &MonthStatement) -> AnyView {
    let path = org_link(&format!("/statements/{}", statement.month));
    let moved = moved_micros(statement);
    let decimals = column_decimals([statement.charged_micros, moved, statement.change_micros]);
    let signed = |micros: i64| signed_column_text(micros, &statement.currency, decimals);
    view! {
        <article class="card" aria-label="So far this month">
            <div class="card__head">
                <h3 class="card__title">"So far this month"</h3>
                <span class="card__aside"><a href=path>"Show statement"</a></span>
            </div>
            <p class="quiet">
                {month_text(&statement.month)} " (UTC). A running statement, not an invoice."
            </p>
            <dl class="kv kv--ends">
                <dt>"Charges"</dt>
                <dd>{column_text(statement.charged_micros, &statement.currency, decimals)}</dd>
                <dt>"Credits, payments and debits"</dt>
                <dd>{signed(moved)}</dd>
                <dt>"Change of the balance"</dt>
                <dd>{signed(statement.change_micros)}</dd>
            </dl>
        </article>
    }
    .into_any()
}

/// A statement with its organization.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    statement: MonthStatement,
}

fn load(org: OrgId, month: String) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let statement = api::invoices::statement(org, Some(month));
    async move { Ok(Loaded { org, statement: statement.await? }) }
}

/// The page of the statement of one month.
#[component]
pub fn StatementPage() -> impl IntoView {
    let org = use_session().org;
    let params = use_params_map();
    let month = Memo::new(move |_| params.with(|params| params.get("month")).unwrap_or_default());
    let data: Resource<Answer<Option<Loaded>>> = Resource::new(
        move || (org.get(), month.get()),
        |(org, month): (Option<OrgId>, String)| when_some(org.map(|org| load(org, month))),
    );
    let retry = Retry::new(move || data.refetch());
    view! {
        <Suspense fallback=|| view! { <Loading/> }>
            {move || Suspend::new(async move {
                match data.await {
                    // Another text than a month is an unknown page.
                    Err(problem) if matches!(problem.status, 400 | 404) => view! { <NotFound/> }.into_any(),
                    Err(problem) => view! { <RetryNotice problem=problem retry=retry/> }.into_any(),
                    Ok(None) => view! { <NoOrg/> }.into_any(),
                    Ok(Some(loaded)) => {
                        retry.succeeded();
                        view! { <StatementView loaded=loaded/> }.into_any()
                    }
                }
            })}
        </Suspense>
    }
}

#[component]
fn StatementView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, statement } = loaded;
    let session = use_session();
    let membership = session.me.memberships.iter().find(|member| member.org.id == org);
    let buyer = membership.map(|member| member.org.name.clone()).unwrap_or_default();
    let name = title(&statement);
    let (heading, window_title) = (name.clone(), window_title(&name));
    let csv = api::invoices::statement_csv_path(org, &statement.month);
    let file = format!("statement-{}.csv", statement.month);
    view! {
        <Title text=window_title/>
        <div class="page">
            <nav class="crumbs" aria-label="Breadcrumb">
                <ol>
                    <li><a href=org_link("/invoices")>"Invoices"</a></li>
                    <li><span aria-current="page" class="quiet">{name}</span></li>
                </ol>
            </nav>
            <div class="page__head">
                <h1>{heading}</h1>
                <div class="page__actions">
                    <a class="btn" href=csv rel="external" download=file>"Download CSV"</a>
                    <PrintButton/>
                </div>
            </div>
            {sheet(&statement, buyer)}
        </div>
    }
}

/// Returns the statement for screen and print.
fn sheet(statement: &MonthStatement, buyer: String) -> AnyView {
    let moved = moved_micros(statement);
    let note = if statement.complete {
        "A statement of the ledger, not an invoice."
    } else {
        "A running statement, not an invoice: charges of this month are added until its end."
    };
    view! {
        <article class="invoice">
            <div class="invoice__parties">
                <address>
                    <span class="invoice__label">"Organization"</span>
                    <span class="invoice__lines">{buyer}</span>
                </address>
                <div>
                    <span class="invoice__label">"Month"</span>
                    <br/>
                    {month_text(&statement.month)} " (UTC)"
                </div>
            </div>
            {charges(statement)}
            {entries(statement)}
            <dl class="invoice__total">
                <dt>"Charges"</dt>
                <dd>{money_text(statement.charged_micros, &statement.currency)}</dd>
                <dt>"Credits, payments and debits"</dt>
                <dd>{signed_money(moved, &statement.currency)}</dd>
                <dt class="is-total">"Change of the balance"</dt>
                <dd class="is-total">{signed_money(statement.change_micros, &statement.currency)}</dd>
            </dl>
            <p>{note}</p>
        </article>
    }
    .into_any()
}

fn charges(statement: &MonthStatement) -> AnyView {
    if statement.lines.is_empty() {
        return view! { <p class="quiet">"No charges."</p> }.into_any();
    }
    let amounts = statement.lines.iter().map(|line| line.amount_micros);
    let decimals = column_decimals(amounts);
    let rows = statement.lines.iter().map(|one| {
        let amount = column_text(one.amount_micros, &statement.currency, decimals);
        line(one, amount)
    });
    table_of(
        "Charges by offering",
        &[("Item", ""), ("Device-hours", "num"), ("Amount", "num")],
        rows.collect(),
    )
}

fn entries(statement: &MonthStatement) -> AnyView {
    if statement.entries.is_empty() {
        return view! { <p class="quiet">"No credits, payments or debits."</p> }.into_any();
    }
    let decimals = column_decimals(statement.entries.iter().map(|entry| entry.amount_micros));
    let rows = statement.entries.iter().map(|entry| {
        let amount = signed_column_text(entry.amount_micros, &statement.currency, decimals);
        view! {
            <tr role="row">
                <th role="rowheader" scope="row">{entry_text(entry)}</th>
                <td role="cell" class="num" data-label="Entries">{entry.count}</td>
                <td role="cell" class="num" data-label="Amount">{amount}</td>
            </tr>
        }
        .into_any()
    });
    table_of(
        "Credits, payments and debits",
        &[("Credits and debits", ""), ("Entries", "num"), ("Amount", "num")],
        rows.collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_end_with_the_first_of_the_organization() {
        assert_eq!(earlier_months("2026-02", "2025-12"), ["2026-01", "2025-12"]);
        assert!(earlier_months("2026-02", "2026-02").is_empty());
        assert!(earlier_months("soon", "2026-02").is_empty());
        assert_eq!(earlier_months("2026-02", "1970-01").len(), MAX_MONTHS);
    }

    #[test]
    fn a_statement_has_a_title_and_its_causes() {
        let entry = |kind: TransferKind, source: &str| StatementEntry {
            kind,
            source: source.to_owned(),
            count: 1,
            amount_micros: if kind == TransferKind::Credit { 5 } else { -2 },
        };
        let mut statement = MonthStatement {
            month: "2026-11".to_owned(),
            complete: false,
            currency: "USD".to_owned(),
            lines: Vec::new(),
            charged_micros: 0,
            entries: vec![entry(TransferKind::Credit, "grant"), entry(TransferKind::Debit, "expiry")],
            change_micros: 3,
        };
        assert_eq!((title(&statement).as_str(), moved_micros(&statement)), ("November 2026 so far", 3));
        statement.complete = true;
        assert_eq!(title(&statement), "Statement of November 2026");
        let texts: Vec<String> = statement.entries.iter().map(entry_text).collect();
        assert_eq!(texts, ["Granted credit", "Expired credit"]);
        assert_eq!(entry_text(&entry(TransferKind::Credit, "other")), "other");
    }
}
