//! Page of the boards of a node: facts, readings, health with its history, checks, release, MIG mode and reset, and the
//! RDMA ports of the node. Each release, mode change and reset needs a confirmation. `one` is the page of a single board.

mod checks;
mod confirm;
mod facts;
mod history;
pub mod one;
mod rdma;
mod tasks;
pub mod verdict;

use std::future::Future;

use berth_types::diagnosis::NodeDiagnosis;
use berth_types::health::{GpuHealth, GpuTaskKind};
use berth_types::ids::NodeId;
use berth_types::nodes::{Node, NodeMaintenance, NodeOrg};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::rdma::RdmaPort;
use berth_types::time::Timestamp;
use futures::try_join;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;
use serde::{Deserialize, Serialize};

use self::checks::HostChecks;
use self::confirm::Confirm;
use self::facts::pairs;
use self::history::History;
use self::rdma::rdma_section;
use self::tasks::latest_task;
use self::verdict::{Verdict, banner};
use super::super::org_data::object_view;
use super::super::parts::{Call, CallProblem, every_visible, ready};
use super::nodes::aside::maintenance_line;
use super::{is_operator, may};
use crate::api;
use crate::api::Answer;
use crate::api::escape::escaped;
use crate::identity::window_title;
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    node: NodeId,
    name: String,
    /// The organization to which the node is dedicated.
    dedicated_to: Option<NodeOrg>,
    gpus: Vec<GpuHealth>,
    maintenance: Option<NodeMaintenance>,
    rdma_ports: Vec<RdmaPort>,
    diagnosis: NodeDiagnosis,
}

fn load(node: Option<NodeId>) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let calls = node.map(|node| {
        (node, api::health::list(node), api::nodes::operator_get(node), api::nodes::diagnosis(node))
    });
    async move {
        // Other text than an id is not found.
        let Some((node, gpus, known, diagnosis)) = calls else { return Err(Problem::not_found()) };
        let (gpus, known, diagnosis) = try_join!(gpus, known, diagnosis)?;
        let Node { name, dedicated_to, maintenance, rdma_ports, .. } = known;
        Ok(Loaded { node, name, dedicated_to, gpus: gpus.items, maintenance, rdma_ports, diagnosis })
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
    object_view(data, |loaded| view! { <NodeBoards loaded=loaded/> }.into_any())
}

/// Returns the path of the page of a board.
pub fn board_path(node: NodeId, gpu_uuid: &str) -> String {
    format!("/operator/nodes/{node}/boards/{}", escaped(gpu_uuid))
}

/// An action with a confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BoardAction {
    Release,
    /// The approval of a board beyond those of its node's approval.
    Approve,
    /// A change of the MIG mode; true for on.
    SetMig(bool),
    Reset,
}

impl BoardAction {
    const fn verb(self) -> &'static str {
        match self {
            Self::Release => "Release",
            Self::Approve => "Approve",
            Self::SetMig(true) => "Enable MIG",
            Self::SetMig(false) => "Disable MIG",
            Self::Reset => "Reset",
        }
    }

    /// Returns the action with its board: `Reset GPU 0`.
    fn label(self, index: u32) -> String {
        let on = if matches!(self, Self::SetMig(_)) { " on" } else { "" };
        format!("{}{on} GPU {index}", self.verb())
    }
}

/// The signals of the cards and the dialog.
#[derive(Clone, Copy)]
struct BoardsState {
    node: NodeId,
    gpus: RwSignal<Vec<GpuHealth>>,
    /// The number of answers to actions. Boards that were asked for before the last one are older than it.
    answers: StoredValue<u32>,
    call: Call,
    /// The board, its index, and the action of the dialog.
    chosen: RwSignal<Option<(String, u32, BoardAction)>>,
    open: RwSignal<bool>,
}

impl BoardsState {
    fn new(node: NodeId, gpus: Vec<GpuHealth>) -> Self {
        Self {
            node,
            gpus: RwSignal::new(gpus),
            answers: StoredValue::new(0),
            call: Call::idle(),
            chosen: RwSignal::new(None),
            open: RwSignal::new(false),
        }
    }

    fn open_dialog(self, uuid: &str, index: u32, action: BoardAction) {
        self.chosen.set(Some((uuid.to_owned(), index, action)));
        self.open.set(true);
    }

    /// Returns the result of the latest task of a board; `None` without a task.
    fn task_text(self, gpu: Option<&GpuHealth>) -> Option<String> {
        self.gpus.with(|gpus| latest_task(gpu?, gpus))
    }

    /// Replaces a board by its answer.
    fn replace(self, fresh: GpuHealth) {
        self.answers.update_value(|answers| *answers = answers.wrapping_add(1));
        self.gpus.update(|gpus| {
            if let Some(known) = gpus.iter_mut().find(|known| known.uuid == fresh.uuid) {
                *known = fresh;
            }
        });
    }
}

/// Reads the boards again while the page is visible.
fn poll(state: BoardsState) {
    every_visible(3_000, move || {
        let (answers, fresh) = (state.answers.get_value(), api::health::list(state.node));
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await
                && state.answers.try_get_value() == Some(answers)
            {
                state.gpus.maybe_update(|gpus| {
                    let changed = *gpus != fresh.items;
                    *gpus = fresh.items;
                    changed
                });
            }
        });
    });
}

#[component]
fn NodeBoards(loaded: Loaded) -> impl IntoView {
    let Loaded { node, name, dedicated_to, gpus, maintenance, rdma_ports, diagnosis } = loaded;
    let maintenance = maintenance.map(|maintenance| {
        view! { <p>{maintenance_line(&maintenance)} ". No other work starts there."</p> }
    });
    let dedicated = dedicated_to.map(|org| {
        let text = format!(
            "Dedicated to {}: no other organization has jobs, reservations or data on the node.",
            org.name
        );
        view! { <p>{text}</p> }
    });
    let state = BoardsState::new(node, gpus);
    poll(state);
    let heading = format!("Boards of {name}");
    let title = window_title(&heading);
    let ready = ready();
    let boards = Memo::new(move |_| {
        state.gpus.with(|gpus| gpus.iter().map(|gpu| gpu.uuid.clone()).collect::<Vec<String>>())
    });
    let none = move || state.gpus.with(Vec::is_empty);
    view! {
        <Title text=title/>
        <div class="page">
            <Crumbs list="Nodes" path="/operator/nodes" name=name/>
            <div class="page__head"><h1>{heading}</h1></div>
            <CallProblem call=state.call beside_fields=&[]/>
            <Confirm state=state/>
            {dedicated}
            {maintenance}
            <HostChecks diagnosis=diagnosis/>
            <p class="quiet">
                "Temperature, power and utilization are the latest readings. The page of a board has charts of the last 24 hours, its jobs and its events."
            </p>
            <div class="stack">
                <For
                    each=move || boards.get()
                    key=|uuid: &String| uuid.clone()
                    children=move |uuid: String| view! { <Card uuid=uuid state=state ready=ready/> }
                />
            </div>
            {move || none().then(|| empty("The worker of this node reports no supported boards."))}
            {rdma_section(&rdma_ports)}
        </div>
    }
}

fn pair(name: &'static str, value: String) -> AnyView {
    view! { <dt>{name}</dt><dd>{value}</dd> }.into_any()
}

/// A title, the reason that no jobs are placed on a board, and the begin of this time.
type Fault = (&'static str, String, Option<Timestamp>);

/// Returns the reason that no jobs are placed on a board.
fn fault(gpu: &GpuHealth) -> Option<Fault> {
    match (&gpu.quarantine, &gpu.silent) {
        (Some(why), _) => Some(("Out of service", why.reason.clone(), why.since)),
        (None, Some(why)) if gpu.facts.awaits_fabric() => Some(("No NVLink fabric", why.clone(), None)),
        (None, Some(why)) => Some(("Not responding", why.clone(), None)),
        (None, None) if gpu.awaits_approval => {
            Some(("Not approved", "The node reported this board after its approval.".to_owned(), None))
        }
        (None, None) if !gpu.present => {
            Some(("Missing", "Not reported by the worker at its last connection.".to_owned(), None))
        }
        (None, None) => None,
    }
}

/// The facts that decide about the buttons of a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Controls {
    index: u32,
    quarantined: bool,
    awaits_approval: bool,
    /// The MIG mode, if it can be changed now.
    mig: Option<bool>,
    /// The board can be reset, and no reset is requested.
    resettable: bool,
    /// A check replaces no change of the mode and no reset.
    checkable: bool,
}

impl Controls {
    fn from_gpu(gpu: &GpuHealth) -> Self {
        let quarantined = gpu.quarantine.is_some();
        let answers = gpu.silent.is_none() || gpu.facts.awaits_fabric();
        let mig = gpu.facts.mig.filter(|_| !quarantined && answers);
        let open_task = gpu.task.as_ref().filter(|task| task.good.is_none()).map(|task| task.kind);
        let resettable = gpu.present && open_task != Some(GpuTaskKind::Reset);
        let checkable = open_task.is_none_or(|kind| kind == GpuTaskKind::Check);
        let (index, awaits_approval) = (gpu.index, gpu.awaits_approval);
        Self { index, quarantined, awaits_approval, mig, resettable, checkable }
    }
}

/// Returns the button for an action on a board, with its dialog.
fn dialog_button(
    action: BoardAction,
    (uuid, index): (&str, u32),
    state: BoardsState,
    ready: ReadSignal<bool>,
) -> AnyView {
    let class = if action == BoardAction::Release { "btn btn--small btn--danger" } else { "btn btn--small" };
    let (uuid, label, verb) = (uuid.to_owned(), action.label(index), action.verb());
    view! {
        <button
            class=class
            type="button"
            aria-label=label
            disabled=move || !ready.get() || state.call.pending.get()
            on:click=move |_| state.open_dialog(&uuid, index, action)
        >
            {verb}
        </button>
    }
    .into_any()
}

/// Returns the buttons of a board; none for a role that does not change boards.
fn buttons(uuid: &str, controls: Controls, state: BoardsState, ready: ReadSignal<bool>) -> AnyView {
    if !may(OperatorRight::ManageFleet) {
        return ().into_any();
    }
    let Controls { index, quarantined, awaits_approval, mig, resettable, checkable } = controls;
    let button = |action: BoardAction| dialog_button(action, (uuid, index), state, ready);
    let mode = mig.map(|on| button(BoardAction::SetMig(!on)));
    let reset = resettable.then(|| button(BoardAction::Reset));
    let approve = awaits_approval.then(|| button(BoardAction::Approve));
    let release = quarantined.then(|| button(BoardAction::Release));
    let checked = uuid.to_owned();
    let check = move |_: leptos::ev::MouseEvent| {
        state.call.run(api::health::check(&checked), move |fresh: GpuHealth| state.replace(fresh));
    };
    let check_label = format!("Check GPU {index}");
    view! {
        <div class="row">
            <button
                class="btn btn--small"
                type="button"
                aria-label=check_label
                disabled=move || !ready.get() || state.call.pending.get() || !checkable
                on:click=check
            >
                "Check"
            </button>
            {mode}
            {reset}
            {approve}
            {release}
        </div>
    }
    .into_any()
}

/// The card of one board. Each part is drawn again only after a change of its own data.
#[component]
fn Card(
    /// The UUID of the board.
    uuid: String,
    /// The signals of the page.
    state: BoardsState,
    /// True after hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let wanted = uuid.clone();
    let gpu = Memo::new(move |_| state.gpus.with(|gpus| gpus.iter().find(|gpu| gpu.uuid == wanted).cloned()));
    let heading =
        move || gpu.with(|gpu| gpu.as_ref().map(|gpu| format!("GPU {} · {}", gpu.index, gpu.model)));
    let verdict = Memo::new(move |_| gpu.with(|gpu| gpu.as_ref().map(Verdict::from_gpu)));
    let readings = Memo::new(move |_| gpu.with(|gpu| gpu.as_ref().map(pairs).unwrap_or_default()));
    let task = Memo::new(move |_| gpu.with(|gpu| state.task_text(gpu.as_ref())));
    let controls = Memo::new(move |_| gpu.with(|gpu| gpu.as_ref().map(Controls::from_gpu)));
    let path = board_path(state.node, &uuid);
    let (of_buttons, of_history) = (uuid.clone(), uuid);
    view! {
        <section class="card">
            <div class="card__head">
                <h2 class="card__title"><a href=path>{heading}</a></h2>
                {move || verdict.get().map(|verdict| {
                    view! { <BoardBadge in_service=verdict.in_service() suspect=verdict.is_suspect()/> }
                })}
            </div>
            {move || verdict.with(|verdict| verdict.as_ref().and_then(banner))}
            <dl class="kv">
                {move || {
                    readings.get().into_iter().map(|(name, value)| pair(name, value)).collect::<Vec<AnyView>>()
                }}
            </dl>
            {move || task.get().map(|text| view! { <p class="quiet small">{text}</p> })}
            {move || controls.get().map(|controls| buttons(&of_buttons, controls, state, ready))}
            <History uuid=of_history/>
        </section>
    }
}

#[cfg(test)]
mod tests {
    use super::facts::tests::gpu;
    use super::*;

    #[test]
    fn a_board_is_healthy_without_a_fault() {
        let title = |gpu: &GpuHealth| fault(gpu).map(|(title, ..)| title);
        assert_eq!(title(&gpu(serde_json::json!({}))), None);
        let faulty = gpu(serde_json::json!({
            "quarantine": {"code": "gpu.xid", "reason": "XID 79"}, "silent": "no answer",
        }));
        assert_eq!(title(&faulty), Some("Out of service"));
        assert_eq!(title(&gpu(serde_json::json!({"silent": "no answer"}))), Some("Not responding"));
        assert_eq!(title(&gpu(serde_json::json!({"present": false}))), Some("Missing"));
        let extra = gpu(serde_json::json!({"awaits_approval": true}));
        assert_eq!((title(&extra), Controls::from_gpu(&extra).awaits_approval), (Some("Not approved"), true));
        let switched = gpu(serde_json::json!({"facts": {"nvlinks": 0, "mig": true}}));
        assert_eq!(Controls::from_gpu(&switched).mig, Some(true));
        let resetting = |task: serde_json::Value| Controls::from_gpu(&gpu(serde_json::json!({"task": task})));
        let asked = resetting(serde_json::json!({"kind": "reset"}));
        assert!(!asked.resettable && !asked.checkable, "it is requested");
        let refused = resetting(serde_json::json!({"kind": "reset", "good": false}));
        assert!(refused.resettable && refused.checkable);
        assert!(!resetting(serde_json::json!({"kind": "mig_on"})).checkable, "a check would replace it");
        assert!(resetting(serde_json::json!({"kind": "check"})).checkable);
        let fabric = serde_json::json!({"state": "in_progress", "status": 0, "clique": 0});
        let facts = serde_json::json!({"nvlinks": 18, "mig": false, "fabric": fabric});
        let unready = gpu(serde_json::json!({"facts": facts, "silent": "No fabric."}));
        assert_eq!(
            (title(&unready), Controls::from_gpu(&unready).mig),
            (Some("No NVLink fabric"), Some(false))
        );
    }
}
