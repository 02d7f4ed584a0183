//! Files of a job: checkpoints and artifacts. The browser downloads them by links.

use berth_types::Page;
use berth_types::files::{FileKind, FileState, JobFile};
use berth_types::ids::{JobId, OrgId};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::text::size_text;
use super::LiveJob;
use crate::api;
use crate::api::Answer;
use crate::ui::*;

fn display_name(file: &JobFile) -> String {
    match file.kind {
        FileKind::Artifact => file.path.clone(),
        FileKind::Checkpoint => format!("{} (checkpoint, tar)", file.path),
    }
}

fn row(org: OrgId, job: JobId, file: &JobFile) -> AnyView {
    let name = display_name(file);
    let label = format!("Download {name}");
    let href = format!("/api/v1/orgs/{org}/jobs/{job}/files/{}", file.id);
    let action = match file.state {
        FileState::Complete => {
            view! { <a href=href rel="external" download="" aria-label=label>"Download"</a> }.into_any()
        }
        FileState::Partial => view! { <span class="quiet">"uploading"</span> }.into_any(),
        FileState::Refused | FileState::Gone => view! { <span class="quiet">"not stored"</span> }.into_any(),
    };
    let note = file.note.clone().map(|note| view! { <span class="table__sub">{note}</span> });
    let source = format!("attempt {}, rank {}", file.attempt, file.rank);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="break mono">{name}</span>{note}</th>
            <td role="cell" class="nowrap" data-label="Size">{size_text(file.bytes)}</td>
            <td role="cell" class="nowrap" data-label="Source">{source}</td>
            <td role="cell" class="nowrap" data-label="Saved"><When at=file.created_at/></td>
            <td role="cell" class="table__actions">{action}</td>
        </tr>
    }
    .into_any()
}

fn table(org: OrgId, job: JobId, page: &Page<JobFile>) -> AnyView {
    let rows: Vec<AnyView> = page.items.iter().map(|file| row(org, job, file)).collect();
    let more = page.next_cursor.as_ref().map(|_| {
        let path = format!("/api/v1/orgs/{org}/jobs/{job}/files");
        view! { <p class="quiet">"Newest files only. Full list: "<span class="mono">{path}</span></p> }
    });
    view! {
        <section class="section">
            <div class="section__head"><h2>"Files"</h2></div>
            {table_of(
                "Files of the job",
                &[("File", ""), ("Size", ""), ("Source", ""), ("Saved", ""), ACTIONS],
                rows,
            )}
            {more}
        </section>
    }
    .into_any()
}

/// The files of a job, if it has any. A new file causes an event of the job.
#[component]
pub fn Files(
    /// The job.
    live: LiveJob,
    /// The first page of files.
    seed: Answer<Page<JobFile>>,
) -> impl IntoView {
    let (org, id) = (live.org, live.id);
    let known = RwSignal::new(seed);
    Effect::new(move |before: Option<()>| {
        live.job.track();
        if before.is_some() {
            spawn_local(async move {
                // After a failed request the old list stays.
                if let Ok(fresh) = api::jobs::files(org, id).await {
                    known.set(Ok(fresh));
                }
            });
        }
    });
    move || match known.get() {
        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
        Ok(page) if page.items.is_empty() => ().into_any(),
        Ok(page) => table(org, id, &page),
    }
}
