//! Fields of limits, for the forms of the operator. Without requests to the portal.

use berth_types::problems::FieldError as Wrong;
use berth_types::quotas::Limits;
use leptos::prelude::*;

use super::super::parts::{Call, FieldError};
use super::kinds::{LimitKind, parse_limits};

pub use crate::ui::NumberField;

/// A limit on devices of one offering.
#[derive(Clone, Copy)]
struct DeviceRow {
    /// The key of the row.
    id: u32,
    slug: RwSignal<String>,
    maximum: RwSignal<String>,
}

/// The signals of a form of limits.
#[derive(Clone, Copy)]
pub struct LimitForm {
    fields: [(LimitKind, RwSignal<String>); 8],
    rows: RwSignal<Vec<DeviceRow>>,
    next: StoredValue<u32>,
}

impl LimitForm {
    /// Returns a form with these limits.
    pub fn new(limits: &Limits) -> Self {
        let form = Self {
            fields: LimitKind::ALL.map(|kind| (kind, RwSignal::new(String::new()))),
            rows: RwSignal::new(Vec::new()),
            next: StoredValue::new(0),
        };
        form.set_limits(limits);
        form
    }

    /// Replaces all input by these limits.
    pub fn set_limits(self, limits: &Limits) {
        for (kind, text) in self.fields {
            text.set(kind.value(limits).map(|value| kind.unit().typed(value)).unwrap_or_default());
        }
        let rows = limits.devices.iter().map(|(slug, maximum)| self.row(slug.clone(), maximum.to_string()));
        self.rows.set(rows.collect());
    }

    fn row(self, slug: String, maximum: String) -> DeviceRow {
        let id = self.next.get_value();
        self.next.set_value(id.saturating_add(1));
        DeviceRow { id, slug: RwSignal::new(slug), maximum: RwSignal::new(maximum) }
    }

    /// Adds a row for the first offering without one.
    fn add(self, offerings: &[String]) {
        let used: Vec<String> =
            self.rows.with_untracked(|rows| rows.iter().map(|row| row.slug.get_untracked()).collect());
        let free = offerings.iter().find(|slug| !used.contains(slug));
        if let Some(slug) = free.or_else(|| offerings.first()) {
            let row = self.row(slug.clone(), String::new());
            self.rows.update(|rows| rows.push(row));
        }
    }

    fn remove(self, id: u32) {
        self.rows.update(|rows| rows.retain(|row| row.id != id));
    }

    /// Parses the limits. `base` is their pointer in the body of the request.
    ///
    /// # Errors
    /// One error for each invalid field.
    pub fn limits(self, base: &str) -> Result<Limits, Vec<Wrong>> {
        let fields = self.fields.map(|(kind, text)| (kind, text.get_untracked()));
        let devices: Vec<(String, String)> = self.rows.with_untracked(|rows| {
            rows.iter().map(|row| (row.slug.get_untracked(), row.maximum.get_untracked())).collect()
        });
        parse_limits(&fields, &devices, base)
    }
}

/// Returns the error at a pointer.
fn error_at(call: Call, pointer: impl Fn() -> String + Send + Sync + 'static) -> Signal<Option<String>> {
    Signal::derive(move || {
        let pointer = pointer();
        call.problem.with(|problem| problem.as_ref()?.field(&pointer).map(str::to_owned))
    })
}

/// The common parameters of the fields.
#[derive(Clone)]
pub struct Frame {
    /// The signals.
    pub form: LimitForm,
    /// The request of the form.
    pub call: Call,
    /// The pointer of the limits in the body: empty or `/limits`.
    pub base: &'static str,
    /// The prefix of the ids of the fields; unique in the page.
    pub prefix: String,
    /// The currency of the portal.
    pub currency: String,
    /// False before hydration.
    pub ready: ReadSignal<bool>,
}

fn field(frame: &Frame, kind: LimitKind, text: RwSignal<String>) -> AnyView {
    let Frame { call, base, prefix, currency, .. } = frame.clone();
    let id = format!("{prefix}-{}", kind.field());
    let unit = kind.unit_text(&currency);
    let error = error_at(call, move || format!("{base}/{}", kind.field()));
    view! {
        <NumberField label=kind.label() id=id unit=unit value=text hint=kind.hint().to_owned() error=error/>
    }
    .into_any()
}

fn fields(frame: &Frame, kinds: &[LimitKind]) -> Vec<AnyView> {
    let wanted = frame.form.fields.into_iter().filter(|(kind, _)| kinds.contains(kind));
    wanted.map(|(kind, text)| field(frame, kind, text)).collect()
}

/// All limits in groups.
#[component]
pub fn AllLimits(
    /// The common parameters of the fields.
    frame: Frame,
    /// The slugs of all offerings.
    offerings: Vec<String>,
) -> impl IntoView {
    let concurrent = fields(&frame, &[LimitKind::Boards, LimitKind::RunningJobs, LimitKind::Spend]);
    let submitted =
        fields(&frame, &[LimitKind::QueuedJobs, LimitKind::BoardHours, LimitKind::ReservedBoards]);
    let scheduling = fields(&frame, &[LimitKind::GuaranteedBoards, LimitKind::Weight]);
    view! {
        <fieldset class="form__section">
            <legend>"Concurrent use"</legend>
            <div class="field-row">{concurrent}</div>
            <DeviceLimits frame=frame offerings=offerings/>
        </fieldset>
        <fieldset class="form__section">
            <legend>"Submissions and reservations"</legend>
            <div class="field-row">{submitted}</div>
        </fieldset>
        <fieldset class="form__section">
            <legend>"Scheduling"</legend>
            <div class="field-row">{scheduling}</div>
        </fieldset>
    }
}

/// Only the limits of a request.
#[component]
pub fn NamedLimits(
    /// The common parameters of the fields.
    frame: Frame,
    /// The requested limits.
    named: Limits,
) -> impl IntoView {
    let kinds: Vec<LimitKind> =
        LimitKind::ALL.into_iter().filter(|kind| kind.value(&named).is_some()).collect();
    let fields = fields(&frame, &kinds);
    let some_fields = (!fields.is_empty()).then(|| view! { <div class="field-row">{fields}</div> });
    let slugs: Vec<String> = named.devices.into_keys().collect();
    let some_devices = (!slugs.is_empty()).then(|| view! { <DeviceLimits frame=frame offerings=slugs/> });
    view! { {some_fields} {some_devices} }
}

/// Limits on devices, one row for each offering.
#[component]
fn DeviceLimits(frame: Frame, offerings: Vec<String>) -> impl IntoView {
    let Frame { form, call, base, prefix, ready, .. } = frame;
    let no_offerings = offerings.is_empty();
    let slugs = StoredValue::new(offerings);
    let row = move |row: DeviceRow| {
        let id = row.id;
        let error_id = format!("{prefix}-devices-{id}-error");
        let described = error_id.clone();
        let initial = row.maximum.get_untracked();
        let error = error_at(call, move || format!("{base}/devices/{}", row.slug.get()));
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
                        aria-label="Maximum devices at once"
                        inputmode="numeric"
                        autocomplete="off"
                        value=initial
                        aria-describedby=described
                        aria-invalid=move || error.get().map(|_| "true")
                        prop:value=move || row.maximum.get()
                        on:input=move |ev| row.maximum.set(event_target_value(&ev))
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
                {if no_offerings {
                    "No offerings yet. They result from the boards of the nodes."
                } else {
                    "A job beyond the limit waits. An offering without a row has no limit."
                }}
            </p>
            <div class="pairs">
                <For each=move || form.rows.get() key=|row: &DeviceRow| row.id children=row/>
            </div>
            <p>
                <button
                    class="btn btn--small"
                    type="button"
                    disabled=move || no_offerings || !ready.get()
                    on:click=add
                >
                    "Add offering"
                </button>
            </p>
        </div>
    }
}

/// The options of a row, with the chosen offering even after its removal.
fn options(offerings: &[String], chosen: &str) -> Vec<AnyView> {
    let removed = (!offerings.iter().any(|slug| slug == chosen)).then(|| chosen.to_owned());
    removed
        .into_iter()
        .chain(offerings.iter().cloned())
        .map(|slug| {
            let selected = slug == chosen;
            view! { <option value=slug.clone() selected=selected>{slug.clone()}</option> }.into_any()
        })
        .collect()
}
