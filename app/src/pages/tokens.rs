//! Page of API tokens: creation, revocation and the secret, shown once.
//!
//! The secret of a new token exists only in one signal of this page.

mod form;
mod scopes;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::accounts::Token;
use berth_types::ids::OrgId;
use berth_types::service_accounts::ServiceAccount;
use berth_types::time::Timestamp;
use futures::try_join;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::form::NewTokenForm;
use super::confirm::{ConfirmDialog, ConfirmTarget};
use super::curl::{self, ListCurl};
use super::load_more::LoadMore;
use super::org_data::org_view;
use super::parts::{Call, origin, ready};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    first: Rows<Token>,
    accounts: Vec<ServiceAccount>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let first = api::accounts::list_tokens(org, None);
    let accounts = api::service_accounts::list(org);
    async move {
        let (first, accounts) = try_join!(first, accounts)?;
        Ok(Loaded { org, first, accounts: accounts.items })
    }
}

/// The page of all tokens.
#[component]
pub fn TokensPage() -> impl IntoView {
    view! {
        <Page title="Tokens".to_owned()>
            <p class="page__lead">
                "A token gives a program access to the API, limited by a role and by scopes. Service accounts of the page "
                <a href=org_link("/team")>"Team"</a> " keep their tokens when members leave. Programs that receive events use a "
                <a href=org_link("/webhooks")>"webhook"</a> "."
            </p>
            {org_view(load, |loaded: Loaded| view! { <Tokens loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn Tokens(loaded: Loaded) -> impl IntoView {
    let Loaded { org, first, accounts } = loaded;
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
        <NewTokenForm org=org tokens=tokens secret=secret accounts=accounts/>
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
                " It is shown only once; the portal stores only its hash. Anyone with the token has its rights until it expires or is revoked."
            </p>
            <CopyBlock text=Signal::derive(move || secret.clone()) label="API token".to_owned()/>
            <CopyBlock text=line label="First request with curl".to_owned()/>
        </section>
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
            ("Scopes", ""),
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

/// Returns the scopes of a token, and its networks below.
fn limits(token: &Token) -> AnyView {
    let scopes: Vec<AnyView> = token
        .scopes
        .iter()
        .map(|scope| view! { <span class="tag tag--label">{scope.name()}</span> }.into_any())
        .collect();
    let networks = (!token.networks.is_empty()).then(|| {
        let text = format!("from {}", token.networks.join(", "));
        view! { <span class="table__sub mono break">{text}</span> }
    });
    view! { <span class="tags">{scopes}</span> {networks} }.into_any()
}

fn row(token: &Token, target: ConfirmTarget<Token>, ready: ReadSignal<bool>) -> AnyView {
    let name = token.name.clone();
    let hint = format!("…{}", token.hint);
    let label = format!("Revoke {}", token.name);
    let owner = token.service_account.clone().map(|account| {
        view! { <span class="table__sub">{format!("Service account {account}")}</span> }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{owner}</th>
            <td role="cell" data-label="Role">{token.role.name()}</td>
            <td role="cell" data-label="Scopes">{limits(token)}</td>
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
