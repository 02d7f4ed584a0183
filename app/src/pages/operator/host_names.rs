//! Page of the host names of services, which an operator confirms for organizations without DNS.

use berth_service_types::hosts::{ClaimedHost, ClaimedHostState, ConfirmHost, ServiceHost};
use berth_types::Page as Items;
use berth_types::operators::OperatorRight;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::confirm::{ConfirmDialog, ConfirmTarget};
use super::super::curl::ListCurl;
use super::super::dialog_form::DialogForm;
use super::super::limits::replace;
use super::super::load_more::{LoadMore, append};
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, focus_soon, ready};
use super::{is_operator, may, read_only};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// Loads the first pages with at least so many host names.
async fn load_again(shown: usize) -> Answer<Items<ClaimedHost>> {
    let mut all = api::services::claimed_hosts(None).await?;
    while all.items.len() < shown
        && let Some(cursor) = all.next_cursor.take()
    {
        let page = api::services::claimed_hosts(Some(cursor)).await?;
        all.items.extend(page.items);
        all.next_cursor = page.next_cursor;
    }
    Ok(all)
}

/// Returns true for a host name with a confirmation of its own, which an operator can withdraw.
const fn has_own(host: &ClaimedHost) -> bool {
    match host.state {
        ClaimedHostState::Operator | ClaimedHostState::Record | ClaimedHostState::Missing => true,
        ClaimedHostState::Waiting | ClaimedHostState::Domain => false,
    }
}

/// Returns the state of a host name in words.
fn state_text(host: &ClaimedHost) -> String {
    match host.state {
        ClaimedHostState::Waiting => "not confirmed".to_owned(),
        ClaimedHostState::Operator => "confirmed by an operator".to_owned(),
        ClaimedHostState::Record => "confirmed by its record".to_owned(),
        ClaimedHostState::Missing => "record missing".to_owned(),
        ClaimedHostState::Domain => {
            format!("confirmed by {}", host.domain.as_deref().unwrap_or("a domain"))
        }
    }
}

/// The page of the host names.
#[component]
pub fn HostNamesPage() -> impl IntoView {
    if is_operator() { view! { <HostNames/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn HostNames() -> impl IntoView {
    let data: Resource<Answer<Items<ClaimedHost>>> =
        Resource::new(|| (), |()| api::services::claimed_hosts(None));
    view! {
        <Page title="Host names".to_owned()>
            <p class="page__lead">
                "Everybody can name a host for a service. Its requests go to the organization that proved it: by a record in DNS, by a confirmed domain, or by your confirmation, which is for internal names."
            </p>
            {answer_view(data, |hosts| view! { <HostList hosts=hosts/> }.into_any())}
        </Page>
    }
}

/// The signals of the page.
#[derive(Clone, Copy)]
struct State {
    /// The host names in alphabetical order.
    hosts: RwSignal<Vec<ClaimedHost>>,
    /// The cursor of the next page.
    cursor: RwSignal<Option<String>>,
    confirmed: ConfirmTarget<ClaimedHost>,
    withdrawn: ConfirmTarget<ClaimedHost>,
    /// The last change, for screen readers too.
    status: RwSignal<String>,
}

impl State {
    /// Sends the decision about the host of a dialog. Then the list is loaded again, because a confirmation can decide
    /// about other hosts.
    fn decide(self, call: Call, target: ConfirmTarget<ClaimedHost>, confirmed: bool) {
        let Some(one) = target.one.get_untracked() else { return };
        let input = ConfirmHost { host: one.host.clone(), confirmed };
        let asked = one.clone();
        let is_shown = move || target.one.try_get_untracked() == Some(Some(asked));
        let answer = api::services::confirm_host(one.organization, &input);
        call.run_for(is_shown, answer, move |_: ServiceHost, shown| {
            // The page may have been left meanwhile.
            let Some(count) = self.hosts.try_with_untracked(Vec::len) else { return };
            let state = if confirmed { "confirmed" } else { "no longer confirmed" };
            self.status.set(format!("{}: {state} for {}.", one.host, one.organization_name));
            if shown {
                target.open.set(false);
            }
            self.reload(count, shown);
        });
    }

    /// Loads the shown host names again. `focuses` moves the focus to the sentence about the change, because the button
    /// that had it is drawn again.
    fn reload(self, count: usize, focuses: bool) {
        spawn_local(async move {
            // The page may have been left meanwhile.
            if let Ok(fresh) = load_again(count).await
                && self.hosts.try_get_untracked().is_some()
            {
                replace(self.hosts, fresh.items);
                replace(self.cursor, fresh.next_cursor);
                if focuses {
                    focus_soon("#host-names-said".to_owned());
                }
            }
        });
    }
}

#[component]
fn HostList(hosts: Items<ClaimedHost>) -> impl IntoView {
    let state = State {
        hosts: RwSignal::new(hosts.items),
        cursor: RwSignal::new(hosts.next_cursor),
        confirmed: ConfirmTarget::none(),
        withdrawn: ConfirmTarget::none(),
        status: RwSignal::new(String::new()),
    };
    let (writes, ready) = (may(OperatorRight::ManagePortal), ready());
    let more = Call::idle();
    let load_more = move |()| {
        let next = api::services::claimed_hosts(state.cursor.get_untracked());
        more.run(next, move |page: Items<ClaimedHost>| {
            let key = |host: &ClaimedHost| (host.organization, host.host.clone());
            state.hosts.update(|known| append(known, page.items, key));
            state.cursor.set(page.next_cursor);
        });
    };
    view! {
        {read_only(OperatorRight::ManagePortal)}
        <section class="section">
            {move || state.hosts.with(|hosts| table(hosts, writes, state, ready))}
            <LoadMore cursor=state.cursor call=more load=Callback::new(load_more)/>
            <p class="quiet said" role="status" id="host-names-said" tabindex="-1">{move || state.status.get()}</p>
            <ListCurl
                path=Signal::derive(|| "/operator/service-hosts".to_owned())
                label="Host names with curl"
            />
        </section>
        <ConfirmHostDialog state=state/>
        <WithdrawDialog state=state/>
    }
}

fn table(hosts: &[ClaimedHost], writes: bool, state: State, ready: ReadSignal<bool>) -> AnyView {
    if hosts.is_empty() {
        return empty("No host names yet. An organization adds them in the settings of a service.");
    }
    table_of(
        "Host names",
        &[("Host name", ""), ("Organization", ""), ("Service", ""), ("State", ""), ("Since", ""), ACTIONS],
        hosts.iter().map(|host| row(host, writes, state, ready)).collect(),
    )
}

fn row(host: &ClaimedHost, writes: bool, state: State, ready: ReadSignal<bool>) -> AnyView {
    let services = if host.services.is_empty() { "–".to_owned() } else { host.services.join(", ") };
    let problem = host.problem.clone().map(|problem| view! { <span class="table__sub">{problem}</span> });
    let button = writes.then(|| {
        let verb = if has_own(host) { "Withdraw" } else { "Confirm" };
        let label = format!("{verb} {} of {}", host.host, host.organization_name);
        if has_own(host) {
            state.withdrawn.button(host.clone(), verb, label, ready)
        } else {
            confirm_button(host.clone(), label, state.confirmed, ready)
        }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="break">{host.host.clone()}</span></th>
            <td role="cell" data-label="Organization"><span class="break">{host.organization_name.clone()}</span></td>
            <td role="cell" data-label="Service"><span class="break">{services}</span></td>
            <td role="cell" data-label="State"><span class="break">{state_text(host)}</span>{problem}</td>
            <td role="cell" class="nowrap" data-label="Since"><When at=host.since/></td>
            <td role="cell" class="table__actions">{button}</td>
        </tr>
    }
    .into_any()
}

/// Returns the button that opens the question about a confirmation.
fn confirm_button(
    host: ClaimedHost,
    label: String,
    target: ConfirmTarget<ClaimedHost>,
    ready: ReadSignal<bool>,
) -> AnyView {
    view! {
        <button
            class="btn btn--small"
            type="button"
            aria-label=label
            disabled=move || !ready.get()
            on:click=move |_| {
                target.one.set(Some(host.clone()));
                target.open.set(true);
            }
        >
            "Confirm"
        </button>
    }
    .into_any()
}

/// Returns the name of the organization of a dialog.
fn organization(target: ConfirmTarget<ClaimedHost>) -> String {
    target.one.with(|one| one.as_ref().map_or_else(String::new, |one| one.organization_name.clone()))
}

#[component]
fn ConfirmHostDialog(state: State) -> impl IntoView {
    let call = Call::idle();
    let target = state.confirmed;
    view! {
        <DialogForm
            id="confirm-host"
            title=target.title("Confirm", "host name", |host| host.host.as_str())
            open=target.open
            call=call
            keep="Cancel"
            verb="Confirm host name"
            submit=Callback::new(move |()| state.decide(call, target, true))
        >
            <p>
                "The gateways send all requests with this host name to the service of " {move || organization(target)}
                ". Check first that the name belongs to it. Host names below it are confirmed for it too, unless they have a confirmation of their own."
            </p>
            <CallProblem call=call beside_fields=&[]/>
        </DialogForm>
    }
}

#[component]
fn WithdrawDialog(state: State) -> impl IntoView {
    let call = Call::idle();
    let target = state.withdrawn;
    view! {
        <ConfirmDialog
            id="withdraw-host"
            title=target.title("Withdraw the confirmation of", "host name", |host| host.host.as_str())
            open=target.open
            call=call
            keep="Keep confirmation"
            verb="Withdraw confirmation"
            confirm=Callback::new(move |()| state.decide(call, target, false))
        >
            <p>
                "From now on the host name leads to no service of " {move || organization(target)}
                ", unless a parent domain is confirmed for it. The same holds for host names below it. The path of the service works. The former DNS record no longer counts: the organization needs a new one, and starts its check on the page of the service."
            </p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(state: ClaimedHostState) -> ClaimedHost {
        ClaimedHost {
            host: "chat.corp.example".to_owned(),
            organization: "org_00000000000000000000000001".parse().unwrap(),
            organization_name: "Lab".to_owned(),
            services: vec!["chat".to_owned()],
            state,
            since: "2026-11-20T09:00:00Z".parse().unwrap(),
            domain: Some("corp.example".to_owned()),
            problem: None,
        }
    }

    #[test]
    fn each_state_has_a_text_and_one_decision() {
        use ClaimedHostState::{Domain, Missing, Operator, Record, Waiting};

        for (state, text, own) in [
            (Waiting, "not confirmed", false),
            (Operator, "confirmed by an operator", true),
            (Record, "confirmed by its record", true),
            (Missing, "record missing", true),
            (Domain, "confirmed by corp.example", false),
        ] {
            let host = host(state);
            assert_eq!((state_text(&host).as_str(), has_own(&host)), (text, own));
        }
    }
}
