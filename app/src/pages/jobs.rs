//! Page of the jobs of an organization: live, with a filter and an order.
//!
//! Filter and order are part of the address, so that a filtered list can be shared.

mod filter;

use std::future::Future;

use berth_types::Sort;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::Job;
use berth_types::money::{column_decimals, column_text};
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::filter::{Filter, Listing};
use super::compare::select::{COMPARE, CompareButton, compare_cell};
use super::curl::ListCurl;
use super::load_more::LoadMore;
use super::org_data::data_view;
use super::parts::{Call, ready, when_some};
use super::rows::{again_cell, board_cell, merge, name_cell, offering_cell};
use super::saved_filters::SavedFilters;
use super::stop_jobs::{BulkStop, StopChoice, StopJobsDialog};
use super::text::counted;
use crate::address::{org_link, use_org_links};
use crate::api;
use crate::api::Answer;
use crate::live;
use crate::live::{FeedBadge, FeedState};
use crate::session::{Page, use_session};
use crate::ui::*;

const PAGE: u32 = 50;

/// The first page of the list.
#[derive(Clone, Serialize, Deserialize)]
struct FirstPage {
    org: OrgId,
    listing: Listing,
    jobs: Vec<Job>,
    cursor: Option<String>,
}

fn load(org: OrgId, listing: Listing) -> impl Future<Output = Answer<FirstPage>> + Send + 'static {
    let page = api::jobs::search(org, &listing.filter, listing.sort, None, PAGE);
    async move {
        let page = page.await?;
        Ok(FirstPage { org, listing, jobs: page.items, cursor: page.next_cursor })
    }
}

/// The page of all jobs.
#[component]
pub fn JobsPage() -> impl IntoView {
    let org = use_session().org;
    let query = use_query_map();
    let listing = Memo::new(move |_| query.with(|query| Listing::parse(|name| query.get(name))));
    let data: Resource<Answer<Option<FirstPage>>> = Resource::new(
        move || (org.get(), listing.get()),
        |(org, listing): (Option<OrgId>, Listing)| when_some(org.map(|org| load(org, listing))),
    );
    let links = use_org_links();
    let list = Signal::derive(move || org.get().map(|org| org.to_string()));
    let filter = Signal::derive(move || listing.with(Listing::query));
    let open = move |query: String| go(links.path(&format!("/jobs?{query}")).trim_end_matches('?'));
    let launch = view! { <a class="btn btn--primary" href=org_link("/launch")>"Launch job"</a> }.into_any();
    view! {
        <Page title="Jobs".to_owned() actions=launch>
            <Filter listing=listing/>
            <SavedFilters list=list query=filter open=Callback::new(open)/>
            {data_view(data, |first: FirstPage| view! { <JobList first=first/> }.into_any())}
        </Page>
    }
}

/// Inserts or updates a job in the order of the list. `whole` is true without further pages: an older list has
/// a newer job on its last page only.
fn place(jobs: &mut Vec<Job>, job: Job, sort: Sort, whole: bool) {
    if sort == Sort::Desc {
        merge(jobs, job);
        return;
    }
    match jobs.iter_mut().find(|known| known.id == job.id) {
        Some(known) if known.generation <= job.generation => *known = job,
        Some(_) => {}
        None => match jobs.iter().position(|known| known.id > job.id) {
            Some(place) => jobs.insert(place, job),
            None if whole => jobs.push(job),
            None => {}
        },
    }
}

/// Returns the jobs that the first page of a list would have and has not: they left the filter. `before` are the jobs of
/// the list and their generations at the request.
fn gone(before: &[(JobId, i64)], jobs: &[Job], fresh: &berth_types::Page<Job>, sort: Sort) -> Vec<JobId> {
    let last = fresh.items.last().filter(|_| fresh.next_cursor.is_some()).map(|job| job.id);
    let is_behind = |id: JobId| match sort {
        Sort::Desc => last.is_some_and(|last| id < last),
        Sort::Asc => last.is_some_and(|last| id > last),
    };
    let is_known = |job: &Job| before.contains(&(job.id, job.generation));
    let is_gone = |job: &&Job| !is_behind(job.id) && fresh.items.iter().all(|one| one.id != job.id);
    jobs.iter().filter(|job| is_known(job)).filter(is_gone).map(|job| job.id).collect()
}

#[component]
fn JobList(first: FirstPage) -> impl IntoView {
    let FirstPage { org, listing, jobs, cursor } = first;
    let runs = use_session().runs_in(org);
    let sort = listing.sort;
    let csv = api::jobs::csv_path(org, &listing.filter);
    let conditions = StoredValue::new(listing.filter.text());
    let stop = (runs && !listing.filter.is_of_ended_jobs())
        .then(|| BulkStop::new(StopChoice::OneOrg(org, listing.filter.clone())));
    let listing = StoredValue::new(listing);
    let jobs = RwSignal::new(jobs);
    let cursor = RwSignal::new(cursor);
    let more = Call::idle();
    let (ready, compared) = (ready(), RwSignal::new(Vec::<JobId>::new()));
    let leave = move |gone: &[JobId]| {
        jobs.update(|jobs| jobs.retain(|job| !gone.contains(&job.id)));
        // A job out of the list has no box to remove it from the comparison.
        compared.maybe_update(|compared| {
            let before = compared.len();
            compared.retain(|one| !gone.contains(one));
            compared.len() < before
        });
    };
    let apply = move |job: Job| {
        // The page may have been left during a request.
        let Some(whole) = cursor.try_with_untracked(Option::is_none) else { return };
        let Some(wanted) = listing.try_with_value(|listing| listing.filter.matches(&job)) else { return };
        if wanted {
            jobs.update(|jobs| place(jobs, job, sort, whole));
        } else {
            leave(&[job.id]);
        }
    };
    let search =
        move |cursor| listing.with_value(|l| api::jobs::search(org, &l.filter, l.sort, cursor, PAGE));
    let feed = live::open_org(org, move |change| apply(change.job));
    // A reconnected feed misses earlier changes.
    Effect::new(move |was: Option<FeedState>| {
        let now = feed.state.get();
        if now == FeedState::Live && was.is_some_and(|was| was != FeedState::Live) {
            let before: Vec<(JobId, i64)> =
                jobs.with_untracked(|jobs| jobs.iter().map(|job| (job.id, job.generation)).collect());
            let fresh = search(None);
            spawn_local(async move {
                if let Ok(fresh) = fresh.await {
                    let left = jobs.try_with_untracked(|jobs| gone(&before, jobs, &fresh, sort));
                    let left = left.unwrap_or_default();
                    if !left.is_empty() {
                        leave(&left);
                    }
                    fresh.items.into_iter().for_each(apply);
                }
            });
        }
        now
    });
    let load_more = move |()| {
        more.run(search(cursor.get_untracked()), move |page: berth_types::Page<Job>| {
            jobs.update(|jobs| page.items.into_iter().for_each(|job| place(jobs, job, sort, true)));
            cursor.set(page.next_cursor);
        });
    };
    let none = Memo::new(move |_| jobs.with(Vec::is_empty));
    let path = Signal::derive(move || listing.with_value(|l| api::jobs::search_path(org, &l.filter, l.sort)));
    view! {
        {move || {
            if none.get() {
                // The stopped jobs may have left the list.
                let result = move || stop.filter(|stop| stop.has_result()).map(BulkStop::result);
                view! { {result} <Empty conditions=conditions.get_value()/> }.into_any()
            } else {
                view! {
                    <section class="section">
                        <div class="section__head">
                            <p class="quiet">{move || count_text(jobs.with(Vec::len), cursor.get().is_some(), sort)}</p>
                            {stop.map(BulkStop::result)}
                            <div class="section__aside">
                                <CompareButton chosen=compared/>
                                <a href=csv.clone() rel="external" download="jobs.csv">"Download CSV"</a>
                                {stop.map(|stop| stop.button("btn btn--quiet btn--small"))}
                                <FeedBadge feed=feed/>
                            </div>
                        </div>
                        {table(jobs, runs, compared, ready)}
                    </section>
                }
                    .into_any()
            }
        }}
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
        <ListCurl path=path label="Jobs with curl"/>
        {stop.map(|stop| view! { <StopJobsDialog stop=stop done=Callback::new(|()| {})/> })}
    }
}

fn count_text(count: usize, more: bool, sort: Sort) -> String {
    let jobs = counted(count, "job", "jobs");
    match (more, sort) {
        (false, _) => jobs,
        (true, Sort::Desc) => format!("Newest {jobs}"),
        (true, Sort::Asc) => format!("Oldest {jobs}"),
    }
}

/// The state of a list without jobs. `conditions` is empty without a filter.
#[component]
fn Empty(conditions: String) -> impl IntoView {
    if conditions.is_empty() {
        let text = "No jobs yet. Jobs appear here after their launch.";
        return view! { <div class="empty"><p class="empty__text">{text}</p></div> }.into_any();
    }
    let text = format!("No jobs match: {conditions}.");
    view! {
        <div class="empty">
            <p class="empty__text">{text}</p>
            <a class="btn" href=org_link("/jobs")>"Clear filters"</a>
        </div>
    }
    .into_any()
}

/// Returns the table. The row of a job stays the same after new jobs, so its check box keeps the focus.
fn table(
    jobs: RwSignal<Vec<Job>>,
    runs: bool,
    compared: RwSignal<Vec<JobId>>,
    ready: ReadSignal<bool>,
) -> AnyView {
    let decimals =
        Memo::new(move |_| jobs.with(|jobs| column_decimals(jobs.iter().map(|job| job.cost_micros))));
    let ids = move || jobs.with(|jobs| jobs.iter().map(|job| job.id).collect::<Vec<JobId>>());
    let find = move |id: JobId| jobs.with(|jobs| jobs.iter().find(|job| job.id == id).cloned());
    let one = move |id: JobId| {
        let job = Memo::new(move |_| find(id));
        let compare = job.with_untracked(|job| job.as_ref().map(|job| compare_cell(job, compared, ready)));
        let others = move || job.with(|job| job.as_ref().map(|job| cells(job, decimals.get(), runs)));
        view! { <tr role="row">{compare}{others}</tr> }
    };
    let rows = view! { <For each=ids key=|id: &JobId| *id children=one/> }.into_any();
    let table = table_of(
        "Jobs",
        &[
            COMPARE,
            ("Job", ""),
            STATE,
            ("Offering", ""),
            ("Board", ""),
            ("Submitted by", ""),
            ("Started", "nowrap"),
            ("Run time", "num"),
            ("Cost", "num"),
            ACTIONS,
        ],
        vec![rows],
    );
    view! { <div class="jobs">{table}</div> }.into_any()
}

/// Returns the cells of a job after its check box.
fn cells(job: &Job, decimals: usize, runs: bool) -> AnyView {
    let started = match job.started_at {
        Some(at) => view! { <WhenInLines at=at/> }.into_any(),
        None => {
            view! { <WhenInLines at=job.created_at/><span class="table__sub">"submitted"</span> }.into_any()
        }
    };
    let run_time = if job.metered_ms > 0 { duration_text(job.metered_ms) } else { "–".to_owned() };
    let by = job.created_by.clone();
    let cost = column_text(job.cost_micros, &job.currency, decimals);
    view! {
        {name_cell(job, job.id.to_string())}
        <td role="cell" class="table__state" data-label="State"><StateBadge state=job.state/></td>
        {offering_cell(job)}
        {board_cell(job)}
        <td role="cell" data-label="Submitted by">{by}</td>
        <td role="cell" data-label="Started">{started}</td>
        <td role="cell" class="num" data-label="Run time">{run_time}</td>
        <td role="cell" class="num" data-label="Cost">{cost}</td>
        {again_cell(job, runs)}
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u32, generation: i64) -> Job {
        serde_json::from_value(serde_json::json!({
            "id": format!("job_{number:0>26}"), "org": "org_00000000000000000000000001", "name": "n",
            "state": "queued", "reasons": [], "attempt": 0, "offering": "o", "simulated": false, "count": 1,
            "priority": "normal", "max_duration_s": 60, "devices": [], "created_at": "2026-03-01T09:00:00Z",
            "created_by": "a", "metered_ms": 0, "cost_micros": 0, "held_micros": 0, "nano_per_second": 1,
            "currency": "USD", "price_version": 1, "generation": generation, "actions": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_job_that_left_the_filter_leaves_the_list() {
        let gone = |sort: Sort, known: &[(u32, i64)], fresh: &[u32], more: bool| {
            let jobs: Vec<Job> = known.iter().map(|(number, generation)| job(*number, *generation)).collect();
            let before: Vec<(JobId, i64)> = jobs.iter().map(|job| (job.id, 1)).collect();
            let items = fresh.iter().map(|number| job(*number, 1)).collect();
            let page = berth_types::Page { items, next_cursor: more.then(|| "next".to_owned()) };
            super::gone(&before, &jobs, &page, sort)
        };
        let ids = |numbers: &[u32]| numbers.iter().map(|number| job(*number, 1).id).collect::<Vec<_>>();
        assert_eq!(gone(Sort::Desc, &[(3, 1)], &[], false), ids(&[3]), "the only job has ended");
        assert_eq!(gone(Sort::Desc, &[(5, 1), (4, 1), (3, 1), (2, 1)], &[4, 3], true), ids(&[5]));
        assert_eq!(gone(Sort::Asc, &[(2, 1), (3, 1), (5, 1)], &[3], true), ids(&[2]), "5 is on a later page");
        assert_eq!(gone(Sort::Desc, &[(3, 2)], &[], false), ids(&[]), "it changed during the request");
    }

    #[test]
    fn a_new_job_is_in_the_order_of_the_list() {
        let placed = |sort: Sort, whole: bool, known: &[u32], new: u32| {
            let mut jobs: Vec<Job> = known.iter().map(|number| job(*number, 1)).collect();
            place(&mut jobs, job(new, 2), sort, whole);
            jobs.iter().map(|job| (job.id, job.generation)).collect::<Vec<_>>()
        };
        let expected = |known: &[(u32, i64)]| {
            known.iter().map(|(number, generation)| (job(*number, 1).id, *generation)).collect::<Vec<_>>()
        };
        assert_eq!(placed(Sort::Desc, false, &[3, 1], 4), expected(&[(4, 2), (3, 1), (1, 1)]));
        assert_eq!(placed(Sort::Asc, false, &[1, 3], 2), expected(&[(1, 1), (2, 2), (3, 1)]));
        assert_eq!(placed(Sort::Asc, false, &[1, 3], 3), expected(&[(1, 1), (3, 2)]));
        assert_eq!(placed(Sort::Asc, false, &[1, 3], 4), expected(&[(1, 1), (3, 1)]), "on a later page");
        assert_eq!(placed(Sort::Asc, true, &[1, 3], 4), expected(&[(1, 1), (3, 1), (4, 2)]));
    }
}
