//! Lists of the organization for the rows: volumes, secrets and jobs. A list is loaded for its first row.

use std::collections::BTreeSet;
use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::jobs::{Job, JobState};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::text::{size_text, state_text};
use super::rows::{RowFrame, RowSignals, Rows};
use crate::api;
use crate::api::Answer;

/// The number of jobs in one answer.
const JOBS: u32 = 100;

/// A list before, during and after its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listing<T> {
    /// Not requested yet.
    Idle,
    /// Requested.
    Loading,
    /// The items.
    Ready(Vec<T>),
    /// The problem of the request.
    Failed(String),
}

impl<T> Listing<T> {
    /// Returns the items; none before the answer.
    pub fn items(&self) -> &[T] {
        match self {
            Self::Ready(items) => items,
            Self::Idle | Self::Loading | Self::Failed(_) => &[],
        }
    }
}

/// An entry of a selection: the value and its text.
pub type Entry = (String, String);

/// The lists of an organization.
#[derive(Clone, Copy)]
pub struct Lists {
    org: OrgId,
    /// Names of volumes, with their sizes.
    pub volumes: RwSignal<Listing<Entry>>,
    /// Names of secrets.
    pub secrets: RwSignal<Listing<Entry>>,
    /// Waiting, running and recent jobs.
    pub jobs: RwSignal<Listing<Job>>,
}

/// Requests a list, unless it is known or on its way.
fn request<T: Send + Sync + 'static>(
    list: RwSignal<Listing<T>>,
    answer: impl Future<Output = Answer<Vec<T>>> + 'static,
) {
    let wanted = list.with_untracked(|list| matches!(list, Listing::Idle | Listing::Failed(_)));
    if !wanted {
        return;
    }
    list.set(Listing::Loading);
    spawn_local(async move {
        let listing = match answer.await {
            Ok(items) => Listing::Ready(items),
            Err(problem) => Listing::Failed(problem.detail),
        };
        let _closed = list.try_set(listing);
    });
}

impl Lists {
    /// Returns lists without a request.
    pub fn new(org: OrgId) -> Self {
        Self {
            org,
            volumes: RwSignal::new(Listing::Idle),
            secrets: RwSignal::new(Listing::Idle),
            jobs: RwSignal::new(Listing::Idle),
        }
    }

    /// Requests the volumes.
    pub fn load_volumes(self) {
        let answer = api::volumes::list(self.org);
        request(self.volumes, async move {
            let volumes = answer.await?.items.into_iter();
            let content = |class: Option<String>, used_bytes: u64| {
                class.map_or_else(|| size_text(used_bytes), |class| format!("storage class {class}"))
            };
            Answer::Ok(
                volumes
                    .map(|v| (v.name.clone(), format!("{}, {}", v.name, content(v.class, v.used_bytes))))
                    .collect(),
            )
        });
    }

    /// Requests the secrets.
    pub fn load_secrets(self) {
        let answer = api::secrets::list(self.org);
        request(self.secrets, async move {
            Answer::Ok(
                answer.await?.items.into_iter().map(|secret| (secret.name.clone(), secret.name)).collect(),
            )
        });
    }

    /// Requests the newest waiting, running and other jobs.
    pub fn load_jobs(self) {
        let org = self.org;
        let list = move |state: Option<JobState>| api::jobs::list(org, state, None, JOBS);
        let answers = [Some(JobState::Queued), Some(JobState::Running), None].map(list);
        request(self.jobs, async move {
            let mut jobs: Vec<Job> = Vec::new();
            for answer in answers {
                for job in answer.await?.items {
                    if !jobs.iter().any(|known| known.id == job.id) {
                        jobs.push(job);
                    }
                }
            }
            Answer::Ok(jobs)
        });
    }
}

/// Loads a list with its first row.
pub fn load_for<T: RowSignals>(rows: Rows<T>, load: impl Fn() + 'static) {
    Effect::new(move || {
        if rows.count() > 0 {
            load();
        }
    });
}

/// The entries of the jobs that have not ended: name, state and id.
pub fn open_jobs(jobs: &[Job]) -> Vec<Entry> {
    let open = jobs.iter().filter(|job| !job.state.ended());
    open.map(|job| (format!("{} ({})", job.name, job.id), state_text(job.state))).collect()
}

/// Collects the known keys of labels, or the known values of a key.
pub fn known_labels(jobs: &[Job], key: Option<&str>) -> BTreeSet<String> {
    let all = jobs.iter().flat_map(|job| &job.labels);
    match key {
        None => all.map(|(key, _)| key.clone()).collect(),
        Some(key) => all.filter(|(known, _)| *known == key).map(|(_, value)| value.clone()).collect(),
    }
}

/// Suggestions of an input with `list`.
pub fn suggestions(id: String, entries: impl Fn() -> Vec<Entry> + Send + Sync + 'static) -> AnyView {
    let options = move || {
        entries()
            .into_iter()
            .map(|(value, text)| view! { <option value=value>{text}</option> }.into_any())
            .collect::<Vec<AnyView>>()
    };
    view! { <datalist id=id>{options}</datalist> }.into_any()
}

/// The selection of an entry in a row. The present value stays an option, even if the list lacks it.
pub fn entry_select(
    label: &'static str,
    none: &'static str,
    list: RwSignal<Listing<Entry>>,
    value: RwSignal<String>,
    frame: RowFrame,
) -> AnyView {
    let invalid = frame.invalid("/name");
    let option = move |(name, text): Entry| {
        let (initial, known) = (value.with_untracked(|value| *value == name), name.clone());
        let chosen = move || value.with(|value| *value == known);
        view! { <option value=name selected=initial prop:selected=chosen>{text}</option> }.into_any()
    };
    let options = move || {
        let first = list.with(|list| match list {
            Listing::Idle | Listing::Loading => "Loading".to_owned(),
            Listing::Failed(_) => "Not loaded".to_owned(),
            Listing::Ready(entries) if entries.is_empty() => none.to_owned(),
            Listing::Ready(_) => format!("Choose a {}", label.to_lowercase()),
        });
        let mut entries = list.with(|list| list.items().to_vec());
        let present = value.get_untracked();
        if !present.is_empty() && !entries.iter().any(|(name, _)| *name == present) {
            entries.insert(0, (present.clone(), present));
        }
        entries.insert(0, (String::new(), first));
        entries.into_iter().map(option).collect::<Vec<AnyView>>()
    };
    view! {
        <select
            class="select"
            aria-label=label
            aria-describedby=frame.error_id()
            aria-invalid=move || invalid.get()
            on:change=move |ev| value.set(event_target_value(&ev))
        >
            {options}
        </select>
    }
    .into_any()
}

/// The notice about a list that did not load, with a button for another request.
pub fn list_notice<T: Send + Sync + 'static>(
    list: RwSignal<Listing<T>>,
    load: impl Fn() + Clone + Send + Sync + 'static,
) -> AnyView {
    let notice = move || {
        let detail = list.with(|list| match list {
            Listing::Failed(detail) => Some(detail.clone()),
            Listing::Idle | Listing::Loading | Listing::Ready(_) => None,
        })?;
        let load = load.clone();
        Some(view! {
            <p class="field__error" role="alert">
                {detail} " "
                <button class="link-button" type="button" on:click=move |_| load()>"Try again"</button>
            </p>
        })
    };
    notice.into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u32, state: &str, team: &str) -> Job {
        serde_json::from_value(serde_json::json!({
            "id": format!("job_{number:0>26}"), "org": "org_00000000000000000000000001", "name": "train",
            "state": state, "reasons": [], "attempt": 1, "offering": "h100", "simulated": false, "count": 1,
            "priority": "normal", "labels": {"team": team}, "max_duration_s": 60, "devices": [],
            "created_at": "2026-11-20T09:00:00Z", "created_by": "a", "metered_ms": 0, "cost_micros": 0,
            "held_micros": 0, "nano_per_second": 1, "currency": "USD", "price_version": 1, "generation": 1,
            "actions": [],
        }))
        .unwrap()
    }

    #[test]
    fn jobs_give_dependencies_and_labels() {
        let jobs = [job(1, "running", "vision"), job(2, "succeeded", "speech"), job(3, "queued", "vision")];
        let entry = |number: u32, state: &str| (format!("train (job_{number:0>26})"), state.to_owned());
        assert_eq!(open_jobs(&jobs), [entry(1, "running"), entry(3, "queued")]);
        let list = |key: Option<&str>| known_labels(&jobs, key).into_iter().collect::<Vec<String>>();
        assert_eq!(list(None), ["team"]);
        assert_eq!(list(Some("team")), ["speech", "vision"]);
        assert_eq!(list(Some("project")), Vec::<String>::new());
    }
}
