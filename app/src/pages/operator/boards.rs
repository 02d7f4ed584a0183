//! Page of the boards of a node: facts, health, checks, release and MIG mode. Each release and mode change
//! needs a confirmation.

use std::future::Future;

use berth_types::health::{GpuHealth, GpuTask, GpuTaskKind, PatchGpuMode};
use berth_types::ids::NodeId;
use berth_types::problems::Problem;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;
use serde::{Deserialize, Serialize};

use super::super::confirm::ConfirmDialog;
use super::super::parts::{Call, CallProblem, Loading, every, ready};
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::identity::window_title;
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    node: NodeId,
    name: String,
    gpus: Vec<GpuHealth>,
}

fn load(node: Option<NodeId>) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let calls = node.map(|node| (node, api::health::list(node), api::nodes::operator_list()));
    async move {
        // Other text than an id is not found.
        let Some((node, gpus, nodes)) = calls else { return Err(Problem::not_found()) };
        let gpus = gpus.await?.items;
        let known = nodes.await?.items.into_iter().find(|known| known.id == node);
        let name = known.map_or_else(|| node.to_string(), |known| known.name);
        Ok(Loaded { node, name, gpus })
    }
}

/// The page of the boards of a node.
#[component]
pub fn BoardsPage() -> impl IntoView {
    if is_operator() { view! { <Boards/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Boards() -> impl IntoView {
    let params = use_params_map();
    let node = Memo::new(move |_| {
        params.with(|params| params.get("node")).and_then(|text| text.parse::<NodeId>().ok())
    });
    let data: Resource<Answer<Loaded>> = Resource::new(move || node.get(), load);
    view! {
        <Suspense fallback=|| view! { <Loading/> }>
            {move || Suspend::new(async move {
                match data.await {
                    Err(problem) if problem.status == 404 => view! { <NotFound/> }.into_any(),
                    Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                    Ok(loaded) => view! { <NodeBoards loaded=loaded/> }.into_any(),
                }
            })}
        </Suspense>
    }
}

/// An action with a confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BoardAction {
    Release,
    /// A change of the MIG mode; true for on.
    SetMig(bool),
}

/// The signals of the cards and the dialog.
#[derive(Clone, Copy)]
struct BoardsState {
    gpus: RwSignal<Vec<GpuHealth>>,
    call: Call,
    /// The board and the action of the dialog.
    chosen: RwSignal<Option<(String, BoardAction)>>,
    open: RwSignal<bool>,
}

impl BoardsState {
    fn open_dialog(self, uuid: &str, action: BoardAction) {
        self.chosen.set(Some((uuid.to_owned(), action)));
        self.open.set(true);
    }

    /// Replaces a board by its answer.
    fn replace(self, fresh: GpuHealth) {
        self.gpus.update(|gpus| {
            if let Some(known) = gpus.iter_mut().find(|known| known.uuid == fresh.uuid) {
                *known = fresh;
            }
        });
    }
}

#[component]
fn NodeBoards(loaded: Loaded) -> impl IntoView {
    let Loaded { node, name, gpus } = loaded;
    let state = BoardsState {
        gpus: RwSignal::new(gpus),
        call: Call::idle(),
        chosen: RwSignal::new(None),
        open: RwSignal::new(false),
    };
    every(3_000, move || {
        let fresh = api::health::list(node);
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                state.gpus.maybe_update(|gpus| {
                    let changed = *gpus != fresh.items;
                    *gpus = fresh.items;
                    changed
                });
            }
        });
    });
    let heading = format!("Boards of {name}");
    let title = window_title(&heading);
    let ready = ready();
    let cards = move || {
        state.gpus.with(|gpus| gpus.iter().map(|gpu| card(gpu, state, ready)).collect::<Vec<AnyView>>())
    };
    let none = move || state.gpus.with(Vec::is_empty);
    view! {
        <Title text=title/>
        <div class="page">
            <nav class="crumbs" aria-label="Breadcrumb">
                <ol>
                    <li><a href="/operator/nodes">"Nodes"</a></li>
                    <li><span aria-current="page" class="quiet">{name}</span></li>
                </ol>
            </nav>
            <div class="page__head"><h1>{heading}</h1></div>
            <CallProblem call=state.call beside_fields=&[]/>
            <Confirm state=state/>
            <div class="stack">{cards}</div>
            {move || none().then(|| empty("The worker of this node reports no supported boards."))}
        </div>
    }
}

/// The confirmation of a release or a mode change.
#[component]
fn Confirm(
    /// The signals of the page.
    state: BoardsState,
) -> impl IntoView {
    let BoardsState { chosen, open, .. } = state;
    let call = Call::idle();
    let title = Signal::derive(move || match chosen.get() {
        Some((_, BoardAction::Release)) => "Release this board?".to_owned(),
        Some((_, BoardAction::SetMig(true))) => "Enable MIG?".to_owned(),
        Some((_, BoardAction::SetMig(false))) => "Disable MIG?".to_owned(),
        None => String::new(),
    });
    let text = move || match chosen.get() {
        Some((_, BoardAction::Release)) => {
            "New jobs are placed on this board at once, without a check. The fault may persist; the next fault puts the board out of service again."
        }
        Some((_, BoardAction::SetMig(_))) => {
            "No new jobs are placed on this board; running jobs continue to their end. Then the worker changes the mode. Boards older than Hopper also need a GPU reset."
        }
        None => "",
    };
    let verb = move || match chosen.get() {
        Some((_, BoardAction::Release)) | None => "Release",
        Some((_, BoardAction::SetMig(true))) => "Enable MIG",
        Some((_, BoardAction::SetMig(false))) => "Disable MIG",
    };
    let confirm = move |()| {
        let Some((uuid, action)) = chosen.get_untracked() else { return };
        let done = move |fresh: GpuHealth| {
            state.replace(fresh);
            open.set(false);
        };
        match action {
            BoardAction::Release => call.run(api::health::release(&uuid), done),
            BoardAction::SetMig(mig) => call.run(api::health::set_mode(&uuid, &PatchGpuMode { mig }), done),
        }
    };
    view! {
        <ConfirmDialog
            id="board-confirm"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb=Signal::derive(move || verb().to_owned())
            confirm=Callback::new(confirm)
        >
            <p>{text}</p>
        </ConfirmDialog>
    }
}

fn pair(name: &'static str, value: String) -> AnyView {
    view! { <dt>{name}</dt><dd>{value}</dd> }.into_any()
}

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Returns a mode and its pending change: `on`, `on, off after a reset`.
fn mode_text(now: Option<bool>, pending: Option<bool>) -> Option<String> {
    let now = now?;
    Some(match pending {
        Some(then) if then != now => format!("{}, {} after a reset", on_off(now), on_off(then)),
        _ => on_off(now).to_owned(),
    })
}

/// Returns `3 corrected, 0 uncorrected`; `None` without a reported number.
fn count_text(corrected: Option<u64>, uncorrected: Option<u64>) -> Option<String> {
    match (corrected, uncorrected) {
        (None, None) => None,
        (corrected, uncorrected) => {
            let number = |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
            Some(format!("{} corrected, {} uncorrected", number(corrected), number(uncorrected)))
        }
    }
}

/// Returns the reasons of reduced clocks. The bits are `nvmlClocksEventReason*` of NVML.
fn throttle_text(bits: u64) -> String {
    const REASONS: [(u64, &str); 9] = [
        (0x1, "idle"),
        (0x2, "application clocks"),
        (0x4, "power limit"),
        (0x8, "hardware slowdown"),
        (0x10, "sync boost"),
        (0x20, "software thermal slowdown"),
        (0x40, "hardware thermal slowdown"),
        (0x80, "power brake"),
        (0x100, "display clocks"),
    ];
    let found: Vec<&str> = REASONS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, text)| *text).collect();
    if found.is_empty() { "none".to_owned() } else { found.join(", ") }
}

/// Lists the facts and readings of a board, without those that the driver does not report.
fn pairs(gpu: &GpuHealth) -> Vec<(&'static str, String)> {
    let (facts, reading) = (&gpu.facts, &gpu.reading);
    let rows = count_text(facts.rows_corrected.map(u64::from), facts.rows_uncorrected.map(u64::from));
    let clocks = match (reading.sm_clock_mhz, reading.memory_clock_mhz) {
        (Some(sm), Some(memory)) => Some(format!("SM {sm:.0} MHz, memory {memory:.0} MHz")),
        (Some(sm), None) => Some(format!("SM {sm:.0} MHz")),
        _ => None,
    };
    let traffic = |received: Option<f64>, sent: Option<f64>, unit: &str| {
        Some(format!("{:.0} {unit} received, {:.0} {unit} sent", received?, sent?))
    };
    let all = [
        ("UUID", Some(gpu.uuid.clone())),
        ("PCI address", facts.pci_bus_id.clone()),
        ("Serial number", facts.serial.clone()),
        ("VBIOS", facts.vbios.clone()),
        ("Memory", Some(format!("{} MiB", gpu.memory_mib))),
        ("Compute capability", facts.compute_capability.clone()),
        ("Power limit", facts.power_limit_watts.map(|watts| format!("{watts} W"))),
        ("Active NVLinks", (facts.nvlinks > 0).then(|| facts.nvlinks.to_string())),
        ("MIG", mode_text(facts.mig, facts.mig_pending)),
        ("ECC", mode_text(facts.ecc, facts.ecc_pending)),
        ("ECC errors since driver load", count_text(facts.ecc_corrected, facts.ecc_uncorrected)),
        ("Row remaps by error", rows),
        ("Clocks", clocks),
        ("Clock limits", reading.throttle_reasons.map(throttle_text)),
        ("PCIe", traffic(reading.pcie_received_kb_s, reading.pcie_sent_kb_s, "kB/s")),
        ("NVLink", traffic(reading.nvlink_received_kib_s, reading.nvlink_sent_kib_s, "KiB/s")),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Returns the result of the latest task.
fn task_text(task: &GpuTask) -> String {
    let name = match task.kind {
        GpuTaskKind::Check => "Check",
        GpuTaskKind::MigOn => "Enable MIG",
        GpuTaskKind::MigOff => "Disable MIG",
    };
    match (task.good, task.words.as_deref()) {
        (None, _) => format!("{name}: waiting for the worker."),
        (Some(_), Some(answer)) if !answer.is_empty() => format!("{name}: {answer}"),
        (Some(true), _) => format!("{name}: succeeded."),
        (Some(false), _) => format!("{name}: failed."),
    }
}

/// Returns the reason that no jobs are placed on a board.
fn fault_banner(gpu: &GpuHealth) -> Option<AnyView> {
    let (title, reason, since) = match (&gpu.quarantine, &gpu.silent) {
        (Some(why), _) => ("Out of service", why.reason.clone(), why.since),
        (None, Some(why)) => ("Not responding", why.clone(), None),
        (None, None) if !gpu.present => {
            ("Missing", "Not reported by the worker at its last connection.".to_owned(), None)
        }
        (None, None) => return None,
    };
    let since = since.map(|at| view! { " Since " <When at=at/> "." });
    Some(
        view! {
            <div class="banner banner--error" role="status">
                <div class="banner__text"><strong class="banner__title">{title}</strong>{reason}{since}</div>
            </div>
        }
        .into_any(),
    )
}

fn card(gpu: &GpuHealth, state: BoardsState, ready: ReadSignal<bool>) -> AnyView {
    let heading = format!("GPU {} · {}", gpu.index, gpu.model);
    let facts: Vec<AnyView> = pairs(gpu).into_iter().map(|(name, value)| pair(name, value)).collect();
    let task = gpu.task.as_ref().map(|task| view! { <p class="quiet small">{task_text(task)}</p> });
    let blocked = move || !ready.get() || state.call.pending.get();
    let (checked, released, switched) = (gpu.uuid.clone(), gpu.uuid.clone(), gpu.uuid.clone());
    let check = move |_: leptos::ev::MouseEvent| {
        state.call.run(api::health::check(&checked), move |fresh: GpuHealth| state.replace(fresh));
    };
    let check_label = format!("Check GPU {}", gpu.index);
    let release = gpu.quarantine.is_some().then(|| {
        let label = format!("Release GPU {}", gpu.index);
        view! {
            <button
                class="btn btn--small btn--danger"
                type="button"
                aria-label=label
                disabled=blocked
                on:click=move |_| state.open_dialog(&released, BoardAction::Release)
            >
                "Release"
            </button>
        }
    });
    let mode = gpu.facts.mig.filter(|_| gpu.quarantine.is_none() && gpu.silent.is_none()).map(|on| {
        let verb = if on { "Disable MIG" } else { "Enable MIG" };
        let label = format!("{verb} on GPU {}", gpu.index);
        view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=blocked
                on:click=move |_| state.open_dialog(&switched, BoardAction::SetMig(!on))
            >
                {verb}
            </button>
        }
    });
    view! {
        <section class="card">
            <div class="card__head"><h2 class="card__title">{heading}</h2></div>
            {fault_banner(gpu)}
            <dl class="kv">{facts}</dl>
            {task}
            <div class="row">
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=check_label
                    disabled=blocked
                    on:click=check
                >
                    "Check"
                </button>
                {mode}
                {release}
            </div>
        </section>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(more: serde_json::Value) -> GpuHealth {
        let mut whole = serde_json::json!({
            "uuid": "GPU-1", "node": "node_00000000000000000000000001", "index": 0, "model": "H100-80GB",
            "memory_mib": 81559, "present": true, "mig_enabled": false, "facts": {"nvlinks": 0}, "reading": {},
        });
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn unreported_facts_are_absent() {
        let names = |gpu: &GpuHealth| pairs(gpu).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&gpu(serde_json::json!({}))), ["UUID", "Memory"]);
        let facts = serde_json::json!({"nvlinks": 18, "ecc": true, "ecc_pending": false, "ecc_corrected": 0});
        let shown = pairs(&gpu(serde_json::json!({"facts": facts, "reading": {"sm_clock_mhz": 1980.0}})));
        assert!(shown.contains(&("Active NVLinks", "18".to_owned())));
        assert!(shown.contains(&("ECC", "on, off after a reset".to_owned())));
        assert!(
            shown.contains(&("ECC errors since driver load", "0 corrected, unknown uncorrected".to_owned()))
        );
        assert!(shown.contains(&("Clocks", "SM 1980 MHz".to_owned())));
    }

    #[test]
    fn clock_limits_are_named() {
        assert_eq!(throttle_text(0), "none");
        assert_eq!(throttle_text(0x44), "power limit, hardware thermal slowdown");
        assert_eq!(throttle_text(0x8000), "none");
    }

    #[test]
    fn a_task_has_its_result() {
        let task = |good, words: Option<&str>| {
            task_text(&GpuTask { kind: GpuTaskKind::Check, good, words: words.map(str::to_owned) })
        };
        assert_eq!(task(None, None), "Check: waiting for the worker.");
        assert_eq!(task(Some(false), Some("Processes are on it.")), "Check: Processes are on it.");
        assert_eq!(task(Some(true), None), "Check: succeeded.");
    }
}
