//! The ports of a job, each with a button that opens it in a window of its own.
//!
//! What is there is the job's and not the portal's. Must not open one that nobody asked for: each is recorded.

use berth_types::ids::{JobId, OrgId};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::LiveJob;
use crate::api;
use crate::pages::parts::{Call, CallProblem};

/// A window that was opened by a click, before it is known where it leads: browsers keep one from opening
/// that comes later.
#[cfg(feature = "hydrate")]
struct Tab(Option<web_sys::Window>);

#[cfg(feature = "hydrate")]
impl Tab {
    fn open() -> Self {
        let tab =
            web_sys::window().and_then(|window| window.open_with_url_and_target("", "_blank").ok()).flatten();
        if let Some(tab) = &tab {
            // The job's page must not lead this one elsewhere.
            let _ = tab.set_opener(&wasm_bindgen::JsValue::NULL);
        }
        Self(tab)
    }

    fn go(self, url: &str) {
        match self.0 {
            Some(tab) => {
                // Refused only for what is no address.
                let _ = tab.location().replace(url);
            }
            // The browser allows no further window.
            None => crate::pages::parts::leave_for(url),
        }
    }

    fn close(self) {
        if let Some(tab) = self.0 {
            // It may be closed already.
            let _ = tab.close();
        }
    }
}

/// Nothing is clicked while a page is rendered.
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
                // Behind the #, where no server sees it.
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

/// The ports that a job was launched with, if any.
#[component]
pub fn Ports(
    /// The job.
    live: LiveJob,
    /// Whether this portal has a host name for them.
    can_open: bool,
    /// Which of its ranks.
    rank: RwSignal<u32>,
    /// Whether the job runs now.
    running: Memo<bool>,
    /// Whether the page is alive.
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
                "{all} cannot be opened here: this portal has no host name for them. Its operator starts it with --ports-origin to give it one."
            );
            view! { <p class="quiet">{text}</p> }.into_any()
        } else if running.get() {
            let buttons: Vec<AnyView> = ports.iter().map(|port| button(*port).into_any()).collect();
            view! {
                <div class="card">
                    <div class="stack">
                        <div class="row">{buttons}</div>
                        <p class="quiet small">"What you see there is made by the job, not by the portal. Who opens a port is recorded."</p>
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
    fn ports_are_named_by_their_numbers() {
        assert_eq!(
            (numbers(&[8_888]), numbers(&[80, 81])),
            ("Port 8888".to_owned(), "Ports 80, 81".to_owned())
        );
    }
}
