//! Head of a service's page: name, state, actions and addresses.

use berth_service_types::hosts::ServiceHost;
use berth_service_types::services::{PatchService, ServiceAccess, ServiceProtocol};
use leptos::prelude::*;
use serde::de::IgnoredAny;

use super::super::call_button::CallButton;
use super::super::confirm::ConfirmDialog;
use super::super::parts::{Call, CallProblem, redirect};
use super::settings::SettingsDialog;
use super::state::LiveService;
use super::text::{first_request, service_url, state_text};
use crate::address::use_org_links;
use crate::api;
use crate::ui::*;

/// Name, state with its reason, and the actions with their dialogs.
#[component]
pub fn Head(
    /// The service.
    live: LiveService,
) -> impl IntoView {
    let service = live.service;
    let (name, id) = service.with_untracked(|service| (service.name.clone(), service.id.to_string()));
    let state = Memo::new(move |_| service.with(|service| (service.state, service.stopped)));
    let sentence = Memo::new(move |_| service.with(state_text));
    let protocol = service.with_untracked(|service| match service.protocol {
        ServiceProtocol::OpenAi => "OpenAI",
        ServiceProtocol::Http => "HTTP",
    });
    let is_public = Memo::new(move |_| service.with(|service| service.access == ServiceAccess::Public));
    view! {
        <div class="page__head">
            <h1>{name}</h1>
            {move || {
                let (state, stopped) = state.get();
                view! { <ServiceBadge state=state stopped=stopped/> }
            }}
            <span class="tag">{protocol}</span>
            {move || is_public.get().then(|| view! { <span class="tag tag--warn">"public"</span> })}
            <span class="id">{id}</span>
            {live.writes.then(|| view! { <Actions live=live/> })}
        </div>
        <p class="page__lead">{move || sentence.get()}</p>
    }
}

#[component]
fn Actions(live: LiveService) -> impl IntoView {
    let (stopping, deleting) = (RwSignal::new(false), RwSignal::new(false));
    let starting = Call::idle();
    let ready = live.ready;
    let stopped = Memo::new(move |_| live.service.with(|service| service.stopped));
    let start = move |()| {
        let body = PatchService { stopped: Some(false), ..PatchService::default() };
        starting.run(api::services::patch(live.org, live.id, &body), move |_: IgnoredAny| live.reload());
    };
    let toggle = move || {
        if stopped.get() {
            view! {
                <CallButton call=starting class="btn" send=Callback::new(start)>"Start service"</CallButton>
            }
            .into_any()
        } else {
            view! {
                <button
                    class="btn"
                    type="button"
                    disabled=move || !ready.get()
                    on:click=move |_| stopping.set(true)
                >
                    "Stop service"
                </button>
            }
            .into_any()
        }
    };
    view! {
        <div class="page__actions">
            {toggle}
            <button
                class="btn btn--danger"
                type="button"
                disabled=move || !ready.get()
                on:click=move |_| deleting.set(true)
            >
                "Delete service"
            </button>
        </div>
        <CallProblem call=starting beside_fields=&[]/>
        <StopDialog live=live open=stopping/>
        <DeleteDialog live=live open=deleting/>
    }
}

/// Returns the title of a dialog.
fn title(live: LiveService, verb: &'static str) -> Signal<String> {
    Signal::derive(move || live.service.with(|service| format!("{verb} {}?", service.name)))
}

#[component]
fn StopDialog(live: LiveService, open: RwSignal<bool>) -> impl IntoView {
    let call = Call::idle();
    let stop = move |()| {
        let body = PatchService { stopped: Some(true), ..PatchService::default() };
        call.run(api::services::patch(live.org, live.id, &body), move |_: IgnoredAny| {
            live.reload();
            open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="stop-service"
            title=title(live, "Stop")
            open=open
            call=call
            keep="Keep serving"
            verb="Stop service"
            confirm=Callback::new(stop)
        >
            <p>
                "New requests are refused at once. Each replica ends after its requests in progress and then costs nothing more. Address, revisions and figures stay, and you can start the service again."
            </p>
        </ConfirmDialog>
    }
}

#[component]
fn DeleteDialog(live: LiveService, open: RwSignal<bool>) -> impl IntoView {
    let call = Call::idle();
    let next = redirect();
    let links = use_org_links();
    let delete = move |()| {
        let list = links.path("/services");
        call.run(api::services::delete(live.org, live.id), move |_: IgnoredAny| {
            open.set(false);
            next.set(Some(list));
        });
    };
    view! {
        <ConfirmDialog
            id="delete-service"
            title=title(live, "Delete")
            open=open
            call=call
            keep="Keep service"
            verb="Delete service"
            confirm=Callback::new(delete)
        >
            <p>
                "The address ends at once, and each replica ends after its requests in progress. The jobs of the replicas stay in the list of jobs. The service and its revisions cannot be restored."
            </p>
        </ConfirmDialog>
    }
}

/// The addresses of the service at the gateways.
#[component]
pub fn Address(live: LiveService) -> impl IntoView {
    let shown = Memo::new(move |_| {
        let service = live.service.get();
        let gateways = live.gateways.get();
        let urls: Vec<String> = gateways.iter().map(|gateway| service_url(&gateway.url, &service)).collect();
        let first = gateways
            .first()
            .map(|gateway| first_request(&gateway.url, &service, service.access == ServiceAccess::Public));
        (urls, service.host_states, first)
    });
    let open = RwSignal::new(false);
    let ready = live.ready;
    let button = live.writes.then(|| {
        view! {
            <button
                class="btn btn--small"
                type="button"
                disabled=move || !ready.get()
                on:click=move |_| open.set(true)
            >
                "Change settings"
            </button>
        }
    });
    view! {
        <section class="section" aria-label="Address">
            <div class="section__head">
                <h2>"Address"</h2>
                <div class="section__aside">{button}</div>
            </div>
            {move || shown.with(|(urls, hosts, first)| addresses(urls, hosts, first.as_deref()))}
        </section>
        <SettingsDialog live=live open=open/>
    }
}

/// The sentence about a host name that leads to no service yet.
fn unconfirmed_text(host: &ServiceHost) -> String {
    let begin = format!("{} is not confirmed, so it does not lead to the service.", host.host);
    let problem = host.problem.as_deref().map(|problem| format!(" {problem}")).unwrap_or_default();
    format!("{begin}{problem} Set the TXT record {} in DNS to this value:", host.record_name)
}

/// The host names: those that lead to the service, then the others with their records.
fn host_names(hosts: &[ServiceHost]) -> AnyView {
    let confirmed: Vec<&str> =
        hosts.iter().filter(|host| host.confirmed).map(|host| host.host.as_str()).collect();
    let also = (!confirmed.is_empty()).then(|| {
        view! { <p class="quiet break">"Also at " {confirmed.join(", ")} "."</p> }
    });
    let others: Vec<AnyView> = hosts
        .iter()
        .filter(|host| !host.confirmed)
        .map(|host| {
            let (text, label) = (unconfirmed_text(host), format!("Value of the TXT record of {}", host.host));
            let record = host.record.clone();
            let value = record.map(|record| view! { <CopyBlock text=record label=label/> });
            view! { <p class="break">{text}</p> {value} }.into_any()
        })
        .collect();
    view! { {also} {others} }.into_any()
}

fn addresses(urls: &[String], hosts: &[ServiceHost], first: Option<&str>) -> AnyView {
    let Some(first) = first.map(str::to_owned) else {
        return view! {
            <p class="quiet">
                "No gateway answers at present, so the service has no address. An operator must start one on the page Gateways."
            </p>
        }
        .into_any();
    };
    let blocks: Vec<AnyView> = urls
        .iter()
        .cloned()
        .map(|url| {
            view! { <CopyBlock text=Signal::derive(move || url.clone()) label="Address of the service".to_owned()/> }
                .into_any()
        })
        .collect();
    let hosts = host_names(hosts);
    view! {
        {blocks}
        {hosts}
        <details class="more">
            <summary>"First request with curl"</summary>
            <div class="stack">
                <CopyBlock text=Signal::derive(move || first.clone()) label="First request with curl".to_owned()/>
            </div>
        </details>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unconfirmed_host_name_is_shown_with_its_record() {
        let host = ServiceHost {
            host: "chat.example.org".to_owned(),
            confirmed: false,
            domain: None,
            record_name: "_berth.chat.example.org".to_owned(),
            record: Some("berth-verification=0a".to_owned()),
            missing_since: None,
            checked_at: None,
            problem: Some("The record was not found.".to_owned()),
        };
        assert_eq!(
            unconfirmed_text(&host),
            "chat.example.org is not confirmed, so it does not lead to the service. The record was not found. Set the TXT record _berth.chat.example.org in DNS to this value:"
        );
    }
}
