//! Paying by card: adding credit, the saved card, and what became of payments.
//!
//! Must not decide what is paid: that is what the portal was told by Stripe. A card's number is typed on
//! Stripe's pages only.

mod recharge;
mod top_up;
mod words;

use std::future::Future;

use berth_types::ids::{InvoiceId, OrgId};
use berth_types::money::money_text;
use berth_types::payments::{NewTopUp, PayHere, Payment, PaymentSettings, PaymentState};
use leptos::prelude::*;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::recharge::RechargeForm;
use self::top_up::TopUpForm;
use self::words::{Back, kind_words, told};
use super::curl;
use super::parts::{Call, CallProblem, FormKey, every, leave_for, origin, ready};
use crate::api;
use crate::api::payments::There;
use crate::ui::*;

/// While somebody who has just paid waits for the balance, the portal is asked so often …
const QUICK_MS: u64 = 2_000;
/// … and so many times; then as often as always.
const QUICK_LOOKS: u32 = 45;

/// How an organization can pay, and what it paid.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Wallet {
    /// Whether a card is saved, and when it is charged.
    pub settings: PaymentSettings,
    /// Newest first.
    pub payments: Vec<Payment>,
}

/// Nothing where the portal takes no cards, or will not say.
pub fn load(org: OrgId) -> impl Future<Output = Option<Wallet>> + Send + 'static {
    let (settings, payments) = (api::payments::settings(org), api::payments::list(org));
    async move {
        let settings = settings.await.ok().filter(|settings| settings.enabled)?;
        let payments = payments.await.ok()?.items;
        Some(Wallet { settings, payments })
    }
}

/// What somebody reads who comes back from Stripe's page. Until their payment is known, `refresh` is done
/// more often than the page does it by itself.
pub fn came_back(wallet: RwSignal<Wallet>, refresh: impl Fn() + Clone + 'static) -> AnyView {
    let query = use_query_map();
    let back = Memo::new(move |_| query.with(|query| query.get("payment")).as_deref().and_then(Back::read));
    let looks = StoredValue::new(0_u32);
    every(QUICK_MS, move || {
        let open = wallet
            .with_untracked(|wallet| words::newest(&wallet.payments).map(|one| one.state))
            .is_some_and(|state| state == PaymentState::Open);
        let count = looks.get_value();
        if open && back.get_untracked() == Some(Back::Paid) && count < QUICK_LOOKS {
            looks.set_value(count.saturating_add(1));
            refresh();
        }
    });
    let banner = move |back: Back| {
        let said = Memo::new(move |_| wallet.with(|wallet| told(back, &wallet.payments)));
        let class = move || said.with(|said| format!("banner banner--{}", said.tone));
        view! {
            <div class=class role="status">
                <div class="banner__text">
                    <strong class="banner__title">{move || said.with(|said| said.title)}</strong>
                    {move || said.with(|said| said.text.clone())}
                </div>
            </div>
        }
    };
    (move || back.get().map(banner)).into_any()
}

/// The forms, for those who pay, and the payments.
#[component]
pub fn Paying(
    /// Whose money it is.
    org: OrgId,
    /// What is known of it.
    wallet: RwSignal<Wallet>,
    /// The person's role pays; others only see.
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
    let elsewhere = pays.then(|| view! { <ToStripe org=org call=call/> });
    let none = Memo::new(move |_| wallet.with(|wallet| wallet.payments.is_empty()));
    view! {
        {forms}
        <section class="section">
            <div class="section__head">
                <h2>"Payments"</h2>
                <div class="section__aside">{elsewhere}</div>
            </div>
            <CallProblem call=call beside_fields=&[]/>
            {move || {
                if none.get() {
                    view! { <Nothing org=org pays=pays/> }.into_any()
                } else {
                    wallet.with(|wallet| table(&wallet.payments))
                }
            }}
        </section>
    }
}

/// The way to Stripe's own page.
#[component]
fn ToStripe(org: OrgId, call: Call) -> impl IntoView {
    let ready = ready();
    let go = move |_: leptos::ev::MouseEvent| {
        call.run(api::payments::portal(org), move |there: There| leave_for(&there.url));
    };
    view! {
        <button
            class="btn btn--small"
            type="button"
            disabled=move || !ready.get() || call.pending.get()
            aria-busy=move || call.pending.get().then_some("true")
            on:click=go
        >
            "Receipts and cards"
        </button>
    }
}

/// The button that pays an open invoice; what goes wrong is shown by whoever holds the call.
#[component]
pub fn PayInvoice(
    /// Whose invoice it is.
    org: OrgId,
    /// Which one.
    id: InvoiceId,
    /// The request that the button makes.
    call: Call,
) -> impl IntoView {
    let ready = ready();
    let key = FormKey::beside(call);
    let pay = move |_: leptos::ev::MouseEvent| {
        let once = key.of(id.to_string());
        call.run(api::payments::pay_invoice(org, id, once), move |there: PayHere| {
            key.done();
            leave_for(&there.url);
        });
    };
    view! {
        <button
            class="btn btn--primary"
            type="button"
            disabled=move || !ready.get() || call.pending.get()
            aria-busy=move || call.pending.get().then_some("true")
            on:click=pay
        >
            "Pay by card"
        </button>
    }
}

/// Empty teaches: one sentence, one action, the same as a curl line.
#[component]
fn Nothing(org: OrgId, pays: bool) -> impl IntoView {
    let origin = origin();
    let example = NewTopUp { amount_micros: 25_000_000, save_card: false };
    let body = serde_json::to_string(&example).unwrap_or_default();
    let line = Signal::derive(move || curl::post(&origin.get(), &format!("/orgs/{org}/top-ups"), &body));
    let text = if pays {
        "No payment yet. What you pay above is credit as soon as Stripe says that it was paid, and stays yours until it is used."
    } else {
        "No payment yet. Owners and billing members of this organization can add credit by card."
    };
    let same = pays
        .then(|| view! { <CopyBlock text=line label="Begin a payment of 25 with curl; the answer says where to pay".to_owned()/> });
    view! {
        <div class="empty">
            <p class="empty__text">{text}</p>
            {same}
        </div>
    }
}

fn table(payments: &[Payment]) -> AnyView {
    let rows: Vec<AnyView> = payments.iter().map(row).collect();
    table_of("Payments", &[("Payment", ""), STATE, ("When", "nowrap"), ("By", ""), ("Amount", "num")], rows)
}

fn row(payment: &Payment) -> AnyView {
    let what = kind_words(&payment.kind);
    let why = (!payment.failure.is_empty()).then(|| {
        let why = payment.failure.clone();
        view! { <span class="table__sub">{why}</span> }
    });
    let by = payment.created_by.clone();
    let amount = money_text(payment.amount_micros, &payment.currency);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{what}{why}</th>
            <td role="cell" class="table__state" data-label="State"><PaymentBadge state=payment.state/></td>
            <td role="cell" class="nowrap" data-label="When"><When at=payment.created_at/></td>
            <td role="cell" data-label="By">{by}</td>
            <td role="cell" class="num" data-label="Amount">{amount}</td>
        </tr>
    }
    .into_any()
}
