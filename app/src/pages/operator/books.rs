//! Whether the books are right: the last look at them, and looking again.
//!
//! Must not judge: what adds up and what does not is the portal's finding.

use std::future::Future;

use berth_types::ledger::Reconciliation;
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::limits::replace;
use super::super::parts::{Call, CallProblem, Loading, every, ready};
use super::super::words::counted;
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

fn load() -> impl Future<Output = Answer<Reconciliation>> + Send + 'static {
    api::money::books()
}

/// The page about the books.
#[component]
pub fn BooksPage() -> impl IntoView {
    if is_operator() { view! { <Books/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Books() -> impl IntoView {
    let data: Resource<Answer<Reconciliation>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Books".to_owned()>
            <p class="page__lead">
                "Every hour the portal looks whether its ledger adds up: every balance against its transfers, and every job, reservation and day of use against what was posted and is still held."
            </p>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(last) => view! { <Found last=last/> }.into_any(),
                    }
                })}
            </Suspense>
        </Page>
    }
}

#[component]
fn Found(last: Reconciliation) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let said = RwSignal::new("");
    let last = RwSignal::new(last);
    every(60_000, move || {
        let fresh = load();
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh.await {
                replace(last, fresh);
            }
        });
    });
    let look = move |_: leptos::ev::MouseEvent| {
        said.set("");
        call.run(api::money::look_at_books(), move |fresh: Reconciliation| {
            last.set(fresh);
            said.set("Looked just now.");
        });
    };
    view! {
        {move || last.with(finding)}
        {move || last.with(figures)}
        <CallProblem call=call beside_fields=&[]/>
        <div class="form__actions">
            <button
                class="btn"
                type="button"
                disabled=move || !ready.get() || call.pending.get()
                aria-busy=move || call.pending.get().then_some("true")
                on:click=look
            >
                "Look again"
            </button>
            <span class="quiet" role="status">{move || said.get()}</span>
        </div>
    }
}

/// What was found, in one sentence, and every mismatch.
fn finding(last: &Reconciliation) -> AnyView {
    if last.mismatches.is_empty() {
        return view! {
            <div class="banner banner--good">
                <div class="banner__text">
                    <strong class="banner__title">"Everything adds up"</strong>
                    "Every balance is the sum of its transfers, and what jobs, reservations and days of use were charged is what was posted."
                </div>
            </div>
        }
        .into_any();
    }
    let title = match last.mismatches.len() {
        1 => "One thing does not add up".to_owned(),
        count => format!("{} do not add up", counted(count, "thing", "things")),
    };
    let lines: Vec<AnyView> = last
        .mismatches
        .iter()
        .map(|words| {
            let words = words.clone();
            view! { <li>{words}</li> }.into_any()
        })
        .collect();
    view! {
        <div class="banner banner--error" role="alert">
            <div class="banner__text">
                <strong class="banner__title">{title}</strong>
                "Nothing was changed: the ledger is never edited. Find out what happened before you grant or take back money to set it right; the portal's log has the same lines."
                <ul>{lines}</ul>
            </div>
        </div>
    }
    .into_any()
}

/// When it was looked at, and at how much.
fn figures(last: &Reconciliation) -> AnyView {
    let transfers = counted(usize::try_from(last.transfers).unwrap_or(0), "transfer", "transfers");
    let found = match last.mismatches.len() {
        0 => "no mismatch".to_owned(),
        count => counted(count, "mismatch", "mismatches"),
    };
    let rest = format!(": {transfers}, {found}, looked through in {}.", duration_text(last.took_ms));
    view! { <p>"Last look " <When at=last.at/> {rest}</p> }.into_any()
}
