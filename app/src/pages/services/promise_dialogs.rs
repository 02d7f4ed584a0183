//! Dialogs of the promise of a service: the choice of a class, and its end.

use berth_service_types::promises::{Promise, PromiseTerms, PutServicePromise, ServicePromise};
use berth_types::Page;
use berth_types::ids::PromiseId;
use berth_types::problems::Problem;
use leptos::prelude::*;

use super::super::confirm::ConfirmDialog;
use super::super::dialog_form::DialogForm;
use super::super::parts::{Call, CallProblem};
use super::head::title;
use super::promise_text::{part_texts, replica_price_text, window_text};
use super::state::LiveService;
use crate::api;
use crate::ui::*;

/// Returns the promised parts, the windows that count, and the price.
pub fn terms_list(terms: &PromiseTerms) -> AnyView {
    let part = |(name, text): (&'static str, String)| view! { <dt>{name}</dt> <dd>{text}</dd> }.into_any();
    let parts: Vec<AnyView> = part_texts(terms).into_iter().map(part).collect();
    view! {
        <dl class="kv">
            {parts} <dt>"Windows"</dt> <dd>{window_text(terms.window)}</dd>
            <dt>"Price"</dt> <dd>{replica_price_text(terms.surcharge_basis_points)}</dd>
        </dl>
    }
    .into_any()
}

/// Sends the choice of a promise, and shows its answer.
fn send_choice(live: LiveService, call: Call, open: RwSignal<bool>, body: PutServicePromise) {
    call.run(api::services::put_promise(live.org, live.id, &body), move |fresh: ServicePromise| {
        live.promise.show_choice(fresh);
        open.set(false);
    });
}

/// The dialog that sets or changes the promise.
#[component]
pub fn SetPromiseDialog(live: LiveService, open: RwSignal<bool>) -> impl IntoView {
    let (call, loading) = (Call::idle(), Call::idle());
    let offered = RwSignal::new(None::<Vec<Promise>>);
    let choice = RwSignal::new(None::<PromiseId>);
    let load_offered = move || {
        loading.run(api::services::offered_promises(live.org), move |page: Page<Promise>| {
            choice.maybe_update(|choice| {
                let is_retired = |id: PromiseId| page.items.iter().all(|one| one.id != id);
                choice.take_if(|id| is_retired(*id)).is_some()
            });
            offered.set(Some(page.items));
        });
    };
    let reset = move |()| {
        let known = live.promise.known;
        choice.set(known.with_untracked(|known| Some(known.as_ref()?.chosen.as_ref()?.promise)));
        load_offered();
    };
    // The portal refused the choice, because the offer has changed.
    Effect::new(move || {
        let is_refused = call.has_errors_in(&["/promise", "/surcharge_basis_points"]);
        if is_refused && choice.with_untracked(Option::is_some) {
            load_offered();
        }
    });
    let none = Signal::derive(move || offered.with(|all| all.as_ref().is_none_or(Vec::is_empty)));
    let terms = Memo::new(move |_| {
        let id = choice.get()?;
        offered.with(|all| all.as_ref()?.iter().find(|one| one.id == id).map(|one| one.terms))
    });
    let submit = move |()| match choice.get_untracked() {
        Some(promise) => {
            // The shown surcharge is the accepted one.
            let surcharge_basis_points = terms.get_untracked().map(|terms| terms.surcharge_basis_points);
            let body = PutServicePromise { promise: Some(promise), surcharge_basis_points };
            send_choice(live, call, open, body);
        }
        None => call.problem.set(Some(Problem::invalid_field("/promise", "Choose a promise."))),
    };
    let name = Signal::derive(move || live.service.with(|service| format!("Promise of {}", service.name)));
    view! {
        <DialogForm
            id="set-promise"
            title=name
            open=open
            call=call
            keep="Cancel"
            verb="Set promise"
            disabled=none
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                "The terms of today apply until you choose another promise or the operator ends the offer. Only windows that begin after your choice count. A missed window gives credit automatically. After a change, the present window of the former promise no longer counts. Running replicas keep their price until they end. If their surcharge is lower than that of this promise, their charges give no credit. A new revision replaces these replicas."
            </p>
            <CallProblem call=loading beside_fields=&[]/>
            <CallProblem call=call beside_fields=&["/promise"]/>
            <SelectField
                label="Promise"
                id="promise-class"
                error=call.field("/promise")
                choose=Callback::new(move |id: String| {
                    call.forget("/promise");
                    call.forget("/surcharge_basis_points");
                    choice.set(id.parse().ok());
                })
            >
                {move || options(offered, loading, choice)}
            </SelectField>
            {move || terms.get().map(|terms| terms_list(&terms))}
        </DialogForm>
    }
}

/// Returns the options of the offered promises, after one without a promise.
fn options(
    offered: RwSignal<Option<Vec<Promise>>>,
    loading: Call,
    choice: RwSignal<Option<PromiseId>>,
) -> Vec<AnyView> {
    let failed = loading.problem.with(Option::is_some);
    let first = offered.with(|all| match all {
        None if failed => "Not loaded",
        None => "Loading",
        Some(all) if all.is_empty() => "No promise is offered",
        Some(_) => "Choose a promise",
    });
    let option = move |id: Option<PromiseId>, text: String| {
        let value = id.map(|id| id.to_string()).unwrap_or_default();
        view! { <option value=value prop:selected=move || choice.get() == id>{text}</option> }.into_any()
    };
    let all = offered.with(|all| {
        let all = all.iter().flatten();
        all.map(|one| option(Some(one.id), one.name.clone())).collect::<Vec<AnyView>>()
    });
    std::iter::once(option(None, first.to_owned())).chain(all).collect()
}

/// The dialog that ends the promise.
#[component]
pub fn RemovePromiseDialog(live: LiveService, open: RwSignal<bool>) -> impl IntoView {
    let call = Call::idle();
    let remove = move |()| send_choice(live, call, open, PutServicePromise::default());
    view! {
        <ConfirmDialog
            id="remove-promise"
            title=title(live, "Remove the promise of")
            open=open
            call=call
            keep="Keep promise"
            verb="Remove promise"
            confirm=Callback::new(remove)
        >
            <p>
                "The present window no longer counts. Windows that have ended are still judged, and their credits stay. Running replicas keep their surcharge until they end. Later ones have none."
            </p>
        </ConfirmDialog>
    }
}
