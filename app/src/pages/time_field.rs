//! A field of a date and a time in the zone of the pages.

use leptos::prelude::*;

use super::parts::FieldError;
use crate::ui::{Zone, use_zone};

/// A field of a date and a time. A change of the zone keeps its instant.
#[component]
pub fn TimeField(
    /// The label. The name of the zone follows it.
    label: &'static str,
    /// Unique in the page.
    id: &'static str,
    /// The input in the zone of the pages.
    value: RwSignal<String>,
    #[prop(optional)] hint: Option<&'static str>,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let zone = use_zone();
    Effect::new(move |before: Option<Zone>| {
        let now = zone.get();
        if let Some(before) = before.filter(|before| *before != now) {
            value.maybe_update(|field| match before.instant(field) {
                Ok(at) => {
                    *field = now.field(at);
                    true
                }
                // Invalid input stays.
                Err(_) => false,
            });
        }
        now
    });
    let hint = hint.map(|text| view! { <p class="field__hint" id=format!("{id}-hint")>{text}</p> });
    let remark = move || {
        let text = value.with(|field| zone.get().remark(field));
        text.map(|text| view! { <p class="field__hint" id=format!("{id}-remark")>{text}</p> })
    };
    let error_id = format!("{id}-error");
    let described = format!("{id}-hint {id}-remark {error_id}");
    view! {
        <div class="field">
            <label class="field__label" for=id>{label} ", " {move || zone.get().name()}</label>
            <input
                id=id
                type="datetime-local"
                aria-describedby=described
                aria-invalid=move || error.get().map(|_| "true")
                prop:value=move || value.get()
                on:input=move |ev| value.set(event_target_value(&ev))
            />
            {hint}
            {remark}
            <FieldError id=error_id error=error/>
        </div>
    }
}
