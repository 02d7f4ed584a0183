//! Fields of the launch form: text of several lines, and numbers with a unit.

use leptos::prelude::*;

use super::super::parts::FieldError;

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

/// A number field with a unit.
#[component]
pub fn UnitField(
    /// The label above the field.
    label: &'static str,
    /// Name and id.
    name: &'static str,
    /// The unit behind the number.
    unit: &'static str,
    /// The input.
    value: RwSignal<String>,
    /// The hint below the field.
    #[prop(into)]
    hint: Signal<String>,
    /// The error below the field.
    error: Signal<Option<String>>,
    /// True for a field without effect.
    #[prop(optional, into)]
    disabled: Signal<bool>,
) -> impl IntoView {
    let hint_id = format!("{name}-hint");
    let error_id = format!("{name}-error");
    let described = format!("{hint_id} {error_id}");
    let initial = value.get_untracked();
    view! {
        <div class="field">
            <label class="field__label" for=name>{label}</label>
            <span class="with-unit">
                <input
                    id=name
                    name=name
                    inputmode="decimal"
                    autocomplete="off"
                    value=initial
                    disabled=move || disabled.get()
                    aria-describedby=described
                    aria-invalid=move || error.get().map(|_| "true")
                    prop:value=move || value.get()
                    on:input=move |ev| value.set(event_target_value(&ev))
                />
                <span class="with-unit__unit">{unit}</span>
            </span>
            <p class="field__hint" id=hint_id>{move || hint.get()}</p>
            <FieldError id=error_id error=error/>
        </div>
    }
}
