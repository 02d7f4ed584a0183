//! What few jobs need: a share of a board, closeness, further tries, and an end when its devices stand idle.
//!
//! Must not decide what the portal accepts; only where a field can have no meaning, it is not offered.

use berth_types::jobs::Topology;
use leptos::prelude::*;

use super::super::parts::{Call, FieldError};
use super::super::words::closeness_text;
use super::draft::{CLOSENESS, parse_closeness};
use super::form::Form;
use super::idle::EndsWhenIdle;
use super::part::Part;

/// The part of the form that is closed until somebody needs it.
#[component]
pub fn PlacementAndRetries(
    /// The form.
    form: Form,
    /// The submission.
    call: Call,
    /// A whole board is chosen, which can be shared.
    whole_board: Memo<bool>,
) -> impl IntoView {
    let [share, closeness, tries] = ["/gpu_milli", "/topology", "/retry/max"].map(|at| call.field(at));
    let share_hint = Signal::derive(move || {
        let text = if whole_board.get() {
            "Empty: the whole board. Jobs of your organization share the board. It is cheaper, and memory is not fenced off: one job can use up what the others need."
        } else {
            "A slice is not shared further. For a share, choose a whole board above."
        };
        text.to_owned()
    });
    view! {
        <Part
            title="Placement and retries"
            call=call
            pointers=&["/gpu_milli", "/topology", "/retry", "/stop_when_idle"]
        >
            <Figure
                label="Share of a board"
                name="share"
                unit="%"
                value=form.share
                hint=share_hint
                error=share
                disabled=Signal::derive(move || !whole_board.get())
            />
            <div class="field-row">
                <Closeness form=form error=closeness/>
                <Figure
                    label="Tries after a failure"
                    name="tries"
                    unit="tries"
                    value=form.tries
                    hint="0: none. It is tried again after an error of its own or of its node; all tries share the time limit."
                    error=tries
                />
            </div>
            <EndsWhenIdle form=form call=call/>
        </Part>
    }
}

/// A short figure with its unit.
#[component]
pub fn Figure(
    /// Above the field.
    label: &'static str,
    /// Name and id.
    name: &'static str,
    /// What is counted.
    unit: &'static str,
    /// What is typed.
    value: RwSignal<String>,
    /// Below the field.
    #[prop(into)]
    hint: Signal<String>,
    /// What is wrong with it.
    error: Signal<Option<String>>,
    /// It can have no meaning as the form stands.
    #[prop(optional, into)]
    disabled: Signal<bool>,
) -> impl IntoView {
    let hint_id = format!("{name}-hint");
    let error_id = format!("{name}-error");
    let described = format!("{hint_id} {error_id}");
    let at_first = value.get_untracked();
    view! {
        <div class="field">
            <label class="field__label" for=name>{label}</label>
            <span class="with-unit">
                <input
                    id=name
                    name=name
                    inputmode="decimal"
                    autocomplete="off"
                    value=at_first
                    disabled=move || disabled.get()
                    aria-describedby=described
                    aria-invalid=move || error.get().map(|_| "true")
                    prop:value=move || value.get()
                    on:input=move |ev| value.set(event_target_value(&ev))
                />
                <span class="with-unit__unit">{unit}</span>
            </span>
            <p class="field__hint" id=hint_id>{move || hint.get()}</p>
            <FieldError id=error_id error=error/>
        </div>
    }
}

/// How near each other the devices must be.
#[component]
fn Closeness(
    /// The form.
    form: Form,
    /// What is wrong with the choice.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let option = move |near: Topology| {
        view! { <option value=near.name() selected={near.is_any()}>{closeness_text(near)}</option> }
    };
    view! {
        <div class="field">
            <label class="field__label" for="closeness">"Closeness"</label>
            <select
                id="closeness"
                name="closeness"
                aria-describedby="closeness-hint closeness-error"
                aria-invalid=move || error.get().map(|_| "true")
                on:change=move |ev| form.closeness.set(parse_closeness(&event_target_value(&ev)))
            >
                {CLOSENESS.into_iter().map(option).collect_view()}
            </select>
            <p class="field__hint" id="closeness-hint">
                "How near its devices must be to each other. The nearer, the longer it may wait for a place."
            </p>
            <FieldError id="closeness-error" error=error/>
        </div>
    }
}
