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

use super::confirm::ConfirmDialog;
use super::curl;
use super::parts::{
    Call, CallProblem, FieldError, FormKey, Loading, NoOrg, now_ms, origin, ready, when_some,
};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
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
    let org = use_session().org;
    let data: Resource<Answer<Option<Loaded>>> =
        Resource::new(move || org.get(), |org: Option<OrgId>| when_some(org.map(load)));
    view! {
        <Page title="Tokens".to_owned()>
            <p class="page__lead">
                "A token lets a program act for this organization, within the token's role. A program that should be told of what happens, instead of asking, has a "
                <a href="/webhooks">"webhook"</a> "."
            </p>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(None) => view! { <NoOrg/> }.into_any(),
                        Ok(Some(loaded)) => view! { <Tokens loaded=loaded/> }.into_any(),
                    }
                })}
            </Suspense>
        </Page>
    }
}

#[component]
fn Tokens(loaded: Loaded) -> impl IntoView {
    let Loaded { org, tokens } = loaded;
    let tokens = RwSignal::new(tokens);
    let secret = RwSignal::new(None::<String>);
    let doomed = RwSignal::new(None::<Token>);
    let asking = RwSignal::new(false);
    view! {
        {move || secret.get().map(|secret| view! { <Secret secret=secret/> })}
        <NewTokenForm org=org tokens=tokens secret=secret/>
        <section class="section">
            <div class="section__head"><h2>"Tokens in use"</h2></div>
            {move || table(&tokens.get(), doomed, asking)}
        </section>
        <RevokeDialog org=org tokens=tokens doomed=doomed open=asking/>
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
    let ready = ready();
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
    let roles: Vec<AnyView> = Role::ALL
        .into_iter()
        .map(|role| {
            let picked = role == Role::Member;
            view! { <option value=role.name() selected=picked>{role.name()}</option> }.into_any()
        })
        .collect();
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
                <div class="field">
                    <label class="field__label" for="role">"Role"</label>
                    <select
                        id="role"
                        name="role"
                        aria-describedby="role-error"
                        on:change=move |ev| {
                            role.set(Role::parse(&event_target_value(&ev)).unwrap_or(Role::Viewer));
                        }
                    >
                        {roles}
                    </select>
                    <p class="field__hint">{move || role.get().words()}</p>
                    <FieldError id="role-error" error=call.field("/role")/>
                </div>
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
                <button
                    class="btn btn--primary"
                    type="submit"
                    disabled=move || !ready.get() || call.pending.get()
                    aria-busy=move || call.pending.get().then_some("true")
                >
                    "Create token"
                </button>
            </div>
        </form>
    }
}

fn table(tokens: &[Token], doomed: RwSignal<Option<Token>>, asking: RwSignal<bool>) -> AnyView {
    if tokens.is_empty() {
        return view! {
            <div class="empty"><p class="empty__text">"No token yet. Create one to use the API from a program."</p></div>
        }
        .into_any();
    }
    let rows: Vec<AnyView> = tokens.iter().map(|token| row(token, doomed, asking)).collect();
    view! {
        <div class="table-wrap">
            <table class="table" role="table">
                <caption class="visually-hidden">"Tokens"</caption>
                <thead role="rowgroup">
                    <tr role="row">
                        <th role="columnheader" scope="col">"Name"</th>
                        <th role="columnheader" scope="col">"Role"</th>
                        <th role="columnheader" scope="col">"Ends in"</th>
                        <th role="columnheader" scope="col">"Created"</th>
                        <th role="columnheader" scope="col">"Last used"</th>
                        <th role="columnheader" scope="col">"Expires"</th>
                        <th role="columnheader" scope="col" class="table__actions">
                            <span class="visually-hidden">"Actions"</span>
                        </th>
                    </tr>
                </thead>
                <tbody role="rowgroup">{rows}</tbody>
            </table>
        </div>
    }
    .into_any()
}

/// An instant, or a word for its absence.
fn when_or(at: Option<Timestamp>, word: &'static str) -> AnyView {
    match at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => word.into_any(),
    }
}

fn row(token: &Token, doomed: RwSignal<Option<Token>>, asking: RwSignal<bool>) -> AnyView {
    let name = token.name.clone();
    let hint = format!("…{}", token.hint);
    let label = format!("Revoke {}", token.name);
    let chosen = token.clone();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}</th>
            <td role="cell" data-label="Role">{token.role.name()}</td>
            <td role="cell" data-label="Ends in"><span class="mono">{hint}</span></td>
            <td role="cell" data-label="Created"><When at=token.created_at/></td>
            <td role="cell" data-label="Last used">{when_or(token.last_used_at, "never")}</td>
            <td role="cell" data-label="Expires">{when_or(token.expires_at, "never")}</td>
            <td role="cell" class="table__actions">
                <button
                    class="btn btn--danger btn--small"
                    type="button"
                    aria-label=label
                    on:click=move |_| {
                        doomed.set(Some(chosen.clone()));
                        asking.set(true);
                    }
                >
                    "Revoke"
                </button>
            </td>
        </tr>
    }
    .into_any()
}

#[component]
fn RevokeDialog(
    org: OrgId,
    tokens: RwSignal<Vec<Token>>,
    doomed: RwSignal<Option<Token>>,
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let title = Signal::derive(move || {
        doomed.with(|token| match token {
            Some(token) => format!("Revoke {}?", token.name),
            None => "Revoke the token?".to_owned(),
        })
    });
    let revoke = move |()| {
        let Some(token) = doomed.get_untracked() else { return };
        let id = token.id;
        call.run(api::accounts::revoke_token(org, id), move |()| {
            tokens.update(|tokens| tokens.retain(|token| token.id != id));
            open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="revoke"
            title=title
            open=open
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
