//! Table of the sessions of the signed-in person.

use berth_types::ids::SessionId;
use berth_types::people::BrowserSession;
use leptos::prelude::*;

use super::super::confirm::ConfirmDialog;
use super::super::parts::{Call, CallProblem, ready};
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
    let end = Callback::new(move |(id, name): (SessionId, String)| {
        call.run(api::people::end_session(id), move |()| {
            sessions.update(|sessions| sessions.retain(|session| session.id != id));
            status.set(format!("Session ended: {name}."));
        });
    });
    let rows = move || {
        let row = |session: &BrowserSession| row(session, call, ready, end);
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
            <CallProblem call=call beside_fields=&[]/>
            {move || table_of(
                "Sessions, newest first",
                &[("Browser", ""), ("Network", ""), ("Signed in", ""), ("Last used", ""), ACTIONS],
                rows(),
            )}
            <p class="quiet said" role="status">{move || status.get()}</p>
        </section>
        <EverywhereDialog open=asking/>
    }
}

fn row(
    session: &BrowserSession,
    call: Call,
    ready: ReadSignal<bool>,
    end: Callback<(SessionId, String)>,
) -> AnyView {
    let (id, name, header) = (session.id, browser_text(&session.browser), session.browser.clone());
    let network = session.network.clone().unwrap_or_else(|| "unknown".to_owned());
    let (label, own) = (format!("End session of {name}"), session.current);
    let ended = name.clone();
    let action = if own {
        view! { <span class="tag">"this browser"</span> }.into_any()
    } else {
        view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=move || !ready.get() || call.pending.get()
                on:click=move |_| end.run((id, ended.clone()))
            >
                "End session"
            </button>
        }
        .into_any()
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span title=header>{name}</span></th>
            <td role="cell" data-label="Network"><span class="mono break">{network}</span></td>
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
