//! Secrets: what an organization keeps from everybody but its jobs.
//!
//! Must not keep a value longer than it is typed: the portal never sends one back.

mod form;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::secrets::Secret;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::form::SecretForm;
use super::confirm::{ConfirmDialog, Doomed};
use super::curl;
use super::of_org::of_org;
use super::parts::{Call, origin, ready};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    secrets: Vec<Secret>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let secrets = api::secrets::list(org);
    async move { Ok(Loaded { org, secrets: secrets.await?.items }) }
}

/// The page with all secrets.
#[component]
pub fn SecretsPage() -> impl IntoView {
    view! {
        <Page title="Secrets".to_owned()>
            <p class="page__lead">
                "A secret is a value that jobs of this organization can be given, such as a token for a model registry. Berth keeps it sealed, gives it to a job when that starts, and takes it out of the job's log. Nobody can read it here again."
            </p>
            {of_org(load, |loaded: Loaded| view! { <SecretsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// What the form, the rows and the dialog act on.
#[derive(Clone, Copy)]
struct Desk {
    org: OrgId,
    secrets: RwSignal<Vec<Secret>>,
    /// What the form's name field holds; a row can fill it in.
    name: RwSignal<String>,
    /// The one that the dialog is about.
    doomed: Doomed<String>,
    ready: ReadSignal<bool>,
    /// Whether the person may change anything. It only leaves out what the portal would refuse.
    writes: bool,
}

#[component]
fn SecretsView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, secrets } = loaded;
    let desk = Desk {
        org,
        secrets: RwSignal::new(secrets),
        name: RwSignal::new(String::new()),
        doomed: Doomed::none(),
        ready: ready(),
        writes: use_session().owns(org),
    };
    let none = Memo::new(move |_| desk.secrets.with(Vec::is_empty));
    view! {
        {desk.writes.then(|| view! { <SecretForm desk=desk/> })}
        <section class="section">
            <div class="section__head"><h2>"Secrets in use"</h2></div>
            {move || {
                if none.get() {
                    empty(nothing(desk.writes))
                } else {
                    desk.secrets.with(|secrets| table(secrets, desk))
                }
            }}
        </section>
        <HowTo org=org/>
        <DeleteDialog desk=desk/>
    }
}

fn nothing(writes: bool) -> &'static str {
    if writes {
        "No secret yet. Make one above, and name it when you launch a job."
    } else {
        "No secret yet. Owners of the organization make them; you name them when you launch a job."
    }
}

/// How a job asks for secrets.
#[component]
fn HowTo(org: OrgId) -> impl IntoView {
    let origin = origin();
    let body = r#"{"name":"train","offering":"h100-80gb","script":"python3 train.py","secrets":[{"name":"hf-token","env":"HF_TOKEN"},{"name":"deploy-key","file":"key.pem"}]}"#;
    let line = Signal::derive(move || curl::post(&origin.get(), &format!("/orgs/{org}/jobs"), body));
    view! {
        <details class="more">
            <summary>"How a job gets a secret"</summary>
            <div class="stack">
                <p class="prose">
                    "As a variable, or as a file in /run/secrets that only the job can read. Where its value comes out in the job's log, asterisks stand in its place; a value that the job changes first, into base64 for instance, is not recognised. A job has the value of the time when it started; a new one counts from the next start on."
                </p>
                <CopyBlock text=line label="A job with two secrets, with curl".to_owned()/>
            </div>
        </details>
    }
}

fn table(secrets: &[Secret], desk: Desk) -> AnyView {
    table_of(
        "Secrets",
        &[
            ("Name", ""),
            ("Version", ""),
            ("Created", ""),
            ("Last changed", ""),
            ("By", ""),
            ("Last given to a job", ""),
            ACTIONS,
        ],
        secrets.iter().map(|secret| row(secret, desk)).collect(),
    )
}

fn row(secret: &Secret, desk: Desk) -> AnyView {
    let name = secret.name.clone();
    let by = secret.updated_by.clone();
    let used = match secret.last_used_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => "never".into_any(),
    };
    let actions = desk.writes.then(|| actions(&secret.name, desk));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="mono break">{name}</span></th>
            <td role="cell" data-label="Version">{secret.version}</td>
            <td role="cell" class="nowrap" data-label="Created"><When at=secret.created_at/></td>
            <td role="cell" class="nowrap" data-label="Last changed"><When at=secret.updated_at/></td>
            <td role="cell" data-label="By">{by}</td>
            <td role="cell" class="nowrap" data-label="Last given to a job">{used}</td>
            <td role="cell" class="table__actions">{actions}</td>
        </tr>
    }
    .into_any()
}

fn actions(name: &str, desk: Desk) -> AnyView {
    let replace_label = format!("Give {name} a new value");
    let delete_label = format!("Delete {name}");
    let replaced = name.to_owned();
    view! {
        <span class="btn-grid">
            <button
                class="btn btn--small"
                type="button"
                aria-label=replace_label
                disabled=move || !desk.ready.get()
                on:click=move |_| desk.name.set(replaced.clone())
            >
                "New value"
            </button>
            {desk.doomed.button(name.to_owned(), "Delete", delete_label, desk.ready)}
        </span>
    }
    .into_any()
}

#[component]
fn DeleteDialog(desk: Desk) -> impl IntoView {
    let call = Call::idle();
    let delete = move |()| {
        let Some(name) = desk.doomed.one.get_untracked() else { return };
        let gone = name.clone();
        call.run(api::secrets::delete(desk.org, &name), move |()| {
            desk.secrets.update(|secrets| secrets.retain(|secret| secret.name != gone));
            desk.doomed.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="delete-secret"
            title=desk.doomed.title("Delete", "secret", String::as_str)
            open=desk.doomed.open
            call=call
            keep="Keep it"
            verb="Delete secret"
            confirm=Callback::new(delete)
        >
            <p>
                "Jobs that run keep it until they end. Jobs that wait and ask for it fail when they start, and cost nothing; so does another try of one that runs now. Its value cannot be brought back."
            </p>
        </ConfirmDialog>
    }
}
