//! Page of inference keys: creation, limits, use, and revocation.
//!
//! The secret of a new key exists only in one signal of this page.

mod form;

use std::future::Future;

use berth_service_types::keys::{InferenceKey, InferenceKeySpec};
use berth_types::ids::{InferenceKeyId, OrgId};
use berth_types::money::money_text;
use berth_types::time::Timestamp;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::form::KeyDialog;
use super::confirm::{ConfirmDialog, ConfirmTarget};
use super::curl::ListCurl;
use super::org_data::org_view;
use super::parts::{Call, now_ms, ready};
use super::text::counted;
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    keys: Vec<InferenceKey>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let keys = api::inference_keys::list(org);
    async move { Ok(Loaded { org, keys: keys.await?.items }) }
}

/// The page of all inference keys.
#[component]
pub fn InferenceKeysPage() -> impl IntoView {
    view! {
        <Page title="Inference keys".to_owned()>
            <p class="page__lead">
                "An inference key lets a program call the models of the page " <a href=org_link("/services")>"Services"</a>
                ", within its limits and budgets. It gives no access to the API of the portal: that is what a "
                <a href=org_link("/tokens")>"token"</a> " is for."
            </p>
            {org_view(load, |loaded: Loaded| view! { <Keys loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn Keys(loaded: Loaded) -> impl IntoView {
    let Loaded { org, keys } = loaded;
    let session = use_session();
    let currency = session.me.currency.clone();
    let writes = session.owns(org);
    let keys = RwSignal::new(keys);
    let secret = RwSignal::new(None::<(InferenceKeyId, String)>);
    let (open, ready) = (RwSignal::new(false), ready());
    let target = ConfirmTarget::none();
    let create = writes.then(|| {
        view! {
            <button
                class="btn btn--primary"
                type="button"
                disabled=move || !ready.get()
                on:click=move |_| open.set(true)
            >
                "Create key"
            </button>
        }
    });
    let shown = currency.clone();
    view! {
        {move || secret.get().map(|(_, secret)| view! { <Secret secret=secret/> })}
        <section class="section">
            <div class="section__head">
                <h2>"Existing keys"</h2>
                <div class="section__aside">{create}</div>
            </div>
            {move || keys.with(|keys| table(keys, &shown, writes, target, ready))}
            <ListCurl path=Signal::derive(move || format!("/orgs/{org}/inference-keys")) label="Inference keys with curl"/>
        </section>
        <KeyDialog org=org keys=keys secret=secret open=open currency=currency/>
        <RevokeDialog org=org keys=keys secret=secret target=target/>
    }
}

/// The secret of a new key, shown once.
#[component]
fn Secret(secret: String) -> impl IntoView {
    view! {
        <section class="secret" role="status">
            <p>
                <strong>"Copy the key now."</strong>
                " It is shown only once; the portal stores only its hash. Anyone with the key can use its models and its budget until it expires or is revoked."
            </p>
            <CopyBlock text=Signal::derive(move || secret.clone()) label="Inference key".to_owned()/>
        </section>
    }
}

fn table(
    keys: &[InferenceKey],
    currency: &str,
    writes: bool,
    target: ConfirmTarget<InferenceKey>,
    ready: ReadSignal<bool>,
) -> AnyView {
    if keys.is_empty() {
        return empty("No inference keys yet. A key lets a program call the services of the organization.");
    }
    table_of(
        "Inference keys",
        &[
            ("Name", ""),
            ("Last characters", ""),
            ("Models", ""),
            ("Limits", ""),
            ("Budgets", ""),
            ("This month", "num"),
            ("Last used", ""),
            ("Expires", ""),
            ACTIONS,
        ],
        keys.iter().map(|key| row(key, currency, writes, target, ready)).collect(),
    )
}

/// Returns a number of things: `1 request`, `1,284 requests`.
fn count_text(count: u64, one: &str, many: &str) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), one, many)
}

/// Returns the rates of a key: `60 requests, 100,000 tokens a minute`.
fn rates_text(spec: &InferenceKeySpec) -> String {
    let parts = [
        spec.requests_per_minute.map(|count| count_text(count, "request", "requests")),
        spec.tokens_per_minute.map(|count| count_text(count, "token", "tokens")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "none".to_owned() } else { format!("{} a minute", parts.join(", ")) }
}

/// Returns the budgets of a key: `$5.00 a day, $50.00 a month`.
fn budgets_text(spec: &InferenceKeySpec, currency: &str) -> String {
    let parts = [
        spec.day_budget_micros.map(|micros| format!("{} a day", money_text(micros, currency))),
        spec.month_budget_micros.map(|micros| format!("{} a month", money_text(micros, currency))),
        spec.total_budget_micros.map(|micros| format!("{} in all", money_text(micros, currency))),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// Returns an instant, or a text without one.
fn time_or(at: Option<Timestamp>, word: &'static str) -> AnyView {
    match at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => word.into_any(),
    }
}

fn row(
    key: &InferenceKey,
    currency: &str,
    writes: bool,
    target: ConfirmTarget<InferenceKey>,
    ready: ReadSignal<bool>,
) -> AnyView {
    let spec = &key.spec;
    let models = if spec.models.is_empty() { "all".to_owned() } else { spec.models.join(", ") };
    let used = count_text(key.this_month.requests, "request", "requests");
    let label = format!("Revoke {}", spec.name);
    let button = writes.then(|| target.button(key.clone(), "Revoke", label, ready));
    let end = spec.expires_at;
    let has_expired = move || ready.get() && end.is_some_and(|at| at.millis() <= now_ms());
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">
                <span class="break">{spec.name.clone()}</span>
                <span class="table__sub">{format!("by {}", key.created_by)}</span>
            </th>
            <td role="cell" data-label="Last characters"><span class="mono">{format!("…{}", key.hint)}</span></td>
            <td role="cell" data-label="Models"><span class="break">{models}</span></td>
            <td role="cell" data-label="Limits">{rates_text(spec)}</td>
            <td role="cell" data-label="Budgets">{budgets_text(spec, currency)}</td>
            <td role="cell" class="num" data-label="This month">
                {money_text(key.this_month.token_micros, currency)} <span class="table__sub">{used}</span>
            </td>
            <td role="cell" data-label="Last used">{time_or(key.last_used_at, "never")}</td>
            <td role="cell" data-label="Expires">{time_or(end, "never")} {move || has_expired().then(|| view! { " " <span class="tag">"expired"</span> })}</td>
            <td role="cell" class="table__actions">{button}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn RevokeDialog(
    org: OrgId,
    keys: RwSignal<Vec<InferenceKey>>,
    /// The new key and its secret.
    secret: RwSignal<Option<(InferenceKeyId, String)>>,
    target: ConfirmTarget<InferenceKey>,
) -> impl IntoView {
    let call = Call::idle();
    let revoke = move |()| {
        let shown = move || target.one.try_with_untracked(|key| key.as_ref().map(|key| key.id)).flatten();
        let Some(id) = shown() else { return };
        let is_shown = move || shown() == Some(id);
        call.run_for(is_shown, api::inference_keys::revoke(org, id), move |(), shown| {
            keys.update(|keys| keys.retain(|key| key.id != id));
            secret.maybe_update(|secret| secret.take_if(|(of, _)| *of == id).is_some());
            if shown {
                target.open.set(false);
            }
        });
    };
    view! {
        <ConfirmDialog
            id="revoke-key"
            title=target.title("Revoke", "key", |key| key.spec.name.as_str())
            open=target.open
            call=call
            keep="Keep key"
            verb="Revoke key"
            confirm=Callback::new(revoke)
        >
            <p>
                "Gateways refuse requests with this key within seconds; requests in progress continue to their end. This cannot be undone; you can create another key."
            </p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_budgets_are_phrases() {
        let none = InferenceKeySpec {
            name: "ci".to_owned(),
            models: Vec::new(),
            requests_per_minute: None,
            tokens_per_minute: None,
            day_budget_micros: None,
            month_budget_micros: None,
            total_budget_micros: None,
            expires_at: None,
        };
        assert_eq!((rates_text(&none), budgets_text(&none, "USD")), ("none".to_owned(), "none".to_owned()));
        let all = InferenceKeySpec {
            requests_per_minute: Some(60),
            tokens_per_minute: Some(100_000),
            day_budget_micros: Some(5_000_000),
            total_budget_micros: Some(50_000_000),
            ..none
        };
        assert_eq!(rates_text(&all), "60 requests, 100,000 tokens a minute");
        assert_eq!(budgets_text(&all, "USD"), "$5.00 a day, $50.00 in all");
        let one = InferenceKeySpec { requests_per_minute: Some(1), tokens_per_minute: Some(1), ..all };
        assert_eq!(rates_text(&one), "1 request, 1 token a minute");
    }
}
