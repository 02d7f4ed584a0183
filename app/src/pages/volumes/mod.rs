//! Volumes: files that jobs of an organization share. `one` is what is in one of them.
//!
//! Must not decide who may do what: it only leaves out what the portal would refuse.

mod files;
pub mod one;
mod sending;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::volumes::{NewVolume, Volume};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::confirm::{ConfirmDialog, Doomed};
use super::curl;
use super::of_org::of_org;
use super::parts::{Call, CallProblem, FormKey, Submit, origin, ready};
use super::words::{counted, size_text};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/max_bytes"];

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    volumes: Vec<Volume>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let volumes = api::volumes::list(org);
    async move { Ok(Loaded { org, volumes: volumes.await?.items }) }
}

/// The page with all volumes.
#[component]
pub fn VolumesPage() -> impl IntoView {
    view! {
        <Page title="Volumes".to_owned()>
            <p class="page__lead">
                "A volume holds files that jobs of this organization find when they start, such as a data set, and that they can add to. A job that reads has the files of the moment when it was placed; one job writes at a time, and what it leaves counts all at once when it has ended."
            </p>
            {of_org(load, |loaded: Loaded| view! { <VolumesView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// What the form, the rows and the dialog act on.
#[derive(Clone, Copy)]
struct Desk {
    org: OrgId,
    volumes: RwSignal<Vec<Volume>>,
    /// The one that the dialog is about.
    doomed: Doomed<String>,
    ready: ReadSignal<bool>,
    /// Whether the person may make and delete volumes.
    owns: bool,
}

#[component]
fn VolumesView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, volumes } = loaded;
    let desk = Desk {
        org,
        volumes: RwSignal::new(volumes),
        doomed: Doomed::none(),
        ready: ready(),
        owns: use_session().owns(org),
    };
    let none = Memo::new(move |_| desk.volumes.with(Vec::is_empty));
    view! {
        {desk.owns.then(|| view! { <VolumeForm desk=desk/> })}
        <section class="section">
            <div class="section__head"><h2>"Volumes of this organization"</h2></div>
            {move || {
                if none.get() {
                    empty(nothing(desk.owns))
                } else {
                    desk.volumes.with(|volumes| table(volumes, desk))
                }
            }}
        </section>
        <HowTo org=org/>
        <DeleteDialog desk=desk/>
    }
}

fn nothing(owns: bool) -> &'static str {
    if owns {
        "No volume yet. Make one above, put files into it, and name it when you launch a job."
    } else {
        "No volume yet. Owners of the organization make them; you fill them and name them when you launch a job."
    }
}

/// Bytes of a whole number of GiB, as typed.
fn gib(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok()?.checked_mul(1 << 30)
}

#[component]
fn VolumeForm(desk: Desk) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::beside(call);
    let name = RwSignal::new(String::new());
    let size = RwSignal::new("10".to_owned());
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let Some(max_bytes) = gib(&size.get_untracked()) else {
            let detail = "Give a whole number of GiB such as 10.";
            call.problem.set(Some(Problem::invalid_field("/max_bytes", detail)));
            return;
        };
        let body = NewVolume { name: name.get_untracked().trim().to_owned(), max_bytes };
        let key_now = key.of(format!("{body:?}"));
        call.run(api::volumes::create(desk.org, &body, key_now), move |made: Volume| {
            key.done();
            desk.volumes.update(|volumes| {
                volumes.retain(|volume| volume.name != made.name);
                let at = volumes.partition_point(|volume| volume.name < made.name);
                volumes.insert(at, made);
            });
            name.set(String::new());
        });
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Make a volume"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <Field
                    label="Name"
                    name="volume-name"
                    kind="text"
                    value=name
                    hint=Some("Lower-case letters, digits and -. It stays as it is.".to_owned())
                    error=call.field("/name")
                    autocomplete=Some("off")
                />
                <Field
                    label="At most, in GiB"
                    name="volume-size"
                    kind="number"
                    value=size
                    hint=Some("What does not fit is refused.".to_owned())
                    error=call.field("/max_bytes")
                    autocomplete=Some("off")
                />
            </div>
            <div class="form__actions">
                <Submit call=call>"Create volume"</Submit>
            </div>
        </form>
    }
}

/// How a job asks for volumes.
#[component]
fn HowTo(org: OrgId) -> impl IntoView {
    let origin = origin();
    let body = r#"{"name":"train","offering":"h100-80gb","script":"python3 train.py /data","volumes":[{"name":"training-set","path":"/data"},{"name":"results","path":"runs","mode":"rw"}]}"#;
    let line = Signal::derive(move || curl::post(&origin.get(), &format!("/orgs/{org}/jobs"), body));
    view! {
        <details class="more">
            <summary>"How a job gets a volume"</summary>
            <div class="stack">
                <p class="prose">
                    "At a place below its own directory, or at one directory of its own at the root such as /data. On a node without a sandbox the place at the root is not there; the variable BERTH_VOLUME_NAME, with the volume's name in capitals, says where it is on every node. A job that would write while another does waits for its turn."
                </p>
                <CopyBlock text=line label="A job with two volumes, with curl".to_owned()/>
            </div>
        </details>
    }
}

fn table(volumes: &[Volume], desk: Desk) -> AnyView {
    table_of(
        "Volumes",
        &[("Name", ""), ("Used", ""), ("Files", ""), ("Version", ""), ("Last changed", ""), ACTIONS],
        volumes.iter().map(|volume| row(volume, desk)).collect(),
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

fn row(volume: &Volume, desk: Desk) -> AnyView {
    let (path, name) = (format!("/volumes/{}", volume.name), volume.name.clone());
    let label = format!("Delete {name}");
    let delete = desk.owns.then(|| desk.doomed.button(name.clone(), "Delete", label, desk.ready));
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
fn DeleteDialog(desk: Desk) -> impl IntoView {
    let call = Call::idle();
    let delete = move |()| {
        let Some(name) = desk.doomed.one.get_untracked() else { return };
        let gone = name.clone();
        call.run(api::volumes::delete(desk.org, &name), move |()| {
            desk.volumes.update(|volumes| volumes.retain(|volume| volume.name != gone));
            desk.doomed.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="delete-volume"
            title=desk.doomed.title("Delete", "volume", String::as_str)
            open=desk.doomed.open
            call=call
            keep="Keep it"
            verb="Delete volume"
            confirm=Callback::new(delete)
        >
            <p>"Every file in it is removed. This cannot be undone. While a job has it or waits for it, it is not deleted."</p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_whole_gibibytes() {
        assert_eq!((gib(" 10 "), gib("1")), (Some(10 << 30), Some(1 << 30)));
        for no in ["", "1.5", "-1", "ten", "99999999999999999"] {
            assert_eq!(gib(no), None, "{no}");
        }
    }
}
