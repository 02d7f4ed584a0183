//! Table of the sessions of the signed-in person.

use berth_types::ids::SessionId;
use berth_types::people::BrowserSession;
use leptos::prelude::*;

use super::super::confirm::{ConfirmDialog, ConfirmTarget};
use super::super::parts::{Call, ready};
use super::text::browser_text;
use crate::api;
use crate::session::load_sign_in;
use crate::ui::*;

/// The sessions with their buttons.
#[component]
pub fn Sessions(sessions: Vec<BrowserSession>) -> impl IntoView {
    let sessions = RwSignal::new(sessions);
    let (call, ready) = (Call::idle(), ready());
    let status = RwSignal::new(String::new());
    let asking = RwSignal::new(false);
    let target = ConfirmTarget::<(SessionId, String)>::none();
    let end = move |()| {
        let Some((id, name)) = target.one.get_untracked() else { return };
        call.run_for(
            move || {
                target.one.try_with_untracked(|one| one.as_ref().is_some_and(|one| one.0 == id)) == Some(true)
            },
            api::people::end_session(id),
            move |(), shown| {
                if shown {
                    target.open.set(false);
                }
                sessions.update(|sessions| sessions.retain(|session| session.id != id));
                status.set(format!("Session ended: {name}."));
            },
        );
    };
    let rows = move || {
        let row = |session: &BrowserSession| row(session, ready, target);
        sessions.with(|sessions| sessions.iter().map(row).collect::<Vec<AnyView>>())
    };
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Sessions"</h2>
                <div class="section__aside">
                    <button
                        class="btn btn--small"
                        type="button"
                        disabled=move || !ready.get()
                        on:click=move |_| asking.set(true)
                    >
                        "Sign out everywhere"
                    </button>
                </div>
            </div>
            {move || table_of(
                "Sessions, newest first",
                &[("Browser", ""), ("IP address", ""), ("Signed in", ""), ("Last used", ""), ACTIONS],
                rows(),
            )}
            <p class="quiet said" role="status">{move || status.get()}</p>
        </section>
        <EverywhereDialog open=asking/>
        <ConfirmDialog
            id="end-session"
            title=target.title("End session of", "browser", |one| one.1.as_str())
            open=target.open
            call=call
            keep="Keep session"
            verb="End session"
            confirm=Callback::new(end)
        >
            <p>"Its terminals and ports close. Jobs continue."</p>
        </ConfirmDialog>
    }
}

/// Returns the address of a session; IPv6 has the first address of a network.
fn address_text(network: Option<&str>) -> String {
    match network {
        None => "unknown".to_owned(),
        Some(network) if network.contains(':') => format!("{network} (network)"),
        Some(address) => address.to_owned(),
    }
}

fn row(
    session: &BrowserSession,
    ready: ReadSignal<bool>,
    target: ConfirmTarget<(SessionId, String)>,
) -> AnyView {
    let (id, name, header) = (session.id, browser_text(&session.browser), session.browser.clone());
    let address = address_text(session.network.as_deref());
    let (label, own) = (format!("End session of {name}"), session.current);
    let action = if own {
        view! { <span class="tag">"this browser"</span> }.into_any()
    } else {
        target.button((id, name.clone()), "End session", label, ready)
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span title=header>{name}</span></th>
            <td role="cell" data-label="IP address"><span class="mono break">{address}</span></td>
            <td role="cell" class="nowrap" data-label="Signed in"><When at=session.created_at/></td>
            <td role="cell" class="nowrap" data-label="Last used"><When at=session.last_seen_at/></td>
            <td role="cell" class="table__actions">{action}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn EverywhereDialog(open: RwSignal<bool>) -> impl IntoView {
    let call = Call::idle();
    let sign_out = move |()| call.run(api::people::end_sessions(), |()| load_sign_in());
    view! {
        <ConfirmDialog
            id="everywhere"
            title="Sign out everywhere?"
            open=open
            call=call
            keep="Stay signed in"
            verb="Sign out everywhere"
            confirm=Callback::new(sign_out)
        >
            <p>
                "All your sessions end, this one too, with their open terminals and ports. Jobs continue. API tokens stay valid."
            </p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::address_text;

    #[test]
    fn an_address_of_ipv6_is_a_network() {
        assert_eq!(address_text(None), "unknown");
        assert_eq!(address_text(Some("192.0.2.7")), "192.0.2.7");
        assert_eq!(address_text(Some("2001:db8::")), "2001:db8:: (network)");
    }
}
