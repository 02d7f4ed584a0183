//! Money: the balance, what is set aside, and every row of the ledger.
//!
//! Must not add amounts up: sums are the portal's.

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::ids::OrgId;
use berth_types::ledger::{Balance, ExpiringCredit, Transfer, TransferKind};
use berth_types::money::money_text;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use super::days::date_text;
use super::limits::replace;
use super::more::More;
use super::of_org::of_org;
use super::parts::{Call, every};
use super::payments::{Paying, Wallet, came_back};
use super::words::{runway, signed_money};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Statement {
    org: OrgId,
    balance: Balance,
    rows: Vec<Transfer>,
    cursor: Option<String>,
    /// Absent where the portal takes no cards.
    wallet: Option<Wallet>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Statement>> + Send + 'static {
    let balance = api::money::balance(org);
    let rows = api::money::transfers(org, None);
    let wallet = super::payments::load(org);
    async move {
        let balance = balance.await?;
        let rows = rows.await?;
        let wallet = wallet.await;
        Ok(Statement { org, balance, rows: rows.items, cursor: rows.next_cursor, wallet })
    }
}

/// The pages about money, which share a row of tabs.
const TABS: [(&str, &str); 4] =
    [("/billing", "Ledger"), ("/usage", "Usage"), ("/budgets", "Budgets"), ("/invoices", "Invoices")];

/// Whether an address is of one of the pages about money.
pub fn is_about_money(path: &str) -> bool {
    TABS.iter()
        .any(|(tab, _)| path.strip_prefix(*tab).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// The tabs of the pages about money.
#[component]
pub fn BillingTabs(
    /// The address of the page that they stand on.
    current: &'static str,
) -> impl IntoView {
    let tab = |(path, name): (&'static str, &'static str)| {
        let here = (path == current).then_some("page");
        view! { <a href=path aria-current=here>{name}</a> }
    };
    view! { <nav class="tabs" aria-label="Billing">{TABS.map(tab).into_iter().collect_view()}</nav> }
}

/// The page with balance and ledger.
#[component]
pub fn BillingPage() -> impl IntoView {
    view! {
        <Page title="Billing".to_owned()>
            <BillingTabs current="/billing"/>
            {of_org(load, |statement: Statement| view! { <StatementView statement=statement/> }.into_any())}
        </Page>
    }
}

/// Puts rows that are not known yet in front; the ledger is newest first and never changes a row.
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
    let balance = RwSignal::new(balance);
    let rows = RwSignal::new(rows);
    let cursor = RwSignal::new(cursor);
    let wallet = wallet.map(RwSignal::new);
    let more = Call::idle();
    let refresh = move || {
        let fresh = load(org);
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            let Ok(fresh) = fresh.await else { return };
            balance.set(fresh.balance);
            rows.update(|rows| prepend(rows, fresh.rows));
            if let (Some(known), Some(fresh)) = (wallet, fresh.wallet) {
                replace(known, fresh);
            }
        });
    };
    every(10_000, refresh);
    let told = wallet.map(|wallet| came_back(wallet, refresh));
    let paying = wallet.map(|wallet| view! { <Paying org=org wallet=wallet pays=pays currency=currency/> });
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
    view! {
        {told}
        {move || figures(&balance.get())}
        <p class="prose">
            "A job sets aside the most that it can cost when it is submitted, pays from that for the milliseconds it is proved to have used, and gives back the rest when it ends. How much may run and be spent at once is under "
            <a href="/limits">"Limits"</a> "."
        </p>
        {paying}
        <section class="section">
            <div class="section__head">
                <h2>"Ledger"</h2>
                <div class="section__aside">
                    <a href=csv rel="external" download="ledger.csv">"Download CSV"</a>
                </div>
            </div>
            {move || ledger(&rows.get(), can_add)}
            <More cursor=cursor call=more load=Callback::new(load_more)/>
        </section>
    }
}

/// So much of the credit that expires is named.
const NAMED: usize = 3;

/// What expires when, soonest first.
fn expiries(balance: &Balance) -> Vec<String> {
    let text = |lot: &ExpiringCredit| {
        format!(
            "{} expires on {}",
            money_text(lot.amount_micros, &balance.currency),
            date_text(lot.expires_at)
        )
    };
    let mut out: Vec<String> = balance.expiring.iter().take(NAMED).map(text).collect();
    if balance.expiring.len() > NAMED {
        out.push("more expires later".to_owned());
    }
    out
}

fn figures(balance: &Balance) -> AnyView {
    let text = |micros: i64| money_text(micros, &balance.currency);
    let lasts = match runway(balance.available_micros, balance.burn_per_hour_micros) {
        Some(hours) => format!("lasts {hours} h at {}/h", text(balance.burn_per_hour_micros)),
        None => "nothing is being spent".to_owned(),
    };
    let expiring: Vec<AnyView> = expiries(balance)
        .into_iter()
        .map(|words| view! { <dd class="stat__note">{words}</dd> }.into_any())
        .collect();
    let limit = (balance.credit_limit_micros > 0).then(|| {
        view! {
            <div class="stat">
                <dt class="stat__label">"Credit limit"</dt>
                <dd class="stat__value">{text(balance.credit_limit_micros)}</dd>
                <dd class="stat__note">"how far below nothing it may go; inside what is available"</dd>
            </div>
        }
    });
    view! {
        <dl class="stats">
            <div class="stat">
                <dt class="stat__label">"Available"</dt>
                <dd class="stat__value">{text(balance.available_micros)}</dd>
                <dd class="stat__note">{lasts}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Balance"</dt>
                <dd class="stat__value">{text(balance.posted_micros)}</dd>
                <dd class="stat__note">"credits less posted charges"</dd>
                {expiring}
            </div>
            <div class="stat">
                <dt class="stat__label">"Set aside"</dt>
                <dd class="stat__value">{text(balance.held_micros)}</dd>
                <dd class="stat__note">"for jobs that wait or run"</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Used, not posted yet"</dt>
                <dd class="stat__value">{text(balance.accrued_micros)}</dd>
                <dd class="stat__note">"inside what is set aside"</dd>
            </div>
            {limit}
        </dl>
    }
    .into_any()
}

/// The rows, newest first; where there are none, where credit comes from.
fn ledger(rows: &[Transfer], can_add: bool) -> AnyView {
    if rows.is_empty() {
        let how =
            if can_add { "Add credit by card above." } else { "Ask the operator of this portal for credit." };
        return view! {
            <div class="empty">
                <p class="empty__text">
                    "The ledger is empty: no credit was granted and nothing was used. " {how}
                </p>
            </div>
        }
        .into_any();
    }
    let lines: Vec<AnyView> = rows.iter().map(line).collect();
    table_of(
        "Ledger",
        &[("What", ""), ("When", "nowrap"), ("Kind", ""), ("Source", ""), ("Amount", "num")],
        lines,
    )
}

const fn kind_words(kind: TransferKind) -> &'static str {
    match kind {
        TransferKind::Credit => "credit",
        TransferKind::Hold => "set aside",
        TransferKind::Release => "given back",
        TransferKind::Usage => "use",
        TransferKind::Debit => "taken back",
    }
}

fn line(row: &Transfer) -> AnyView {
    let what = if row.memo.is_empty() { kind_words(row.kind).to_owned() } else { row.memo.clone() };
    let until = row.expires_at.map(|at| {
        view! { <span class="table__sub">{format!("until {}", date_text(at))}</span> }
    });
    let source = row.source_id.clone();
    let page = match row.source.as_str() {
        "job" | "evidence" => Some("/jobs"),
        "reservation" => Some("/reservations"),
        "invoice" => Some("/invoices"),
        _ => None,
    };
    let source = if let Some(page) = page {
        let path = format!("{page}/{source}");
        view! { <a class="id" href=path>{source}</a> }.into_any()
    } else {
        view! { <span class="id">{source}</span> }.into_any()
    };
    // Only credits and charges move the balance; what is set aside or given back stays quiet.
    let class = match row.kind {
        TransferKind::Credit => "good",
        TransferKind::Hold | TransferKind::Release => "unit",
        TransferKind::Usage | TransferKind::Debit => "",
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{what}{until}</th>
            <td role="cell" class="nowrap" data-label="When"><When at=row.at/></td>
            <td role="cell" data-label="Kind">{kind_words(row.kind)}</td>
            <td role="cell" class="table__lead" data-label="Source">{source}</td>
            <td role="cell" class="num" data-label="Amount">
                <span class=class>{signed_money(row.amount_micros, &row.currency)}</span>
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
    fn what_expires_is_named_soonest_first_and_not_at_length() {
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
        assert_eq!(expiries(&balance(0)), Vec::<String>::new());
        assert_eq!(expiries(&balance(1)), ["$5.00 expires on 1 January 1970"]);
        assert_eq!(expiries(&balance(4)).len(), 4);
        assert_eq!(expiries(&balance(4)).last().map(String::as_str), Some("more expires later"));
    }

    #[test]
    fn the_pages_about_money_are_known_by_their_address() {
        for path in ["/billing", "/usage", "/invoices/inv_1"] {
            assert!(is_about_money(path), "{path}");
        }
        for path in ["/", "/jobs", "/usages", "/operator/invoices"] {
            assert!(!is_about_money(path), "{path}");
        }
    }

    #[test]
    fn new_rows_come_first_and_known_ones_once() {
        let mut rows = vec![row(2), row(1)];
        prepend(&mut rows, vec![row(4), row(3), row(2)]);
        assert_eq!(rows, vec![row(4), row(3), row(2), row(1)]);
    }
}
