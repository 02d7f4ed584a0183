//! Pages of volumes: shared files for jobs of an organization. `one` is the page of a volume.
//!
//! The portal checks all rights; the pages only hide buttons without effect.

mod files;
pub mod one;
mod state;
mod storage;
mod uploads;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::storage::{OrgStorage, Retention};
use berth_types::volumes::{NewVolume, Volume};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::storage::StorageView;
use super::confirm::{ConfirmDialog, ConfirmTarget};
use super::curl::{self, CopyAsCurl, ListCurl};
use super::org_data::org_view;
use super::parts::{Call, CallProblem, FormKey, Submit, origin, ready};
use super::text::{counted, size_text};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/max_bytes"];

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    volumes: Vec<Volume>,
    storage: OrgStorage,
    retention: Retention,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (volumes, storage) = (api::volumes::list(org), api::storage::usage(org));
    let retention = api::storage::retention(org);
    async move {
        let volumes = volumes.await?.items;
        Ok(Loaded { org, volumes, storage: storage.await?, retention: retention.await? })
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
    let Loaded { org, volumes, storage, retention } = loaded;
    let state = PageState {
        org,
        volumes: RwSignal::new(volumes),
        target: ConfirmTarget::none(),
        ready: ready(),
        owns: use_session().owns(org),
    };
    let none = Memo::new(move |_| state.volumes.with(Vec::is_empty));
    view! {
        {state.owns.then(|| view! { <VolumeForm state=state/> })}
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

#[component]
fn VolumeForm(state: PageState) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let name = RwSignal::new(String::new());
    let size = RwSignal::new("10".to_owned());
    let origin = origin();
    let line = Signal::derive(move || match parse_gib(&size.get()) {
        Some(max_bytes) => {
            let body = NewVolume { name: name.with(|name| name.trim().to_owned()), max_bytes };
            let body = serde_json::to_string(&body).unwrap_or_default();
            curl::post(&origin.get(), &format!("/orgs/{}/volumes", state.org), &body)
        }
        None => curl::INCOMPLETE.to_owned(),
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let Some(max_bytes) = parse_gib(&size.get_untracked()) else {
            let detail = "Enter a whole number of GiB, such as 10.";
            call.problem.set(Some(Problem::invalid_field("/max_bytes", detail)));
            return;
        };
        let body = NewVolume { name: name.get_untracked().trim().to_owned(), max_bytes };
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
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"New volume"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <Field
                    label="Name"
                    name="volume-name"
                    kind="text"
                    value=name
                    hint=Some("Lower-case letters, digits and hyphens. The name cannot be changed.".to_owned())
                    error=call.field("/name")
                    autocomplete=Some("off")
                />
                <Field
                    label="Maximum size (GiB)"
                    name="volume-size"
                    kind="number"
                    value=size
                    hint=Some("Limit of all files together. Files beyond it are refused.".to_owned())
                    error=call.field("/max_bytes")
                    autocomplete=Some("off")
                />
            </div>
            <div class="form__actions">
                <Submit call=call>"Create volume"</Submit>
            </div>
            <CopyAsCurl line=line label="New volume with curl"/>
        </form>
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

/// `1.5 MiB of 10.0 GiB`.
fn used_text(volume: &Volume) -> String {
    format!("{} of {}", size_text(volume.used_bytes), size_text(volume.max_bytes))
}

fn row(volume: &Volume, state: PageState) -> AnyView {
    let (path, name) = (org_link(&format!("/volumes/{}", volume.name)), volume.name.clone());
    let label = format!("Delete {name}");
    let delete = state.owns.then(|| state.target.button(name.clone(), "Delete", label, state.ready));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><a class="mono break" href=path>{name}</a></th>
            <td role="cell" data-label="Used">{used_text(volume)}</td>
            <td role="cell" data-label="Files">{volume.files}</td>
            <td role="cell" data-label="Version">{volume.version}</td>
            <td role="cell" class="nowrap" data-label="Last changed"><When at=volume.changed_at/></td>
            <td role="cell" class="table__actions">{delete}</td>
        </tr>
    }
    .into_any()
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
            <p>"Deletes all files of the volume. This cannot be undone. A volume of a running or waiting job cannot be deleted."</p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_whole_gibibytes() {
        assert_eq!((parse_gib(" 10 "), parse_gib("1")), (Some(10 << 30), Some(1 << 30)));
        for no in ["", "1.5", "-1", "ten", "99999999999999999"] {
            assert_eq!(parse_gib(no), None, "{no}");
        }
    }
}
