//! The promise of a service: its terms, the present window and the judged ones.

use berth_service_types::promises::{ChosenPromise, JudgedWindow, PresentWindow, PromiseTerms};
use berth_types::Page;
use berth_types::money::money_text;
use leptos::prelude::*;

use super::super::load_more::{LoadMore, append};
use super::super::parts::Call;
use super::super::text::{number, sentence};
use super::promise_dialogs::{RemovePromiseDialog, SetPromiseDialog, terms_list};
use super::promise_state::WINDOWS;
use super::promise_text::{evidence_text, part_cases};
use super::state::LiveService;
use crate::api;
use crate::session::use_session;
use crate::ui::*;

/// The section of the promise.
#[component]
pub fn PromiseSection(live: LiveService) -> impl IntoView {
    let (setting, removing) = (RwSignal::new(false), RwSignal::new(false));
    let session = use_session();
    let currency = session.sees_money(live.org).then(|| StoredValue::new(session.me.currency));
    let (known, failed) = (live.promise.known, live.promise.failed);
    // Absent until the promise is known.
    let chosen = Memo::new(move |_| known.with(|known| Some(known.as_ref()?.chosen.clone())));
    let has_promise = Memo::new(move |_| chosen.with(|chosen| matches!(chosen, Some(Some(_)))));
    let present = Memo::new(move |_| {
        known.with(|known| {
            let known = known.as_ref()?;
            Some((known.chosen.as_ref()?.terms, known.present.clone()))
        })
    });
    let buttons = move || {
        (live.writes && has_promise.get()).then(|| {
            view! {
                {button(live, setting, "btn btn--small", "Change promise")}
                {button(live, removing, "btn btn--danger btn--small", "Remove promise")}
            }
        })
    };
    let choice = move || {
        chosen.with(|chosen| match chosen {
            None => view! { <p class="quiet">"The promise is not known yet."</p> }.into_any(),
            Some(None) => no_promise(live, setting),
            Some(Some(chosen)) => chosen_view(chosen),
        })
    };
    let window = move || {
        present.with(|present| {
            present.as_ref().map(|(terms, window)| present_view(terms, window.as_ref(), currency))
        })
    };
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Promise"</h2>
                <div class="section__aside">{buttons}</div>
            </div>
            {move || {
                failed.get().then(|| {
                    view! { <p class="quiet">"The last request for the promise failed. The next one follows within a minute."</p> }
                })
            }}
            {choice}
            {window}
            <Windows live=live currency=currency/>
        </section>
        <SetPromiseDialog live=live open=setting/>
        <RemovePromiseDialog live=live open=removing/>
    }
}

/// Returns a button that opens a dialog.
fn button(live: LiveService, open: RwSignal<bool>, class: &'static str, verb: &'static str) -> AnyView {
    let ready = live.ready;
    view! {
        <button class=class type="button" disabled=move || !ready.get() on:click=move |_| open.set(true)>
            {verb}
        </button>
    }
    .into_any()
}

fn no_promise(live: LiveService, setting: RwSignal<bool>) -> AnyView {
    let offer = move || match live.promise.offered.get() {
        true => live.writes.then(|| button(live, setting, "btn", "Set promise")),
        false => Some(view! { <p class="empty__text">"No promise is offered at present."</p> }.into_any()),
    };
    view! {
        <div class="empty">
            <p class="empty__text">
                "No promise. With a promise, the organization automatically gets credit for each window with too few good requests, first tokens or wakes."
            </p>
            {offer}
        </div>
    }
    .into_any()
}

/// Returns the choice with its terms.
fn chosen_view(chosen: &ChosenPromise) -> AnyView {
    view! {
        <p class="prose">
            "The service has the promise " {chosen.name.clone()} " since " <When at=chosen.chosen_at/> "."
        </p>
        {terms_list(&chosen.terms)}
    }
    .into_any()
}

/// The currency; absent for a role that sees no money.
type Currency = Option<StoredValue<String>>;

/// Returns an amount; a dash without one.
fn amount_text(micros: Option<i64>, currency: StoredValue<String>) -> String {
    match micros {
        Some(micros) => currency.with_value(|currency| money_text(micros, currency)),
        None => "–".to_owned(),
    }
}

/// Returns the counts of the present window; a sentence before the first whole one.
fn present_view(terms: &PromiseTerms, window: Option<&PresentWindow>, currency: Currency) -> AnyView {
    let Some(window) = window else {
        return view! { <p class="quiet">"The first whole window after the choice has not begun yet."</p> }
            .into_any();
    };
    let verdict = if window.misses.is_empty() { "kept so far" } else { "missed so far" };
    let cases: Vec<AnyView> = part_cases(terms, &window.evidence)
        .into_iter()
        .map(|(name, cases)| {
            let bad = format!("{} bad", number(cases.bad));
            view! {
                <div class="stat">
                    <dt class="stat__label">{name}</dt>
                    <dd class="stat__value">{number(cases.all)}</dd>
                    <dd class="stat__note">{bad}</dd>
                </div>
            }
            .into_any()
        })
        .collect();
    let charges = currency.map(|currency| {
        view! {
            <div class="stat">
                <dt class="stat__label">"Charges"</dt>
                <dd class="stat__value">{amount_text(window.evidence.charged_micros, currency)}</dd>
                <dd class="stat__note">"in this window so far"</dd>
            </div>
        }
    });
    let misses: Vec<AnyView> =
        window.misses.iter().map(|text| view! { <p class="prose">{sentence(text)}</p> }.into_any()).collect();
    view! {
        <dl class="stats">
            <div class="stat">
                <dt class="stat__label">"Present window"</dt>
                <dd class="stat__value">{verdict}</dd>
                <dd class="stat__note">"until " <When at=window.end_at/></dd>
            </div>
            {cases}
            {charges}
        </dl>
        {misses}
    }
    .into_any()
}

/// The judged windows. A row never changes.
#[component]
fn Windows(live: LiveService, currency: Currency) -> impl IntoView {
    let (windows, cursor) = (live.promise.windows, live.promise.cursor);
    let more = Call::idle();
    let load_more = move |()| {
        let next = api::services::promise_windows(live.org, live.id, cursor.get_untracked(), WINDOWS);
        more.run(next, move |page: Page<JudgedWindow>| {
            windows.update(|known| append(known, page.items, |window| window.begin_at));
            cursor.set(page.next_cursor);
        });
    };
    let any = Memo::new(move |_| windows.with(|windows| !windows.is_empty()));
    let shown = move || {
        any.get().then(|| {
            view! {
                <p class="quiet">"Judged windows, newest first. A part with fewer than 20 cases counts as kept."</p>
                {table(windows, currency)}
            }
        })
    };
    view! {
        {shown}
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
    }
}

fn table(windows: RwSignal<Vec<JudgedWindow>>, currency: Currency) -> AnyView {
    let one = move |window: JudgedWindow| row(&window, currency);
    let rows = view! {
        <For each=move || windows.get() key=|window: &JudgedWindow| window.begin_at children=one/>
    }
    .into_any();
    let mut heads = vec![("Window", ""), ("Promise", ""), STATE, ("Cases", "")];
    if currency.is_some() {
        heads.extend([("Charges", "num"), ("Credit", "num")]);
    }
    live_table("Judged windows", &heads, rows)
}

fn row(window: &JudgedWindow, currency: Currency) -> AnyView {
    let kept = window.misses.is_empty();
    let amounts = currency.map(|currency| {
        view! {
            <td role="cell" class="num" data-label="Charges">
                {amount_text(window.evidence.charged_micros, currency)}
            </td>
            <td role="cell" class="num" data-label="Credit">{amount_text(window.credit_micros, currency)}</td>
        }
    });
    let missed: Vec<AnyView> = window
        .misses
        .iter()
        .map(|text| view! { <span class="table__sub">{sentence(text)}</span> }.into_any())
        .collect();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">
                <When at=window.begin_at/>
                <span class="table__sub">"until " <When at=window.end_at/></span>
            </th>
            <td role="cell" data-label="Promise">{window.name.clone()}</td>
            <td role="cell" class="table__state" data-label="State"><PromiseBadge kept=kept/></td>
            <td role="cell" data-label="Cases">{evidence_text(&window.evidence)} {missed}</td>
            {amounts}
        </tr>
    }
    .into_any()
}
