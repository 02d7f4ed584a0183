//! API tokens: making one, seeing its secret once, taking it back.
//!
//! Must not keep a secret longer than it is shown: it lives in one signal of this page and nowhere
//! else.

use std::future::Future;

use berth_types::accounts::{CreatedToken, NewToken, Role, Token};
use berth_types::ids::OrgId;
use berth_types::time::Timestamp;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::confirm::{ConfirmDialog, Doomed};
use super::curl;
use super::of_org::of_org;
use super::parts::{Call, CallProblem, FieldError, FormKey, Submit, now_ms, origin, ready};
use super::roles::RoleField;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/role", "/expires_at"];

/// Days that can be chosen, and how they read; none stands for no end.
const EXPIRIES: [(&str, &str); 5] =
    [("30", "in 30 days"), ("90", "in 90 days"), ("365", "in a year"), ("1", "tomorrow"), ("", "never")];

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    tokens: Vec<Token>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let tokens = api::accounts::list_tokens(org);
    async move { Ok(Loaded { org, tokens: tokens.await?.items }) }
}

/// The full hour after a time, in milliseconds. Days count from it, so that who asks again for the same
/// token, because no answer came, asks for the very same.
const fn next_hour(ms: i64) -> i64 {
    const HOUR: i64 = 3_600_000;
    ms.div_euclid(HOUR).saturating_add(1).saturating_mul(HOUR)
}

/// When a token made at `now_ms` ends; `None` for one without an end.
fn expires_at(days: &str, now_ms: i64) -> Option<Timestamp> {
    let days: i64 = days.parse().ok()?;
    Some(Timestamp::from_micros(now_ms.saturating_mul(1_000)).plus_seconds(days.saturating_mul(86_400)))
}

/// The page with all tokens.
#[component]
pub fn TokensPage() -> impl IntoView {
    view! {
        <Page title="Tokens".to_owned()>
            <p class="page__lead">
                "A token lets a program act for this organization, within the token's role. A program that should be told of what happens, instead of asking, has a "
                <a href="/webhooks">"webhook"</a> "."
            </p>
            {of_org(load, |loaded: Loaded| view! { <Tokens loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn Tokens(loaded: Loaded) -> impl IntoView {
    let Loaded { org, tokens } = loaded;
    let tokens = RwSignal::new(tokens);
    let secret = RwSignal::new(None::<String>);
    let ready = ready();
    let doomed = Doomed::none();
    view! {
        {move || secret.get().map(|secret| view! { <Secret secret=secret/> })}
        <NewTokenForm org=org tokens=tokens secret=secret/>
        <section class="section">
            <div class="section__head"><h2>"Tokens in use"</h2></div>
            {move || table(&tokens.get(), doomed, ready)}
        </section>
        <RevokeDialog org=org tokens=tokens doomed=doomed/>
    }
}

/// The secret, this one time.
#[component]
fn Secret(secret: String) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || curl::get(&origin.get(), "/me"));
    view! {
        <section class="secret" role="status">
            <p>
                <strong>"Copy the token now."</strong>
                " It is shown this one time; Berth keeps only its hash. Whoever has it can act in its role until it expires or is revoked."
            </p>
            <CopyBlock text=Signal::derive(move || secret.clone()) label="The token".to_owned()/>
            <CopyBlock text=line label="A first request with it".to_owned()/>
        </section>
    }
}

#[component]
fn NewTokenForm(org: OrgId, tokens: RwSignal<Vec<Token>>, secret: RwSignal<Option<String>>) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::beside(call);
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
        call.run(api::accounts::create_token(org, &body, key.of_body(&body)), move |made: CreatedToken| {
            key.done();
            secret.set(Some(made.secret));
            tokens.update(|tokens| tokens.insert(0, made.token));
            name.set(String::new());
        });
    };
    let expiries: Vec<AnyView> = EXPIRIES
        .into_iter()
        .map(|(value, text)| {
            let picked = value == "30";
            view! { <option value=value selected=picked>{text}</option> }.into_any()
        })
        .collect();
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Create a token"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <Field
                    label="Name"
                    name="name"
                    kind="text"
                    value=name
                    hint=Some("What it is for, such as ci-nightly.".to_owned())
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

fn table(tokens: &[Token], doomed: Doomed<Token>, ready: ReadSignal<bool>) -> AnyView {
    if tokens.is_empty() {
        return empty("No token yet. Create one to use the API from a program.");
    }
    table_of(
        "Tokens",
        &[
            ("Name", ""),
            ("Role", ""),
            ("Ends in", ""),
            ("Created", ""),
            ("Last used", ""),
            ("Expires", ""),
            ACTIONS,
        ],
        tokens.iter().map(|token| row(token, doomed, ready)).collect(),
    )
}

/// An instant, or a word for its absence.
fn when_or(at: Option<Timestamp>, word: &'static str) -> AnyView {
    match at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => word.into_any(),
    }
}

fn row(token: &Token, doomed: Doomed<Token>, ready: ReadSignal<bool>) -> AnyView {
    let name = token.name.clone();
    let hint = format!("…{}", token.hint);
    let label = format!("Revoke {}", token.name);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}</th>
            <td role="cell" data-label="Role">{token.role.name()}</td>
            <td role="cell" data-label="Ends in"><span class="mono">{hint}</span></td>
            <td role="cell" data-label="Created"><When at=token.created_at/></td>
            <td role="cell" data-label="Last used">{when_or(token.last_used_at, "never")}</td>
            <td role="cell" data-label="Expires">{when_or(token.expires_at, "never")}</td>
            <td role="cell" class="table__actions">{doomed.button(token.clone(), "Revoke", label, ready)}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn RevokeDialog(org: OrgId, tokens: RwSignal<Vec<Token>>, doomed: Doomed<Token>) -> impl IntoView {
    let call = Call::idle();
    let revoke = move |()| {
        let Some(id) = doomed.one.with_untracked(|token| token.as_ref().map(|token| token.id)) else {
            return;
        };
        call.run(api::accounts::revoke_token(org, id), move |()| {
            tokens.update(|tokens| tokens.retain(|token| token.id != id));
            doomed.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="revoke"
            title=doomed.title("Revoke", "token", |token| token.name.as_str())
            open=doomed.open
            call=call
            keep="Keep it"
            verb="Revoke token"
            confirm=Callback::new(revoke)
        >
            <p>
                "Programs that use it are refused from the next request on. Jobs that they launched go on, and are charged as before. This cannot be undone; you can create another token."
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
