//! Pending requests for other limits and for credit with the decision of the operator: granted, granted with
//! other values, or declined. A decided request leaves the list.

use berth_types::change_requests::{ChangeRequest, Outcome};
use berth_types::money::parse_amount_micros;
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError as Wrong, Problem};
use berth_types::quotas::{DecideQuotaRequest, Limits, QuotaRequest, QuotaRequestState};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::super::limits::form::{Frame, LimitForm, NamedLimits, NumberField};
use super::super::super::limits::requests::requested_text;
use super::super::super::parts::{Call, CallProblem, FieldError, Submit, ready};
use super::super::super::text::typed_amount;
use super::super::may;
use super::super::waiting::{WaitingNotice, second_operator_required};
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/limits", "/credit_micros", "/note"];

/// The pending requests, one card each.
#[component]
pub fn PendingRequests(
    /// All requests. A decision replaces its request.
    all: RwSignal<Vec<QuotaRequest>>,
    /// The currency of the portal.
    currency: String,
) -> impl IntoView {
    let (ready, second_operator) = (ready(), second_operator_required());
    let status = RwSignal::new(String::new());
    let waiting = RwSignal::new(None::<ChangeRequest>);
    let pending = move || {
        let is_pending = |request: &&QuotaRequest| request.state == QuotaRequestState::Pending;
        all.with(|all| all.iter().filter(is_pending).cloned().collect::<Vec<QuotaRequest>>())
    };
    let none = Memo::new(move |_| {
        all.with(|all| !all.iter().any(|request| request.state == QuotaRequestState::Pending))
    });
    let card = move |request: QuotaRequest| {
        view! {
            <Decision
                request=request
                all=all
                results=(status, waiting)
                currency=currency.clone()
                second_operator=second_operator
                ready=ready
            />
        }
    };
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Pending requests"</h2>
                <div class="section__aside" role="status">{move || status.get()}</div>
            </div>
            <WaitingNotice waiting=waiting/>
            {move || none.get().then(|| {
                empty("No pending requests. Requests of organizations for other limits and for credit appear here.")
            })}
            <div class="stack" hidden=move || none.get()>
                <For each=pending key=|request: &QuotaRequest| request.id children=card/>
            </div>
        </section>
    }
}

/// The granted limits and credit; absent without a request for them.
struct Granted {
    limits: Option<Limits>,
    credit_micros: Option<i64>,
}

/// Parses the granted limits of a request. An empty field keeps the present limit.
///
/// # Errors
/// One error for each invalid field, or for a form without values.
fn parse_limits(requested: &Limits, form: LimitForm) -> Result<Option<Limits>, Vec<Wrong>> {
    if *requested == Limits::default() {
        return Ok(None);
    }
    let limits = form.limits("/limits")?;
    if limits == Limits::default() {
        let detail = "All fields are empty. Enter a value, or decline the request.";
        return Err(vec![Wrong::new("/limits", detail)]);
    }
    Ok(Some(limits))
}

/// Parses the granted credit of a request.
///
/// # Errors
/// The text is no amount.
fn parse_credit(requested: Option<i64>, text: &str) -> Result<Option<i64>, Vec<Wrong>> {
    if requested.is_none() {
        return Ok(None);
    }
    let detail = "Enter an amount, such as 500 or 12.50.";
    parse_amount_micros(text).map(Some).ok_or_else(|| vec![Wrong::new("/credit_micros", detail)])
}

/// Returns the time of the credit of a grant.
const fn credit_hint(second_operator: bool) -> &'static str {
    if second_operator {
        "Added to the balance of the organization at the approval by another operator."
    } else {
        "Added to the balance of the organization at once."
    }
}

/// Returns true if the role decides a request: credit is money, and limits are not.
fn may_decide(request: &QuotaRequest) -> bool {
    let money = request.credit_micros.is_some();
    let limits = request.limits != Limits::default() || !money;
    (!money || may(OperatorRight::ManageMoney)) && (!limits || may(OperatorRight::ManageOrgs))
}

#[component]
fn Decision(
    request: QuotaRequest,
    all: RwSignal<Vec<QuotaRequest>>,
    results: (RwSignal<String>, RwSignal<Option<ChangeRequest>>),
    currency: String,
    second_operator: ReadSignal<bool>,
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let (status, waiting) = results;
    let call = Call::idle();
    let note = RwSignal::new(String::new());
    let form = LimitForm::new(&request.limits);
    let (limits, credit) = (request.limits.clone(), request.credit_micros);
    let amount = RwSignal::new(credit.map(typed_amount).unwrap_or_default());
    let id = request.id;
    let prefix = id.to_string();
    let (note_id, note_error) = (format!("{prefix}-note"), format!("{prefix}-note-error"));
    let (note_label, note_described) = (note_id.clone(), note_error.clone());
    let requested = requested_text(&request, &currency);
    let credit_field = credit.map(|_| {
        view! {
            <NumberField
                label="Amount"
                id=format!("{id}-credit")
                unit=currency.clone()
                value=amount
                hint=Signal::derive(move || credit_hint(second_operator.get()).to_owned())
                error=call.field("/credit_micros")
            />
        }
    });
    let frame = Frame { form, call, base: "/limits", prefix, currency, ready };
    let org_name = request.org_name.clone();
    let path = format!("/operator/limits/{}", request.org);
    let send = move |granted: Option<Granted>| {
        let grant = granted.is_some();
        let Granted { limits, credit_micros } =
            granted.unwrap_or(Granted { limits: None, credit_micros: None });
        let note = note.get_untracked().trim().to_owned();
        let body = DecideQuotaRequest { grant, limits, credit_micros, note };
        let name = org_name.clone();
        call.run(api::quotas::decide(id, &body), move |outcome: Outcome<QuotaRequest>| {
            let decided = match outcome {
                Outcome::Requested(request) => {
                    status.set(String::new());
                    waiting.set(Some(*request));
                    return;
                }
                Outcome::Done(decided) => decided,
            };
            waiting.set(None);
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
        let granted = parse_limits(&limits, form).and_then(|limits| {
            let credit_micros = parse_credit(credit, &amount.get_untracked())?;
            Ok(Granted { limits, credit_micros })
        });
        match granted {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(granted) => send(Some(granted)),
        }
    };
    let wrong_limits = call.field("/limits");
    let wrong_note = call.field("/note");
    let decides = may_decide(&request);
    let undecided = !decides;
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
            {credit_field}
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
            <p class="quiet" hidden=decides>"Your role reads this request. Requests for credit need the role owner or billing, and requests for limits the role owner or support."</p>
            <div class="form__actions" hidden=undecided>
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
