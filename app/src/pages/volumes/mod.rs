//! Pages of volumes: shared files for jobs of an organization. `one` is the page of a volume.
//!
//! The portal checks all rights; the pages only hide buttons without effect.

mod files;
pub mod one;
mod state;
mod storage;
mod unfinished;
mod uploads;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::storage::{OrgStorage, Retention};
use berth_types::storage_classes::OrgStorageClass;
use berth_types::volumes::{NewVolume, Volume};
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::storage::StorageView;
use super::card_form::CardForm;
use super::confirm::{ConfirmDialog, ConfirmTarget};
use super::curl::{self, ListCurl};
use super::org_data::org_view;
use super::parts::{Call, FormKey, origin, ready};
use super::text::{counted, size_text};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/max_bytes", "/class"];

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    volumes: Vec<Volume>,
    classes: Vec<OrgStorageClass>,
    storage: OrgStorage,
    retention: Retention,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (volumes, storage) = (api::volumes::list(org), api::storage::usage(org));
    let (retention, classes) = (api::storage::retention(org), api::storage_classes::list_of_org(org));
    async move {
        let (volumes, classes) = (volumes.await?.items, classes.await?.items);
        Ok(Loaded { org, volumes, classes, storage: storage.await?, retention: retention.await? })
    }
}

/// The page of all volumes.
#[component]
pub fn VolumesPage() -> impl IntoView {
    view! {
        <Page title="Volumes".to_owned()>
            <p class="page__lead">
                "A volume is a named, versioned set of files for jobs, such as a data set. A reading job gets the version at its placement. One job writes at a time; its changes become a new version when it ends."
            </p>
            {org_view(load, |loaded: Loaded| view! { <VolumesView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// The state of form, rows and dialog.
#[derive(Clone, Copy)]
struct PageState {
    org: OrgId,
    volumes: RwSignal<Vec<Volume>>,
    /// The volume of the dialog.
    target: ConfirmTarget<String>,
    ready: ReadSignal<bool>,
    /// True with the buttons to create and to delete.
    owns: bool,
}

#[component]
fn VolumesView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, volumes, classes, storage, retention } = loaded;
    let state = PageState {
        org,
        volumes: RwSignal::new(volumes),
        target: ConfirmTarget::none(),
        ready: ready(),
        owns: use_session().owns(org),
    };
    let none = Memo::new(move |_| state.volumes.with(Vec::is_empty));
    view! {
        {state.owns.then(|| view! { <VolumeForm state=state classes=classes/> })}
        <section class="section">
            <div class="section__head"><h2>"Existing volumes"</h2></div>
            {move || {
                if none.get() {
                    empty(empty_text(state.owns))
                } else {
                    state.volumes.with(|volumes| table(volumes, state))
                }
            }}
            <ListCurl path=Signal::derive(move || format!("/orgs/{org}/volumes")) label="Volumes with curl"/>
        </section>
        <StorageView org=org storage=storage retention=retention owns=state.owns/>
        <Instructions org=org/>
        <DeleteDialog state=state/>
    }
}

fn empty_text(owns: bool) -> &'static str {
    if owns {
        "No volumes yet. Create a volume above, upload files and enter its name in the launch form."
    } else {
        "No volumes yet. Owners of the organization create volumes; members upload files and use them in jobs."
    }
}

/// Parses a whole number of GiB; the result is in bytes.
fn parse_gib(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok()?.checked_mul(1 << 30)
}

/// Returns the body of the form; `None` with an invalid size. A class takes the place of the size.
fn new_volume(name: &str, size: &str, class: &str) -> Option<NewVolume> {
    let name = name.trim().to_owned();
    if class.is_empty() {
        return Some(NewVolume { name, max_bytes: Some(parse_gib(size)?), class: None });
    }
    Some(NewVolume { name, max_bytes: None, class: Some(class.to_owned()) })
}

/// The choice between the portal and the storage classes of the organization; absent without a class.
fn class_field(classes: Vec<OrgStorageClass>, class: RwSignal<String>, call: Call) -> Option<AnyView> {
    if classes.is_empty() {
        return None;
    }
    let option = |class: OrgStorageClass| {
        let text = format!("Storage class {}", class.name);
        view! { <option value=class.name>{text}</option> }.into_any()
    };
    let options: Vec<AnyView> = classes.into_iter().map(option).collect();
    let field = view! {
        <SelectField
            label="Place of the files"
            id="volume-class"
            hint="A storage class is a file system of the nodes. Jobs share its files at once, without versions."
            error=call.field("/class")
            choose=Callback::new(move |value: String| class.set(value))
        >
            <option value="">"Portal"</option>
            {options}
        </SelectField>
    };
    Some(field.into_any())
}

#[component]
fn VolumeForm(state: PageState, classes: Vec<OrgStorageClass>) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let name = RwSignal::new(String::new());
    let size = RwSignal::new("10".to_owned());
    let class = RwSignal::new(String::new());
    let origin = origin();
    let line = Signal::derive(move || match new_volume(&name.get(), &size.get(), &class.get()) {
        Some(body) => {
            let body = serde_json::to_string(&body).unwrap_or_default();
            curl::post(&origin.get(), &format!("/orgs/{}/volumes", state.org), &body)
        }
        None => curl::INCOMPLETE.to_owned(),
    });
    let submit = move |()| {
        let input = (name.get_untracked(), size.get_untracked(), class.get_untracked());
        let Some(body) = new_volume(&input.0, &input.1, &input.2) else {
            let detail = "Enter a whole number of GiB, such as 10.";
            call.problem.set(Some(Problem::invalid_field("/max_bytes", detail)));
            return;
        };
        let key_now = key.for_text(format!("{body:?}"));
        call.run(api::volumes::create(state.org, &body, key_now), move |made: Volume| {
            key.reset();
            state.volumes.update(|volumes| {
                volumes.retain(|volume| volume.name != made.name);
                let at = volumes.partition_point(|volume| volume.name < made.name);
                volumes.insert(at, made);
            });
            name.set(String::new());
        });
    };
    view! {
        <CardForm
            title="New volume"
            call=call
            beside_fields=FIELDS
            verb="Create volume"
            curl=(line, "New volume with curl")
            submit=Callback::new(submit)
        >
            <div class="field-row">
                <Field
                    label="Name"
                    name="volume-name"
                    kind="text"
                    value=name
                    hint=Some("Lower-case letters, digits and hyphens. The name cannot be changed.".to_owned())
                    error=call.field("/name")
                />
                <div hidden=move || class.with(|class| !class.is_empty())>
                    <Field
                        label="Maximum size (GiB)"
                        name="volume-size"
                        kind="number"
                        value=size
                        hint=Some("Limit of all files together. Files beyond it are refused.".to_owned())
                        error=call.field("/max_bytes")
                    />
                </div>
            </div>
            {class_field(classes, class, call)}
        </CardForm>
    }
}

/// Instructions for volumes in jobs.
#[component]
fn Instructions(org: OrgId) -> impl IntoView {
    let origin = origin();
    let body = r#"{"name":"train","offering":"h100-80gb","script":"python3 train.py /data","volumes":[{"name":"training-set","path":"/data"},{"name":"results","path":"runs","mode":"rw"}]}"#;
    let line = Signal::derive(move || curl::post(&origin.get(), &format!("/orgs/{org}/jobs"), body));
    view! {
        <details class="more">
            <summary>"Volumes in jobs"</summary>
            <div class="stack">
                <p class="prose">
                    "A job finds a volume at a path below its directory, or at a directory of the root such as /data. A node without isolation has no such directory at the root; the variable BERTH_VOLUME_NAME, with the volume name in capitals, has the path on every node. A job with write access waits while another job writes to the volume."
                </p>
                <CopyBlock text=line label="Job with two volumes, with curl".to_owned()/>
            </div>
        </details>
    }
}

fn table(volumes: &[Volume], state: PageState) -> AnyView {
    table_of(
        "Volumes",
        &[("Name", ""), ("Used", ""), ("Files", ""), ("Version", ""), ("Last changed", ""), ACTIONS],
        volumes.iter().map(|volume| row(volume, state)).collect(),
    )
}

/// `1 file`, `3 files`.
fn files_text(count: u64) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), "file", "files")
}

/// `1.5 MiB of 10.0 GiB`, or `Storage class scratch`.
fn used_text(volume: &Volume) -> String {
    match &volume.class {
        Some(class) => format!("Storage class {class}"),
        None => {
            let most = volume.max_bytes.map_or_else(|| "no limit".to_owned(), size_text);
            format!("{} of {most}", size_text(volume.used_bytes))
        }
    }
}

fn row(volume: &Volume, state: PageState) -> AnyView {
    // The portal knows neither the files nor a version of a volume on the nodes.
    let known = |text: String| if volume.class.is_some() { "–".to_owned() } else { text };
    let (files, version) = (known(volume.files.to_string()), known(volume.version.to_string()));
    let (path, name) = (org_link(&format!("/volumes/{}", volume.name)), volume.name.clone());
    let label = format!("Delete {name}");
    let delete = state.owns.then(|| state.target.button(name.clone(), "Delete", label, state.ready));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><a class="mono break" href=path>{name}</a></th>
            <td role="cell" data-label="Used">{used_text(volume)}</td>
            <td role="cell" data-label="Files">{files}</td>
            <td role="cell" data-label="Version">{version}</td>
            <td role="cell" class="nowrap" data-label="Last changed"><When at=volume.changed_at/></td>
            <td role="cell" class="table__actions">{delete}</td>
        </tr>
    }
    .into_any()
}

/// Returns the consequences of a deletion.
fn deletion_text(volume: Option<&Volume>) -> String {
    let end = "This cannot be undone. A volume of a running or waiting job cannot be deleted.";
    match volume.and_then(|volume| Some((volume.class.as_ref()?, volume.id))) {
        Some((class, id)) => format!(
            "The portal forgets the volume, and jobs reach its files no more. The files stay on the storage class {class} as {id}: ask the operator to remove them. {end}"
        ),
        None => format!("Deletes all files of the volume. {end}"),
    }
}

#[component]
fn DeleteDialog(state: PageState) -> impl IntoView {
    let call = Call::idle();
    let delete = move |()| {
        let Some(name) = state.target.one.get_untracked() else { return };
        let deleted = name.clone();
        call.run(api::volumes::delete(state.org, &name), move |()| {
            state.volumes.update(|volumes| volumes.retain(|volume| volume.name != deleted));
            state.target.open.set(false);
        });
    };
    let text = move || {
        let name = state.target.one.get();
        state
            .volumes
            .with(|volumes| deletion_text(volumes.iter().find(|volume| Some(&volume.name) == name.as_ref())))
    };
    view! {
        <ConfirmDialog
            id="delete-volume"
            title=state.target.title("Delete", "volume", String::as_str)
            open=state.target.open
            call=call
            keep="Keep volume"
            verb="Delete volume"
            confirm=Callback::new(delete)
        >
            <p>{text}</p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_takes_the_place_of_the_size() {
        let new = |max_bytes: Option<u64>, class: Option<&str>| {
            Some(NewVolume { name: "a".to_owned(), max_bytes, class: class.map(str::to_owned) })
        };
        assert_eq!(new_volume(" a ", "1", ""), new(Some(1 << 30), None));
        assert_eq!(new_volume("a", "", "scratch"), new(None, Some("scratch")));
        assert_eq!(new_volume("a", "", ""), None);
    }

    #[test]
    fn a_volume_on_the_nodes_keeps_its_files() {
        let volume = |class: Option<&str>| -> Volume {
            serde_json::from_value(serde_json::json!({
                "id": "vol_00000000000000000000000001", "name": "a", "class": class, "used_bytes": 0, "files": 0,
                "version": 0, "created_by": "Ada", "created_at": "2026-01-01T00:00:00Z",
                "changed_at": "2026-01-01T00:00:00Z",
            }))
            .unwrap()
        };
        let on_nodes = volume(Some("scratch"));
        assert_eq!(used_text(&on_nodes), "Storage class scratch");
        let text = deletion_text(Some(&on_nodes));
        assert!(text.contains("stay on the storage class scratch as vol_"), "{text}");
        assert!(deletion_text(Some(&volume(None))).starts_with("Deletes all files"));
    }

    #[test]
    fn a_size_is_whole_gibibytes() {
        assert_eq!((parse_gib(" 10 "), parse_gib("1")), (Some(10 << 30), Some(1 << 30)));
        for no in ["", "1.5", "-1", "ten", "99999999999999999"] {
            assert_eq!(parse_gib(no), None, "{no}");
        }
    }
}
