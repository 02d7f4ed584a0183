//! Page of the classes of promises that services can choose.

pub mod form;

use std::future::Future;

use berth_service_types::promises::{Promise, PromisedTime};
use berth_types::change_requests::{ChangeRequest, Outcome};
use berth_types::documents::surcharge_text;
use berth_types::operators::OperatorRight;
use leptos::prelude::*;
use leptos::task::spawn_local;

use self::form::PromiseDialog;
use super::super::confirm::{ConfirmDialog, ConfirmTarget};
use super::super::curl::ListCurl;
use super::super::limits::replace;
use super::super::org_data::answer_view;
use super::super::parts::{Call, every_visible, ready};
use super::super::services::promise_text::{percent_text, time_text};
use super::super::text::{counted, number};
use super::waiting::{WaitingNotice, second_operator_required};
use super::{is_operator, may, read_only};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

fn load() -> impl Future<Output = Answer<Vec<Promise>>> + Send + 'static {
    let promises = api::services::promises();
    async move {
        let mut promises = promises.await?.items;
        promises.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(promises)
    }
}

/// The page of all offered promises.
#[component]
pub fn PromisesPage() -> impl IntoView {
    if is_operator() { view! { <Promises/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Promises() -> impl IntoView {
    let data: Resource<Answer<Vec<Promise>>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Promises".to_owned()>
            <p class="page__lead">
                "A promise is a least share of good cases, such as 99.9 % of the requests. If the platform does not reach it, the organization gets credit. A service has at most one promise. It keeps the terms until it chooses again, or until you retire the promise."
            </p>
            {read_only(OperatorRight::ManageMoney)}
            {answer_view(data, |promises: Vec<Promise>| view! { <PromiseList promises=promises/> }.into_any())}
        </Page>
    }
}

/// The signals of the page.
#[derive(Clone, Copy)]
pub struct PromisesState {
    promises: RwSignal<Vec<Promise>>,
    /// The promise of the form; absent for a new one.
    chosen: RwSignal<Option<Promise>>,
    editing: RwSignal<bool>,
    retired: ConfirmTarget<Promise>,
    /// The last change, for screen readers too.
    status: RwSignal<String>,
    /// The last change, if it waits for a second operator.
    waiting: RwSignal<Option<ChangeRequest>>,
    /// True with the rule for a second operator.
    second_operator: ReadSignal<bool>,
    ready: ReadSignal<bool>,
    /// The number of changes on this page. A list that was requested before the last change is older than it.
    changes: StoredValue<u32>,
    writes: bool,
}

impl PromisesState {
    /// Counts a change, so that an older list is ignored.
    fn count_change(self) {
        self.changes.update_value(|changes| *changes = changes.wrapping_add(1));
    }

    /// Shows a new or changed promise, or its change request.
    fn show(self, outcome: Outcome<Promise>) {
        match outcome {
            Outcome::Requested(request) => {
                self.status.set(String::new());
                self.waiting.set(Some(*request));
            }
            Outcome::Done(fresh) => {
                self.count_change();
                self.waiting.set(None);
                self.status.set(format!("Services can choose {} with its present terms.", fresh.name));
                self.promises.update(|all| {
                    all.retain(|one| one.id != fresh.id);
                    let at = all.partition_point(|one| one.name < fresh.name);
                    all.insert(at, fresh);
                });
            }
        }
    }

    /// Returns a button that opens the form.
    fn button(self, one: Option<Promise>, verb: &'static str, label: String) -> AnyView {
        view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=move || !self.ready.get()
                on:click=move |_| {
                    self.chosen.set(one.clone());
                    self.editing.set(true);
                }
            >
                {verb}
            </button>
        }
        .into_any()
    }
}

#[component]
fn PromiseList(promises: Vec<Promise>) -> impl IntoView {
    let state = PromisesState {
        promises: RwSignal::new(promises),
        chosen: RwSignal::new(None),
        editing: RwSignal::new(false),
        retired: ConfirmTarget::none(),
        status: RwSignal::new(String::new()),
        waiting: RwSignal::new(None),
        second_operator: second_operator_required(),
        ready: ready(),
        changes: StoredValue::new(0),
        writes: may(OperatorRight::ManageMoney),
    };
    every_visible(10_000, move || {
        let (changes, fresh) = (state.changes.get_value(), load());
        spawn_local(async move {
            // The next round repeats a failed request. The page may have been left meanwhile.
            if let Ok(fresh) = fresh.await
                && state.changes.try_get_value() == Some(changes)
            {
                replace(state.promises, fresh);
            }
        });
    });
    let new = state.writes.then(|| state.button(None, "New promise", "New promise".to_owned()));
    view! {
        <WaitingNotice waiting=state.waiting/>
        <section class="section">
            <div class="section__head">
                <h2>"Offered promises"</h2>
                <div class="section__aside">{new}</div>
            </div>
            {move || state.promises.with(|promises| table(promises, state))}
            <p class="quiet said" role="status">{move || state.status.get()}</p>
            <ListCurl path=Signal::derive(|| "/operator/promises".to_owned()) label="Promises with curl"/>
        </section>
        {state.writes.then(|| view! { <PromiseDialog state=state/> <RetireDialog state=state/> })}
    }
}

fn table(promises: &[Promise], state: PromisesState) -> AnyView {
    if promises.is_empty() {
        return empty("No promises yet. A service can choose a promise once you offer one.");
    }
    table_of(
        "Offered promises",
        &[
            ("Name", ""),
            ("Window", ""),
            ("Availability", ""),
            ("First token", ""),
            ("Wake", ""),
            ("Surcharge", "num"),
            ("Services", "num"),
            ACTIONS,
        ],
        promises.iter().map(|promise| row(promise, state)).collect(),
    )
}

/// Returns a part of the terms with its credit; a dash for a part that is not promised.
fn part(promised: Option<(String, u32)>) -> AnyView {
    let Some((text, basis_points)) = promised else { return "–".into_any() };
    let credit = format!("credit {}", percent_text(basis_points.saturating_mul(100)));
    view! { {text}<span class="table__sub">{credit}</span> }.into_any()
}

fn row(promise: &Promise, state: PromisesState) -> AnyView {
    let (name, terms) = (promise.name.clone(), promise.terms);
    let time = |time: PromisedTime| {
        let text = format!("{} within {}", percent_text(time.good_ppm), time_text(time.within_ms));
        (text, time.credit_basis_points)
    };
    let availability =
        terms.availability.map(|share| (percent_text(share.good_ppm), share.credit_basis_points));
    let surcharge = match terms.surcharge_basis_points {
        0 => "none".to_owned(),
        points => surcharge_text(points),
    };
    let buttons = state.writes.then(|| {
        let change = state.button(Some(promise.clone()), "Change", format!("Change {name}"));
        let retire = state.retired.button(promise.clone(), "Retire", format!("Retire {name}"), state.ready);
        view! { <span class="btn-grid">{change}{retire}</span> }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="break">{name}</span></th>
            <td role="cell" data-label="Window">{terms.window.name()}</td>
            <td role="cell" data-label="Availability">{part(availability)}</td>
            <td role="cell" data-label="First token">{part(terms.first_token.map(time))}</td>
            <td role="cell" data-label="Wake">{part(terms.wake.map(time))}</td>
            <td role="cell" class="num" data-label="Surcharge">{surcharge}</td>
            <td role="cell" class="num" data-label="Services">{number(promise.services.unwrap_or_default())}</td>
            <td role="cell" class="table__actions">{buttons}</td>
        </tr>
    }
    .into_any()
}

/// Returns the services that lose a promise.
fn losing_text(services: u64) -> String {
    match services {
        0 => "No service has it now.".to_owned(),
        _ => {
            let count = usize::try_from(services).unwrap_or(usize::MAX);
            format!("{} it at once.", counted(count, "service loses", "services lose"))
        }
    }
}

#[component]
fn RetireDialog(state: PromisesState) -> impl IntoView {
    let call = Call::idle();
    let target = state.retired;
    let retire = move |()| {
        let Some(one) = target.one.get_untracked() else { return };
        let id = one.id;
        let is_shown =
            move || target.one.try_with_untracked(|one| one.as_ref().map(|one| one.id)) == Some(Some(id));
        call.run_for(is_shown, api::services::retire_promise(id), move |(), shown| {
            state.count_change();
            state.status.set(format!("{} is no longer offered.", one.name));
            state.promises.update(|all| all.retain(|known| known.id != id));
            if shown {
                target.open.set(false);
            }
        });
    };
    // The number of the list is newer than that of the opening.
    let losing = move || {
        let id = target.one.with(|one| one.as_ref().map(|one| one.id));
        let services = |all: &Vec<Promise>| all.iter().find(|one| Some(one.id) == id)?.services;
        losing_text(state.promises.with(services).unwrap_or_default())
    };
    view! {
        <ConfirmDialog
            id="retire-promise"
            title=target.title("Retire", "promise", |promise| promise.name.as_str())
            open=target.open
            call=call
            keep="Keep promise"
            verb="Retire promise"
            confirm=Callback::new(retire)
        >
            <p>{losing}" No service can choose it any more."</p>
            <p>
                "The present windows no longer count. Windows that have ended are still judged, and credits stay. Running replicas keep the surcharge until they end. The audit log of each organization names its services. This cannot be undone."
            </p>
        </ConfirmDialog>
    }
}
