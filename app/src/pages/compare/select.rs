//! The check boxes and the button for a comparison of listed jobs.

use berth_types::ids::JobId;
use berth_types::jobs::Job;
use leptos::prelude::*;

use super::super::text::counted;
use super::choice::{MAX_JOBS, MIN_JOBS, choose, compare_page};
use crate::address::use_org_links;
use crate::ui::*;

/// The head of the column of check boxes.
pub const COMPARE: (&str, &str) = ("Compare", SELECT);

/// Returns the check box of a job; `label` is its accessible name.
pub fn compare_box(
    id: JobId,
    label: String,
    chosen: RwSignal<Vec<JobId>>,
    ready: ReadSignal<bool>,
) -> AnyView {
    let checked = move || chosen.with(|jobs| jobs.contains(&id));
    let full = move || chosen.with(|jobs| jobs.len() >= MAX_JOBS && !jobs.contains(&id));
    view! {
        <input
            type="checkbox"
            aria-label=label
            disabled=move || !ready.get() || full()
            prop:checked=checked
            on:change=move |event| {
                let checked = event_target_checked(&event);
                chosen.update(|jobs| choose(jobs, id, checked));
            }
        />
    }
    .into_any()
}

/// Returns the cell with the check box of a listed job.
pub fn compare_cell(job: &Job, chosen: RwSignal<Vec<JobId>>, ready: ReadSignal<bool>) -> AnyView {
    let label = format!("Compare {} ({})", job.name, job.id);
    let input = compare_box(job.id, label, chosen, ready);
    view! { <td role="cell" class="table__select" data-label="Compare">{input}</td> }.into_any()
}

/// The button that opens the comparison. Disabled with fewer than two jobs.
#[component]
pub fn CompareButton(
    /// The chosen jobs.
    chosen: RwSignal<Vec<JobId>>,
) -> impl IntoView {
    let links = use_org_links();
    let count = Memo::new(move |_| chosen.with(Vec::len));
    let text = move || match count.get() {
        0 => "Compare jobs".to_owned(),
        count => format!("Compare {}", counted(count, "job", "jobs")),
    };
    let open = move |_| go(&links.path(&chosen.with_untracked(|jobs| compare_page(jobs))));
    let limit = move || {
        let text = (count.get() >= MAX_JOBS).then(|| format!("At most {MAX_JOBS} jobs."));
        text.map(|text| view! { <span class="quiet small">{text}</span> })
    };
    view! {
        {limit}
        <button
            class="btn btn--small"
            type="button"
            title="Two to six jobs"
            disabled=move || { count.get() < MIN_JOBS }
            on:click=open
        >
            {text}
        </button>
    }
}
