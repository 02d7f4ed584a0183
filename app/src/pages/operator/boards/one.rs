//! Page of one board: verdict with the next step, charts of its kept readings, jobs, events and facts.

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::board_samples::{BoardJob, BoardSamples, MAX_BOARD_JOBS};
use berth_types::ids::NodeId;
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use futures::{join, try_join};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;
use serde::{Deserialize, Serialize};

use super::super::super::org_data::object_view;
use super::super::super::parts::{CallProblem, every_visible, ready};
use super::super::is_operator;
use super::facts::pairs;
use super::history::table;
use super::verdict::{Verdict, banner};
use super::{BoardsState, Confirm, Controls, Loaded, buttons, load, pair, poll};
use crate::api;
use crate::api::Answer;
use crate::api::escape::escaped;
use crate::identity::window_title;
use crate::ui::*;

/// The choices of the shown time: seconds and name.
const WINDOWS: [(u32, &str); 3] = [(600, "10 min"), (3_600, "1 h"), (86_400, "24 h")];
const FIRST_WINDOW_S: u32 = 3_600;

/// Seconds with readings, as the portal keeps them.
const KEPT_S: f64 = 86_400.0;
/// Seconds until the last reading with steps shorter than a minute.
const FINE_S: f64 = 3_600.0;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct LoadedBoard {
    boards: Loaded,
    gpu_uuid: String,
    /// The readings and the jobs, or the problem of their request.
    samples: Answer<BoardSamples>,
    events: Answer<Vec<AuditEvent>>,
}

/// Gets the latest events of a board and of its node, newest first.
fn load_events(
    node: NodeId,
    gpu_uuid: &str,
) -> impl Future<Output = Answer<Vec<AuditEvent>>> + Send + 'static + use<> {
    let board = api::quotas::audit_about(gpu_uuid.to_owned());
    let node = api::quotas::audit_about(node.to_string());
    async move {
        let (board, node) = try_join!(board, node)?;
        Ok(merge_events(board, node))
    }
}

/// Merges the latest events of a board and of its node, newest first. A list with a further page lacks the events
/// before its oldest one, so the earlier events of the other list are left out.
fn merge_events(board: Rows<AuditEvent>, node: Rows<AuditEvent>) -> Vec<AuditEvent> {
    let begin = |page: &Rows<AuditEvent>| {
        page.next_cursor.as_ref().and_then(|_| page.items.iter().map(|event| event.at).min())
    };
    let from = begin(&board).max(begin(&node));
    let all = board.items.into_iter().chain(node.items);
    let mut events: Vec<AuditEvent> = all.filter(|event| from.is_none_or(|from| event.at >= from)).collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.at));
    events
}

fn load_board(place: Option<(NodeId, String)>) -> impl Future<Output = Answer<LoadedBoard>> + Send + 'static {
    let calls = place.map(|(node, gpu_uuid)| {
        let samples = api::health::samples(node, &gpu_uuid, None);
        (load(Some(node)), samples, load_events(node, &gpu_uuid), gpu_uuid)
    });
    async move {
        let Some((boards, samples, events, gpu_uuid)) = calls else { return Err(Problem::not_found()) };
        let (boards, samples, events) = join!(boards, samples, events);
        let boards = boards?;
        if boards.gpus.iter().all(|gpu| gpu.uuid != gpu_uuid) {
            return Err(Problem::not_found());
        }
        // Without readings and events the verdict is still useful.
        Ok(LoadedBoard { boards, gpu_uuid, samples, events })
    }
}

/// The page of one board.
#[component]
pub fn BoardPage() -> impl IntoView {
    if is_operator() { view! { <Board/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Board() -> impl IntoView {
    let params = use_params_map();
    let place = Memo::new(move |_| {
        params.with(|params| {
            let node = params.get("node").and_then(|text| text.parse::<NodeId>().ok())?;
            Some((node, params.get("gpu")?))
        })
    });
    let data: Resource<Answer<LoadedBoard>> = Resource::new(move || place.get(), load_board);
    object_view(data, |loaded| view! { <OneBoard loaded=loaded/> }.into_any())
}

/// Returns the mean of the known values; `None` without one.
fn mean(values: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = values.iter().flatten().copied().collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

/// Joins the steps of each minute before the last hour, and removes the steps before the last day.
fn thin(samples: &mut BoardSamples) {
    let minute = |at_s: f64| (at_s / 60.0).floor() as i64;
    let Some(last_s) = samples.at_s.last().copied() else { return };
    let fine = minute(last_s - FINE_S);
    let same = |a: &f64, b: &f64| minute(*b) < fine && minute(*a) == minute(*b);
    let lengths: Vec<usize> = samples.at_s.chunk_by(same).map(<[f64]>::len).collect();
    samples.at_s = samples.at_s.chunk_by(same).filter_map(|steps| steps.first().copied()).collect();
    let old = samples.at_s.partition_point(|at_s| *at_s < last_s - KEPT_S);
    samples.at_s.drain(..old);
    let columns = [
        &mut samples.utilization_percent,
        &mut samples.memory_used_mib,
        &mut samples.power_watts,
        &mut samples.temperature_celsius,
    ];
    for column in columns {
        let mut rest = column.as_slice();
        let mut joined = Vec::with_capacity(lengths.len());
        for length in &lengths {
            let (steps, later) = rest.split_at_checked(*length).unwrap_or((rest, Default::default()));
            joined.push(mean(steps));
            rest = later;
        }
        joined.drain(..old);
        *column = joined;
    }
}

/// Replaces the steps from the first fresh one on, and adds or updates jobs.
fn merge(known: &mut BoardSamples, fresh: BoardSamples) {
    if let Some(first) = fresh.at_s.first() {
        let kept = known.at_s.iter().position(|at| at >= first).unwrap_or(known.at_s.len());
        let columns = [
            (&mut known.utilization_percent, fresh.utilization_percent),
            (&mut known.memory_used_mib, fresh.memory_used_mib),
            (&mut known.power_watts, fresh.power_watts),
            (&mut known.temperature_celsius, fresh.temperature_celsius),
        ];
        for (column, more) in columns {
            column.truncate(kept);
            column.extend(more);
        }
        known.at_s.truncate(kept);
        known.at_s.extend(fresh.at_s);
        thin(known);
    }
    for job in fresh.jobs.into_iter().rev() {
        match known.jobs.iter_mut().find(|one| (one.job, one.attempt) == (job.job, job.attempt)) {
            Some(one) => *one = job,
            None => known.jobs.insert(0, job),
        }
    }
    known.jobs.truncate(MAX_BOARD_JOBS);
}

/// A part of the page with the problem of its request until the first answer.
type Part<T> = (RwSignal<T>, RwSignal<Option<Problem>>);

fn part<T: Default + Send + Sync + 'static>(answer: Answer<T>) -> Part<T> {
    let (value, problem) = match answer {
        Ok(value) => (value, None),
        Err(problem) => (T::default(), Some(problem)),
    };
    (RwSignal::new(value), RwSignal::new(problem))
}

/// The problem of a request that the page repeats.
#[component]
fn PartProblem(problem: RwSignal<Option<Problem>>) -> impl IntoView {
    move || {
        problem.get().map(|problem| {
            view! {
                <ProblemNotice problem=problem/>
                <p class="quiet">"The page repeats the request every 10 seconds."</p>
            }
        })
    }
}

/// Reads newer steps and events while the page is visible.
fn follow(
    (node, gpu_uuid): (NodeId, String),
    (samples, samples_problem): Part<BoardSamples>,
    (events, events_problem): Part<Vec<AuditEvent>>,
) {
    every_visible(10_000, move || {
        let last_s = samples.with_untracked(|samples| samples.at_s.last().copied());
        let from = last_s.map(|at_s| Timestamp::from_micros((at_s * 1e6) as i64));
        let fresh = api::health::samples(node, &gpu_uuid, from);
        let fresh_events = load_events(node, &gpu_uuid);
        spawn_local(async move {
            // The next round repeats a failed request.
            let (fresh, fresh_events) = join!(fresh, fresh_events);
            if let Ok(fresh) = fresh {
                let _ = samples.try_update(|known| merge(known, fresh));
                samples_problem.maybe_update(|problem| problem.take().is_some());
            }
            if let Ok(fresh) = fresh_events {
                events.maybe_update(|known| {
                    let changed = *known != fresh;
                    *known = fresh;
                    changed
                });
                events_problem.maybe_update(|problem| problem.take().is_some());
            }
        });
    });
}

fn seconds(at: Timestamp) -> f64 {
    at.micros() as f64 / 1e6
}

/// Returns the marked times: the spans of jobs, open ones without an end, and the times of events.
fn chart_marks(jobs: &[BoardJob], events: &[AuditEvent]) -> ChartMarks {
    let span = |job: &BoardJob| (seconds(job.from), job.to.map_or(f64::INFINITY, seconds));
    ChartMarks {
        spans: jobs.iter().map(span).collect(),
        events: events.iter().map(|event| seconds(event.at)).collect(),
    }
}

/// The choice of the shown time.
#[component]
fn Windows(window_s: RwSignal<u32>) -> impl IntoView {
    let choice = move |(length_s, name): (u32, &'static str)| {
        view! {
            <label>
                <input
                    type="radio"
                    name="window"
                    checked={length_s == FIRST_WINDOW_S}
                    prop:checked=move || { window_s.get() == length_s }
                    on:change=move |_| window_s.set(length_s)
                />
                {name}
            </label>
        }
    };
    view! {
        <div class="segmented" role="radiogroup" aria-label="Shown time">
            {WINDOWS.into_iter().map(choice).collect_view()}
        </div>
    }
}

fn jobs_table(node: NodeId, jobs: &[BoardJob]) -> AnyView {
    if jobs.is_empty() {
        return view! { <p class="quiet">"No jobs on this board in the last 24 hours."</p> }.into_any();
    }
    let row = |one: &BoardJob| {
        let path = format!("/operator/jobs?org={}&node={node}", one.org);
        let (name, org) = (one.job_name.clone(), one.org_name.clone());
        let jobs = format!("Jobs of {org} on this node");
        let below = format!("{}, attempt {}", one.job, one.attempt);
        let end = match one.to {
            Some(at) => view! { <When at=at/> }.into_any(),
            None => "in use now".into_any(),
        };
        view! {
            <tr role="row">
                <th role="rowheader" scope="row">{name}<span class="table__sub mono">{below}</span></th>
                <td role="cell" data-label="Organization">
                    {org}<span class="table__sub"><a href=path>{jobs}</a></span>
                </td>
                <td role="cell" class="nowrap" data-label="From"><When at=one.from/></td>
                <td role="cell" class="nowrap" data-label="To">{end}</td>
            </tr>
        }
        .into_any()
    };
    let rows: Vec<AnyView> = jobs.iter().map(row).collect();
    table_of(
        "Jobs on this board, newest first",
        &[("Job", ""), ("Organization", ""), ("From", "nowrap"), ("To", "nowrap")],
        rows,
    )
}

fn events_table(events: &[AuditEvent]) -> AnyView {
    if events.is_empty() {
        return view! { <p class="quiet">"No events of this board or its node yet."</p> }.into_any();
    }
    table("Latest events of the board and its node, newest first", events)
}

#[component]
fn OneBoard(loaded: LoadedBoard) -> impl IntoView {
    let LoadedBoard { boards: Loaded { node, name, gpus, .. }, gpu_uuid, samples, events } = loaded;
    let first = gpus.iter().find(|gpu| gpu.uuid == gpu_uuid);
    let (index, memory_total_mib) = first.map_or((0, 0.0), |gpu| (gpu.index, gpu.memory_mib as f64));
    let state = BoardsState::new(node, gpus);
    poll(state);
    let ((samples, samples_problem), (events, events_problem)) = (part(samples), part(events));
    follow((node, gpu_uuid.clone()), (samples, samples_problem), (events, events_problem));
    let has_samples = Memo::new(move |_| samples_problem.with(Option::is_none));
    let has_events = Memo::new(move |_| events_problem.with(Option::is_none));
    let wanted = gpu_uuid.clone();
    let gpu = Memo::new(move |_| state.gpus.with(|gpus| gpus.iter().find(|gpu| gpu.uuid == wanted).cloned()));
    let verdict = Memo::new(move |_| gpu.with(|gpu| gpu.as_ref().map(Verdict::from_gpu)));
    let facts = Memo::new(move |_| gpu.with(|gpu| gpu.as_ref().map(pairs).unwrap_or_default()));
    let task = Memo::new(move |_| gpu.with(|gpu| state.task_text(gpu.as_ref())));
    let controls = Memo::new(move |_| gpu.with(|gpu| gpu.as_ref().map(Controls::from_gpu)));
    let jobs = Memo::new(move |_| samples.with(|samples| samples.jobs.clone()));
    let marks = Memo::new(move |_| jobs.with(|jobs| events.with(|events| chart_marks(jobs, events))));
    let (ready, window_s) = (ready(), RwSignal::new(FIRST_WINDOW_S));
    let heading = format!("GPU {index} of {name}");
    let title = window_title(&heading);
    let current = format!("GPU {index}");
    let boards_path = format!("/operator/nodes/{node}");
    let node_path = format!("/operator/nodes?name={}", escaped(&name));
    view! {
        <Title text=title/>
        <div class="page">
            <nav class="crumbs" aria-label="Breadcrumb">
                <ol>
                    <li><a href="/operator/nodes">"Nodes"</a></li>
                    <li><a href=boards_path>{name}</a></li>
                    <li><span aria-current="page" class="quiet">{current}</span></li>
                </ol>
            </nav>
            <div class="page__head">
                <h1>{heading}</h1>
                {move || verdict.get().map(|verdict| {
                    view! { <BoardBadge in_service=verdict.in_service() suspect=verdict.is_suspect()/> }
                })}
            </div>
            <CallProblem call=state.call beside_fields=&[]/>
            <Confirm state=state/>
            {move || verdict.with(|verdict| verdict.as_ref().and_then(banner))}
            {move || task.get().map(|text| view! { <p class="quiet small">{text}</p> })}
            {move || controls.get().map(|controls| buttons(&gpu_uuid, controls, state, ready))}
            <p class="quiet small">"To drain the node, open its actions. "<a href=node_path>"Show node"</a></p>
            <section class="section">
                <div class="section__head">
                    <h2>"Readings"</h2>
                    <div class="section__aside"><Windows window_s=window_s/></div>
                </div>
                <PartProblem problem=samples_problem/>
                {move || {
                    has_samples
                        .get()
                        .then(|| {
                            view! {
                                <BoardCharts
                                    samples=samples
                                    marks=marks
                                    memory_total_mib=memory_total_mib
                                    window_s=window_s
                                />
                            }
                        })
                }}
                <p class="quiet small">
                    "Means of 10 s for the last hour and of 1 min for the last 24 h. A restart of the portal removes them. Shaded: a job uses the board. Line: an event of the board or its node."
                </p>
            </section>
            <section class="section">
                <div class="section__head"><h2>"Jobs"</h2></div>
                {move || {
                    if has_samples.get() {
                        jobs.with(|jobs| jobs_table(node, jobs))
                    } else {
                        view! { <p class="quiet">"The jobs load with the readings."</p> }.into_any()
                    }
                }}
            </section>
            <section class="section">
                <div class="section__head"><h2>"Events"</h2></div>
                <PartProblem problem=events_problem/>
                {move || has_events.get().then(|| events.with(|events| events_table(events)))}
            </section>
            <section class="section">
                <div class="section__head"><h2>"Facts"</h2></div>
                <dl class="kv">
                    {move || {
                        facts.get().into_iter().map(|(name, value)| pair(name, value)).collect::<Vec<AnyView>>()
                    }}
                </dl>
            </section>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(at_s: &[f64], value: f64) -> BoardSamples {
        let column = vec![Some(value); at_s.len()];
        BoardSamples {
            at_s: at_s.to_vec(),
            utilization_percent: column.clone(),
            memory_used_mib: column.clone(),
            power_watts: column.clone(),
            temperature_celsius: column,
            jobs: Vec::new(),
        }
    }

    fn job(number: u32, to: Option<&str>) -> BoardJob {
        serde_json::from_value(serde_json::json!({
            "job": format!("job_{number:0>26}"), "attempt": 1, "job_name": format!("train-{number}"),
            "org": "org_00000000000000000000000001", "org_name": "lab",
            "from": "2026-03-01T09:00:00Z", "to": to,
        }))
        .unwrap()
    }

    #[test]
    fn events_begin_where_both_lists_are_whole() {
        let event = |number: u32| AuditEvent {
            id: format!("aud_{number:0>26}").parse().unwrap(),
            at: Timestamp::from_micros(i64::from(number)),
            actor: "Operator".to_owned(),
            action: "gpu.released".to_owned(),
            subject: "GPU-1".to_owned(),
            detail: String::new(),
            context: berth_types::quotas::AuditContext::default(),
        };
        let page = |numbers: &[u32], has_more: bool| Rows {
            items: numbers.iter().map(|number| event(*number)).collect(),
            next_cursor: has_more.then(|| "next".to_owned()),
        };
        let times = |board: Rows<AuditEvent>, node: Rows<AuditEvent>| -> Vec<i64> {
            merge_events(board, node).iter().map(|event| event.at.micros()).collect()
        };
        assert_eq!(times(page(&[9, 5], false), page(&[8, 2], false)), [9, 8, 5, 2]);
        assert_eq!(times(page(&[9, 5], true), page(&[8, 2], false)), [9, 8, 5]);
        assert_eq!(times(page(&[9, 5], true), page(&[8, 7], true)), [9, 8, 7]);
        assert!(times(page(&[], false), page(&[], true)).is_empty());
    }

    #[test]
    fn fresh_steps_replace_the_open_one() {
        let mut known = samples(&[0.0, 10.0, 20.0], 1.0);
        merge(&mut known, samples(&[20.0, 30.0], 2.0));
        assert_eq!(known.at_s, [0.0, 10.0, 20.0, 30.0]);
        assert_eq!(known.power_watts, [Some(1.0), Some(1.0), Some(2.0), Some(2.0)]);
        merge(&mut known, samples(&[], 0.0));
        assert_eq!(known.at_s.len(), 4);
        let mut none = samples(&[], 0.0);
        merge(&mut none, samples(&[5.0], 3.0));
        assert_eq!((none.at_s, none.temperature_celsius), (vec![5.0], vec![Some(3.0)]));
    }

    #[test]
    fn old_steps_are_joined_to_minutes_and_removed_after_a_day() {
        let at_s: Vec<f64> = (0..18_u32).map(|step| f64::from(step) * 10.0).collect();
        let mut known = samples(&at_s, 1.0);
        known.power_watts = vec![Some(1.0), Some(3.0), None, None, None, None];
        known.power_watts.resize(18, None);
        merge(&mut known, samples(&[3_720.0], 5.0));
        // The hour before 3720 begins at 120.
        assert_eq!(known.at_s, [0.0, 60.0, 120.0, 130.0, 140.0, 150.0, 160.0, 170.0, 3_720.0]);
        assert_eq!(known.power_watts.get(..3).unwrap(), [Some(2.0), None, None]);
        assert_eq!((known.power_watts.len(), known.utilization_percent.len()), (9, 9));
        merge(&mut known, samples(&[86_460.0], 7.0));
        assert_eq!(known.at_s, [60.0, 120.0, 3_720.0, 86_460.0]);
        assert_eq!(known.utilization_percent, [Some(1.0), Some(1.0), Some(5.0), Some(7.0)]);
    }

    #[test]
    fn an_ended_job_is_updated_and_a_new_one_is_first() {
        let mut known = samples(&[], 0.0);
        known.jobs = vec![job(2, None), job(1, None)];
        let mut fresh = samples(&[], 0.0);
        fresh.jobs = vec![job(3, None), job(2, Some("2026-03-01T10:00:00Z"))];
        merge(&mut known, fresh);
        let names: Vec<&str> = known.jobs.iter().map(|job| job.job_name.as_str()).collect();
        assert_eq!(names, ["train-3", "train-2", "train-1"]);
        assert!(known.jobs.get(1).unwrap().to.is_some());
        let marks = chart_marks(&known.jobs, &[]);
        let ends: Vec<f64> = marks.spans.iter().map(|(begin, end)| end - begin).collect();
        assert_eq!(ends, [f64::INFINITY, 3_600.0, f64::INFINITY]);
    }
}
