//! A labelled field with its hint and its error.

use leptos::prelude::*;

/// One line of text that a person types.
#[component]
pub fn Field(
    #[prop(into)] label: String,
    /// Also its id; unique in the page.
    name: &'static str,
    /// `text`, `email`, `password` or `number`.
    kind: &'static str,
    value: RwSignal<String>,
    #[prop(optional_no_strip)] hint: Option<String>,
    error: Signal<Option<String>>,
    #[prop(optional_no_strip)] autocomplete: Option<&'static str>,
) -> impl IntoView {
    let input = NodeRef::<leptos::html::Input>::new();
    // What was typed or filled in before the page came alive is kept; after that the signal leads.
    Effect::new(move |alive: Option<bool>| {
        let wanted = value.get();
        let Some(input) = input.get() else { return alive.unwrap_or(false) };
        let typed = input.value();
        if alive != Some(true) && wanted.is_empty() && !typed.is_empty() {
            value.set(typed);
        } else if typed != wanted {
            input.set_value(&wanted);
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
