//! The fields of models: a file in a volume with its server, and the models of a service.

use leptos::prelude::*;

use super::super::launch::form::Form;
use super::super::launch::lists::{Listing, Lists, list_notice};
use super::super::launch::program::RegistrySecret;
use super::super::launch::rows::{
    PairSignals, Row, RowFrame, RowKind, Rows, item_pointer, row_input, row_list,
};
use super::super::launch::section::FormSection;
use super::super::parts::{Call, FieldError};
use super::draft::MODEL_VOLUME;
use super::model::ModelDraft;
use crate::address::org_link;
use crate::ui::*;

static MODELS: RowKind = RowKind {
    label: "Models",
    one: "Model",
    add: "Add model",
    id: "models",
    pointer: "/models",
    hint: "The names of models in requests, unique in the organization, each with the most tokens of a prompt and its answer.",
    max: 16,
};

/// The models of a service: the name and the context of each.
pub fn model_rows(rows: Rows<PairSignals>, call: Call) -> AnyView {
    let controls = |row: Row<PairSignals>, frame: RowFrame| {
        let PairSignals { name, value } = row.fields;
        view! {
            {row_input("Model name", "qwen2.5-7b", name, frame, "/name")}
            {row_input("Context tokens", "8192", value, frame, "/context_tokens")}
        }
        .into_any()
    };
    row_list(&MODELS, rows, call, item_pointer, controls)
}

/// The signals of the model.
#[derive(Clone, Copy)]
pub struct ModelForm {
    pub volume: RwSignal<String>,
    pub path: RwSignal<String>,
    pub name: RwSignal<String>,
    pub context: RwSignal<String>,
}

impl ModelForm {
    /// Returns an empty form.
    pub fn empty() -> Self {
        let text = |text: &str| RwSignal::new(text.to_owned());
        Self { volume: text(""), path: text(""), name: text(""), context: text("4096") }
    }

    pub fn draft(self) -> ModelDraft {
        ModelDraft {
            volume: self.volume.get(),
            path: self.path.get(),
            name: self.name.get(),
            context: self.context.get(),
        }
    }
}

/// The fields of a model in a volume, with the script that serves it.
#[component]
pub fn ModelFields(
    model: ModelForm,
    /// The job of a replica.
    job: Form,
    /// The lists of the organization.
    lists: Lists,
    /// The request of the form.
    call: Call,
) -> impl IntoView {
    let ModelForm { volume, path, name, context } = model;
    let has_image = Memo::new(move |_| job.image.with(|image| !image.trim().is_empty()));
    view! {
        <div class="field-row">
            <VolumeSelect value=volume lists=lists error=call.field(MODEL_VOLUME)/>
            <Field
                label="Model file"
                name="model-path"
                kind="text"
                value=path
                hint=Some("Path in the volume, such as qwen2.5-7b-q4.gguf.".to_owned())
                error=call.field("/model/path")
            />
        </div>
        <FormSection
            title="Model and server"
            call=call
            pointers=&["/models", "/image", "/registry", "/script"]
            filled=false
        >
            <div class="field-row">
                <Field
                    label="Model name"
                    name="model-name"
                    kind="text"
                    value=name
                    hint=Some("The name in requests, unique in the organization. Empty: the name of the file.".to_owned())
                    error=call.field("/models/0/name")
                />
                <NumberField
                    label="Context"
                    id="model-context"
                    unit="tokens"
                    value=context
                    hint="The most tokens of a prompt and its answer."
                    error=call.field("/models/0/context_tokens")
                />
            </div>
            <Field
                label="Image"
                name="image"
                kind="text"
                value=job.image
                hint=Some("An image with Python and llama-cpp-python. Empty: operating system of the node.".to_owned())
                error=call.field("/image")
            />
            {move || has_image.get().then(|| view! { <RegistrySecret form=job call=call/> })}
            <TextArea
                label="Start script"
                id="script"
                value=job.script
                rows=3
                mono=true
                hint="Follows the fields above until you edit it. The portal sets PORT; the volume is in /models."
                error=call.field("/script")
            />
        </FormSection>
    }
}

/// The selection of a volume of the organization.
#[component]
fn VolumeSelect(value: RwSignal<String>, lists: Lists, error: Signal<Option<String>>) -> impl IntoView {
    Effect::new(move || lists.load_volumes());
    let options = move || {
        let first = lists.volumes.with(|list| match list {
            Listing::Idle | Listing::Loading => "Loading",
            Listing::Failed(_) => "Not loaded",
            Listing::Ready(entries) if entries.is_empty() => "No volumes",
            Listing::Ready(_) => "Choose a volume",
        });
        let entries = lists.volumes.with(|list| list.items().to_vec());
        let option = move |(name, text): (String, String)| {
            let known = name.clone();
            let chosen = move || value.with(|value| *value == known);
            view! { <option value=name prop:selected=chosen>{text}</option> }.into_any()
        };
        let all = std::iter::once((String::new(), first.to_owned())).chain(entries);
        all.map(option).collect::<Vec<AnyView>>()
    };
    let none = move || lists.volumes.with(|list| *list == Listing::Ready(Vec::new()));
    view! {
        <div class="field">
            <label class="field__label" for="model-volume">"Volume"</label>
            <select
                id="model-volume"
                name="model-volume"
                aria-describedby="model-volume-error"
                aria-invalid=move || error.get().map(|_| "true")
                on:change=move |event| value.set(event_target_value(&event))
            >
                {options}
            </select>
            {move || {
                none().then(|| {
                    view! { <p class="field__hint">"No volumes yet. " <a href=org_link("/volumes")>"Create volume"</a></p> }
                })
            }}
            <FieldError id="model-volume-error" error=error/>
            {list_notice(lists.volumes, move || lists.load_volumes())}
        </div>
    }
}
