//! What was ordered, where it runs, and how it failed if it did.
//!
//! Must not show values of environment variables: the portal does not hand them out, and a page is
//! easily looked at by others.

use berth_types::jobs::{Condition, Device, Job, Priority};
use berth_types::money::money_text;
use berth_types::volumes::{JobVolume, VolumeMode};
use leptos::prelude::*;

use super::super::rows::{bar_words, cells_of, own_tile};
use super::super::shell_words::join;
use super::super::words::{charge, closeness_text, limit_text, offering_text, signal_text, tries_text};
use super::LiveJob;
use super::idle::stopped_idle;
use crate::ui::*;

/// The boards it runs on, or ran on last.
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
            return view! { <p class="quiet">"It has no devices: it waits for a place, or never got one."</p> }
                .into_any();
        }
        let many = devices.len() > 1;
        let line = |(i, device): (usize, &Device)| {
            device_line(device, &name, if many { format!("device {i}") } else { name.clone() })
        };
        let lines: Vec<AnyView> = devices.iter().enumerate().map(line).collect();
        view! { <div class="card"><div class="stack">{lines}</div></div> }.into_any()
    }
}

/// A device as its board, with the part of it that is taken.
pub fn device_line(device: &Device, name: &str, on_tile: String) -> AnyView {
    let label = bar_words(device, name);
    let tiles = vec![own_tile(device, name, on_tile)];
    let gpu = format!("GPU {}", device.gpu_index);
    let node = device.node_name.clone();
    let cells = cells_of(device);
    let shared = device.gpu_milli.is_some();
    view! {
        <div class="map__gpu map__gpu--bare">
            <span class="map__label">{gpu}</span>
            <BerthBar
                tiles=tiles
                cells=cells
                blocked=Vec::new()
                quarantined=false
                undivided=shared
                size=BarSize::Row
                label=label
            />
            <span class="map__label end">{node}</span>
        </div>
    }
    .into_any()
}

/// What went wrong, and what it means.
#[component]
pub fn FailureNotice(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    move || live.job.with(failure)
}

fn failure(job: &Job) -> Option<AnyView> {
    let failure = job.failure.as_ref()?;
    if failure.code == "job.idle" {
        return Some(stopped_idle(job, &failure.detail));
    }
    let exit = match job.exit_code {
        Some(code) if !failure.detail.contains(&format!("exit code {code}")) => {
            format!("Its exit code was {code}. ")
        }
        _ => String::new(),
    };
    let detail = failure.detail.clone();
    let code = failure.code.clone();
    let paid = format!(
        "{exit}You pay {} for what it used; nothing more is set aside for it. The end of the log below says more; \
         correct it and launch it again.",
        money_text(job.cost_micros, &job.currency)
    );
    Some(
        view! {
            <div class="banner banner--error" role="alert">
                <div class="banner__text">
                    <strong class="banner__title">{detail}</strong>
                    {paid}
                    <span class="banner__id">{code}</span>
                </div>
            </div>
        }
        .into_any(),
    )
}

fn priority_words(priority: Priority) -> &'static str {
    match priority {
        Priority::Low => "low",
        Priority::Normal => "normal",
        Priority::High => "high",
    }
}

fn pair(name: &'static str, value: AnyView) -> AnyView {
    view! { <div class="kv__pair"><dt>{name}</dt><dd>{value}</dd></div> }.into_any()
}

/// The order as it was given, and what became of it.
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
    let mut pairs = vec![
        pair("Offering", offering_text(&job.offering, job.count).into_any()),
        pair("Priority", priority_words(job.priority).into_any()),
        pair("At most", at_most(job).into_any()),
        pair("Submitted", view! { <When at=job.created_at/> " by " {job.created_by.clone()} }.into_any()),
    ];
    if let Some(milli) = job.gpu_milli {
        pairs.push(pair("Share", format!("{} of a board", percent(milli)).into_any()));
    }
    if job.nodes > 1 {
        pairs.push(pair("Nodes", job.nodes.to_string().into_any()));
    }
    if !job.topology.is_any() {
        pairs.push(pair("Closeness", closeness_text(job.topology).into_any()));
    }
    if let Some(cpus) = job.cpus {
        pairs.push(pair("Processors", cpus.to_string().into_any()));
    }
    if let Some(memory) = job.memory_mib {
        pairs.push(pair("Memory", format!("{memory} MiB").into_any()));
    }
    if !job.network.is_outbound() {
        pairs.push(pair("Network", "none".into_any()));
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
    if job.preemptible {
        let text = "yes: it may be stopped for a more important job, and is tried again";
        pairs.push(pair("Preemptible", text.into_any()));
    }
    if let Some(notice) = &job.checkpoint {
        let text = format!("{}, then {} s", signal_text(notice.signal), notice.grace_s);
        pairs.push(pair("Notice", text.into_any()));
        pairs.extend(notice.dir.clone().map(|dir| pair("Checkpoint", dir.into_any())));
    }
    if let Some(idle) = job.stop_when_idle {
        let text =
            format!("below {} % utilisation for {}", idle.below_percent, limit_text(idle.for_s.into()));
        pairs.push(pair("Stops when idle", text.into_any()));
    }
    if let Some(retry) = &job.retry {
        pairs.push(pair("Tries", tries_text(job.retries, retry.max).into_any()));
    }
    for dependency in &job.depends_on {
        let (path, id) = (format!("/jobs/{}", dependency.job), dependency.job.to_string());
        let how = match dependency.condition {
            Condition::Succeeded => " has succeeded",
            Condition::Finished => " has ended",
        };
        pairs.push(pair("Starts after", view! { <a class="mono" href=path>{id}</a> {how} }.into_any()));
    }
    if let Some(id) = job.reservation {
        let (path, id) = (format!("/reservations/{id}"), id.to_string());
        pairs.push(pair("Reservation", view! { <a class="mono" href=path>{id}</a> }.into_any()));
    }
    if let Some(at) = job.started_at {
        pairs.push(pair("Started", view! { <When at=at/> }.into_any()));
    }
    if let Some(at) = job.ended_at {
        pairs.push(pair("Ended", view! { <When at=at/> }.into_any()));
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
        pairs.push(pair("Device", view! { <span class="mono">{uuid}</span> }.into_any()));
    }
    let text = match (&job.command, &job.script) {
        (Some(command), _) => join(command),
        (None, Some(script)) => script.clone(),
        (None, None) => String::new(),
    };
    view! {
        <dl class="kv kv--pairs">{pairs}</dl>
        <details class="more">
            <summary>"Show what runs"</summary>
            <div class="code code--tall"><pre>{text}</pre></div>
        </details>
    }
    .into_any()
}

/// What became of a volume in the latest attempt, in words.
fn volume_text(volume: &JobVolume) -> String {
    let mode = match volume.mode {
        VolumeMode::Ro => "read",
        VolumeMode::Rw => "read and written",
    };
    let given = volume.version.map(|version| format!(", version {version}")).unwrap_or_default();
    let kept = volume.kept_version.map(|version| format!(", kept as version {version}")).unwrap_or_default();
    let note = volume.note.as_ref().map(|note| format!(". {note}")).unwrap_or_default();
    format!(" at {}, {mode}{given}{kept}{note}", volume.path)
}

fn volume_line(volume: &JobVolume) -> AnyView {
    let (path, name, text) = (format!("/volumes/{}", volume.name), volume.name.clone(), volume_text(volume));
    view! { <a class="mono" href=path>{name}</a> {text} }.into_any()
}

fn at_most(job: &Job) -> String {
    let ms = i64::try_from(job.max_duration_s).unwrap_or(i64::MAX).saturating_mul(1_000);
    money_text(charge(job.nano_per_second, ms), &job.currency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_says_what_became_of_it() {
        let asked = JobVolume {
            name: "data".to_owned(),
            path: "/data".to_owned(),
            mode: VolumeMode::Ro,
            version: None,
            kept_version: None,
            note: None,
        };
        assert_eq!(volume_text(&asked), " at /data, read");
        let mode = VolumeMode::Rw;
        let kept = JobVolume { mode, version: Some(3), kept_version: Some(4), ..asked.clone() };
        assert_eq!(volume_text(&kept), " at /data, read and written, version 3, kept as version 4");
        let note = Some("Nothing was kept.".to_owned());
        let refused = JobVolume { mode, version: Some(3), note, ..asked };
        assert_eq!(volume_text(&refused), " at /data, read and written, version 3. Nothing was kept.");
    }
}
