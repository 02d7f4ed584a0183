//! A field with label, hint and error.

use leptos::prelude::*;

/// An input of one line.
#[component]
pub fn Field(
    #[prop(into)] label: String,
    /// The name and the id, unique in the page.
    name: &'static str,
    /// `text`, `email`, `password` or `number`.
    kind: &'static str,
    value: RwSignal<String>,
    #[prop(optional_no_strip)] hint: Option<String>,
    error: Signal<Option<String>>,
    #[prop(optional_no_strip)] autocomplete: Option<&'static str>,
) -> impl IntoView {
    let input = NodeRef::<leptos::html::Input>::new();
    // Text entered before hydration is kept. Afterwards the signal decides.
    Effect::new(move |hydrated: Option<bool>| {
        let expected = value.get();
        let Some(input) = input.get() else { return hydrated.unwrap_or(false) };
        let typed = input.value();
        if hydrated != Some(true) && expected.is_empty() && !typed.is_empty() {
            value.set(typed);
        } else if typed != expected {
            input.set_value(&expected);
        }
        true
    });
    let hint = hint.map(|text| view! { <p class="field__hint" id=format!("{name}-hint")>{text}</p> });
    let described = format!("{name}-hint {name}-error");
    view! {
        <div class="field">
            <label class="field__label" for=name>{label}</label>
            <input
                id=name
                name=name
                type=kind
                autocomplete=autocomplete
                aria-describedby=described
                aria-invalid=move || error.get().map(|_| "true")
                node_ref=input
                on:input=move |ev| value.set(event_target_value(&ev))
            />
            {hint}
            {move || {
                error.get().map(|text| view! { <p class="field__error" id=format!("{name}-error")>{text}</p> })
            }}
        </div>
    }
}
