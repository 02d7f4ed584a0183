//! Service accounts of the organization: the table, and for owners the form and the buttons.

use berth_types::accounts::Role;
use berth_types::ids::{OrgId, UserId};
use berth_types::service_accounts::{NewServiceAccount, ServiceAccount};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::confirm::{ConfirmDialog, ConfirmTarget};
use super::super::curl::{self, CopyAsCurl, ListCurl};
use super::super::parts::{Call, CallProblem, FormKey, Submit, origin, ready};
use super::super::roles::RoleField;
use super::PageState;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/role"];

/// The state of the rows and the dialog.
#[derive(Clone, Copy)]
struct AccountActions {
    state: PageState,
    accounts: RwSignal<Vec<ServiceAccount>>,
    /// The request that disables or enables an account.
    call: Call,
    /// The result of the last change.
    status: RwSignal<String>,
    /// The account of the dialog.
    target: ConfirmTarget<ServiceAccount>,
    ready: ReadSignal<bool>,
}

impl AccountActions {
    /// Disables or enables an account.
    fn change(self, account: UserId) {
        let enabled = |known: &ServiceAccount| known.id == account && known.disabled_at.is_none();
        let disabled = self.accounts.with_untracked(|accounts| accounts.iter().any(enabled));
        self.status.set(String::new());
        let answer = api::service_accounts::set_disabled(self.state.org, account, disabled);
        self.call.run(answer, move |changed: ServiceAccount| {
            let word = if disabled { "disabled" } else { "enabled" };
            self.status.set(format!("{} is {word}.", changed.name));
            self.accounts.update(|accounts| {
                for known in accounts.iter_mut().filter(|known| known.id == changed.id) {
                    *known = changed.clone();
                }
            });
            self.state.reload_changes();
        });
    }
}

/// The section of the service accounts.
#[component]
pub(super) fn ServiceAccounts(
    /// The state of the page.
    state: PageState,
    /// All service accounts, newest first.
    accounts: Vec<ServiceAccount>,
) -> impl IntoView {
    let accounts = RwSignal::new(accounts);
    let actions = AccountActions {
        state,
        accounts,
        call: Call::idle(),
        status: RwSignal::new(String::new()),
        target: ConfirmTarget::none(),
        ready: ready(),
    };
    let org = state.org;
    let form = state.owns.then(|| view! { <AccountForm state=state accounts=accounts/> });
    let dialog = state.owns.then(|| view! { <DeleteDialog actions=actions/> });
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Service accounts"</h2>
                <div class="section__aside" role="status">{move || actions.status.get()}</div>
            </div>
            <p class="prose">
                "A service account has tokens in place of a person. It cannot sign in, and it keeps its tokens when members leave."
            </p>
            <CallProblem call=actions.call beside_fields=&[]/>
            {move || accounts.with(|accounts| table(accounts, actions))}
            <ListCurl
                path=Signal::derive(move || format!("/orgs/{org}/service-accounts"))
                label="Service accounts with curl"
            />
            {form}
        </section>
        {dialog}
    }
}

fn table(accounts: &[ServiceAccount], actions: AccountActions) -> AnyView {
    if accounts.is_empty() {
        return empty(
            "No service accounts yet. Programs of several people use one in place of a person's token.",
        );
    }
    table_of(
        "Service accounts",
        &[("Name", ""), ("Role", ""), ("Tokens", "num"), ("Created", ""), ACTIONS],
        accounts.iter().map(|account| row(account, actions)).collect(),
    )
}

fn row(account: &ServiceAccount, actions: AccountActions) -> AnyView {
    let (name, by) = (account.name.clone(), account.created_by.clone());
    let disabled = account.disabled_at.map(|at| {
        view! { <span class="table__sub">"disabled "<When at=at/></span> }
    });
    let buttons = actions.state.owns.then(|| buttons(account, actions));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{disabled}</th>
            <td role="cell" data-label="Role">{account.role.name()}</td>
            <td role="cell" class="num" data-label="Tokens">{account.tokens}</td>
            <td role="cell" data-label="Created">
                <When at=account.created_at/>
                <span class="table__sub">{format!("by {by}")}</span>
            </td>
            <td role="cell" class="table__actions">{buttons}</td>
        </tr>
    }
    .into_any()
}

fn buttons(account: &ServiceAccount, actions: AccountActions) -> AnyView {
    let verb = if account.disabled_at.is_none() { "Disable" } else { "Enable" };
    let label = format!("{verb} {}", account.name);
    let delete_label = format!("Delete {}", account.name);
    let id = account.id;
    view! {
        <span class="btn-grid">
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=move || !actions.ready.get() || actions.call.pending.get()
                on:click=move |_| actions.change(id)
            >
                {verb}
            </button>
            {actions.target.button(account.clone(), "Delete", delete_label, actions.ready)}
        </span>
    }
    .into_any()
}

/// The name and the role of a new service account.
#[component]
fn AccountForm(
    /// The state of the page.
    state: PageState,
    /// The listed accounts; a new one comes first.
    accounts: RwSignal<Vec<ServiceAccount>>,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let name = RwSignal::new(String::new());
    let role = RwSignal::new(Role::Member);
    let body = move || NewServiceAccount { name: name.with(|name| name.trim().to_owned()), role: role.get() };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body = untrack(body);
        let made = api::service_accounts::create(state.org, &body, key.for_body(&body));
        call.run(made, move |made: ServiceAccount| {
            key.reset();
            accounts.update(|accounts| accounts.insert(0, made));
            state.reload_changes();
            name.set(String::new());
        });
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h3 class="card__title">"New service account"</h3>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <Field
                    label="Name"
                    name="service-account-name"
                    kind="text"
                    value=name
                    hint=Some("Its jobs show this name.".to_owned())
                    error=call.field("/name")
                />
                <RoleField id="service-account-role" role=role error=call.field("/role")/>
            </div>
            <div class="form__actions">
                <Submit call=call>"Create service account"</Submit>
            </div>
            <CopyAsCurl line=curl_line(state.org, body) label="New service account with curl"/>
        </form>
    }
}

/// The request of the form as a curl command.
fn curl_line(org: OrgId, body: impl Fn() -> NewServiceAccount + Send + Sync + 'static) -> Signal<String> {
    let origin = origin();
    Signal::derive(move || {
        let body = body();
        if body.name.is_empty() {
            return curl::INCOMPLETE.to_owned();
        }
        let body = serde_json::to_string(&body).unwrap_or_default();
        curl::post(&origin.get(), &format!("/orgs/{org}/service-accounts"), &body)
    })
}

#[component]
fn DeleteDialog(
    /// The state of the rows.
    actions: AccountActions,
) -> impl IntoView {
    let call = Call::idle();
    let delete = move |()| {
        let id = actions.target.one.with_untracked(|account| account.as_ref().map(|account| account.id));
        let Some(id) = id else { return };
        call.run(api::service_accounts::delete(actions.state.org, id), move |()| {
            actions.accounts.update(|accounts| accounts.retain(|account| account.id != id));
            actions.target.open.set(false);
            actions.state.reload_changes();
        });
    };
    view! {
        <ConfirmDialog
            id="delete-service-account"
            title=actions.target.title("Delete", "service account", |account| account.name.as_str())
            open=actions.target.open
            call=call
            keep="Keep service account"
            verb="Delete service account"
            confirm=Callback::new(delete)
        >
            <p>
                "All its tokens are revoked immediately. Its jobs continue, are charged as before, and keep its name. This cannot be undone; you can create another service account."
            </p>
        </ConfirmDialog>
    }
}
