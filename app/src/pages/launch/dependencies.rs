//! Dependencies of a job: a row with another job and its required end.

use berth_types::jobs::Condition;
use leptos::prelude::*;

use super::super::parts::Call;
use super::lists::{Lists, list_notice, load_for, open_jobs, suggestions};
use super::rows::{DependencySignals, Row, RowFrame, RowKind, Rows, item_pointer, row_list};

static DEPENDENCIES: RowKind = RowKind {
    label: "Start after",
    one: "Dependency",
    add: "Add job",
    id: "after",
    pointer: "/depends_on",
    hint: "The job starts after the end of these jobs. Choose a waiting or running job by its name, or enter a job ID.",
    max: 32,
};

/// The id of the suggestions.
const JOBS: &str = "open-jobs";

/// The rows of dependencies.
#[component]
pub fn DependencyRows(
    /// The rows.
    rows: Rows<DependencySignals>,
    /// The lists of the organization.
    lists: Lists,
    /// The submission.
    call: Call,
) -> impl IntoView {
    load_for(rows, move || lists.load_jobs());
    let controls = move |row: Row<DependencySignals>, frame: RowFrame| {
        let DependencySignals { job, condition } = row.fields;
        let invalid = frame.invalid("/job");
        let option = move |value: Condition, name: &'static str, text: &'static str| {
            view! { <option value=name prop:selected=move || { condition.get() == value }>{text}</option> }
        };
        let choose = move |ev: leptos::ev::Event| {
            let finished = event_target_value(&ev) == "finished";
            condition.set(if finished { Condition::Finished } else { Condition::Succeeded });
        };
        view! {
            <input
                class="input"
                aria-label="Job"
                placeholder="Name or ID"
                list=JOBS
                autocomplete="off"
                spellcheck="false"
                aria-describedby=frame.error_id()
                aria-invalid=move || invalid.get()
                prop:value=move || job.get()
                on:input=move |ev| job.set(event_target_value(&ev))
            />
            <select class="select" aria-label="Required end" on:change=choose>
                {option(Condition::Succeeded, "succeeded", "has succeeded")}
                {option(Condition::Finished, "finished", "has finished")}
            </select>
        }
        .into_any()
    };
    view! {
        {row_list(&DEPENDENCIES, rows, call, item_pointer, controls)}
        {suggestions(JOBS.to_owned(), move || lists.jobs.with(|list| open_jobs(list.items())))}
        {list_notice(lists.jobs, move || lists.load_jobs())}
    }
}
