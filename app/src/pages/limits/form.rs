//! Limits as fields: of the operator's forms, and of a grant.
//!
//! Must not talk to the portal.

use berth_types::problems::FieldError as Wrong;
use berth_types::quotas::Limits;
use leptos::prelude::*;

use super::super::parts::{Call, FieldError};
use super::kinds::{Kind, read};

/// A limit on devices of one offering.
#[derive(Clone, Copy)]
struct DeviceRow {
    /// Tells rows apart while they come and go.
    id: u32,
    slug: RwSignal<String>,
    most: RwSignal<String>,
}

/// The signals behind a form of limits.
#[derive(Clone, Copy)]
pub struct LimitForm {
    fields: [(Kind, RwSignal<String>); 8],
    rows: RwSignal<Vec<DeviceRow>>,
    next: StoredValue<u32>,
}

impl LimitForm {
    /// A form that says these.
    pub fn of(limits: &Limits) -> Self {
        let form = Self {
            fields: Kind::ALL.map(|kind| (kind, RwSignal::new(String::new()))),
            rows: RwSignal::new(Vec::new()),
            next: StoredValue::new(0),
        };
        form.show(limits);
        form
    }

    /// Says these instead of what was typed.
    pub fn show(self, limits: &Limits) {
        for (kind, text) in self.fields {
            text.set(kind.of(limits).map(|value| kind.unit().typed(value)).unwrap_or_default());
        }
        let rows = limits.devices.iter().map(|(slug, most)| self.row(slug.clone(), most.to_string()));
        self.rows.set(rows.collect());
    }

    fn row(self, slug: String, most: String) -> DeviceRow {
        let id = self.next.get_value();
        self.next.set_value(id.saturating_add(1));
        DeviceRow { id, slug: RwSignal::new(slug), most: RwSignal::new(most) }
    }

    /// Adds a row for the first offering that has none.
    fn add(self, offerings: &[String]) {
        let taken: Vec<String> =
            self.rows.with_untracked(|rows| rows.iter().map(|row| row.slug.get_untracked()).collect());
        let free = offerings.iter().find(|slug| !taken.contains(slug));
        if let Some(slug) = free.or_else(|| offerings.first()) {
            let row = self.row(slug.clone(), String::new());
            self.rows.update(|rows| rows.push(row));
        }
    }

    fn remove(self, id: u32) {
        self.rows.update(|rows| rows.retain(|row| row.id != id));
    }

    /// The limits that are typed, or what keeps them from being some; `base` is their place in the body.
    pub fn limits(self, base: &str) -> Result<Limits, Vec<Wrong>> {
        let fields = self.fields.map(|(kind, text)| (kind, text.get_untracked()));
        let devices: Vec<(String, String)> = self.rows.with_untracked(|rows| {
            rows.iter().map(|row| (row.slug.get_untracked(), row.most.get_untracked())).collect()
        });
        read(&fields, &devices, base)
    }
}

/// What is wrong at a pointer that is put together while the page is drawn.
fn wrong(call: Call, pointer: impl Fn() -> String + Send + Sync + 'static) -> Signal<Option<String>> {
    Signal::derive(move || {
        let pointer = pointer();
        call.problem.with(|problem| problem.as_ref()?.field(&pointer).map(str::to_owned))
    })
}

/// A number with its unit, its hint and its error.
#[component]
pub fn NumberField(
    /// Above the field.
    #[prop(into)]
    label: String,
    /// Unique in the page.
    #[prop(into)]
    id: String,
    /// What is counted.
    #[prop(into)]
    unit: Signal<String>,
    /// What is typed.
    value: RwSignal<String>,
    /// Below the field.
    #[prop(into)]
    hint: Signal<String>,
    /// What is wrong with it.
    error: Signal<Option<String>>,
    /// Which keys a phone shows for it.
    #[prop(default = "decimal")]
    inputmode: &'static str,
) -> impl IntoView {
    let (hint_id, error_id) = (format!("{id}-hint"), format!("{id}-error"));
    let described = format!("{hint_id} {error_id}");
    let of_label = id.clone();
    let at_first = value.get_untracked();
    view! {
        <div class="field">
            <label class="field__label" for=of_label>{label}</label>
            <span class="with-unit">
                <input
                    id=id
                    inputmode=inputmode
                    autocomplete="off"
                    value=at_first
                    aria-describedby=described
                    aria-invalid=move || error.get().map(|_| "true")
                    prop:value=move || value.get()
                    on:input=move |ev| value.set(event_target_value(&ev))
                />
                <span class="with-unit__unit">{move || unit.get()}</span>
            </span>
            <p class="field__hint" id=hint_id>{move || hint.get()}</p>
            <FieldError id=error_id error=error/>
        </div>
    }
}

/// What the fields of a form of limits share.
#[derive(Clone)]
pub struct Frame {
    /// The signals.
    pub form: LimitForm,
    /// What sends the form.
    pub call: Call,
    /// Where the limits stand in the body: nowhere deeper, or `/limits`.
    pub base: &'static str,
    /// Starts the ids of the fields; unique in the page.
    pub prefix: String,
    /// The portal's currency.
    pub currency: String,
    /// False until the page is alive.
    pub ready: ReadSignal<bool>,
}

fn field(frame: &Frame, kind: Kind, text: RwSignal<String>) -> AnyView {
    let Frame { call, base, prefix, currency, .. } = frame.clone();
    let id = format!("{prefix}-{}", kind.field());
    let unit = kind.unit_text(&currency);
    let error = wrong(call, move || format!("{base}/{}", kind.field()));
    view! {
        <NumberField label=kind.label() id=id unit=unit value=text hint=kind.hint().to_owned() error=error/>
    }
    .into_any()
}

fn fields(frame: &Frame, kinds: &[Kind]) -> Vec<AnyView> {
    let wanted = frame.form.fields.into_iter().filter(|(kind, _)| kinds.contains(kind));
    wanted.map(|(kind, text)| field(frame, kind, text)).collect()
}

/// Every limit, in the groups in which they act.
#[component]
pub fn AllLimits(
    /// What the fields share.
    frame: Frame,
    /// Slugs of what can be ordered.
    offerings: Vec<String>,
) -> impl IntoView {
    let held = fields(&frame, &[Kind::Boards, Kind::RunningJobs, Kind::Spend]);
    let asked = fields(&frame, &[Kind::QueuedJobs, Kind::BoardHours, Kind::ReservedBoards]);
    let order = fields(&frame, &[Kind::GuaranteedBoards, Kind::Weight]);
    view! {
        <fieldset class="form__section">
            <legend>"What is held at once"</legend>
            <div class="field-row">{held}</div>
            <DeviceLimits frame=frame offerings=offerings/>
        </fieldset>
        <fieldset class="form__section">
            <legend>"What is submitted and reserved"</legend>
            <div class="field-row">{asked}</div>
        </fieldset>
        <fieldset class="form__section">
            <legend>"Its place in the queue"</legend>
            <div class="field-row">{order}</div>
        </fieldset>
    }
}

/// Only those limits that a request names, to be granted as they are or changed.
#[component]
pub fn NamedLimits(
    /// What the fields share.
    frame: Frame,
    /// What the request names.
    named: Limits,
) -> impl IntoView {
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.of(&named).is_some()).collect();
    let fields = fields(&frame, &kinds);
    let some_fields = (!fields.is_empty()).then(|| view! { <div class="field-row">{fields}</div> });
    let slugs: Vec<String> = named.devices.into_keys().collect();
    let some_devices = (!slugs.is_empty()).then(|| view! { <DeviceLimits frame=frame offerings=slugs/> });
    view! { {some_fields} {some_devices} }
}

/// Limits on devices by their offering, a row each.
#[component]
fn DeviceLimits(frame: Frame, offerings: Vec<String>) -> impl IntoView {
    let Frame { form, call, base, prefix, ready, .. } = frame;
    let nothing = offerings.is_empty();
    let slugs = StoredValue::new(offerings);
    let row = move |row: DeviceRow| {
        let id = row.id;
        let error_id = format!("{prefix}-devices-{id}-error");
        let described = error_id.clone();
        let at_first = row.most.get_untracked();
        let error = wrong(call, move || format!("{base}/devices/{}", row.slug.get()));
        view! {
            <div class="stack">
                <div class="pairs__row">
                    <select
                        class="select"
                        aria-label="Offering"
                        on:change=move |ev| row.slug.set(event_target_value(&ev))
                    >
                        {options(&slugs.get_value(), &row.slug.get_untracked())}
                    </select>
                    <input
                        class="input"
                        aria-label="Most devices of it at once"
                        inputmode="numeric"
                        autocomplete="off"
                        value=at_first
                        aria-describedby=described
                        aria-invalid=move || error.get().map(|_| "true")
                        prop:value=move || row.most.get()
                        on:input=move |ev| row.most.set(event_target_value(&ev))
                    />
                    <button
                        class="btn btn--quiet"
                        type="button"
                        disabled=move || !ready.get()
                        on:click=move |_| form.remove(id)
                    >
                        "Remove"
                    </button>
                </div>
                <FieldError id=error_id error=error/>
            </div>
        }
    };
    let add = move |_: leptos::ev::MouseEvent| slugs.with_value(|slugs| form.add(slugs));
    view! {
        <div class="field field--wide">
            <span class="field__label">"Devices at once, by offering"</span>
            <p class="field__hint">
                {if nothing {
                    "There are no offerings yet: they follow from the boards of the nodes that join."
                } else {
                    "A job beyond it waits. An offering without a row has no limit of its own."
                }}
            </p>
            <div class="pairs">
                <For each=move || form.rows.get() key=|row: &DeviceRow| row.id children=row/>
            </div>
            <p>
                <button
                    class="btn btn--small"
                    type="button"
                    disabled=move || nothing || !ready.get()
                    on:click=add
                >
                    "Limit an offering"
                </button>
            </p>
        </div>
    }
}

/// The offerings to choose from, and the chosen one even where it is none of them any more.
fn options(offerings: &[String], chosen: &str) -> Vec<AnyView> {
    let gone = (!offerings.iter().any(|slug| slug == chosen)).then(|| chosen.to_owned());
    gone.into_iter()
        .chain(offerings.iter().cloned())
        .map(|slug| {
            let selected = slug == chosen;
            view! { <option value=slug.clone() selected=selected>{slug.clone()}</option> }.into_any()
        })
        .collect()
}
