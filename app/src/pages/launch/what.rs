//! The program of a job, and the image that it runs in.
//!
//! Must not check an image's name: the portal says what one is.

use leptos::prelude::*;

use super::super::parts::Call;
use super::form::{Form, TextBlock};
use crate::ui::Field;

/// A command line or a script.
#[component]
pub fn WhatRuns(
    /// The form.
    form: Form,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let way = move |script: bool, text: &'static str| {
        view! {
            <label>
                <input
                    type="radio"
                    name="way"
                    checked={!script}
                    prop:checked=move || { form.as_script.get() == script }
                    on:change=move |_| form.as_script.set(script)
                />
                {text}
            </label>
        }
    };
    // Only an image comes from a registry. A memo, so that typing its name does not make the field anew.
    let imaged = Memo::new(move |_| form.image.with(|image| !image.trim().is_empty()));
    let either = move || {
        if form.as_script.get() {
            view! {
                <TextBlock
                    label="Script"
                    name="script"
                    value=form.script
                    rows=8
                    hint="Runs by its #! line, or by /bin/sh, in the job's own directory. Your files lie beside it."
                    error=call.field("/script")
                />
            }
            .into_any()
        } else {
            view! {
                <TextBlock
                    label="Command"
                    name="command"
                    value=form.command
                    rows=2
                    hint="A program and its arguments, such as python3 train.py --epochs 4. No shell is involved: for pipes or variables, write a script."
                    error=call.field("/command")
                />
            }
            .into_any()
        }
    };
    view! {
        <div class="segmented" role="radiogroup" aria-label="What to run">
            {way(false, "Command")} {way(true, "Script")}
        </div>
        {either}
        <Field
            label="Image"
            name="image"
            kind="text"
            value=form.image
            hint=Some("Such as docker.io/library/python:3.12. Empty: the system of its node.".to_owned())
            error=call.field("/image")
            autocomplete=Some("off")
        />
        {move || imaged.get().then(|| view! { <RegistrySecret form=form call=call/> })}
    }
}

/// What the image's registry asks for, of a job that names an image.
#[component]
fn RegistrySecret(form: Form, call: Call) -> impl IntoView {
    let (whole, name) = (call.field("/registry"), call.field("/registry/secret"));
    view! {
        <Field
            label="Secret of its registry"
            name="registry"
            kind="text"
            value=form.registry
            hint=Some("The name of a secret that holds username:password. Empty: the registry gives the image to everybody.".to_owned())
            error=Signal::derive(move || whole.get().or_else(|| name.get()))
            autocomplete=Some("off")
        />
    }
}
