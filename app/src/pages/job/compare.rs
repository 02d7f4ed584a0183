//! Choice of other jobs for a comparison with this one: recent jobs of the same name or with a label of it.

use std::future::Future;

use berth_types::Sort;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Job, OrgJobFilter};
use futures::future::join_all;
use leptos::prelude::*;

use super::super::compare::choice::{MIN_JOBS, compare_page};
use super::super::compare::select::compare_box;
use super::super::parts::{Call, CallProblem, Modal, focus_soon, ready};
use super::super::rows::merge;
use super::super::text::{counted, state_text};
use super::LiveJob;
use crate::address::{org_link, use_org_links};
use crate::api;
use crate::api::Answer;
use crate::ui::*;

/// The maximum number of labels in the search.
const MAX_LABELS: usize = 3;
/// The number of jobs of each search.
const SEARCHED: u32 = 50;
/// The maximum number of offered jobs.
const MAX_OFFERED: usize = 20;

/// Returns the filters for jobs of the same name and with each label.
fn filters(job: &Job) -> Vec<OrgJobFilter> {
    let by_name = OrgJobFilter { name: Some(job.name.clone()), ..OrgJobFilter::default() };
    let by_label = job.labels.iter().take(MAX_LABELS).map(|(key, value)| OrgJobFilter {
        label: Some(format!("{key}={value}")),
        ..OrgJobFilter::default()
    });
    std::iter::once(by_name).chain(by_label).collect()
}

/// Returns the newest other jobs of the same name or with a label of the job. A search by name also finds longer
/// names.
fn offered(job: &Job, found: Vec<Job>) -> Vec<Job> {
    let same = |other: &Job| {
        let same_label = job.labels.iter().any(|(key, value)| other.labels.get(key) == Some(value));
        other.id != job.id && (other.name == job.name || same_label)
    };
    let mut jobs = Vec::new();
    found.into_iter().filter(same).for_each(|one| merge(&mut jobs, one));
    jobs.truncate(MAX_OFFERED);
    jobs
}

fn search(org: OrgId, job: &Job) -> impl Future<Output = Answer<Vec<Job>>> + 'static + use<> {
    let pages =
        filters(job).into_iter().map(|filter| api::jobs::search(org, &filter, Sort::Desc, None, SEARCHED));
    let pages = join_all(pages);
    let job = job.clone();
    async move {
        let mut found = Vec::new();
        for page in pages.await {
            found.extend(page?.items);
        }
        Ok(offered(&job, found))
    }
}

/// Returns the line of an offered job.
fn line(job: &Job, chosen: RwSignal<Vec<JobId>>, ready: ReadSignal<bool>, zone: Zone) -> AnyView {
    let (id, name) = (job.id, job.name.clone());
    let label = format!("{name}, {}, {}, {id}", state_text(job.state), zone.minute(job.created_at));
    let input = compare_box(id, label, chosen, ready);
    view! {
        <li>
            <label class="check">
                {input}
                <span>
                    {name}" "<StateBadge state=job.state/>
                    <span class="check__hint"><When at=job.created_at/>" "<span class="mono break">{id.to_string()}</span></span>
                </span>
            </label>
        </li>
    }
    .into_any()
}

fn list(jobs: &[Job], chosen: RwSignal<Vec<JobId>>, ready: ReadSignal<bool>, zone: Zone) -> AnyView {
    if jobs.is_empty() {
        let text = "No other recent job has this name or one of these labels. The list of jobs has check boxes for a comparison of any jobs.";
        return view! { <p>{text}</p> <p><a href=org_link("/jobs")>"Open jobs"</a></p> }.into_any();
    }
    let lines: Vec<AnyView> = jobs.iter().map(|job| line(job, chosen, ready, zone)).collect();
    view! { <ul class="compare__offers" role="list" aria-label="Other jobs">{lines}</ul> }.into_any()
}

/// The dialog with the choice of other jobs.
#[component]
pub fn CompareDialog(
    /// The job of the page.
    live: LiveJob,
    /// True with an open dialog.
    open: RwSignal<bool>,
) -> impl IntoView {
    let (ready, links, zone) = (ready(), use_org_links(), use_zone());
    let call = Call::idle();
    let jobs = RwSignal::new(None::<Vec<Job>>);
    let chosen = RwSignal::new(vec![live.id]);
    let read = move || {
        let request = live.job.with_untracked(|job| search(live.org, job));
        call.run(request, move |found: Vec<Job>| {
            let _left = jobs.try_set(Some(found));
        });
    };
    // Each opening reads the recent jobs again.
    Effect::new(move || {
        if open.get() {
            chosen.set(vec![live.id]);
            read();
        }
    });
    let failed = Memo::new(move |_| call.problem.with(Option::is_some) && !call.pending.get());
    let read_again = move |_| {
        read();
        // The button disappears during the search.
        focus_soon("#compare .dialog__actions button".to_owned());
    };
    let count = Memo::new(move |_| chosen.with(Vec::len));
    let compare = move |_| {
        open.set(false);
        go(&links.path(&chosen.with_untracked(|jobs| compare_page(jobs))));
    };
    let body = move || {
        jobs.with(|jobs| match jobs {
            Some(jobs) => list(jobs, chosen, ready, zone.get()),
            None if failed.get() => view! {
                <p><button class="btn btn--small" type="button" on:click=read_again>"Try again"</button></p>
            }
            .into_any(),
            None => view! { <p class="quiet" role="status">"Reading recent jobs…"</p> }.into_any(),
        })
    };
    view! {
        <Modal id="compare" title="Compare with" open=open>
            <div class="dialog__body">
                <p>"Recent jobs with the same name or label. A comparison has at most six jobs."</p>
                <CallProblem call=call beside_fields=&[]/>
                {body}
            </div>
            <div class="dialog__actions">
                <button class="btn" type="button" on:click=move |_| open.set(false)>"Close"</button>
                <button
                    class="btn btn--primary"
                    type="button"
                    disabled=move || { count.get() < MIN_JOBS }
                    on:click=compare
                >
                    {move || format!("Compare {}", counted(count.get(), "job", "jobs"))}
                </button>
            </div>
        </Modal>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u32, name: &str, labels: &[(&str, &str)]) -> Job {
        let labels: std::collections::BTreeMap<&str, &str> = labels.iter().copied().collect();
        serde_json::from_value(serde_json::json!({
            "id": format!("job_{number:0>26}"), "org": "org_00000000000000000000000001", "name": name,
            "state": "running", "reasons": [], "attempt": 1, "offering": "o", "simulated": false, "count": 1,
            "priority": "normal", "max_duration_s": 60, "devices": [], "created_at": "2026-03-01T09:00:00Z",
            "created_by": "a", "metered_ms": 0, "cost_micros": 0, "held_micros": 0, "nano_per_second": 1,
            "currency": "USD", "price_version": 1, "generation": 1, "actions": [], "labels": labels,
        }))
        .unwrap()
    }

    #[test]
    fn jobs_of_the_name_or_a_label_are_offered_once_and_newest_first() {
        let own = job(5, "train", &[("project", "ocr"), ("team", "a")]);
        let found = vec![
            job(1, "train", &[]),
            job(2, "train-7b", &[]),
            own.clone(),
            job(3, "other", &[("team", "a")]),
            job(3, "other", &[("team", "a")]),
            job(4, "other", &[("team", "b")]),
        ];
        let ids: Vec<JobId> = offered(&own, found).iter().map(|job| job.id).collect();
        assert_eq!(ids, [job(3, "", &[]).id, job(1, "", &[]).id]);
        let many: Vec<Job> = (10..60).map(|number| job(number, "train", &[])).collect();
        assert_eq!(offered(&own, many).len(), MAX_OFFERED);
    }

    #[test]
    fn the_search_has_the_name_and_few_labels() {
        let filters = filters(&job(1, "train", &[("a", "1"), ("b", ""), ("c", "3"), ("d", "4")]));
        assert_eq!(filters.first().and_then(|filter| filter.name.as_deref()), Some("train"));
        let labels: Vec<&str> = filters.iter().filter_map(|filter| filter.label.as_deref()).collect();
        assert_eq!(labels, ["a=1", "b=", "c=3"]);
    }
}
