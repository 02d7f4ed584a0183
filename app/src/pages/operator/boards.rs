//! The boards of one node: what they are, how they are, and the ways back into service.
//!
//! Must not put a board back without saying what that means: whoever releases one answers for it.

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
use crate::ui::*;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    node: NodeId,
    name: String,
    gpus: Vec<GpuHealth>,
}

fn load(node: Option<NodeId>) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let calls = node.map(|node| (node, api::health::list(node), api::nodes::operator_list()));
    async move {
        // What is no id cannot be a node.
        let Some((node, gpus, nodes)) = calls else { return Err(Problem::not_found()) };
        let gpus = gpus.await?.items;
        let known = nodes.await?.items.into_iter().find(|known| known.id == node);
        let name = known.map_or_else(|| node.to_string(), |known| known.name);
        Ok(Loaded { node, name, gpus })
    }
}

/// The page with the boards of a node.
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
                    Ok(loaded) => view! { <OfNode loaded=loaded/> }.into_any(),
                }
            })}
        </Suspense>
    }
}

/// What a button asks to be confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Release,
    Mode(bool),
}

/// What the cards and the dialog share.
#[derive(Clone, Copy)]
struct Ward {
    gpus: RwSignal<Vec<GpuHealth>>,
    call: Call,
    /// The board that the dialog is about, and what it asks.
    chosen: RwSignal<Option<(String, Ask)>>,
    open: RwSignal<bool>,
}

impl Ward {
    fn ask(self, uuid: &str, ask: Ask) {
        self.chosen.set(Some((uuid.to_owned(), ask)));
        self.open.set(true);
    }

    /// Puts a board as it is now in the place of what was known.
    fn replace(self, fresh: GpuHealth) {
        self.gpus.update(|gpus| {
            if let Some(known) = gpus.iter_mut().find(|known| known.uuid == fresh.uuid) {
                *known = fresh;
            }
        });
    }
}

#[component]
fn OfNode(loaded: Loaded) -> impl IntoView {
    let Loaded { node, name, gpus } = loaded;
    let ward = Ward {
        gpus: RwSignal::new(gpus),
        call: Call::idle(),
        chosen: RwSignal::new(None),
        open: RwSignal::new(false),
    };
    every(3_000, move || {
        let fresh = api::health::list(node);
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh.await {
                ward.gpus.maybe_update(|gpus| {
                    let moved = *gpus != fresh.items;
                    *gpus = fresh.items;
                    moved
                });
            }
        });
    });
    let heading = format!("Boards of {name}");
    let title = format!("{heading} · Berth");
    let ready = ready();
    let cards = move || {
        ward.gpus.with(|gpus| gpus.iter().map(|gpu| card(gpu, ward, ready)).collect::<Vec<AnyView>>())
    };
    let none = move || ward.gpus.with(Vec::is_empty);
    view! {
        <Title text=title/>
        <div class="page">
            <nav class="crumbs" aria-label="Where you are">
                <ol>
                    <li><a href="/operator/nodes">"Nodes"</a></li>
                    <li><span aria-current="page" class="quiet">{name}</span></li>
                </ol>
            </nav>
            <div class="page__head"><h1>{heading}</h1></div>
            <CallProblem call=ward.call beside_fields=&[]/>
            <Confirm ward=ward/>
            <div class="stack">{cards}</div>
            {move || none().then(|| empty("Its worker has told of no board that Berth knows."))}
        </div>
    }
}

/// Asks before a board is put back as it is, and before its mode changes.
#[component]
fn Confirm(
    /// What the page shares with it.
    ward: Ward,
) -> impl IntoView {
    let Ward { chosen, open, .. } = ward;
    let call = Call::idle();
    let title = Signal::derive(move || match chosen.get() {
        Some((_, Ask::Release)) => "Release this board?".to_owned(),
        Some((_, Ask::Mode(true))) => "Switch MIG on?".to_owned(),
        Some((_, Ask::Mode(false))) => "Switch MIG off?".to_owned(),
        None => String::new(),
    });
    let text = move || match chosen.get() {
        Some((_, Ask::Release)) => {
            "Jobs are placed on it again at once, without a check. What was wrong with it may be wrong still; a later fault takes it out again."
        }
        Some((_, Ask::Mode(_))) => {
            "Nothing new is placed on it, and what runs there ends by itself. Then its worker changes the mode. Boards older than Hopper also want a reset before it holds."
        }
        None => "",
    };
    let verb = move || match chosen.get() {
        Some((_, Ask::Release)) | None => "Release",
        Some((_, Ask::Mode(_))) => "Switch",
    };
    let confirm = move |()| {
        let Some((uuid, ask)) = chosen.get_untracked() else { return };
        let done = move |fresh: GpuHealth| {
            ward.replace(fresh);
            open.set(false);
        };
        match ask {
            Ask::Release => call.run(api::health::release(&uuid), done),
            Ask::Mode(mig) => call.run(api::health::set_mode(&uuid, &PatchGpuMode { mig }), done),
        }
    };
    view! {
        <ConfirmDialog
            id="board-confirm"
            title=title
            open=open
            call=call
            keep="Close"
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

/// `on`, or `on, off after a reset`.
fn mode_text(now: Option<bool>, pending: Option<bool>) -> Option<String> {
    let now = now?;
    Some(match pending {
        Some(then) if then != now => format!("{}, {} after a reset", on_off(now), on_off(then)),
        _ => on_off(now).to_owned(),
    })
}

/// `3 corrected, 0 not`: absent where neither is reported.
fn count_text(corrected: Option<u64>, not: Option<u64>) -> Option<String> {
    match (corrected, not) {
        (None, None) => None,
        (corrected, not) => {
            let number = |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
            Some(format!("{} corrected, {} not", number(corrected), number(not)))
        }
    }
}

/// What NVML's bits say holds the clocks back, in words; the bits are `nvmlClocksEventReason*`.
fn throttle_text(bits: u64) -> String {
    const WORDS: [(u64, &str); 9] = [
        (0x1, "idle"),
        (0x2, "clocks set"),
        (0x4, "power limit"),
        (0x8, "hardware slowdown"),
        (0x10, "sync boost"),
        (0x20, "heat, by software"),
        (0x40, "heat, by hardware"),
        (0x80, "power brake"),
        (0x100, "display clocks"),
    ];
    let found: Vec<&str> = WORDS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, words)| *words).collect();
    if found.is_empty() { "nothing".to_owned() } else { found.join(", ") }
}

/// Everything that is known of a board; what its driver does not report is left out.
fn pairs(gpu: &GpuHealth) -> Vec<(&'static str, String)> {
    let (facts, reading) = (&gpu.facts, &gpu.reading);
    let rows = count_text(facts.rows_corrected.map(u64::from), facts.rows_uncorrected.map(u64::from));
    let clocks = match (reading.sm_clock_mhz, reading.memory_clock_mhz) {
        (Some(sm), Some(memory)) => Some(format!("{sm:.0} MHz, memory {memory:.0} MHz")),
        (Some(sm), None) => Some(format!("{sm:.0} MHz")),
        _ => None,
    };
    let traffic = |received: Option<f64>, sent: Option<f64>, unit: &str| {
        Some(format!("{:.0} {unit} received, {:.0} sent", received?, sent?))
    };
    let all = [
        ("UUID", Some(gpu.uuid.clone())),
        ("PCI bus", facts.pci_bus_id.clone()),
        ("Serial", facts.serial.clone()),
        ("VBIOS", facts.vbios.clone()),
        ("Memory", Some(format!("{} MiB", gpu.memory_mib))),
        ("CUDA capability", facts.compute_capability.clone()),
        ("Power limit", facts.power_limit_watts.map(|watts| format!("{watts} W"))),
        ("NVLinks up", (facts.nvlinks > 0).then(|| facts.nvlinks.to_string())),
        ("MIG", mode_text(facts.mig, facts.mig_pending)),
        ("ECC", mode_text(facts.ecc, facts.ecc_pending)),
        ("Memory errors", count_text(facts.ecc_corrected, facts.ecc_uncorrected)),
        ("Rows replaced, for errors", rows),
        ("Clocks", clocks),
        ("Held back by", reading.throttle_reasons.map(throttle_text)),
        ("PCIe", traffic(reading.pcie_received_kb_s, reading.pcie_sent_kb_s, "kB/s")),
        ("NVLink", traffic(reading.nvlink_received_kib_s, reading.nvlink_sent_kib_s, "KiB/s")),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// How the newest task went.
fn task_text(task: &GpuTask) -> String {
    let what = match task.kind {
        GpuTaskKind::Check => "Check",
        GpuTaskKind::MigOn => "MIG on",
        GpuTaskKind::MigOff => "MIG off",
    };
    match (task.good, task.words.as_deref()) {
        (None, _) => format!("{what}: waits for the worker."),
        (Some(_), Some(words)) if !words.is_empty() => format!("{what}: {words}"),
        (Some(true), _) => format!("{what}: done."),
        (Some(false), _) => format!("{what}: it did not work."),
    }
}

/// Why nothing is placed on a board.
fn trouble(gpu: &GpuHealth) -> Option<AnyView> {
    let (title, reason, since) = match (&gpu.quarantine, &gpu.silent) {
        (Some(why), _) => ("Out of service", why.reason.clone(), why.since),
        (None, Some(why)) => ("It does not answer", why.clone(), None),
        (None, None) if !gpu.present => {
            ("Not there", "Its worker did not tell of it when it connected last.".to_owned(), None)
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

fn card(gpu: &GpuHealth, ward: Ward, ready: ReadSignal<bool>) -> AnyView {
    let heading = format!("GPU {} · {}", gpu.index, gpu.model);
    let facts: Vec<AnyView> = pairs(gpu).into_iter().map(|(name, value)| pair(name, value)).collect();
    let task = gpu.task.as_ref().map(|task| view! { <p class="quiet small">{task_text(task)}</p> });
    let blocked = move || !ready.get() || ward.call.pending.get();
    let (checked, released, switched) = (gpu.uuid.clone(), gpu.uuid.clone(), gpu.uuid.clone());
    let check = move |_: leptos::ev::MouseEvent| {
        ward.call.run(api::health::check(&checked), move |fresh: GpuHealth| ward.replace(fresh));
    };
    let check_label = format!("Check again GPU {}", gpu.index);
    let release = gpu.quarantine.is_some().then(|| {
        let label = format!("Release GPU {}", gpu.index);
        view! {
            <button
                class="btn btn--small btn--danger"
                type="button"
                aria-label=label
                disabled=blocked
                on:click=move |_| ward.ask(&released, Ask::Release)
            >
                "Release"
            </button>
        }
    });
    let mode = gpu.facts.mig.filter(|_| gpu.quarantine.is_none() && gpu.silent.is_none()).map(|on| {
        let verb = if on { "Switch MIG off" } else { "Switch MIG on" };
        let label = format!("{verb} on GPU {}", gpu.index);
        view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=blocked
                on:click=move |_| ward.ask(&switched, Ask::Mode(!on))
            >
                {verb}
            </button>
        }
    });
    view! {
        <section class="card">
            <div class="card__head"><h2 class="card__title">{heading}</h2></div>
            {trouble(gpu)}
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
                    "Check again"
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
    fn what_is_not_reported_is_not_shown() {
        let names = |gpu: &GpuHealth| pairs(gpu).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&gpu(serde_json::json!({}))), ["UUID", "Memory"]);
        let facts = serde_json::json!({"nvlinks": 18, "ecc": true, "ecc_pending": false, "ecc_corrected": 0});
        let shown = pairs(&gpu(serde_json::json!({"facts": facts, "reading": {"sm_clock_mhz": 1980.0}})));
        assert!(shown.contains(&("NVLinks up", "18".to_owned())));
        assert!(shown.contains(&("ECC", "on, off after a reset".to_owned())));
        assert!(shown.contains(&("Memory errors", "0 corrected, unknown not".to_owned())));
        assert!(shown.contains(&("Clocks", "1980 MHz".to_owned())));
    }

    #[test]
    fn bits_are_words() {
        assert_eq!(throttle_text(0), "nothing");
        assert_eq!(throttle_text(0x44), "power limit, heat, by hardware");
        assert_eq!(throttle_text(0x8000), "nothing");
    }

    #[test]
    fn a_task_says_how_it_went() {
        let task = |good, words: Option<&str>| {
            task_text(&GpuTask { kind: GpuTaskKind::Check, good, words: words.map(str::to_owned) })
        };
        assert_eq!(task(None, None), "Check: waits for the worker.");
        assert_eq!(task(Some(false), Some("Processes are on it.")), "Check: Processes are on it.");
        assert_eq!(task(Some(true), None), "Check: done.");
    }
}
