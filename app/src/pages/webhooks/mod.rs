//! Page of webhooks: URLs that receive events of an organization, and their deliveries.
//!
//! The secret of a new webhook exists only in one signal of this page.

mod deliveries;
mod form;

use std::future::Future;

use berth_types::ids::{OrgId, WebhookId};
use berth_types::webhooks::{NewWebhook, Webhook};
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::deliveries::Deliveries;
use self::form::WebhookForm;
use super::confirm::{ConfirmDialog, ConfirmTarget};
use super::curl::{self, ListCurl};
use super::org_data::org_view;
use super::parts::{Call, origin, ready};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// The signature check of a receiver, with lines for a small window.
const SAMPLE: &str = r#"import hashlib, hmac, time

# header: Berth-Signature; body: the received bytes
def from_berth(secret, header, body):
    fields = dict(part.split("=", 1) for part in header.split(","))
    signed = fields["t"].encode() + b"." + body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    recent = abs(time.time() - int(fields["t"])) < 300
    return recent and hmac.compare_digest(expected, fields["v1"])"#;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    hooks: Vec<Webhook>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let hooks = api::webhooks::list(org);
    async move { Ok(Loaded { org, hooks: hooks.await?.items }) }
}

/// The page of all webhooks.
#[component]
pub fn WebhooksPage() -> impl IntoView {
    view! {
        <Page title="Webhooks".to_owned()>
            <p class="page__lead">
                "A webhook is a URL that receives a signed request for each event, such as the end of a job. Programs that call the API use a "
                <a href=org_link("/tokens")>"token"</a> "."
            </p>
            {org_view(load, |loaded: Loaded| view! { <WebhooksView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// The state of rows and dialog.
#[derive(Clone, Copy)]
struct PageState {
    org: OrgId,
    hooks: RwSignal<Vec<Webhook>>,
    /// The webhook of the shown deliveries.
    selected: RwSignal<Option<WebhookId>>,
    /// The secret of the latest new webhook, until a deletion.
    secret: RwSignal<Option<String>>,
    /// The webhook of the dialog.
    target: ConfirmTarget<Webhook>,
    ready: ReadSignal<bool>,
}

#[component]
fn WebhooksView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, hooks } = loaded;
    let state = PageState {
        org,
        selected: RwSignal::new(hooks.first().map(|hook| hook.id)),
        hooks: RwSignal::new(hooks),
        secret: RwSignal::new(None),
        target: ConfirmTarget::none(),
        ready: ready(),
    };
    let none = Memo::new(move |_| state.hooks.with(Vec::is_empty));
    view! {
        {move || state.secret.get().map(|secret| view! { <Secret secret=secret/> })}
        <WebhookForm org=org hooks=state.hooks selected=state.selected secret=state.secret/>
        <details class="more">
            <summary>"Signature check"</summary>
            <div class="stack">
                <p class="prose">
                    "Each request has the header Berth-Signature: t=TIME,v1=HEX. HEX is the HMAC-SHA256 of the time, a full stop and the body, with the secret of the webhook as the key. Answer with a 2xx status; otherwise Berth repeats the request. The same id can therefore arrive more than once."
                </p>
                <CopyBlock text=Signal::derive(|| SAMPLE.to_owned()) label="Signature check in Python".to_owned()/>
            </div>
        </details>
        <section class="section">
            <div class="section__head"><h2>"Existing webhooks"</h2></div>
            {move || {
                if none.get() {
                    view! { <NoWebhooks org=org/> }.into_any()
                } else {
                    state.hooks.with(|hooks| table(hooks, state))
                }
            }}
            <ListCurl path=Signal::derive(move || format!("/orgs/{org}/webhooks")) label="Webhooks with curl"/>
        </section>
        <Deliveries org=org hooks=state.hooks selected=state.selected/>
        <DeleteDialog state=state/>
    }
}

/// The secret of a new webhook, shown once.
#[component]
fn Secret(secret: String) -> impl IntoView {
    view! {
        <section class="secret" role="status">
            <p>
                <strong>"Copy the secret now."</strong>
                " It is shown only once. Berth signs each request to this URL with it: reject requests without a valid signature."
            </p>
            <CopyBlock text=Signal::derive(move || secret.clone()) label="Webhook secret".to_owned()/>
            <CopyBlock text=Signal::derive(|| SAMPLE.to_owned()) label="Signature check in Python".to_owned()/>
        </section>
    }
}

/// The empty state with an example request.
#[component]
fn NoWebhooks(org: OrgId) -> impl IntoView {
    let origin = origin();
    let example = NewWebhook {
        url: "https://hooks.example.org/berth".to_owned(),
        kinds: vec!["job.*".to_owned(), "budget.passed".to_owned()],
    };
    let body = serde_json::to_string(&example).unwrap_or_default();
    let line = Signal::derive(move || curl::post(&origin.get(), &format!("/orgs/{org}/webhooks"), &body));
    view! {
        <div class="empty">
            <p class="empty__text">
                "No webhooks yet. Create a webhook above to receive events within seconds, such as the end of a job."
            </p>
            <CopyBlock text=line label="Webhook with curl".to_owned()/>
        </div>
    }
}

fn table(hooks: &[Webhook], state: PageState) -> AnyView {
    table_of(
        "Webhooks",
        &[("URL", ""), ("Events", ""), ("Created", ""), ("Created by", ""), ACTIONS],
        hooks.iter().map(|hook| row(hook, state)).collect(),
    )
}

fn row(hook: &Webhook, state: PageState) -> AnyView {
    let id = hook.id;
    let url = hook.url.clone();
    let by = hook.created_by.clone();
    let show_label = format!("Show deliveries to {url}");
    let delete_label = format!("Delete {url}");
    let kinds: Vec<AnyView> = hook
        .kinds
        .iter()
        .cloned()
        .map(|kind| view! { <span class="tag tag--label">{kind}</span> }.into_any())
        .collect();
    let pressed = move || if state.selected.get() == Some(id) { "true" } else { "false" };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="mono break">{url}</span></th>
            <td role="cell" data-label="Events"><span class="tags">{kinds}</span></td>
            <td role="cell" class="nowrap" data-label="Created"><When at=hook.created_at/></td>
            <td role="cell" data-label="Created by">{by}</td>
            <td role="cell" class="table__actions">
                <span class="btn-grid">
                    <button
                        class="btn btn--small"
                        type="button"
                        aria-label=show_label
                        aria-pressed=pressed
                        disabled=move || !state.ready.get()
                        on:click=move |_| state.selected.set(Some(id))
                    >
                        "Show deliveries"
                    </button>
                    {state.target.button(hook.clone(), "Delete", delete_label, state.ready)}
                </span>
            </td>
        </tr>
    }
    .into_any()
}

#[component]
fn DeleteDialog(state: PageState) -> impl IntoView {
    let call = Call::idle();
    let url =
        move || state.target.one.with(|hook| hook.as_ref().map(|hook| hook.url.clone()).unwrap_or_default());
    let delete = move |()| {
        let Some(id) = state.target.one.get_untracked().map(|hook| hook.id) else { return };
        call.run(api::webhooks::delete(state.org, id), move |()| {
            state.hooks.update(|hooks| hooks.retain(|hook| hook.id != id));
            if state.selected.get_untracked() == Some(id) {
                state.selected.set(state.hooks.with_untracked(|hooks| hooks.first().map(|hook| hook.id)));
            }
            // The shown secret may belong to the deleted webhook.
            state.secret.set(None);
            state.target.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="delete-webhook"
            title="Delete this webhook?"
            open=state.target.open
            call=call
            keep="Keep webhook"
            verb="Delete webhook"
            confirm=Callback::new(delete)
        >
            <p class="mono break">{url}</p>
            <p>
                "Berth sends nothing to this URL any more and discards pending deliveries. Earlier deliveries are no longer shown. This cannot be undone; a new webhook with this URL gets another secret."
            </p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_checks_what_the_portal_signs() {
        // Like `delivery::sign`: time, full stop and body. The width fits a small window.
        for part in [r#"fields["t"].encode() + b"." + body"#, "hashlib.sha256", r#"fields["v1"]"#] {
            assert!(SAMPLE.contains(part), "{part}");
        }
        assert!(SAMPLE.lines().all(|line| line.len() <= 80));
    }
}
