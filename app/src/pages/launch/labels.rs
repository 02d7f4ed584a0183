//! Labels of a job, with the labels of earlier jobs as suggestions.

use leptos::prelude::*;

use super::super::parts::Call;
use super::draft::rows::key_pointer;
use super::lists::{Entry, Lists, known_labels, load_for, suggestions};
use super::rows::{PairSignals, Row, RowFrame, RowKind, Rows, row_list};

static LABELS: RowKind = RowKind {
    label: "Labels",
    one: "Label",
    add: "Add label",
    id: "labels",
    pointer: "/labels",
    hint: "Such as project with the value ocr. Usage and budgets can be grouped by label.",
    max: 32,
};

/// Returns the pointer of an item of a map, whose input is a name with its value.
pub fn named_pointer(kind: &'static RowKind, _: usize, (name, _): &(String, String)) -> String {
    key_pointer(kind.pointer, name)
}

/// A text input of a row with suggestions.
fn suggested_input(label: &'static str, list: String, value: RwSignal<String>, frame: RowFrame) -> AnyView {
    let invalid = frame.invalid("");
    view! {
        <input
            class="input mono"
            aria-label=label
            list=list
            autocomplete="off"
            spellcheck="false"
            aria-describedby=frame.error_id()
            aria-invalid=move || invalid.get()
            prop:value=move || value.get()
            on:input=move |ev| value.set(event_target_value(&ev))
        />
    }
    .into_any()
}

/// The rows of labels.
#[component]
pub fn LabelRows(
    /// The rows.
    rows: Rows<PairSignals>,
    /// The lists of the organization.
    lists: Lists,
    /// The submission.
    call: Call,
) -> impl IntoView {
    load_for(rows, move || lists.load_jobs());
    let known = move |key: Option<String>| {
        let texts = lists.jobs.with(|list| known_labels(list.items(), key.as_deref()));
        texts.into_iter().map(|text| (text, String::new())).collect::<Vec<Entry>>()
    };
    let controls = move |row: Row<PairSignals>, frame: RowFrame| {
        let PairSignals { name, value } = row.fields;
        let values = format!("label-values-{}", row.id);
        view! {
            {suggested_input("Label key", "label-keys".to_owned(), name, frame)}
            {suggested_input("Label value", values.clone(), value, frame)}
            {suggestions(values, move || known(Some(name.get().trim().to_owned())))}
        }
        .into_any()
    };
    view! {
        {row_list(&LABELS, rows, call, named_pointer, controls)}
        {suggestions("label-keys".to_owned(), move || known(None))}
    }
}
