//! Page of the balance and the ledger.
//!
//! The portal calculates all sums.

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::ids::OrgId;
use berth_types::ledger::{Balance, ExpiringCredit, Transfer, TransferKind};
use berth_types::money::{
    available_text, column_decimals, money_text, price_text, reserved_text, signed_column_text,
};
use futures::join;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use super::curl::ListCurl;
use super::limits::credit_form::CreditRequest;
use super::load_more::LoadMore;
use super::org_data::org_view;
use super::parts::{Call, every_visible};
use super::payments::{PaymentsSection, Wallet, refresh_wallet, return_banner};
use super::text::runway;
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::rail::MONEY_TABS;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Statement {
    org: OrgId,
    balance: Balance,
    rows: Vec<Transfer>,
    cursor: Option<String>,
    /// Absent without card payments.
    wallet: Option<Wallet>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Statement>> + Send + 'static {
    let balance = api::money::balance(org);
    let rows = api::money::transfers(org, None);
    let wallet = super::payments::load(org);
    async move {
        let (balance, rows, wallet) = join!(balance, rows, wallet);
        let (balance, rows) = (balance?, rows?);
        Ok(Statement { org, balance, rows: rows.items, cursor: rows.next_cursor, wallet })
    }
}

/// The tabs of the money pages.
#[component]
pub fn BillingTabs(
    /// The path of the present page.
    current: &'static str,
) -> impl IntoView {
    let tab = |(path, name): (&'static str, &'static str)| {
        let here = (path == current).then_some("page");
        view! { <a href=org_link(path) aria-current=here>{name}</a> }
    };
    view! { <nav class="tabs" aria-label="Billing">{MONEY_TABS.map(tab).into_iter().collect_view()}</nav> }
}

/// The page of the balance and the ledger.
#[component]
pub fn BillingPage() -> impl IntoView {
    view! {
        <Page title="Billing".to_owned()>
            <BillingTabs current="/billing"/>
            {org_view(load, |statement: Statement| view! { <StatementView statement=statement/> }.into_any())}
        </Page>
    }
}

/// Inserts new rows at the front. The ledger is newest first, and its rows never change.
fn prepend(known: &mut Vec<Transfer>, fresh: Vec<Transfer>) {
    let mut all: Vec<Transfer> =
        fresh.into_iter().filter(|row| !known.iter().any(|known| known.id == row.id)).collect();
    all.append(known);
    *known = all;
}

#[component]
fn StatementView(statement: Statement) -> impl IntoView {
    let Statement { org, balance, rows, cursor, wallet } = statement;
    let pays = use_session().pays_for(org);
    let currency = balance.currency.clone();
    let request_currency = currency.clone();
    let zone = use_zone();
    let balance = RwSignal::new(balance);
    let rows = RwSignal::new(rows);
    let cursor = RwSignal::new(cursor);
    let wallet = wallet.map(RwSignal::new);
    let more = Call::idle();
    let refresh = move || {
        let fresh = load(org);
        spawn_local(async move {
            // The next round repeats a failed request.
            let Ok(fresh) = fresh.await else { return };
            balance.set(fresh.balance);
            rows.update(|rows| prepend(rows, fresh.rows));
            if let (Some(known), Some(fresh)) = (wallet, fresh.wallet) {
                refresh_wallet(known, fresh);
            }
        });
    };
    every_visible(10_000, refresh);
    let payment_notice = wallet.map(|wallet| return_banner(wallet, refresh));
    let payments =
        wallet.map(|wallet| view! { <PaymentsSection org=org wallet=wallet pays=pays currency=currency/> });
    let can_add = pays && wallet.is_some();
    let load_more = move |()| {
        let next = api::money::transfers(org, cursor.get_untracked());
        more.run(next, move |page: Rows<Transfer>| {
            rows.update(|rows| {
                for row in page.items {
                    if !rows.iter().any(|known| known.id == row.id) {
                        rows.push(row);
                    }
                }
            });
            cursor.set(page.next_cursor);
        });
    };
    let csv = format!("/api/v1/orgs/{org}/transfers?format=csv");
    let request = (!can_add).then(|| {
        view! { <CreditRequest org=org currency=request_currency missing_micros=Signal::derive(|| 0_i64)/> }
    });
    view! {
        {payment_notice}
        {move || figures(&balance.get(), zone.get())}
        <p class="prose">
            "Each submitted job outside a reservation reserves its maximum cost. You pay for the measured run time, to the millisecond. The rest of the reserved money is released when the job ends. The maximum number and cost of running jobs are under "
            <a href=org_link("/limits")>"Limits"</a> "."
        </p>
        {request}
        {payments}
        <section class="section">
            <div class="section__head">
                <h2>"Ledger"</h2>
                <div class="section__aside">
                    <span>"CSV in UTC"</span>
                    <a href=csv rel="external" download="ledger.csv">"Download CSV"</a>
                </div>
            </div>
            {move || ledger(&rows.get(), can_add)}
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
            <ListCurl path=Signal::derive(move || format!("/orgs/{org}/transfers")) label="Transfers with curl"/>
        </section>
    }
}

/// The maximum number of listed expiring credits.
const MAX_LISTED: usize = 3;

/// Lists expiring credits, soonest first.
fn expiries(balance: &Balance, zone: Zone) -> Vec<String> {
    let text = |lot: &ExpiringCredit| {
        format!(
            "{} expires at {}",
            money_text(lot.amount_micros, &balance.currency),
            zone.minute(lot.expires_at)
        )
    };
    let mut out: Vec<String> = balance.expiring.iter().take(MAX_LISTED).map(text).collect();
    if balance.expiring.len() > MAX_LISTED {
        out.push("more expires later".to_owned());
    }
    out
}

fn figures(balance: &Balance, zone: Zone) -> AnyView {
    let text = |micros: i64| money_text(micros, &balance.currency);
    let runway_note = match runway(balance.available_micros, balance.burn_per_hour_micros) {
        Some(hours) => {
            format!("runway {hours} h at {}/h", price_text(balance.burn_per_hour_micros, &balance.currency))
        }
        None => "no jobs charged now".to_owned(),
    };
    let expiring: Vec<AnyView> = expiries(balance, zone)
        .into_iter()
        .map(|text| view! { <dd class="stat__note">{text}</dd> }.into_any())
        .collect();
    let limit = (balance.credit_limit_micros > 0).then(|| {
        view! {
            <div class="stat">
                <dt class="stat__label">"Credit limit"</dt>
                <dd class="stat__value">{text(balance.credit_limit_micros)}</dd>
                <dd class="stat__note">"permitted debt, included in Available"</dd>
            </div>
        }
    });
    view! {
        <dl class="stats">
            <div class="stat">
                <dt class="stat__label">"Available"</dt>
                <dd class="stat__value">{available_text(balance.available_micros, &balance.currency)}</dd>
                <dd class="stat__note">{runway_note}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Balance"</dt>
                <dd class="stat__value">{text(balance.posted_micros)}</dd>
                <dd class="stat__note">"credits minus charges and debits"</dd>
                {expiring}
            </div>
            <div class="stat">
                <dt class="stat__label">"Reserved"</dt>
                <dd class="stat__value">{reserved_text(balance.held_micros, &balance.currency)}</dd>
                <dd class="stat__note">"for open jobs and reservations"</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Pending charges"</dt>
                <dd class="stat__value">{text(balance.accrued_micros)}</dd>
                <dd class="stat__note">"since the last charge, included in Reserved"</dd>
            </div>
            {limit}
        </dl>
    }
    .into_any()
}

/// The table of rows, or the empty state with the source of credit.
fn ledger(rows: &[Transfer], can_add: bool) -> AnyView {
    if rows.is_empty() {
        let how = if can_add { "Add credit by card above." } else { "Request credit above." };
        return view! {
            <div class="empty">
                <p class="empty__text">
                    "No entries yet. " {how}
                </p>
            </div>
        }
        .into_any();
    }
    let decimals = column_decimals(rows.iter().map(|row| row.amount_micros));
    let lines: Vec<AnyView> = rows.iter().map(|row| line(row, decimals)).collect();
    scroll_table(
        "Ledger",
        &[("Description", ""), ("Time", "nowrap"), ("Kind", ""), ("Source", ""), ("Amount", "num")],
        lines,
    )
}

const fn kind_text(kind: TransferKind) -> &'static str {
    match kind {
        TransferKind::Credit => "credit",
        TransferKind::Hold => "reserved",
        TransferKind::Release => "released",
        TransferKind::Usage => "charge",
        TransferKind::Debit => "debit",
    }
}

fn line(row: &Transfer, decimals: usize) -> AnyView {
    let description = if row.memo.is_empty() { kind_text(row.kind).to_owned() } else { row.memo.clone() };
    let expiry = row.expires_at.map(|at| {
        view! { <span class="table__sub">"expires at "<When at=at/></span> }
    });
    let source = row.source_id.clone();
    let page = match row.source.as_str() {
        "job" | "evidence" => Some("/jobs"),
        "reservation" => Some("/reservations"),
        "promise" => Some("/services"),
        "invoice" | "tax" => Some("/invoices"),
        _ => None,
    };
    let source = if let Some(page) = page {
        let path = org_link(&format!("{page}/{source}"));
        view! { <a class="id" href=path>{source}</a> }.into_any()
    } else {
        view! { <span class="id">{source}</span> }.into_any()
    };
    let amount = signed_column_text(row.amount_micros, &row.currency, decimals);
    // Reserved and released money leaves the balance unchanged.
    let class = match row.kind {
        TransferKind::Credit => "good",
        TransferKind::Hold | TransferKind::Release => "unit",
        TransferKind::Usage | TransferKind::Debit => "",
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{description}{expiry}</th>
            <td role="cell" class="nowrap" data-label="Time"><When at=row.at/></td>
            <td role="cell" data-label="Kind">{kind_text(row.kind)}</td>
            <td role="cell" class="table__lead" data-label="Source">{source}</td>
            <td role="cell" class="num" data-label="Amount">
                <span class=class>{amount}</span>
            </td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u32) -> Transfer {
        Transfer {
            id: format!("tr_{number:0>26}").parse().unwrap(),
            kind: TransferKind::Usage,
            amount_micros: -1,
            currency: "USD".to_owned(),
            source: "job".to_owned(),
            source_id: String::new(),
            memo: String::new(),
            at: berth_types::time::Timestamp::from_micros(0),
            expires_at: None,
        }
    }

    #[test]
    fn few_expiring_credits_are_listed_soonest_first() {
        let lot = |days: i64| ExpiringCredit {
            amount_micros: 5_000_000,
            expires_at: berth_types::time::Timestamp::from_micros(0).plus_seconds(days * 86_400),
        };
        let balance = |lots: i64| Balance {
            currency: "USD".to_owned(),
            posted_micros: 0,
            held_micros: 0,
            accrued_micros: 0,
            credit_limit_micros: 0,
            available_micros: 0,
            burn_per_hour_micros: 0,
            expiring: (0..lots).map(lot).collect(),
        };
        assert_eq!(expiries(&balance(0), Zone::Utc), Vec::<String>::new());
        assert_eq!(expiries(&balance(1), Zone::Utc), ["$5.00 expires at 1970-01-01 00:00 UTC"]);
        // A midnight in UTC is the day before in St. John's.
        let west = Zone::parse("-12600").unwrap();
        assert_eq!(expiries(&balance(1), west), ["$5.00 expires at 1969-12-31 20:30 UTC−3:30"]);
        let four = expiries(&balance(4), Zone::Utc);
        assert_eq!((four.len(), four.last().map(String::as_str)), (4, Some("more expires later")));
    }

    #[test]
    fn new_rows_come_first_and_known_ones_once() {
        let mut rows = vec![row(2), row(1)];
        prepend(&mut rows, vec![row(4), row(3), row(2)]);
        assert_eq!(rows, vec![row(4), row(3), row(2), row(1)]);
    }
}
