//! Pending requests for other limits with the decision of the operator: granted, granted with other values, or
//! declined. A decided request leaves the list.

use berth_types::problems::{FieldError as Wrong, Problem};
use berth_types::quotas::{DecideQuotaRequest, Limits, QuotaRequest, QuotaRequestState};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::super::limits::form::{Frame, LimitForm, NamedLimits};
use super::super::super::limits::kinds::limits_text;
use super::super::super::parts::{Call, CallProblem, FieldError, Submit, ready};
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/limits", "/note"];

/// The pending requests, one card each.
#[component]
pub fn PendingRequests(
    /// All requests. A decision replaces its request.
    all: RwSignal<Vec<QuotaRequest>>,
    /// The currency of the portal.
    currency: String,
) -> impl IntoView {
    let ready = ready();
    let status = RwSignal::new(String::new());
    let pending = move || {
        let is_pending = |request: &&QuotaRequest| request.state == QuotaRequestState::Pending;
        all.with(|all| all.iter().filter(is_pending).cloned().collect::<Vec<QuotaRequest>>())
    };
    let none = Memo::new(move |_| {
        all.with(|all| !all.iter().any(|request| request.state == QuotaRequestState::Pending))
    });
    let card = move |request: QuotaRequest| {
        view! { <Decision request=request all=all status=status currency=currency.clone() ready=ready/> }
    };
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Pending requests"</h2>
                <div class="section__aside" role="status">{move || status.get()}</div>
            </div>
            {move || none.get().then(|| {
                empty("No pending requests. Requests of organizations for other limits appear here.")
            })}
            <div class="stack" hidden=move || none.get()>
                <For each=pending key=|request: &QuotaRequest| request.id children=card/>
            </div>
        </section>
    }
}

/// Parses the granted limits. An empty field keeps the present limit.
///
/// # Errors
/// One error for each invalid field, or for a form without values.
fn parse_granted(form: LimitForm) -> Result<Limits, Vec<Wrong>> {
    let limits = form.limits("/limits")?;
    if limits == Limits::default() {
        let detail = "All fields are empty. Enter a value, or decline the request.";
        return Err(vec![Wrong::new("/limits", detail)]);
    }
    Ok(limits)
}

#[component]
fn Decision(
    request: QuotaRequest,
    all: RwSignal<Vec<QuotaRequest>>,
    status: RwSignal<String>,
    currency: String,
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let note = RwSignal::new(String::new());
    let form = LimitForm::new(&request.limits);
    let id = request.id;
    let prefix = id.to_string();
    let (note_id, note_error) = (format!("{prefix}-note"), format!("{prefix}-note-error"));
    let (note_label, note_described) = (note_id.clone(), note_error.clone());
    let requested = limits_text(&request.limits, &currency).join(", ");
    let frame = Frame { form, call, base: "/limits", prefix, currency, ready };
    let org_name = request.org_name.clone();
    let path = format!("/operator/limits/{}", request.org);
    let send = move |limits: Option<Limits>| {
        let grant = limits.is_some();
        let body = DecideQuotaRequest { grant, limits, note: note.get_untracked().trim().to_owned() };
        let name = org_name.clone();
        call.run(api::quotas::decide(id, &body), move |decided: QuotaRequest| {
            let decision = if grant { "granted" } else { "declined" };
            status.set(format!("Request of {name} {decision}."));
            all.update(|all| {
                if let Some(known) = all.iter_mut().find(|known| known.id == decided.id) {
                    *known = decided;
                }
            });
        });
    };
    let decline = {
        let send = send.clone();
        move |_: leptos::ev::MouseEvent| send(None)
    };
    let grant = move |event: SubmitEvent| {
        event.prevent_default();
        match parse_granted(form) {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(limits) => send(Some(limits)),
        }
    };
    let wrong_limits = call.field("/limits");
    let wrong_note = call.field("/note");
    let label = request.org_name.clone();
    let heading = request.org_name.clone();
    view! {
        <form class="form card" method="post" aria-label=format!("Request of {label}") on:submit=grant>
            <div class="card__head">
                <h3 class="card__title"><a href=path>{heading}</a></h3>
                <span class="card__aside">{request.created_by.clone()} ", " <When at=request.created_at/></span>
            </div>
            <p>{requested}</p>
            <p class="prose">{request.reason.clone()}</p>
            <CallProblem call=call beside_fields=FIELDS/>
            <NamedLimits frame=frame named=request.limits/>
            <FieldError id=format!("{id}-limits-error") error=wrong_limits/>
            <div class="field field--wide">
                <label class="field__label" for=note_label>"Note"</label>
                <input
                    id=note_id
                    autocomplete="off"
                    maxlength="1000"
                    aria-describedby=note_described
                    aria-invalid=move || wrong_note.get().map(|_| "true")
                    prop:value=move || note.get()
                    on:input=move |ev| note.set(event_target_value(&ev))
                />
                <p class="field__hint">"Shown to the organization with the decision."</p>
                <FieldError id=note_error error=wrong_note/>
            </div>
            <div class="form__actions">
                <Submit call=call>"Grant"</Submit>
                <button
                    class="btn"
                    type="button"
                    disabled=move || !ready.get() || call.pending.get()
                    on:click=decline
                >
                    "Decline"
                </button>
            </div>
        </form>
    }
}
