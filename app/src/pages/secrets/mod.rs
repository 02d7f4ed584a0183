//! Page of secrets: sealed values for jobs.
//!
//! A value exists only in the form; the portal never returns it.

mod form;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::secrets::Secret;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::form::SecretForm;
use super::confirm::{ConfirmDialog, ConfirmTarget};
use super::curl::{self, ListCurl};
use super::org_data::org_view;
use super::parts::{Call, origin, ready};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    secrets: Vec<Secret>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let secrets = api::secrets::list(org);
    async move { Ok(Loaded { org, secrets: secrets.await?.items }) }
}

/// The page of all secrets.
#[component]
pub fn SecretsPage() -> impl IntoView {
    view! {
        <Page title="Secrets".to_owned()>
            <p class="page__lead">
                "A secret is a sealed value for jobs, such as a registry token. The portal never shows the value again, and job logs mask it."
            </p>
            {org_view(load, |loaded: Loaded| view! { <SecretsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// The state of form, rows and dialog.
#[derive(Clone, Copy)]
struct PageState {
    org: OrgId,
    secrets: RwSignal<Vec<Secret>>,
    /// The name field of the form; a row can fill it in.
    name: RwSignal<String>,
    /// The secret of the dialog.
    target: ConfirmTarget<String>,
    ready: ReadSignal<bool>,
    /// True with buttons for changes.
    writes: bool,
}

#[component]
fn SecretsView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, secrets } = loaded;
    let state = PageState {
        org,
        secrets: RwSignal::new(secrets),
        name: RwSignal::new(String::new()),
        target: ConfirmTarget::none(),
        ready: ready(),
        writes: use_session().owns(org),
    };
    let none = Memo::new(move |_| state.secrets.with(Vec::is_empty));
    view! {
        {state.writes.then(|| view! { <SecretForm state=state/> })}
        <section class="section">
            <div class="section__head"><h2>"Existing secrets"</h2></div>
            {move || {
                if none.get() {
                    empty(empty_text(state.writes))
                } else {
                    state.secrets.with(|secrets| table(secrets, state))
                }
            }}
            <ListCurl path=Signal::derive(move || format!("/orgs/{org}/secrets")) label="Secrets with curl"/>
        </section>
        <Instructions org=org/>
        <DeleteDialog state=state/>
    }
}

fn empty_text(writes: bool) -> &'static str {
    if writes {
        "No secrets yet. Create a secret above and enter its name in the launch form."
    } else {
        "No secrets yet. Owners of the organization create secrets; jobs use them by name."
    }
}

/// Instructions for secrets in jobs.
#[component]
fn Instructions(org: OrgId) -> impl IntoView {
    let origin = origin();
    let body = r#"{"name":"train","offering":"h100-80gb","script":"python3 train.py","secrets":[{"name":"hf-token","env":"HF_TOKEN"},{"name":"deploy-key","file":"key.pem"}]}"#;
    let line = Signal::derive(move || curl::post(&origin.get(), &format!("/orgs/{org}/jobs"), body));
    view! {
        <details class="more">
            <summary>"Secrets in jobs"</summary>
            <div class="stack">
                <p class="prose">
                    "A job gets a secret as an environment variable, or as a file in /run/secrets that only the job can read. The job log shows asterisks in place of the value; a value that the job has changed, for example into base64, is not recognized. A new value takes effect at the next start of a job."
                </p>
                <CopyBlock text=line label="Job with two secrets, with curl".to_owned()/>
            </div>
        </details>
    }
}

fn table(secrets: &[Secret], state: PageState) -> AnyView {
    table_of(
        "Secrets",
        &[
            ("Name", ""),
            ("Version", ""),
            ("Created", ""),
            ("Last changed", ""),
            ("Changed by", ""),
            ("Last used by a job", ""),
            ACTIONS,
        ],
        secrets.iter().map(|secret| row(secret, state)).collect(),
    )
}

fn row(secret: &Secret, state: PageState) -> AnyView {
    let name = secret.name.clone();
    let by = secret.updated_by.clone();
    let used = match secret.last_used_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => "never".into_any(),
    };
    let actions = state.writes.then(|| actions(&secret.name, state));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="mono break">{name}</span></th>
            <td role="cell" data-label="Version">{secret.version}</td>
            <td role="cell" class="nowrap" data-label="Created"><When at=secret.created_at/></td>
            <td role="cell" class="nowrap" data-label="Last changed"><When at=secret.updated_at/></td>
            <td role="cell" data-label="Changed by">{by}</td>
            <td role="cell" class="nowrap" data-label="Last used by a job">{used}</td>
            <td role="cell" class="table__actions">{actions}</td>
        </tr>
    }
    .into_any()
}

fn actions(name: &str, state: PageState) -> AnyView {
    let replace_label = format!("Replace the value of {name}");
    let delete_label = format!("Delete {name}");
    let replaced = name.to_owned();
    view! {
        <span class="btn-grid">
            <button
                class="btn btn--small"
                type="button"
                aria-label=replace_label
                disabled=move || !state.ready.get()
                on:click=move |_| state.name.set(replaced.clone())
            >
                "Replace"
            </button>
            {state.target.button(name.to_owned(), "Delete", delete_label, state.ready)}
        </span>
    }
    .into_any()
}

#[component]
fn DeleteDialog(state: PageState) -> impl IntoView {
    let call = Call::idle();
    let delete = move |()| {
        let Some(name) = state.target.one.get_untracked() else { return };
        let deleted = name.clone();
        call.run(api::secrets::delete(state.org, &name), move |()| {
            state.secrets.update(|secrets| secrets.retain(|secret| secret.name != deleted));
            state.target.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="delete-secret"
            title=state.target.title("Delete", "secret", String::as_str)
            open=state.target.open
            call=call
            keep="Keep secret"
            verb="Delete secret"
            confirm=Callback::new(delete)
        >
            <p>
                "Running jobs keep the value until they end. Waiting jobs with this secret and retries of running jobs fail at their start, without a charge. The value cannot be restored."
            </p>
        </ConfirmDialog>
    }
}
