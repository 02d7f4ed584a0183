//! Head of a service's page: name, state, actions and addresses.

use berth_service_types::hosts::{CheckHost, ServiceHost};
use berth_service_types::services::{PatchService, ServiceAccess, ServiceProtocol};
use leptos::prelude::*;
use serde::de::IgnoredAny;

use super::super::call_button::CallButton;
use super::super::confirm::ConfirmDialog;
use super::super::parts::{Call, CallProblem, focus_soon, redirect};
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

/// Returns the title of a dialog as a question.
pub fn title(live: LiveService, verb: &'static str) -> Signal<String> {
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
    let urls = Memo::new(move |_| {
        let (service, gateways) = (live.service.get(), live.gateways.get());
        gateways.iter().map(|gateway| service_url(&gateway.url, &service)).collect::<Vec<String>>()
    });
    let first = Memo::new(move |_| {
        let (service, gateways) = (live.service.get(), live.gateways.get());
        let is_public = service.access == ServiceAccess::Public;
        gateways.first().map(|gateway| first_request(&gateway.url, &service, is_public))
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
        <section class="section" id="service-address" tabindex="-1" aria-label="Address">
            <div class="section__head">
                <h2>"Address"</h2>
                <div class="section__aside">{button}</div>
            </div>
            {move || urls.with(|urls| addresses(urls))}
            <HostNames live=live/>
            {move || first.get().map(first_line)}
        </section>
        <SettingsDialog live=live open=open/>
    }
}

/// Returns the sentence about the host names that lead to the service; empty without one.
fn confirmed_text(hosts: &[ServiceHost]) -> String {
    let confirmed: Vec<&str> =
        hosts.iter().filter(|host| host.confirmed).map(|host| host.host.as_str()).collect();
    match confirmed.as_slice() {
        [] => String::new(),
        [one] => format!("The service also has the host name {one}."),
        all => format!("The service also has the host names {}.", all.join(", ")),
    }
}

/// Returns the sentence about a host name that leads to no service yet.
fn unconfirmed_text(host: &ServiceHost) -> String {
    let begin = format!("{} is not confirmed, so it does not lead to the service.", host.host);
    let problem = host.problem.as_deref().map(|problem| format!(" {problem}")).unwrap_or_default();
    let next = match host.record {
        Some(_) => format!("To confirm it, the TXT record {} must have this value:", host.record_name),
        None => {
            "Within some minutes this page shows the value for a TXT record, which you then add to your DNS."
                .to_owned()
        }
    };
    format!("{begin}{problem} {next}")
}

/// Returns true for a host name without a confirmation, or without the record that confirmed it.
const fn needs_record(host: &ServiceHost) -> bool {
    !host.confirmed || host.missing_since.is_some()
}

/// The host names: those that lead to the service, then those that need their records. The button of a host stays the
/// same after a refresh.
#[component]
fn HostNames(live: LiveService) -> impl IntoView {
    let hosts = Memo::new(move |_| live.service.with(|service| service.host_states.clone()));
    let also = Memo::new(move |_| hosts.with(|hosts| confirmed_text(hosts)));
    let checking = Call::idle();
    let names = move || {
        hosts.with(|hosts| {
            hosts
                .iter()
                .filter(|host| needs_record(host))
                .map(|host| host.host.clone())
                .collect::<Vec<String>>()
        })
    };
    let one = move |name: String| {
        let known = name.clone();
        let host =
            Memo::new(move |_| hosts.with(|hosts| hosts.iter().find(|host| host.host == known).cloned()));
        let button = live.writes.then(|| check_button(live, checking, name));
        view! {
            <div class="stack">
                {move || host.with(|host| host.as_ref().map(host_record))}
                {button}
            </div>
        }
    };
    view! {
        {move || also.with(|text| {
            (!text.is_empty()).then(|| view! { <p class="quiet break">{text.clone()}</p> })
        })}
        <For each=names key=|name: &String| name.clone() children=one/>
        <CallProblem call=checking beside_fields=&[]/>
    }
}

/// Returns the sentence about the record of a host name, with its value.
fn host_record(host: &ServiceHost) -> AnyView {
    let label = format!("Value of the TXT record of {}", host.host);
    let value = host.record.clone().map(|record| view! { <CopyBlock text=record label=label/> });
    let sentence = match host.missing_since.filter(|_| host.confirmed) {
        None => unconfirmed_text(host).into_any(),
        Some(since) => {
            let begin =
                format!("The TXT record {} of {} has been missing since ", host.record_name, host.host);
            view! {
                <span class="warn">
                    {begin} <When at=since/>
                    ". Seven days later the host name is no longer confirmed. The record must have this value:"
                </span>
            }
            .into_any()
        }
    };
    view! { <p class="break">{sentence}</p> {value} }.into_any()
}

/// Returns the button that checks the record of a host name.
fn check_button(live: LiveService, checking: Call, name: String) -> AnyView {
    let label = format!(" the record of {name}");
    let send = move |()| {
        let body = CheckHost { host: name.clone() };
        checking.run(api::services::check_host(live.org, &body), move |host: ServiceHost| {
            live.reload();
            if !needs_record(&host) {
                // The button goes with its host.
                focus_soon("#service-address".to_owned());
            }
        });
    };
    view! {
        <p>
            <CallButton call=checking class="btn btn--small" send=Callback::new(send)>
                "Check now" <span class="visually-hidden">{label}</span>
            </CallButton>
        </p>
    }
    .into_any()
}

/// Returns the addresses at the gateways.
fn addresses(urls: &[String]) -> AnyView {
    if urls.is_empty() {
        return view! {
            <p class="quiet">
                "No gateway answers at present, so the service has no address. An operator must start one on the page Gateways."
            </p>
        }
        .into_any();
    }
    let block = |url: String| {
        view! { <CopyBlock text=Signal::derive(move || url.clone()) label="Address of the service".to_owned()/> }
            .into_any()
    };
    urls.iter().cloned().map(block).collect::<Vec<AnyView>>().into_any()
}

/// Returns the first request as a curl command.
fn first_line(first: String) -> AnyView {
    view! {
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
    use berth_types::time::Timestamp;

    fn host(name: &str, confirmed: bool) -> ServiceHost {
        ServiceHost {
            host: name.to_owned(),
            confirmed,
            domain: None,
            record_name: format!("_berth.{name}"),
            record: Some("berth-verification=0a".to_owned()),
            missing_since: None,
            checked_at: None,
            problem: None,
        }
    }

    #[test]
    fn an_unconfirmed_host_name_is_shown_with_its_record() {
        let problem = Some("The record was not found.".to_owned());
        let known = ServiceHost { problem, ..host("chat.example.org", false) };
        assert_eq!(
            unconfirmed_text(&known),
            "chat.example.org is not confirmed, so it does not lead to the service. The record was not found. To confirm it, the TXT record _berth.chat.example.org must have this value:"
        );
        let fresh = ServiceHost { record: None, ..host("chat.example.org", false) };
        assert_eq!(
            unconfirmed_text(&fresh),
            "chat.example.org is not confirmed, so it does not lead to the service. Within some minutes this page shows the value for a TXT record, which you then add to your DNS."
        );
    }

    #[test]
    fn confirmed_host_names_are_one_sentence() {
        let (a, b, c) = (host("a.b", true), host("c.d", false), host("e.f", true));
        assert_eq!(confirmed_text(std::slice::from_ref(&b)), "");
        assert_eq!(confirmed_text(&[a.clone(), b.clone()]), "The service also has the host name a.b.");
        assert_eq!(confirmed_text(&[a, b, c]), "The service also has the host names a.b, e.f.");
    }

    #[test]
    fn a_host_name_needs_its_record_until_it_is_confirmed_and_while_it_is_missing() {
        let missing = ServiceHost { missing_since: Some(Timestamp::from_micros(0)), ..host("a.b", true) };
        assert!(needs_record(&missing));
        assert!(needs_record(&host("a.b", false)));
        assert!(!needs_record(&host("a.b", true)));
    }
}
