//! Fields with label, hint and error.

use leptos::prelude::*;

/// The error below a field.
#[component]
pub fn FieldError(
    /// The id in the field's `aria-describedby`.
    #[prop(into)]
    id: String,
    /// The error.
    error: Signal<Option<String>>,
) -> impl IntoView {
    move || {
        let id = id.clone();
        error.get().map(|text| view! { <p class="field__error" id=id tabindex="-1">{text}</p> })
    }
}

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
    /// The browser's own suggestions.
    #[prop(default = Some("off"))]
    autocomplete: Option<&'static str>,
    /// True for a field without effect.
    #[prop(optional, into)]
    disabled: Signal<bool>,
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
                disabled=move || disabled.get()
                aria-describedby=described
                aria-invalid=move || error.get().map(|_| "true")
                node_ref=input
                on:input=move |ev| value.set(event_target_value(&ev))
            />
            {hint}
            <FieldError id=format!("{name}-error") error=error/>
        </div>
    }
}

/// The e-mail address of a person's account.
#[component]
pub fn EmailField(
    /// The input.
    value: RwSignal<String>,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    view! {
        <Field label="E-mail" name="email" kind="email" value=value error=error autocomplete=Some("username")/>
    }
}

/// The name of a person.
#[component]
pub fn PersonNameField(
    /// The input.
    value: RwSignal<String>,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    view! {
        <Field label="Your name" name="name" kind="text" value=value error=error autocomplete=Some("name")/>
    }
}

/// A line of text of the whole width, such as a reason.
#[component]
pub fn TextField(
    /// The label above the field.
    label: &'static str,
    /// Unique in the page.
    id: &'static str,
    /// The most characters.
    max_length: u32,
    /// The input.
    value: RwSignal<String>,
    /// The hint below the field.
    hint: &'static str,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let (hint_id, error_id) = (format!("{id}-hint"), format!("{id}-error"));
    let described = format!("{hint_id} {error_id}");
    view! {
        <div class="field field--wide">
            <label class="field__label" for=id>{label}</label>
            <input
                id=id
                autocomplete="off"
                maxlength=max_length.to_string()
                aria-describedby=described
                aria-invalid=move || error.get().map(|_| "true")
                prop:value=move || value.get()
                on:input=move |ev| value.set(event_target_value(&ev))
            />
            <p class="field__hint" id=hint_id>{hint}</p>
            <FieldError id=error_id error=error/>
        </div>
    }
}

/// Several lines of text of the whole width.
#[component]
pub fn TextArea(
    /// The label above the field.
    label: &'static str,
    /// The name and the id, unique in the page.
    id: &'static str,
    /// The height in lines.
    rows: u32,
    /// The most characters; absent: no limit by the browser.
    #[prop(optional)]
    max_length: Option<u32>,
    /// True for code, without a check of its spelling.
    #[prop(optional)]
    mono: bool,
    /// The input.
    value: RwSignal<String>,
    /// The hint below the field.
    hint: &'static str,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let (hint_id, error_id) = (format!("{id}-hint"), format!("{id}-error"));
    let described = format!("{hint_id} {error_id}");
    view! {
        <div class="field field--wide">
            <label class="field__label" for=id>{label}</label>
            <textarea
                class=mono.then_some("mono")
                id=id
                name=id
                rows=rows.to_string()
                maxlength=max_length.map(|length| length.to_string())
                spellcheck=mono.then_some("false")
                autocomplete="off"
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

/// A number with its unit, its hint and its error.
#[component]
pub fn NumberField(
    /// The label above the field.
    #[prop(into)]
    label: String,
    /// The name and the id, unique in the page.
    #[prop(into)]
    id: String,
    /// The unit behind the number.
    #[prop(into)]
    unit: Signal<String>,
    /// The input.
    value: RwSignal<String>,
    /// The hint below the field.
    #[prop(optional, into)]
    hint: Option<Signal<String>>,
    /// The error below the field.
    error: Signal<Option<String>>,
    /// The keyboard of a phone.
    #[prop(default = "decimal")]
    inputmode: &'static str,
    /// True for a field without effect.
    #[prop(optional, into)]
    disabled: Signal<bool>,
) -> impl IntoView {
    let (hint_id, error_id) = (format!("{id}-hint"), format!("{id}-error"));
    let described = format!("{hint_id} {error_id}");
    let (label_for, name) = (id.clone(), id.clone());
    let initial = value.get_untracked();
    let hint = hint.map(|hint| view! { <p class="field__hint" id=hint_id>{move || hint.get()}</p> });
    view! {
        <div class="field">
            <label class="field__label" for=label_for>{label}</label>
            <span class="with-unit">
                <input
                    id=id
                    name=name
                    inputmode=inputmode
                    autocomplete="off"
                    value=initial
                    disabled=move || disabled.get()
                    aria-describedby=described
                    aria-invalid=move || error.get().map(|_| "true")
                    prop:value=move || value.get()
                    on:input=move |ev| value.set(event_target_value(&ev))
                />
                <span class="with-unit__unit">{move || unit.get()}</span>
            </span>
            {hint}
            <FieldError id=error_id error=error/>
        </div>
    }
}

/// A choice of one option.
#[component]
pub fn SelectField(
    /// The label above the field.
    label: &'static str,
    /// The name and the id, unique in the page.
    id: &'static str,
    /// The hint below the field.
    #[prop(optional, into)]
    hint: Option<Signal<String>>,
    /// The error below the field.
    #[prop(optional, into)]
    error: Signal<Option<String>>,
    /// Runs with the value of the chosen option.
    choose: Callback<String>,
    /// The options.
    children: Children,
) -> impl IntoView {
    let (hint_id, error_id) = (format!("{id}-hint"), format!("{id}-error"));
    let described = format!("{hint_id} {error_id}");
    let hint = hint.map(|hint| view! { <p class="field__hint" id=hint_id>{move || hint.get()}</p> });
    view! {
        <div class="field">
            <label class="field__label" for=id>{label}</label>
            <select
                id=id
                name=id
                aria-describedby=described
                aria-invalid=move || error.get().map(|_| "true")
                on:change=move |ev| choose.run(event_target_value(&ev))
            >
                {children()}
            </select>
            {hint}
            <FieldError id=error_id error=error/>
        </div>
    }
}
