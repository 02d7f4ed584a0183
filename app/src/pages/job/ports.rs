//! Ports of a job, each with a button that opens it in a new window.
//!
//! The content of a port comes from the job. The portal records each opened port.

use berth_types::ids::{JobId, OrgId};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::LiveJob;
use crate::api;
use crate::pages::parts::{Call, CallProblem};

/// A window without an address yet. Browsers block windows that do not open directly at the click.
#[cfg(feature = "hydrate")]
struct Tab(Option<web_sys::Window>);

#[cfg(feature = "hydrate")]
impl Tab {
    fn open() -> Self {
        let tab =
            web_sys::window().and_then(|window| window.open_with_url_and_target("", "_blank").ok()).flatten();
        if let Some(tab) = &tab {
            // The job's page must not navigate this window.
            let _ = tab.set_opener(&wasm_bindgen::JsValue::NULL);
        }
        Self(tab)
    }

    fn go(self, url: &str) {
        match self.0 {
            Some(tab) => {
                // Fails only for an invalid address.
                let _ = tab.location().replace(url);
            }
            // The browser blocked the window.
            None => crate::pages::parts::open_url(url),
        }
    }

    fn close(self) {
        if let Some(tab) = self.0 {
            // The user may have closed it.
            let _ = tab.close();
        }
    }
}

/// The server handles no clicks.
#[cfg(not(feature = "hydrate"))]
struct Tab;

#[cfg(not(feature = "hydrate"))]
impl Tab {
    fn open() -> Self {
        Self
    }

    fn go(self, _url: &str) {}

    fn close(self) {}
}

fn open(org: OrgId, job: JobId, port: u32, rank: u32, call: Call) {
    if call.pending.get_untracked() {
        return;
    }
    call.pending.set(true);
    let tab = Tab::open();
    let answer = api::jobs::port_ticket(org, job, port, rank);
    spawn_local(async move {
        let answer = answer.await;
        call.pending.set(false);
        match answer {
            Ok(ticket) => {
                call.problem.set(None);
                // After the `#`, which browsers do not send.
                tab.go(&format!("{}#{}", ticket.url, ticket.ticket));
            }
            Err(problem) => {
                tab.close();
                call.problem.set(Some(problem));
            }
        }
    });
}

fn numbers(ports: &[u32]) -> String {
    let numbers: Vec<String> = ports.iter().map(u32::to_string).collect();
    format!("{} {}", if ports.len() == 1 { "Port" } else { "Ports" }, numbers.join(", "))
}

/// The ports of a job, if it has any.
#[component]
pub fn Ports(
    /// The job.
    live: LiveJob,
    /// True on a portal with a host name for ports.
    can_open: bool,
    /// The chosen rank.
    rank: RwSignal<u32>,
    /// True while the job runs.
    running: Memo<bool>,
    /// True after hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let ports = live.job.with_untracked(|job| job.ports.clone());
    if ports.is_empty() {
        return ().into_any();
    }
    let (org, id) = (live.org, live.id);
    let many = live.job.with_untracked(|job| job.nodes > 1);
    let call = Call::idle();
    let button = move |port: u32| {
        let label = move || {
            if many {
                format!("Open port {port} of rank {}", rank.get())
            } else {
                format!("Open port {port}")
            }
        };
        view! {
            <button
                class="btn btn--small"
                type="button"
                disabled=move || { !ready.get() || call.pending.get() }
                on:click=move |_| open(org, id, port, rank.get_untracked(), call)
            >
                {label}
            </button>
        }
    };
    let all = numbers(&ports);
    let body = move || {
        if !can_open {
            let text = format!(
                "{all} cannot be opened: this portal has no host name for ports. The operator sets it with --ports-origin."
            );
            view! { <p class="quiet">{text}</p> }.into_any()
        } else if running.get() {
            let buttons: Vec<AnyView> = ports.iter().map(|port| button(*port).into_any()).collect();
            view! {
                <div class="card">
                    <div class="stack">
                        <div class="row">{buttons}</div>
                        <p class="quiet small">"The content comes from the job, not from the portal. Each opened port is recorded with your name."</p>
                    </div>
                </div>
            }
            .into_any()
        } else {
            view! { <p class="quiet">{format!("{all} can be opened while the job runs.")}</p> }.into_any()
        }
    };
    view! {
        <section class="section" aria-label="Ports">
            <div class="section__head"><h2>"Ports"</h2></div>
            <CallProblem call=call beside_fields=&[]/>
            {body}
        </section>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_listed_by_number() {
        assert_eq!(
            (numbers(&[8_888]), numbers(&[80, 81])),
            ("Port 8888".to_owned(), "Ports 80, 81".to_owned())
        );
    }
}
