//! The statements of months: the running one of the present month, and those of the months before. A statement
//! is no invoice.

use std::future::Future;

use berth_types::documents::{TableText, moved_micros, statement_pdf_name, statement_text};
use berth_types::ids::OrgId;
use berth_types::invoices::MonthStatement;
use berth_types::money::{column_decimals, column_text, signed_column_text};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;
use serde::{Deserialize, Serialize};

use super::super::days::{iso_day, iso_month, month_before, month_text};
use super::super::limits::replace;
use super::super::org_data::problem_page;
use super::super::parts::{Loading, NoOrg, every_visible, when_some};
use super::document::{PrintButton, csv_link, heads, notes, parties, pdf_link, rows, sums};
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
    let current = RwSignal::new(first);
    let month = Memo::new(move |_| current.with(|statement| statement.month.clone()));
    every_visible(60_000, move || {
        let fresh = api::invoices::statement(org, None);
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                replace(current, fresh);
            }
        });
    });
    // At the end of a month, the next refresh brings another one, and the list gets the ended one.
    let earlier = move || {
        let month = month.get();
        let months = earlier_months(&month, begin.as_deref().unwrap_or(&month));
        let rows: Vec<AnyView> = months.iter().map(|month| month_row(org, month)).collect();
        let heads = [("Month", ""), ("File", "num")];
        (!rows.is_empty()).then(|| table_of("Statements of earlier months", &heads, rows))
    };
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
            {move || suspended(async move {
                let answer = data.await;
                move || match answer {
                    // Another text than a month is an unknown page.
                    Err(problem) if matches!(problem.status, 400 | 404) => view! { <NotFound/> }.into_any(),
                    Err(problem) => problem_page(problem, retry),
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
    let document = statement_text(&statement, buyer);
    let name = document.title.clone();
    let (heading, window_title) = (name.clone(), window_title(&name));
    let pdf = api::invoices::statement_pdf_path(org, &statement.month);
    let pdf = pdf_link(pdf, statement_pdf_name(&statement));
    let csv = api::invoices::statement_csv_path(org, &statement.month);
    let csv = csv_link(csv, format!("statement-{}.csv", statement.month));
    view! {
        <Title text=window_title/>
        <div class="page">
            <Crumbs list="Invoices" path=Signal::derive(org_link("/invoices")) name=name/>
            <div class="page__head">
                <h1>{heading}</h1>
                <div class="page__actions">
                    {pdf}
                    {csv}
                    <PrintButton/>
                </div>
            </div>
            <article class="invoice">
                <div class="invoice__head"><span class="brand"><PortalName mark="brand__mark"/></span></div>
                {parties(&document)}
                {document.tables.iter().map(table).collect::<Vec<AnyView>>()}
                {sums(&document.sums)}
                {notes(&document.notes)}
            </article>
        </div>
    }
}

fn table(table: &TableText) -> AnyView {
    if table.rows.is_empty() {
        return view! { <p class="quiet">{table.empty}</p> }.into_any();
    }
    table_of(table.caption, &heads(table), rows(table))
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
}
