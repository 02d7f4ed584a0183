//! Signals and row fields of the launch form. Without requests to the portal.

use berth_types::ids::ReservationId;
use berth_types::jobs::{Priority, Topology};
use leptos::prelude::*;

use super::super::parts::FieldError;
use super::advanced::AdvancedForm;
use super::checkpoint::CheckpointForm;
use super::draft::Draft;
use super::units::LimitUnit;

/// A row of files or environment variables.
#[derive(Clone, Copy)]
pub struct Pair {
    /// The key of the row.
    pub id: u32,
    /// The path or name.
    pub name: RwSignal<String>,
    /// The content or value.
    pub value: RwSignal<String>,
}

/// The rows of a field.
#[derive(Clone, Copy)]
pub struct Pairs {
    /// The rows in the order of their creation.
    pub rows: RwSignal<Vec<Pair>>,
    next: StoredValue<u32>,
}

impl Pairs {
    fn new(texts: Vec<(String, String)>) -> Self {
        let pair = |(id, (name, value))| Pair { id, name: RwSignal::new(name), value: RwSignal::new(value) };
        let rows: Vec<Pair> = (0_u32..).zip(texts).map(pair).collect();
        let next = rows.last().map_or(0, |row| row.id.saturating_add(1));
        Self { rows: RwSignal::new(rows), next: StoredValue::new(next) }
    }

    /// Adds an empty row.
    pub fn add(self) {
        let id = self.next.get_value();
        self.next.set_value(id.saturating_add(1));
        let pair = Pair { id, name: RwSignal::new(String::new()), value: RwSignal::new(String::new()) };
        self.rows.update(|rows| rows.push(pair));
    }

    /// Removes a row.
    pub fn remove(self, id: u32) {
        self.rows.update(|rows| rows.retain(|row| row.id != id));
    }

    fn texts(self) -> Vec<(String, String)> {
        self.rows.with(|rows| rows.iter().map(|row| (row.name.get(), row.value.get())).collect())
    }
}

/// All signals of the form.
#[derive(Clone, Copy)]
pub struct Form {
    /// The name of the job.
    pub name: RwSignal<String>,
    /// The slug of the chosen offering.
    pub offering: RwSignal<String>,
    /// The number of devices on each node.
    pub count: RwSignal<String>,
    /// True for a script, false for a command line.
    pub as_script: RwSignal<bool>,
    /// The command line.
    pub command: RwSignal<String>,
    /// The script.
    pub script: RwSignal<String>,
    /// The image.
    pub image: RwSignal<String>,
    /// The name of the registry secret.
    pub registry: RwSignal<String>,
    /// Files.
    pub files: Pairs,
    /// Environment variables.
    pub env: Pairs,
    /// The time limit.
    pub limit: RwSignal<String>,
    /// The number of nodes.
    pub nodes: RwSignal<String>,
    /// The unit of the time limit.
    pub unit: RwSignal<LimitUnit>,
    /// The priority.
    pub priority: RwSignal<Priority>,
    /// True for a preemptible job.
    pub preemptible: RwSignal<bool>,
    /// Ids of jobs that must succeed first.
    pub after: RwSignal<String>,
    /// Percent of a board; empty for the whole board.
    pub share: RwSignal<String>,
    /// The required topology of the devices.
    pub topology: RwSignal<Topology>,
    /// The number of retries.
    pub retries: RwSignal<String>,
    /// Checkpoints, grace period and artifacts.
    pub checkpoint: CheckpointForm,
    /// Advanced options.
    pub advanced: AdvancedForm,
    /// The reservation of the job.
    pub reservation: RwSignal<Option<ReservationId>>,
    /// Secrets, one per line.
    pub secrets: RwSignal<String>,
    /// Volumes, one per line.
    pub volumes: RwSignal<String>,
    /// Labels, one per line.
    pub labels: RwSignal<String>,
    /// Port numbers.
    pub ports: RwSignal<String>,
    /// True to pass the full path to the program behind a port.
    pub ports_keep_path: RwSignal<bool>,
    /// True to stop the job when idle.
    pub idle: RwSignal<bool>,
    /// Percent of utilization below which the devices are idle.
    pub idle_percent: RwSignal<String>,
    /// Minutes of idle devices before the stop.
    pub idle_minutes: RwSignal<String>,
}

impl Form {
    /// Returns a form with this input.
    pub fn new(draft: Draft) -> Self {
        Self {
            name: RwSignal::new(draft.name),
            offering: RwSignal::new(draft.offering),
            count: RwSignal::new(draft.count),
            nodes: RwSignal::new(draft.nodes),
            as_script: RwSignal::new(draft.as_script),
            command: RwSignal::new(draft.command),
            script: RwSignal::new(draft.script),
            image: RwSignal::new(draft.image),
            registry: RwSignal::new(draft.registry),
            files: Pairs::new(draft.files),
            env: Pairs::new(draft.env),
            limit: RwSignal::new(draft.limit),
            unit: RwSignal::new(draft.unit),
            priority: RwSignal::new(draft.priority),
            preemptible: RwSignal::new(draft.preemptible),
            after: RwSignal::new(draft.after),
            share: RwSignal::new(draft.share),
            topology: RwSignal::new(draft.topology),
            retries: RwSignal::new(draft.retries),
            checkpoint: CheckpointForm::new(draft.checkpoint),
            advanced: AdvancedForm::new(draft.advanced),
            reservation: RwSignal::new(draft.reservation),
            secrets: RwSignal::new(draft.secrets),
            volumes: RwSignal::new(draft.volumes),
            labels: RwSignal::new(draft.labels),
            ports: RwSignal::new(draft.ports),
            ports_keep_path: RwSignal::new(draft.ports_keep_path),
            idle: RwSignal::new(draft.idle),
            idle_percent: RwSignal::new(draft.idle_percent),
            idle_minutes: RwSignal::new(draft.idle_minutes),
        }
    }

    /// Returns the present input, with a subscription to all fields.
    pub fn draft(self) -> Draft {
        Draft {
            name: self.name.get(),
            offering: self.offering.get(),
            count: self.count.get(),
            nodes: self.nodes.get(),
            as_script: self.as_script.get(),
            command: self.command.get(),
            script: self.script.get(),
            image: self.image.get(),
            registry: self.registry.get(),
            files: self.files.texts(),
            env: self.env.texts(),
            limit: self.limit.get(),
            unit: self.unit.get(),
            priority: self.priority.get(),
            preemptible: self.preemptible.get(),
            after: self.after.get(),
            share: self.share.get(),
            topology: self.topology.get(),
            retries: self.retries.get(),
            checkpoint: self.checkpoint.draft(),
            advanced: self.advanced.draft(),
            reservation: self.reservation.get(),
            secrets: self.secrets.get(),
            volumes: self.volumes.get(),
            labels: self.labels.get(),
            ports: self.ports.get(),
            ports_keep_path: self.ports_keep_path.get(),
            idle: self.idle.get(),
            idle_percent: self.idle_percent.get(),
            idle_minutes: self.idle_minutes.get(),
        }
    }
}

/// A field of several lines.
#[component]
pub fn TextBlock(
    /// The label above the text.
    label: &'static str,
    /// Name and id.
    name: &'static str,
    /// The text.
    value: RwSignal<String>,
    /// The number of visible lines.
    rows: u32,
    /// The hint below the text.
    hint: &'static str,
    /// The error below the text.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let hint_id = format!("{name}-hint");
    let error_id = format!("{name}-error");
    let described = format!("{hint_id} {error_id}");
    view! {
        <div class="field field--wide">
            <label class="field__label" for=name>{label}</label>
            <textarea
                class="mono"
                id=name
                name=name
                rows=rows.to_string()
                spellcheck="false"
                aria-describedby=described
                aria-invalid=move || error.get().map(|_| "true")
                prop:value=move || value.get()
                on:input=move |ev| value.set(event_target_value(&ev))
            ></textarea>
            <p class="field__hint" id=hint_id>{hint}</p>
            <FieldError id=error_id error=error/>
        </div>
    }
}

/// Environment variables, one row for each.
#[component]
pub fn EnvRows(
    /// The rows.
    pairs: Pairs,
    /// The error below the rows.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let row = move |pair: Pair| {
        let id = pair.id;
        view! {
            <div class="pairs__row">
                <input
                    class="input mono"
                    aria-label="Variable name"
                    placeholder="NAME"
                    spellcheck="false"
                    prop:value=move || pair.name.get()
                    on:input=move |ev| pair.name.set(event_target_value(&ev))
                />
                <input
                    class="input mono"
                    aria-label="Variable value"
                    placeholder="value"
                    spellcheck="false"
                    prop:value=move || pair.value.get()
                    on:input=move |ev| pair.value.set(event_target_value(&ev))
                />
                <button class="btn btn--quiet" type="button" on:click=move |_| pairs.remove(id)>"Remove"</button>
            </div>
        }
    };
    view! {
        <div class="field field--wide">
            <span class="field__label">"Environment variables"</span>
            <div class="pairs">
                <For each=move || pairs.rows.get() key=|pair: &Pair| pair.id children=row/>
            </div>
            <p>
                <button class="btn btn--small" type="button" on:click=move |_| pairs.add()>"Add variable"</button>
            </p>
            <FieldError id="env-error" error=error/>
        </div>
    }
}

/// Text files, one row for each.
#[component]
pub fn FileRows(
    /// The rows.
    pairs: Pairs,
    /// The error below the rows.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let row = move |pair: Pair| {
        let id = pair.id;
        view! {
            <div class="stack">
                <div class="pairs__row">
                    <input
                        class="input mono"
                        aria-label="File path"
                        placeholder="train.py"
                        spellcheck="false"
                        prop:value=move || pair.name.get()
                        on:input=move |ev| pair.name.set(event_target_value(&ev))
                    />
                    <span></span>
                    <button class="btn btn--quiet" type="button" on:click=move |_| pairs.remove(id)>"Remove"</button>
                </div>
                <textarea
                    class="mono"
                    rows="6"
                    spellcheck="false"
                    aria-label="File content"
                    prop:value=move || pair.value.get()
                    on:input=move |ev| pair.value.set(event_target_value(&ev))
                ></textarea>
            </div>
        }
    };
    view! {
        <div class="field field--wide">
            <span class="field__label">"Files"</span>
            <p class="field__hint">"Written to the job directory before the start, with paths relative to it."</p>
            <For each=move || pairs.rows.get() key=|pair: &Pair| pair.id children=row/>
            <p>
                <button class="btn btn--small" type="button" on:click=move |_| pairs.add()>"Add file"</button>
            </p>
            <FieldError id="files-error" error=error/>
        </div>
    }
}
