//! Placement and retries of a job: share of a board, topology, retries and idle rule.
//!
//! The portal checks the values; fields without effect are disabled.

use berth_types::jobs::Topology;
use leptos::prelude::*;

use super::super::parts::{Call, FieldError};
use super::super::text::topology_text;
use super::draft::{TOPOLOGIES, parse_topology};
use super::form::Form;
use super::idle::StopWhenIdleFields;
use super::section::FormSection;
use crate::ui::NumberField;

/// The section of the form.
#[component]
pub fn PlacementAndRetries(
    /// The form.
    form: Form,
    /// The submission.
    call: Call,
    /// True for a chosen whole board, which can be shared.
    whole_board: Memo<bool>,
) -> impl IntoView {
    let [share, topology, retries] = ["/gpu_milli", "/topology", "/retry/max"].map(|at| call.field(at));
    let share_hint = Signal::derive(move || {
        let text = if whole_board.get() {
            "Empty: the whole board. Jobs of your organization share the board at a lower price, without a limit of memory or compute: one job can use what the others need."
        } else {
            "Slices have no shares. For a share, choose a whole board above."
        };
        text.to_owned()
    });
    view! {
        <FormSection
            title="Placement and retries"
            call=call
            pointers=&["/gpu_milli", "/topology", "/retry", "/stop_when_idle"]
            filled=untrack(move || form.has_placement())
        >
            <NumberField
                label="Share of a board"
                id="share"
                unit="%"
                value=form.share
                hint=share_hint
                error=share
                disabled=Signal::derive(move || !whole_board.get())
            />
            <div class="field-row">
                <TopologySelect form=form error=topology/>
                <NumberField
                    label="Retries"
                    id="tries"
                    unit="retries"
                    value=form.retries
                    hint="After a failure of the job or its node, 0 for none. All attempts share the time limit."
                    error=retries
                />
            </div>
            <StopWhenIdleFields enabled=form.idle percent=form.idle_percent minutes=form.idle_minutes call=call/>
        </FormSection>
    }
}

/// The choice of the required topology.
#[component]
fn TopologySelect(
    /// The form.
    form: Form,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let option = move |topology: Topology| {
        view! {
            <option value=topology.name() selected={topology == form.topology.get_untracked()}>
                {topology_text(topology)}
            </option>
        }
    };
    view! {
        <div class="field">
            <label class="field__label" for="closeness">"Topology"</label>
            <select
                id="closeness"
                name="closeness"
                aria-describedby="closeness-hint closeness-error"
                aria-invalid=move || error.get().map(|_| "true")
                prop:value=move || form.topology.get().name()
                on:change=move |ev| form.topology.set(parse_topology(&event_target_value(&ev)))
            >
                {TOPOLOGIES.into_iter().map(option).collect_view()}
            </select>
            <p class="field__hint" id="closeness-hint">
                "Required connection between the devices. A closer connection can mean a longer wait."
            </p>
            <FieldError id="closeness-error" error=error/>
        </div>
    }
}
