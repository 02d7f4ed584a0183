//! The members: their roles, and taking them out.
//!
//! Must not decide who may change what: owners see the controls, the portal has the last word.

use berth_types::Page as Rows;
use berth_types::accounts::Role;
use berth_types::ids::UserId;
use berth_types::members::Member;
use leptos::prelude::*;

use super::super::confirm::{ConfirmDialog, Doomed};
use super::super::more::More;
use super::super::parts::{Call, CallProblem, leave_for, ready};
use super::super::roles::role_options;
use super::Desk;
use crate::api;
use crate::session::use_session;
use crate::ui::*;

/// What the rows act on.
#[derive(Clone, Copy)]
struct Hands {
    desk: Desk,
    me: UserId,
    /// The change of a role.
    call: Call,
    /// What came of the last change.
    said: RwSignal<String>,
    /// Whom the dialog is about.
    doomed: Doomed<Member>,
    ready: ReadSignal<bool>,
}

/// The table of all members.
#[component]
pub(super) fn People(
    /// What the page is about.
    desk: Desk,
    /// Where the list goes on.
    cursor: Option<String>,
) -> impl IntoView {
    let hands = Hands {
        desk,
        me: use_session().me.user.id,
        call: Call::idle(),
        said: RwSignal::new(String::new()),
        doomed: Doomed::none(),
        ready: ready(),
    };
    let cursor = RwSignal::new(cursor);
    let more = Call::idle();
    let load_more = move |()| {
        let next = api::members::list(desk.org, cursor.get_untracked());
        more.run(next, move |page: Rows<Member>| {
            desk.members.update(|members| {
                for member in page.items {
                    if !members.iter().any(|known| known.user == member.user) {
                        members.push(member);
                    }
                }
            });
            cursor.set(page.next_cursor);
        });
    };
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Members"</h2>
                <div class="section__aside" role="status">{move || hands.said.get()}</div>
            </div>
            <CallProblem call=hands.call beside_fields=&[]/>
            {table(hands)}
            <More cursor=cursor call=more load=Callback::new(load_more)/>
        </section>
        <RemoveDialog hands=hands/>
    }
}

fn table(hands: Hands) -> AnyView {
    // By member, so that a choice of roles stays with whom it is of when others go.
    let members = hands.desk.members;
    let line = move |member: Member| row(&member, hands);
    view! {
        <div class="table-wrap">
            <table class="table" role="table">
                <caption class="visually-hidden">"Members"</caption>
                <thead role="rowgroup">
                    <tr role="row">
                        <th role="columnheader" scope="col">"Name"</th>
                        <th role="columnheader" scope="col">"E-mail"</th>
                        <th role="columnheader" scope="col">"Role"</th>
                        <th role="columnheader" scope="col">"Member since"</th>
                        <th role="columnheader" scope="col" class="table__actions">
                            <span class="visually-hidden">"Actions"</span>
                        </th>
                    </tr>
                </thead>
                <tbody role="rowgroup">
                    <For each=move || members.get() key=|member: &Member| member.user children=line/>
                </tbody>
            </table>
        </div>
    }
    .into_any()
}

/// A choice of roles for owners, the role's name for others.
fn role_cell(member: &Member, hands: Hands) -> AnyView {
    if !hands.desk.owns {
        return member.role.name().into_any();
    }
    let user = member.user;
    let held = RwSignal::new(member.role);
    let label = format!("Role of {}", member.name);
    let choice = NodeRef::<leptos::html::Select>::new();
    // What was not changed is not shown as changed.
    let put_back = move || {
        if let (Some(Some(select)), Some(role)) = (choice.try_get_untracked(), held.try_get_untracked()) {
            select.set_value(role.name());
        }
    };
    let change = move |ev: leptos::ev::Event| {
        let Some(role) = Role::parse(&event_target_value(&ev)) else { return };
        if hands.call.pending.get_untracked() {
            put_back();
            return;
        }
        hands.said.set(String::new());
        let answer = api::members::change(hands.desk.org, user, role);
        let work = async move {
            let answer = answer.await;
            if answer.is_err() {
                put_back();
            }
            answer
        };
        hands.call.run(work, move |member: Member| {
            if user == hands.me {
                // What the page may show has changed with it.
                leave_for("/team");
                return;
            }
            hands.said.set(format!("{} is {} now.", member.name, member.role.name()));
            held.set(member.role);
            hands.desk.look_again();
        });
    };
    view! {
        <select
            class="select"
            aria-label=label
            disabled=move || !hands.ready.get()
            node_ref=choice
            on:change=change
        >
            {role_options(member.role)}
        </select>
    }
    .into_any()
}

fn row(member: &Member, hands: Hands) -> AnyView {
    let own = member.user == hands.me;
    let name = member.name.clone();
    let email = member.email.clone();
    let you = own.then(|| view! { <span class="table__sub">"you"</span> });
    let (word, label) = if own {
        ("Leave", "Leave the organization".to_owned())
    } else {
        ("Remove", format!("Remove {}", member.name))
    };
    let button =
        (own || hands.desk.owns).then(|| hands.doomed.button(member.clone(), word, label, hands.ready));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{you}</th>
            <td role="cell" data-label="E-mail"><span class="break">{email}</span></td>
            <td role="cell" data-label="Role">{role_cell(member, hands)}</td>
            <td role="cell" class="nowrap" data-label="Member since"><When at=member.joined_at/></td>
            <td role="cell" class="table__actions">{button}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn RemoveDialog(hands: Hands) -> impl IntoView {
    let call = Call::idle();
    let own = move || hands.doomed.one.with(|member| member.as_ref().is_some_and(|m| m.user == hands.me));
    let title = Signal::derive(move || {
        let name =
            hands.doomed.one.with(|member| member.as_ref().map(|m| m.name.clone()).unwrap_or_default());
        if own() { "Leave the organization?".to_owned() } else { format!("Remove {name}?") }
    });
    let what = move || {
        if own() {
            "You see and do nothing more here from the next moment on. API tokens that you made stop working, invitations that you sent are withdrawn. Jobs that you launched go on. Only an owner can invite you again."
        } else {
            "They see and do nothing more here from the next moment on. API tokens that they made stop working, invitations that they sent are withdrawn. Jobs that they launched go on, and are charged as before."
        }
    };
    let verb = Signal::derive(move || {
        let verb = if own() { "Leave organization" } else { "Remove member" };
        verb.to_owned()
    });
    let remove = move |()| {
        let Some(member) = hands.doomed.one.get_untracked() else { return };
        let user = member.user;
        call.run(api::members::remove(hands.desk.org, user), move |()| {
            if user == hands.me {
                // A full load: nothing of the organization stays in the page.
                leave_for("/");
                return;
            }
            hands.doomed.open.set(false);
            hands.said.set(format!("{} was removed.", member.name));
            hands.desk.members.update(|members| members.retain(|known| known.user != user));
            hands.desk.look_again();
        });
    };
    view! {
        <ConfirmDialog
            id="remove-member"
            title=title
            open=hands.doomed.open
            call=call
            keep="Cancel"
            verb=verb
            confirm=Callback::new(remove)
        >
            <p>{what}</p>
        </ConfirmDialog>
    }
}
