//! Text files of a job: a row with path and content.

use leptos::prelude::*;

use super::super::parts::Call;
use super::labels::named_pointer;
use super::rows::{PairSignals, Row, RowFrame, RowKind, Rows, row_input, row_list};

static FILES: RowKind = RowKind {
    label: "Files",
    one: "File",
    add: "Add file",
    id: "files",
    pointer: "/files",
    hint: "Written to the job directory before the start, with paths relative to it.",
    max: 256,
};

/// The rows of files.
#[component]
pub fn FileRows(
    /// The rows.
    rows: Rows<PairSignals>,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let controls = move |row: Row<PairSignals>, frame: RowFrame| {
        let PairSignals { name, value } = row.fields;
        let invalid = frame.invalid("");
        view! {
            {row_input("File path", "train.py", name, frame, "")}
            <textarea
                class="mono"
                rows="6"
                spellcheck="false"
                aria-label="File content"
                aria-describedby=frame.error_id()
                aria-invalid=move || invalid.get()
                prop:value=move || value.get()
                on:input=move |ev| value.set(event_target_value(&ev))
            ></textarea>
        }
        .into_any()
    };
    row_list(&FILES, rows, call, named_pointer, controls)
}
