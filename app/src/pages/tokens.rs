//! Page of API tokens: creation, revocation and the secret, shown once.
//!
//! The secret of a new token exists only in one signal of this page.

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::accounts::{CreatedToken, NewToken, Role, Token};
use berth_types::ids::OrgId;
use berth_types::time::Timestamp;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::confirm::{ConfirmDialog, ConfirmTarget};
use super::curl::{self, ListCurl};
use super::load_more::LoadMore;
use super::org_data::org_view;
use super::parts::{Call, CallProblem, FieldError, FormKey, Submit, now_ms, origin, ready};
use super::roles::RoleField;
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/role", "/expires_at"];

/// The choices of an expiry in days, with their labels; an empty value means no expiry.
const EXPIRIES: [(&str, &str); 5] =
    [("30", "in 30 days"), ("90", "in 90 days"), ("365", "in 365 days"), ("1", "in 1 day"), ("", "never")];

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    first: Rows<Token>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let first = api::accounts::list_tokens(org, None);
    async move { Ok(Loaded { org, first: first.await? }) }
}

/// Returns the next full hour in milliseconds. Expiries count from it, so that a repeated request after a lost
/// answer has the same body.
const fn next_hour(ms: i64) -> i64 {
    const HOUR: i64 = 3_600_000;
    ms.div_euclid(HOUR).saturating_add(1).saturating_mul(HOUR)
}

/// Returns the expiry of a token created at `now_ms`; `None` without an expiry.
fn expires_at(days: &str, now_ms: i64) -> Option<Timestamp> {
    let days: i64 = days.parse().ok()?;
    Some(Timestamp::from_micros(now_ms.saturating_mul(1_000)).plus_seconds(days.saturating_mul(86_400)))
}

/// The page of all tokens.
#[component]
pub fn TokensPage() -> impl IntoView {
    view! {
        <Page title="Tokens".to_owned()>
            <p class="page__lead">
                "A token gives a program access to the API with one role in this organization. Programs that receive events use a "
                <a href=org_link("/webhooks")>"webhook"</a> "."
            </p>
            {org_view(load, |loaded: Loaded| view! { <Tokens loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn Tokens(loaded: Loaded) -> impl IntoView {
    let Loaded { org, first } = loaded;
    let tokens = RwSignal::new(first.items);
    let cursor = RwSignal::new(first.next_cursor);
    let more = Call::idle();
    let load_more = move |()| {
        let next = api::accounts::list_tokens(org, cursor.get_untracked());
        more.run(next, move |page: Rows<Token>| {
            tokens.update(|tokens| tokens.extend(page.items));
            cursor.set(page.next_cursor);
        });
    };
    let secret = RwSignal::new(None::<String>);
    let ready = ready();
    let target = ConfirmTarget::none();
    view! {
        {move || secret.get().map(|secret| view! { <Secret secret=secret/> })}
        <NewTokenForm org=org tokens=tokens secret=secret/>
        <section class="section">
            <div class="section__head"><h2>"Existing tokens"</h2></div>
            {move || table(&tokens.get(), target, ready)}
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
            <ListCurl path=Signal::derive(move || format!("/orgs/{org}/tokens")) label="Tokens with curl"/>
        </section>
        <RevokeDialog org=org tokens=tokens target=target/>
    }
}

/// The secret of a new token, shown once.
#[component]
fn Secret(secret: String) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || curl::get(&origin.get(), "/me"));
    view! {
        <section class="secret" role="status">
            <p>
                <strong>"Copy the token now."</strong>
                " It is shown only once; the portal stores only its hash. Anyone with the token has its role until it expires or is revoked."
            </p>
            <CopyBlock text=Signal::derive(move || secret.clone()) label="API token".to_owned()/>
            <CopyBlock text=line label="First request with curl".to_owned()/>
        </section>
    }
}

#[component]
fn NewTokenForm(org: OrgId, tokens: RwSignal<Vec<Token>>, secret: RwSignal<Option<String>>) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let name = RwSignal::new(String::new());
    let role = RwSignal::new(Role::Member);
    let days = RwSignal::new("30".to_owned());
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body = NewToken {
            name: name.get_untracked().trim().to_owned(),
            role: role.get_untracked(),
            expires_at: days.with_untracked(|days| expires_at(days, next_hour(now_ms()))),
        };
        call.run(api::accounts::create_token(org, &body, key.for_body(&body)), move |made: CreatedToken| {
            key.reset();
            secret.set(Some(made.secret));
            tokens.update(|tokens| tokens.insert(0, made.token));
            name.set(String::new());
        });
    };
    let expiries: Vec<AnyView> = EXPIRIES
        .into_iter()
        .map(|(value, text)| {
            let selected = value == "30";
            view! { <option value=value selected=selected>{text}</option> }.into_any()
        })
        .collect();
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"New token"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <Field
                    label="Name"
                    name="name"
                    kind="text"
                    value=name
                    hint=Some("Purpose of the token, such as ci-nightly.".to_owned())
                    error=call.field("/name")
                    autocomplete=Some("off")
                />
                <RoleField id="role" role=role error=call.field("/role")/>
                <div class="field">
                    <label class="field__label" for="expiry">"Expires"</label>
                    <select
                        id="expiry"
                        name="expiry"
                        aria-describedby="expiry-error"
                        on:change=move |ev| days.set(event_target_value(&ev))
                    >
                        {expiries}
                    </select>
                    <FieldError id="expiry-error" error=call.field("/expires_at")/>
                </div>
            </div>
            <div class="form__actions">
                <Submit call=call>"Create token"</Submit>
            </div>
        </form>
    }
}

fn table(tokens: &[Token], target: ConfirmTarget<Token>, ready: ReadSignal<bool>) -> AnyView {
    if tokens.is_empty() {
        return empty("No tokens yet. Create a token above to use the API from a program.");
    }
    table_of(
        "Tokens",
        &[
            ("Name", ""),
            ("Role", ""),
            ("Last characters", ""),
            ("Created", ""),
            ("Last used", ""),
            ("Expires", ""),
            ACTIONS,
        ],
        tokens.iter().map(|token| row(token, target, ready)).collect(),
    )
}

/// Returns an instant, or a text without one.
fn time_or(at: Option<Timestamp>, word: &'static str) -> AnyView {
    match at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => word.into_any(),
    }
}

fn row(token: &Token, target: ConfirmTarget<Token>, ready: ReadSignal<bool>) -> AnyView {
    let name = token.name.clone();
    let hint = format!("…{}", token.hint);
    let label = format!("Revoke {}", token.name);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}</th>
            <td role="cell" data-label="Role">{token.role.name()}</td>
            <td role="cell" data-label="Last characters"><span class="mono">{hint}</span></td>
            <td role="cell" data-label="Created"><When at=token.created_at/></td>
            <td role="cell" data-label="Last used">{time_or(token.last_used_at, "never")}</td>
            <td role="cell" data-label="Expires">{time_or(token.expires_at, "never")}</td>
            <td role="cell" class="table__actions">{target.button(token.clone(), "Revoke", label, ready)}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn RevokeDialog(org: OrgId, tokens: RwSignal<Vec<Token>>, target: ConfirmTarget<Token>) -> impl IntoView {
    let call = Call::idle();
    let revoke = move |()| {
        let Some(id) = target.one.with_untracked(|token| token.as_ref().map(|token| token.id)) else {
            return;
        };
        call.run(api::accounts::revoke_token(org, id), move |()| {
            tokens.update(|tokens| tokens.retain(|token| token.id != id));
            target.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="revoke"
            title=target.title("Revoke", "token", |token| token.name.as_str())
            open=target.open
            call=call
            keep="Keep token"
            verb="Revoke token"
            confirm=Callback::new(revoke)
        >
            <p>
                "Requests with this token are refused immediately. Jobs launched with it continue and are charged as before. This cannot be undone; you can create another token."
            </p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_counts_from_now() {
        let at = expires_at("30", 1_795_214_589_123).map(Timestamp::micros);
        assert_eq!(at, Some((1_795_214_589_123 + 30 * 86_400_000) * 1_000));
        assert_eq!(expires_at("", 5), None);
        assert_eq!(next_hour(1_795_214_589_123), 1_795_215_600_000);
        assert_eq!(next_hour(7_200_000), 10_800_000);
        assert!(EXPIRIES.iter().all(|(days, _)| days.is_empty() || expires_at(days, 0).is_some()));
    }
}
