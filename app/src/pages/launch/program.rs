//! Program and image of a job. The portal checks the name of the image.

use leptos::prelude::*;

use super::super::parts::Call;
use super::form::Form;
use crate::ui::{Field, TextArea};

/// A command line or a script.
#[component]
pub fn ProgramFields(
    /// The form.
    form: Form,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let choice = move |script: bool, text: &'static str| {
        view! {
            <label>
                <input
                    type="radio"
                    name="way"
                    checked={form.as_script.get_untracked() == script}
                    prop:checked=move || { form.as_script.get() == script }
                    on:change=move |_| form.as_script.set(script)
                />
                {text}
            </label>
        }
    };
    // Only an image has a registry. The memo avoids a new field at each key press.
    let has_image = Memo::new(move |_| form.image.with(|image| !image.trim().is_empty()));
    let input = move || {
        if form.as_script.get() {
            view! {
                <TextArea
                    label="Script"
                    id="script"
                    value=form.script
                    rows=8
                    mono=true
                    hint="Runs with the interpreter of its #! line, otherwise with /bin/sh, in the job directory with your files."
                    error=call.field("/script")
                />
            }
            .into_any()
        } else {
            view! {
                <TextArea
                    label="Command"
                    id="command"
                    value=form.command
                    rows=2
                    mono=true
                    hint="Program with arguments, such as python3 train.py --epochs 4. Runs without a shell: for pipes or variables, use a script."
                    error=call.field("/command")
                />
            }
            .into_any()
        }
    };
    view! {
        <div class="segmented" role="radiogroup" aria-label="Program type">
            {choice(false, "Command")} {choice(true, "Script")}
        </div>
        {input}
        <Field
            label="Image"
            name="image"
            kind="text"
            value=form.image
            hint=Some("For example docker.io/library/python:3.12. Empty: operating system of the node.".to_owned())
            error=call.field("/image")
        />
        {move || has_image.get().then(|| view! { <RegistrySecret form=form call=call/> })}
    }
}

/// The field of the registry secret.
#[component]
pub fn RegistrySecret(form: Form, call: Call) -> impl IntoView {
    let (registry, secret) = (call.field("/registry"), call.field("/registry/secret"));
    view! {
        <Field
            label="Registry secret"
            name="registry"
            kind="text"
            value=form.registry
            hint=Some("Name of a secret with username:password. Empty: public image.".to_owned())
            error=Signal::derive(move || registry.get().or_else(|| secret.get()))
        />
    }
}
