//! The signals behind the launch form, and its rows that grow.
//!
//! Must not talk to the portal.

use berth_types::ids::ReservationId;
use berth_types::jobs::{Priority, Topology};
use leptos::prelude::*;

use super::super::parts::FieldError;
use super::advanced::AdvancedForm;
use super::draft::Draft;
use super::keeping::KeepingForm;
use super::units::LimitUnit;

/// One row of files or of variables.
#[derive(Clone, Copy)]
pub struct Pair {
    /// Tells rows apart while they come and go.
    pub id: u32,
    /// Path or name.
    pub name: RwSignal<String>,
    /// Text or value.
    pub value: RwSignal<String>,
}

/// Rows that grow and shrink.
#[derive(Clone, Copy)]
pub struct Pairs {
    /// The rows, in the order in which they were added.
    pub rows: RwSignal<Vec<Pair>>,
    next: StoredValue<u32>,
}

impl Pairs {
    fn none() -> Self {
        Self { rows: RwSignal::new(Vec::new()), next: StoredValue::new(0) }
    }

    /// Adds an empty row.
    pub fn add(self) {
        let id = self.next.get_value();
        self.next.set_value(id.saturating_add(1));
        let pair = Pair { id, name: RwSignal::new(String::new()), value: RwSignal::new(String::new()) };
        self.rows.update(|rows| rows.push(pair));
    }

    /// Takes a row away.
    pub fn remove(self, id: u32) {
        self.rows.update(|rows| rows.retain(|row| row.id != id));
    }

    fn texts(self) -> Vec<(String, String)> {
        self.rows.with(|rows| rows.iter().map(|row| (row.name.get(), row.value.get())).collect())
    }
}

/// Every field of the form.
#[derive(Clone, Copy)]
pub struct Form {
    /// What the job is called.
    pub name: RwSignal<String>,
    /// The slug of the chosen offering.
    pub offering: RwSignal<String>,
    /// Devices.
    pub count: RwSignal<String>,
    /// A script is given, not a command line.
    pub as_script: RwSignal<bool>,
    /// The command line.
    pub command: RwSignal<String>,
    /// The script.
    pub script: RwSignal<String>,
    /// The image that it runs in.
    pub image: RwSignal<String>,
    /// The secret of the image's registry.
    pub registry: RwSignal<String>,
    /// Files.
    pub files: Pairs,
    /// Variables.
    pub env: Pairs,
    /// Time limit.
    pub limit: RwSignal<String>,
    /// Nodes.
    pub nodes: RwSignal<String>,
    /// Its unit.
    pub unit: RwSignal<LimitUnit>,
    /// Priority.
    pub priority: RwSignal<Priority>,
    /// It may be stopped for more important jobs.
    pub preemptible: RwSignal<bool>,
    /// Ids of jobs that must succeed first.
    pub after: RwSignal<String>,
    /// Percent of a board; empty for the whole board.
    pub share: RwSignal<String>,
    /// How near each other its devices must be.
    pub closeness: RwSignal<Topology>,
    /// Tries after a failure.
    pub tries: RwSignal<String>,
    /// What is kept of it, and the notice before it makes room.
    pub keeping: KeepingForm,
    /// What hardly any job needs.
    pub advanced: AdvancedForm,
    /// The reservation that it runs in.
    pub reservation: RwSignal<Option<ReservationId>>,
    /// Secrets, one on each line.
    pub secrets: RwSignal<String>,
    /// Volumes, one on each line.
    pub volumes: RwSignal<String>,
    /// Labels, one on each line.
    pub labels: RwSignal<String>,
    /// Ports that can be opened in the browser.
    pub ports: RwSignal<String>,
    /// What listens there is asked for the whole path.
    pub ports_keep_path: RwSignal<bool>,
    /// It ends by itself when its devices stand idle.
    pub idle: RwSignal<bool>,
    /// Percent of utilisation below which they do.
    pub idle_percent: RwSignal<String>,
    /// Minutes for which they must.
    pub idle_minutes: RwSignal<String>,
}

impl Form {
    /// An empty form with an offering chosen.
    pub fn with_offering(offering: String) -> Self {
        Self {
            name: RwSignal::new(String::new()),
            offering: RwSignal::new(offering),
            count: RwSignal::new("1".to_owned()),
            nodes: RwSignal::new("1".to_owned()),
            as_script: RwSignal::new(false),
            command: RwSignal::new(String::new()),
            script: RwSignal::new(String::new()),
            image: RwSignal::new(String::new()),
            registry: RwSignal::new(String::new()),
            files: Pairs::none(),
            env: Pairs::none(),
            limit: RwSignal::new("1".to_owned()),
            unit: RwSignal::new(LimitUnit::Hours),
            priority: RwSignal::new(Priority::Normal),
            preemptible: RwSignal::new(false),
            after: RwSignal::new(String::new()),
            share: RwSignal::new(String::new()),
            closeness: RwSignal::new(Topology::Any),
            tries: RwSignal::new("0".to_owned()),
            keeping: KeepingForm::empty(),
            advanced: AdvancedForm::empty(),
            reservation: RwSignal::new(None),
            secrets: RwSignal::new(String::new()),
            volumes: RwSignal::new(String::new()),
            labels: RwSignal::new(String::new()),
            ports: RwSignal::new(String::new()),
            ports_keep_path: RwSignal::new(false),
            idle: RwSignal::new(false),
            idle_percent: RwSignal::new("40".to_owned()),
            idle_minutes: RwSignal::new("60".to_owned()),
        }
    }

    /// What is typed now; whoever calls this in a reactive place follows every field.
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
            closeness: self.closeness.get(),
            tries: self.tries.get(),
            keeping: self.keeping.draft(),
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

/// A text of several lines with its label, hint and error.
#[component]
pub fn TextBlock(
    /// Above the text.
    label: &'static str,
    /// Name and id.
    name: &'static str,
    /// The text.
    value: RwSignal<String>,
    /// Lines shown.
    rows: u32,
    /// Below the text.
    hint: &'static str,
    /// What is wrong with it.
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

/// Environment variables, a row each.
#[component]
pub fn EnvRows(
    /// The rows.
    pairs: Pairs,
    /// What is wrong with them.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let row = move |pair: Pair| {
        let id = pair.id;
        view! {
            <div class="pairs__row">
                <input
                    class="input mono"
                    aria-label="Name of the variable"
                    placeholder="NAME"
                    spellcheck="false"
                    prop:value=move || pair.name.get()
                    on:input=move |ev| pair.name.set(event_target_value(&ev))
                />
                <input
                    class="input mono"
                    aria-label="Value of the variable"
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
            <span class="field__label">"Environment"</span>
            <div class="pairs">
                <For each=move || pairs.rows.get() key=|pair: &Pair| pair.id children=row/>
            </div>
            <p>
                <button class="btn btn--small" type="button" on:click=move |_| pairs.add()>"Add a variable"</button>
            </p>
            <FieldError id="env-error" error=error/>
        </div>
    }
}

/// Text files, a path and a text each.
#[component]
pub fn FileRows(
    /// The rows.
    pairs: Pairs,
    /// What is wrong with them.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let row = move |pair: Pair| {
        let id = pair.id;
        view! {
            <div class="stack">
                <div class="pairs__row">
                    <input
                        class="input mono"
                        aria-label="Path of the file"
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
                    aria-label="Text of the file"
                    prop:value=move || pair.value.get()
                    on:input=move |ev| pair.value.set(event_target_value(&ev))
                ></textarea>
            </div>
        }
    };
    view! {
        <div class="field field--wide">
            <span class="field__label">"Files"</span>
            <p class="field__hint">"Written into the job's own directory before it starts. Paths are relative to it."</p>
            <For each=move || pairs.rows.get() key=|pair: &Pair| pair.id children=row/>
            <p>
                <button class="btn btn--small" type="button" on:click=move |_| pairs.add()>"Add a file"</button>
            </p>
            <FieldError id="files-error" error=error/>
        </div>
    }
}
