//! Details of a job: submission, devices and failure.
//!
//! Values of environment variables stay hidden: only a submission has them.

use berth_types::evidence::MemoryClearing;
use berth_types::jobs::{Condition, Device, Job};
use berth_types::money::{money_text, reserved_text};
use berth_types::volumes::{JobVolume, VolumeMode};
use leptos::prelude::*;

use super::super::rows::{bar_text, board_cells, own_tile};
use super::super::shell_words::join;
use super::super::text::{
    charge, limit_text, network_text, offering_text, priority_text, retries_text, signal_text, topology_text,
};
use super::LiveJob;
use super::idle::stopped_idle;
use super::timeline::stopped_replica;
use crate::address::org_link;
use crate::ui::*;

/// The boards of the present or last attempt.
#[component]
pub fn Devices(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    let devices = Memo::new(move |_| live.job.with(|job| job.devices.clone()));
    let name = live.job.with_untracked(|job| job.name.clone());
    move || {
        let devices = devices.get();
        if devices.is_empty() {
            return view! { <p class="quiet">"No devices assigned."</p> }.into_any();
        }
        let many = devices.len() > 1;
        let line = |(i, device): (usize, &Device)| {
            device_line(device, &name, if many { format!("device {i}") } else { name.clone() })
        };
        let lines: Vec<AnyView> = devices.iter().enumerate().map(line).collect();
        view! { <div class="card"><div class="stack">{lines}</div></div> }.into_any()
    }
}

/// Returns the board of a device with the used part.
pub fn device_line(device: &Device, name: &str, on_tile: String) -> AnyView {
    let label = bar_text(device, name);
    let tiles = vec![own_tile(device, name, on_tile)];
    let gpu = format!("GPU {}", device.gpu_index);
    let node = device.node_name.clone();
    let cells = board_cells(device);
    let shared = device.gpu_milli.is_some();
    view! {
        <div class="map__gpu map__gpu--bare">
            <span class="map__label">{gpu}</span>
            <BerthBar
                tiles=tiles
                cells=cells
                undivided=shared
                size=BarSize::Row
                label=label
            />
            <span class="map__label end">{node}</span>
        </div>
    }
    .into_any()
}

/// The cause of a failure with its consequences, or the reason for which a service ended a replica.
#[component]
pub fn FailureNotice(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    move || live.job.with(|job| failure(job).or_else(|| stopped_replica(job, &live.events.get())))
}

fn failure(job: &Job) -> Option<AnyView> {
    let failure = job.failure.as_ref()?;
    if failure.code == "job.idle" {
        return Some(stopped_idle(job, &failure.detail));
    }
    let exit = match job.exit_code {
        Some(code) if !failure.detail.contains(&format!("exit code {code}")) => {
            format!("Exit code {code}. ")
        }
        _ => String::new(),
    };
    let (cause, zone) = (failure.detail.clone(), use_zone());
    let code = failure.code.clone();
    let paid = format!(
        "{exit}You pay {} for the run time; the rest of the reserved money is released. {}",
        money_text(job.cost_micros, &job.currency),
        advice(&code, job.failed_rank)
    );
    Some(
        view! {
            <div class="banner banner--error" role="alert">
                <div class="banner__text">
                    <strong class="banner__title">{move || zoned(&cause, zone.get())}</strong>
                    {paid}
                    <span class="banner__id">{code}</span>
                </div>
            </div>
        }
        .into_any(),
    )
}

/// Returns the next step after a failure. `rank` is the failed one of several.
fn advice(code: &str, rank: Option<u32>) -> String {
    let kind = code.split('.').next().unwrap_or_default();
    let next = match kind {
        "node" | "device" | "worker" | "lease" | "gang" | "attempt" => {
            "The node failed, not the job: choose Launch again to run it once more."
        }
        // The program never started, so its log is empty.
        "image" | "command" | "secret" | "volume" => "Choose Launch again to correct the job and launch it.",
        "network" | "rdma" => "Choose Launch again to change the job, or ask an operator of the cloud.",
        "dependency" => {
            "Launch the failed job again first, then this one with the new job in \"Start after\"."
        }
        "reservation" => "Choose Launch again to launch it without a reservation, or in another one.",
        "budget" => {
            "Wait for the next month, or have an owner delete the budget and create a higher one. Then choose Launch again to run it once more."
        }
        "operator" => "Ask an operator of the cloud before you choose Launch again.",
        _ if code == "job.preempted" => "Choose Launch again to run it once more.",
        _ => {
            let log = rank.map_or_else(|| "the log".to_owned(), |rank| format!("the log of rank {rank}"));
            return format!(
                "The end of {log} shows the cause: choose Launch again to correct the job and launch it."
            );
        }
    };
    next.to_owned()
}

/// True for a writable volume that has none of the job's changes, for the reason in its note.
fn is_lost(job: &Job, volume: &JobVolume) -> bool {
    // A job that never started has changed nothing.
    let has_changes = job.started_at.is_some() && volume.mode == VolumeMode::Rw;
    has_changes && volume.kept_version.is_none() && volume.note.is_some()
}

/// The volumes that have none of the job's changes.
#[component]
pub fn LostFiles(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    let lost = |volume: &JobVolume| {
        let path = org_link(&format!("/volumes/{}", volume.name));
        let (name, note) = (volume.name.clone(), volume.note.clone());
        view! {
            <div class="banner banner--warn" role="status">
                <div class="banner__text">
                    <strong class="banner__title">
                        "The files for the volume " <a href=path>{name}</a> " were not kept"
                    </strong>
                    {note}
                    " Remove the cause, then choose Launch again: the files that the job wrote there are lost."
                </div>
            </div>
        }
        .into_any()
    };
    move || {
        live.job.with(|job| {
            job.volumes.iter().filter(|volume| is_lost(job, volume)).map(lost).collect::<Vec<AnyView>>()
        })
    }
}

fn pair(name: &'static str, value: AnyView) -> AnyView {
    view! { <div class="kv__pair"><dt>{name}</dt><dd>{value}</dd></div> }.into_any()
}

/// The details of the submission and the run.
#[component]
pub fn Facts(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    view! {
        <section class="section">
            <div class="section__head"><h2>"Details"</h2></div>
            <div class="card">{move || live.job.with(facts)}</div>
        </section>
    }
}

fn facts(job: &Job) -> AnyView {
    let mut pairs = request_pairs(job);
    pairs.extend(scheduling_pairs(job));
    pairs.extend(run_pairs(job));
    let text = match (&job.command, &job.script) {
        (Some(command), _) => join(command),
        (None, Some(script)) => script.clone(),
        (None, None) if job.removed_at.is_some() => {
            "The retention of ended jobs removed the program.".to_owned()
        }
        (None, None) => String::new(),
    };
    view! {
        <dl class="kv kv--pairs">{pairs}</dl>
        <details class="more">
            <summary>"Show program"</summary>
            <div class="code code--tall"><pre>{text}</pre></div>
        </details>
    }
    .into_any()
}

/// Returns the requested resources of a job.
fn request_pairs(job: &Job) -> Vec<AnyView> {
    let mut pairs = vec![
        pair("Offering", offering_text(&job.offering, job.count).into_any()),
        pair("Priority", priority_text(job.priority).into_any()),
        pair("Maximum cost", max_cost(job).into_any()),
        pair("Submitted", view! { <When at=job.created_at/> " by " {job.created_by.clone()} }.into_any()),
    ];
    if let Some(milli) = job.gpu_milli {
        pairs.push(pair("Share", format!("{} of a board", percent(milli)).into_any()));
    }
    if job.nodes > 1 {
        pairs.push(pair("Nodes", job.nodes.to_string().into_any()));
    }
    if !job.topology.is_any() {
        pairs.push(pair("Topology", topology_text(job.topology).into_any()));
    }
    if let Some(cpus) = job.cpus {
        pairs.push(pair("CPU cores", cpus.to_string().into_any()));
    }
    if let Some(memory) = job.memory_mib {
        pairs.push(pair("Host memory", format!("{memory} MiB").into_any()));
    }
    if let Some(text) = network_text(job.network) {
        pairs.push(pair("Network", text.into_any()));
    }
    if job.rdma {
        let text = "all adapters of each node; on several nodes and with RoCE the network of the nodes";
        pairs.push(pair("RDMA", text.into_any()));
    }
    if !job.ports.is_empty() {
        let ports: Vec<String> = job.ports.iter().map(u32::to_string).collect();
        pairs.push(pair("Ports", ports.join(", ").into_any()));
    }
    if let Some(image) = job.image.clone() {
        pairs.push(pair("Image", view! { <span class="mono">{image}</span> }.into_any()));
    }
    let mut digests = job.image_digests.clone();
    digests.dedup();
    for digest in digests {
        pairs.push(pair("Image digest", view! { <span class="mono">{digest}</span> }.into_any()));
    }
    pairs
}

/// Returns the conditions of the start and of the stops of a job.
fn scheduling_pairs(job: &Job) -> Vec<AnyView> {
    let mut pairs = Vec::new();
    if job.preemptible {
        let text = "yes: a job of higher priority can stop this job, which is then retried";
        pairs.push(pair("Preemptible", text.into_any()));
    }
    if let Some(checkpoint) = &job.checkpoint {
        let text = format!("{} s after {}", checkpoint.grace_s, signal_text(checkpoint.signal));
        pairs.push(pair("Preemption grace period", text.into_any()));
        pairs.extend(checkpoint.dir.clone().map(|dir| pair("Checkpoint directory", dir.into_any())));
    }
    if let Some(idle) = job.stop_when_idle {
        let text =
            format!("below {} % utilization for {}", idle.below_percent, limit_text(idle.for_s.into()));
        pairs.push(pair("Stop when idle", text.into_any()));
    }
    if let Some(retry) = &job.retry {
        pairs.push(pair("Retries", retries_text(job.retries, retry.max).into_any()));
    }
    for dependency in &job.depends_on {
        let (path, id) = (org_link(&format!("/jobs/{}", dependency.job)), dependency.job.to_string());
        let how = match dependency.condition {
            Condition::Succeeded => " has succeeded",
            Condition::Finished => " has finished",
        };
        pairs.push(pair("Start after", view! { <a class="mono" href=path>{id}</a> {how} }.into_any()));
    }
    if let Some(id) = job.reservation {
        let (path, id) = (org_link(&format!("/reservations/{id}")), id.to_string());
        pairs.push(pair("Reservation", view! { <a class="mono" href=path>{id}</a> }.into_any()));
    }
    pairs
}

/// Returns the times of a job, its files, volumes, labels and devices.
fn run_pairs(job: &Job) -> Vec<AnyView> {
    let mut pairs = Vec::new();
    if let Some(at) = job.started_at {
        pairs.push(pair("Started", view! { <When at=at/> }.into_any()));
    }
    if let Some(at) = job.ended_at {
        pairs.push(pair("Finished", view! { <When at=at/> }.into_any()));
    }
    if let Some(code) = job.exit_code {
        pairs.push(pair("Exit code", code.to_string().into_any()));
    }
    if !job.files.is_empty() {
        let files = job.files.join(", ");
        pairs.push(pair("Files", view! { <span class="mono">{files}</span> }.into_any()));
    }
    pairs.extend(job.volumes.iter().map(|volume| pair("Volume", volume_line(volume))));
    for (name, value) in &job.labels {
        let text = format!("{name} = {value}");
        pairs.push(pair("Label", view! { <span class="mono">{text}</span> }.into_any()));
    }
    for device in &job.devices {
        let uuid = device.mig_uuid.clone().unwrap_or_else(|| device.gpu_uuid.clone());
        pairs.push(pair("Device UUID", view! { <span class="mono">{uuid}</span> }.into_any()));
    }
    let many = job.nodes > 1;
    pairs.extend(job.evidence.iter().filter_map(|evidence| {
        let text = clearing_text(evidence.memory_clearing?, many.then_some(evidence.rank));
        Some(pair("GPU memory", text.into_any()))
    }));
    pairs
}

/// Returns the proof that the memory of the devices was cleared, with the rank of a job on several nodes.
fn clearing_text(clearing: MemoryClearing, rank: Option<u32>) -> String {
    // In tenths of a gigabyte, rounded down.
    let gb = |bytes: u64| format!("{}.{}", bytes / 1_000_000_000, bytes / 100_000_000 % 10);
    let rank = rank.map(|rank| format!(" on rank {rank}")).unwrap_or_default();
    format!(
        "cleared before start{rank}: {} of {} GB, {} samples",
        gb(clearing.cleared_bytes),
        gb(clearing.total_bytes),
        clearing.samples
    )
}

/// Returns path, mode and versions of a volume in the last attempt.
fn volume_text(volume: &JobVolume) -> String {
    let mode = match volume.mode {
        VolumeMode::Ro => "read-only",
        VolumeMode::Rw => "read-write",
    };
    let mounted = volume.version.map(|version| format!(", version {version}")).unwrap_or_default();
    let saved =
        volume.kept_version.map(|version| format!(", saved as version {version}")).unwrap_or_default();
    let note = volume.note.as_ref().map(|note| format!(". {note}")).unwrap_or_default();
    format!(" at {}, {mode}{mounted}{saved}{note}", volume.path)
}

fn volume_line(volume: &JobVolume) -> AnyView {
    let path = org_link(&format!("/volumes/{}", volume.name));
    let (name, text) = (volume.name.clone(), volume_text(volume));
    view! { <a class="mono" href=path>{name}</a> {text} }.into_any()
}

fn max_cost(job: &Job) -> String {
    let ms = i64::try_from(job.max_duration_s).unwrap_or(i64::MAX).saturating_mul(1_000);
    reserved_text(charge(job.nano_per_second, ms), &job.currency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_after_a_failure_names_the_button() {
        for code in ["node.shutdown", "node.lost", "image.pull_failed", "command.not_runnable", "job.exit"] {
            assert!(advice(code, None).contains("hoose Launch again"), "{code}");
        }
        for code in [
            "network.not_allowed",
            "rdma.not_granted",
            "gang.networks_differ",
            "gang.keys_lost",
            "attempt.unknown_outcome",
            "secret.missing",
            "volume.no_room",
            "reservation.ended",
            "operator.stopped",
            "budget.spent",
            "job.preempted",
        ] {
            let text = advice(code, None);
            assert!(text.contains("hoose Launch again") && !text.contains("log"), "{code}: {text}");
        }
        assert!(advice("node.shutdown", None).starts_with("The node failed"));
        assert!(advice("dependency.failed", None).starts_with("Launch the failed job again first"));
        assert!(advice("process.exit", None).starts_with("The end of the log shows"));
        assert!(advice("process.exit", Some(1)).starts_with("The end of the log of rank 1 shows"));
    }

    #[test]
    fn only_changes_of_a_started_job_are_lost() {
        let job = |more: serde_json::Value| {
            let mut job = serde_json::json!({
                "id": "job_00000000000000000000000001", "org": "org_00000000000000000000000001", "name": "n",
                "state": "succeeded", "reasons": [], "attempt": 1, "offering": "o", "simulated": false,
                "count": 1, "priority": "normal", "max_duration_s": 900, "devices": [],
                "created_at": "2026-03-01T09:00:00Z", "started_at": "2026-03-01T09:00:01Z", "created_by": "a",
                "metered_ms": 1, "cost_micros": 9, "held_micros": 0, "nano_per_second": 1, "currency": "USD",
                "price_version": 1, "generation": 1, "actions": [],
            });
            job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<Job>(job).unwrap()
        };
        let refused = JobVolume {
            name: "data".to_owned(),
            path: "/data".to_owned(),
            mode: VolumeMode::Rw,
            version: Some(3),
            kept_version: None,
            note: Some("No new version was created.".to_owned()),
        };
        let started = job(serde_json::json!({}));
        let waiting = job(serde_json::json!({"started_at": null}));
        for (job, volume, lost) in [
            (&started, refused.clone(), true),
            (&started, JobVolume { note: None, ..refused.clone() }, false),
            (&started, JobVolume { kept_version: Some(4), ..refused.clone() }, false),
            (&started, JobVolume { mode: VolumeMode::Ro, ..refused.clone() }, false),
            (&waiting, refused, false),
        ] {
            assert_eq!(is_lost(job, &volume), lost, "{volume:?}");
        }
    }

    #[test]
    fn the_clearing_has_its_proof() {
        let clearing = MemoryClearing {
            cleared_bytes: 84_650_000_000,
            total_bytes: 85_028_000_000,
            samples: 328,
            took_ms: 900,
        };
        let text = "cleared before start: 84.6 of 85.0 GB, 328 samples";
        assert_eq!(clearing_text(clearing, None), text);
        assert!(clearing_text(clearing, Some(1)).starts_with("cleared before start on rank 1: "));
    }

    #[test]
    fn a_volume_shows_its_versions() {
        let requested = JobVolume {
            name: "data".to_owned(),
            path: "/data".to_owned(),
            mode: VolumeMode::Ro,
            version: None,
            kept_version: None,
            note: None,
        };
        assert_eq!(volume_text(&requested), " at /data, read-only");
        let mode = VolumeMode::Rw;
        let saved = JobVolume { mode, version: Some(3), kept_version: Some(4), ..requested.clone() };
        assert_eq!(volume_text(&saved), " at /data, read-write, version 3, saved as version 4");
        let note = Some("Nothing was kept.".to_owned());
        let refused = JobVolume { mode, version: Some(3), note, ..requested };
        assert_eq!(volume_text(&refused), " at /data, read-write, version 3. Nothing was kept.");
    }
}
