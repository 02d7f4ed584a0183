//! Ports of a job, which can be opened in the browser.

use leptos::prelude::*;

use super::super::parts::Call;
use super::form::Form;
use super::rows::{PortSignals, Row, RowFrame, RowKind, item_pointer, row_list};

static PORTS: RowKind = RowKind {
    label: "Ports",
    one: "Port",
    add: "Add port",
    id: "ports",
    pointer: "/ports",
    hint: "TCP ports of the job, such as 8888 for a notebook. Open the ports in the browser while the job runs.",
    max: 8,
};

/// The rows of port numbers and the choice of the URL path.
#[component]
pub fn PortRows(
    /// The form.
    form: Form,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let controls = move |row: Row<PortSignals>, frame: RowFrame| {
        let (number, invalid) = (row.fields.number, frame.invalid(""));
        view! {
            <input
                class="input"
                aria-label="Port number"
                placeholder="8888"
                inputmode="numeric"
                autocomplete="off"
                aria-describedby=frame.error_id()
                aria-invalid=move || invalid.get()
                prop:value=move || number.get()
                on:input=move |ev| number.set(event_target_value(&ev))
            />
        }
        .into_any()
    };
    view! {
        {row_list(&PORTS, form.ports, call, item_pointer, controls)}
        <label class="check">
            <input
                type="checkbox"
                name="ports_keep_path"
                prop:checked=move || form.ports_keep_path.get()
                on:change=move |ev| form.ports_keep_path.set(event_target_checked(&ev))
            />
            "Pass the full URL path to the job, for example for a notebook with --ServerApp.base_url=/$BERTH_JOB_ID/8888/"
        </label>
    }
}
