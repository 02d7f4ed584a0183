//! Environment variables of a job: rows, and pasted lines.

use leptos::prelude::*;

use super::super::parts::{Call, FieldError};
use super::draft::rows::parse_lines;
use super::labels::named_pointer;
use super::rows::{PairSignals, Row, RowFrame, RowKind, Rows, row_input, row_list};

static VARIABLES: RowKind = RowKind {
    label: "Environment variables",
    one: "Variable",
    add: "Add variable",
    id: "env",
    pointer: "/env",
    hint: "The job sees these variables in addition to its own, such as BERTH_JOB_ID.",
    max: 256,
};

/// Adds parsed variables. A known name gets the new value.
///
/// # Errors
/// A sentence about wrong lines, or about too many variables; then the rows stay as they are.
fn paste(text: &str, rows: Rows<PairSignals>) -> Result<(), String> {
    let pairs = parse_lines(text).map_err(|errors| errors.join(" "))?;
    let present = |name: &str| rows.find(|row| row.name.with_untracked(|known| known.trim() == name));
    let fresh = pairs.iter().filter(|(name, _)| present(name).is_none()).count();
    if untrack(move || rows.count()).saturating_add(fresh) > VARIABLES.max {
        return Err(format!("A job has at most {} variables. Paste fewer lines.", VARIABLES.max));
    }
    for (name, value) in pairs {
        match present(&name) {
            Some(row) => row.value.set(value),
            None => rows.add((name, value)),
        }
    }
    Ok(())
}

/// The rows of variables.
#[component]
pub fn EnvRows(
    /// The rows.
    rows: Rows<PairSignals>,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let controls = move |row: Row<PairSignals>, frame: RowFrame| {
        let PairSignals { name, value } = row.fields;
        view! {
            {row_input("Variable name", "NAME", name, frame, "")}
            {row_input("Variable value", "value", value, frame, "")}
        }
        .into_any()
    };
    view! {
        {row_list(&VARIABLES, rows, call, named_pointer, controls)}
        <PastedLines rows=rows/>
    }
}

/// The field for pasted lines.
#[component]
fn PastedLines(rows: Rows<PairSignals>) -> impl IntoView {
    let text = RwSignal::new(String::new());
    let problem = RwSignal::new(None::<String>);
    let error = Signal::derive(move || problem.get());
    let add = move |_: leptos::ev::MouseEvent| match paste(&text.get_untracked(), rows) {
        Ok(()) => {
            text.set(String::new());
            problem.set(None);
        }
        Err(detail) => problem.set(Some(detail)),
    };
    view! {
        <details class="more">
            <summary>"Paste as lines"</summary>
            <div class="field field--wide">
                <label class="field__label" for="env-lines">"Variables, one per line"</label>
                <textarea
                    class="mono"
                    id="env-lines"
                    rows="4"
                    placeholder="NAME=value"
                    spellcheck="false"
                    aria-describedby="env-lines-error"
                    aria-invalid=move || error.get().map(|_| "true")
                    prop:value=move || text.get()
                    on:input=move |ev| text.set(event_target_value(&ev))
                ></textarea>
                <FieldError id="env-lines-error" error=error/>
                <p><button class="btn btn--small" type="button" on:click=add>"Add variables"</button></p>
            </div>
        </details>
    }
}
