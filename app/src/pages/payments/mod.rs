//! Card payments: credit, automatic recharge and the list of payments.
//!
//! Stripe decides about the state of a payment. Card numbers are entered on the pages of Stripe only.

mod recharge;
mod text;
mod top_up;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::money::{column_decimals, column_text};
use berth_types::payments::{NewTopUp, PayHere, Payment, PaymentSettings, PaymentState};
use leptos::prelude::*;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::recharge::RechargeForm;
use self::text::{CheckoutReturn, kind_text, latest_checkout, return_notice};
use self::top_up::TopUpForm;
use super::call_button::CallButton;
use super::curl;
use super::limits::replace;
use super::load_more::{LoadMore, append, joined};
use super::parts::{Call, CallProblem, FormKey, every_visible, open_url, origin};
use crate::api;
use crate::api::payments::StripePage;
use crate::ui::*;

/// The interval of requests after the return from a payment.
const QUICK_MS: u64 = 2_000;
/// The number of these requests; later the page refreshes at its usual interval.
const QUICK_REQUESTS: u32 = 45;

/// The payment settings and payments of an organization.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Wallet {
    /// The saved card and the rule of its charges.
    pub settings: PaymentSettings,
    /// The payments of the loaded pages, newest first.
    pub payments: Vec<Payment>,
    /// The cursor of the next page of payments; absent after the last page.
    pub cursor: Option<String>,
}

/// Loads settings and payments; `None` without card payments or after a failed request.
pub fn load(org: OrgId) -> impl Future<Output = Option<Wallet>> + Send + 'static {
    let (settings, payments) = (api::payments::settings(org), api::payments::list(org, None));
    async move {
        let settings = settings.await.ok().filter(|settings| settings.enabled)?;
        let Rows { items: payments, next_cursor: cursor } = payments.await.ok()?;
        Some(Wallet { settings, payments, cursor })
    }
}

/// Takes the settings and the newest payments of a fresh wallet, and keeps the payments of later pages.
pub fn refresh_wallet(wallet: RwSignal<Wallet>, fresh: Wallet) {
    let Some(known) = wallet.try_get_untracked() else { return };
    let page = Rows { items: fresh.payments, next_cursor: fresh.cursor };
    let Rows { items: payments, next_cursor: cursor } =
        joined(known.payments, known.cursor, page, |payment| payment.id);
    replace(wallet, Wallet { settings: fresh.settings, payments, cursor });
}

/// Returns the banner after the return from the payment page of Stripe. Until the payment is confirmed,
/// `refresh` runs at a shorter interval.
pub fn return_banner(wallet: RwSignal<Wallet>, refresh: impl Fn() + Clone + 'static) -> AnyView {
    let query = use_query_map();
    let parameter = move || query.with(|query| query.get("payment"));
    let from = Memo::new(move |_| parameter().as_deref().and_then(CheckoutReturn::parse));
    let requests = StoredValue::new(0_u32);
    every_visible(QUICK_MS, move || {
        let open = wallet
            .with_untracked(|wallet| latest_checkout(&wallet.payments).map(|one| one.state))
            .is_some_and(|state| state == PaymentState::Open);
        let count = requests.get_value();
        if open && from.get_untracked() == Some(CheckoutReturn::Paid) && count < QUICK_REQUESTS {
            requests.set_value(count.saturating_add(1));
            refresh();
        }
    });
    let banner = move |from: CheckoutReturn| {
        let notice = Memo::new(move |_| wallet.with(|wallet| return_notice(from, &wallet.payments)));
        let class = move || notice.with(|notice| format!("banner banner--{}", notice.tone));
        view! {
            <div class=class role="status">
                <div class="banner__text">
                    <strong class="banner__title">{move || notice.with(|notice| notice.title)}</strong>
                    {move || notice.with(|notice| notice.text.clone())}
                </div>
            </div>
        }
    };
    (move || from.get().map(banner)).into_any()
}

/// The payment forms and the list of payments.
#[component]
pub fn PaymentsSection(
    /// The organization of the balance.
    org: OrgId,
    /// Its settings and payments.
    wallet: RwSignal<Wallet>,
    /// True with the forms, for roles that can pay.
    pays: bool,
    /// The portal's currency.
    currency: String,
) -> impl IntoView {
    let step_micros = wallet.with_untracked(|wallet| wallet.settings.step_micros);
    let forms = pays.then(|| {
        view! {
            <div class="split split--even">
                <TopUpForm org=org currency=currency.clone() step_micros=step_micros/>
                <RechargeForm org=org wallet=wallet currency=currency/>
            </div>
        }
    });
    let call = Call::idle();
    let portal_button = pays.then(|| view! { <StripePortalButton org=org call=call/> });
    let none = Memo::new(move |_| wallet.with(|wallet| wallet.payments.is_empty()));
    let cursor = Signal::derive(move || wallet.with(|wallet| wallet.cursor.clone()));
    let more = Call::idle();
    let load_more = move |()| {
        let from = cursor.get_untracked();
        more.run(api::payments::list(org, from.clone()), move |page: Rows<Payment>| {
            // The page does not follow on a list that was replaced meanwhile.
            if wallet.try_with_untracked(|wallet| wallet.cursor == from) == Some(true) {
                wallet.update(|wallet| {
                    append(&mut wallet.payments, page.items, |payment| payment.id);
                    wallet.cursor = page.next_cursor;
                });
            }
        });
    };
    view! {
        {forms}
        <section class="section">
            <div class="section__head">
                <h2>"Payments"</h2>
                <div class="section__aside">{portal_button}</div>
            </div>
            <CallProblem call=call beside_fields=&[]/>
            {move || {
                if none.get() {
                    view! { <NoPayments org=org pays=pays/> }.into_any()
                } else {
                    wallet.with(|wallet| table(&wallet.payments))
                }
            }}
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
        </section>
    }
}

/// The button that opens the page of Stripe with cards and receipts.
#[component]
fn StripePortalButton(org: OrgId, call: Call) -> impl IntoView {
    let open = move |()| {
        call.run(api::payments::portal(org), move |page: StripePage| open_url(&page.url));
    };
    view! {
        <CallButton call=call class="btn btn--small" send=Callback::new(open)>"Manage cards and receipts"</CallButton>
    }
}

/// The button that pays an open invoice. The owner of `call` shows its errors.
#[component]
pub fn PayInvoice(
    /// The organization of the invoice.
    org: OrgId,
    /// The invoice.
    id: InvoiceId,
    /// The request of the button.
    call: Call,
) -> impl IntoView {
    let key = FormKey::new(call);
    let pay = move |()| {
        let once = key.for_text(id.to_string());
        call.run(api::payments::pay_invoice(org, id, once), move |page: PayHere| {
            key.reset();
            open_url(&page.url);
        });
    };
    view! {
        <CallButton call=call class="btn btn--primary" send=Callback::new(pay)>"Pay by card"</CallButton>
    }
}

/// The empty state with an example request.
#[component]
fn NoPayments(org: OrgId, pays: bool) -> impl IntoView {
    let origin = origin();
    let example = NewTopUp { amount_micros: 25_000_000, save_card: false };
    let body = serde_json::to_string(&example).unwrap_or_default();
    let line = Signal::derive(move || curl::post(&origin.get(), &format!("/orgs/{org}/top-ups"), &body));
    let text = if pays {
        "No payments yet. Add credit above; it is available as soon as Stripe confirms the payment."
    } else {
        "No payments yet. Owners and billing members of this organization can add credit by card."
    };
    let curl_example =
        pays.then(|| view! { <CopyBlock text=line label="Card payment of 25 with curl".to_owned()/> });
    view! {
        <div class="empty">
            <p class="empty__text">{text}</p>
            {curl_example}
        </div>
    }
}

fn table(payments: &[Payment]) -> AnyView {
    let decimals = column_decimals(payments.iter().map(|payment| payment.amount_micros));
    let rows: Vec<AnyView> = payments.iter().map(|payment| row(payment, decimals)).collect();
    table_of(
        "Payments",
        &[("Payment", ""), STATE, ("Time", "nowrap"), ("Created by", ""), ("Amount", "num")],
        rows,
    )
}

fn row(payment: &Payment, decimals: usize) -> AnyView {
    let kind = kind_text(&payment.kind);
    let failure = (!payment.failure.is_empty()).then(|| {
        let text = payment.failure.clone();
        view! { <span class="table__sub">{text}</span> }
    });
    let by = payment.created_by.clone();
    let amount = column_text(payment.amount_micros, &payment.currency, decimals);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{kind}{failure}</th>
            <td role="cell" class="table__state" data-label="State"><PaymentBadge state=payment.state/></td>
            <td role="cell" class="nowrap" data-label="Time"><When at=payment.created_at/></td>
            <td role="cell" data-label="Created by">{by}</td>
            <td role="cell" class="num" data-label="Amount">{amount}</td>
        </tr>
    }
    .into_any()
}
