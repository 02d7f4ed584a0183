//! Webhooks: where an organization is told of what happens, and what was sent there.
//!
//! Must not keep a secret longer than it is shown: it lives in one signal of this page and nowhere
//! else. What is sent, and when again, the portal decides.

mod deliveries;
mod form;

use std::future::Future;

use berth_types::ids::{OrgId, WebhookId};
use berth_types::webhooks::{NewWebhook, Webhook};
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::deliveries::Deliveries;
use self::form::HookForm;
use super::confirm::{ConfirmDialog, Doomed};
use super::curl;
use super::of_org::of_org;
use super::parts::{Call, origin, ready};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// How a receiver proves that a request is the portal's; no line is wider than a small window.
const SAMPLE: &str = r#"import hashlib, hmac, time

# header: Berth-Signature; body: the bytes as they came
def from_berth(secret, header, body):
    said = dict(part.split("=", 1) for part in header.split(","))
    signed = said["t"].encode() + b"." + body
    wanted = hmac.new(secret.encode(), signed, hashlib.sha256)
    fresh = abs(time.time() - int(said["t"])) < 300
    return fresh and hmac.compare_digest(wanted.hexdigest(), said["v1"])"#;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    hooks: Vec<Webhook>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let hooks = api::webhooks::list(org);
    async move { Ok(Loaded { org, hooks: hooks.await?.items }) }
}

/// The page with all webhooks.
#[component]
pub fn WebhooksPage() -> impl IntoView {
    view! {
        <Page title="Webhooks".to_owned()>
            <p class="page__lead">
                "A webhook is an address of yours that Berth calls when something happens: a job ended, a reservation begins, a budget is used up. A program that asks instead has a "
                <a href="/tokens">"token"</a> "."
            </p>
            {of_org(load, |loaded: Loaded| view! { <WebhooksView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// What the rows and the dialog act on.
#[derive(Clone, Copy)]
struct Desk {
    org: OrgId,
    hooks: RwSignal<Vec<Webhook>>,
    /// Whose deliveries are shown.
    chosen: RwSignal<Option<WebhookId>>,
    /// Of the one that was made last, until it is deleted or the page is left.
    secret: RwSignal<Option<String>>,
    /// The one that the dialog is about.
    doomed: Doomed<Webhook>,
    ready: ReadSignal<bool>,
}

#[component]
fn WebhooksView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, hooks } = loaded;
    let desk = Desk {
        org,
        chosen: RwSignal::new(hooks.first().map(|hook| hook.id)),
        hooks: RwSignal::new(hooks),
        secret: RwSignal::new(None),
        doomed: Doomed::none(),
        ready: ready(),
    };
    let none = Memo::new(move |_| desk.hooks.with(Vec::is_empty));
    view! {
        {move || desk.secret.get().map(|secret| view! { <Secret secret=secret/> })}
        <HookForm org=org hooks=desk.hooks chosen=desk.chosen secret=desk.secret/>
        <details class="more">
            <summary>"How to check that a request is Berth's"</summary>
            <div class="stack">
                <p class="prose">
                    "Every request carries the header Berth-Signature: t=TIME,v1=HEX. HEX is the HMAC-SHA256 of the time, a full stop and the body, under the secret that was shown when the webhook was made. Answer with any 2xx; everything else is tried again, so the same id can come twice."
                </p>
                <CopyBlock text=Signal::derive(|| SAMPLE.to_owned()) label="A check in Python".to_owned()/>
            </div>
        </details>
        <section class="section">
            <div class="section__head"><h2>"Webhooks in use"</h2></div>
            {move || {
                if none.get() {
                    view! { <Nothing org=org/> }.into_any()
                } else {
                    desk.hooks.with(|hooks| table(hooks, desk))
                }
            }}
        </section>
        <Deliveries org=org hooks=desk.hooks chosen=desk.chosen/>
        <DeleteDialog desk=desk/>
    }
}

/// The secret, this one time.
#[component]
fn Secret(secret: String) -> impl IntoView {
    view! {
        <section class="secret" role="status">
            <p>
                <strong>"Copy the secret now."</strong>
                " It is shown this one time. What Berth sends to this address is signed with it; a request that is not is not Berth's."
            </p>
            <CopyBlock text=Signal::derive(move || secret.clone()) label="The secret".to_owned()/>
            <CopyBlock text=Signal::derive(|| SAMPLE.to_owned()) label="How to check a request, in Python".to_owned()/>
        </section>
    }
}

/// Empty teaches: one sentence, one action, the same as a curl line.
#[component]
fn Nothing(org: OrgId) -> impl IntoView {
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
                "No webhook yet. Make one above, and a program of yours hears of an ended job within seconds, signed, and again until it has answered."
            </p>
            <CopyBlock text=line label="A webhook with curl".to_owned()/>
        </div>
    }
}

fn table(hooks: &[Webhook], desk: Desk) -> AnyView {
    table_of(
        "Webhooks",
        &[("Address", ""), ("Hears of", ""), ("Created", ""), ("By", ""), ACTIONS],
        hooks.iter().map(|hook| row(hook, desk)).collect(),
    )
}

fn row(hook: &Webhook, desk: Desk) -> AnyView {
    let id = hook.id;
    let url = hook.url.clone();
    let by = hook.created_by.clone();
    let show_label = format!("Deliveries to {url}");
    let delete_label = format!("Delete {url}");
    let kinds: Vec<AnyView> = hook
        .kinds
        .iter()
        .cloned()
        .map(|kind| view! { <span class="tag tag--label">{kind}</span> }.into_any())
        .collect();
    let shown = move || if desk.chosen.get() == Some(id) { "true" } else { "false" };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="mono break">{url}</span></th>
            <td role="cell" data-label="Hears of"><span class="tags">{kinds}</span></td>
            <td role="cell" class="nowrap" data-label="Created"><When at=hook.created_at/></td>
            <td role="cell" data-label="By">{by}</td>
            <td role="cell" class="table__actions">
                <span class="btn-grid">
                    <button
                        class="btn btn--small"
                        type="button"
                        aria-label=show_label
                        aria-pressed=shown
                        disabled=move || !desk.ready.get()
                        on:click=move |_| desk.chosen.set(Some(id))
                    >
                        "Deliveries"
                    </button>
                    {desk.doomed.button(hook.clone(), "Delete", delete_label, desk.ready)}
                </span>
            </td>
        </tr>
    }
    .into_any()
}

#[component]
fn DeleteDialog(desk: Desk) -> impl IntoView {
    let call = Call::idle();
    let url =
        move || desk.doomed.one.with(|hook| hook.as_ref().map(|hook| hook.url.clone()).unwrap_or_default());
    let delete = move |()| {
        let Some(id) = desk.doomed.one.get_untracked().map(|hook| hook.id) else { return };
        call.run(api::webhooks::delete(desk.org, id), move |()| {
            desk.hooks.update(|hooks| hooks.retain(|hook| hook.id != id));
            if desk.chosen.get_untracked() == Some(id) {
                desk.chosen.set(desk.hooks.with_untracked(|hooks| hooks.first().map(|hook| hook.id)));
            }
            // Whose secret is shown is not kept beside it, and nothing is signed with a deleted one.
            desk.secret.set(None);
            desk.doomed.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="delete-webhook"
            title="Delete this webhook?"
            open=desk.doomed.open
            call=call
            keep="Keep it"
            verb="Delete webhook"
            confirm=Callback::new(delete)
        >
            <p class="mono break">{url}</p>
            <p>
                "Nothing is sent there from now on, not even what waits to be tried again, and its deliveries are no longer shown. This cannot be undone; another webhook to the same address has another secret."
            </p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_checks_what_the_portal_signs() {
        // The time, a full stop and the body, as `delivery::sign` does it; and narrow enough to be read.
        for part in [r#"said["t"].encode() + b"." + body"#, "hashlib.sha256", r#"said["v1"]"#] {
            assert!(SAMPLE.contains(part), "{part}");
        }
        assert!(SAMPLE.lines().all(|line| line.len() <= 80));
    }
}
