//! Table of members with the controls of role and removal.
//!
//! Owners see the controls; the portal checks all rights.

use berth_types::Page as Rows;
use berth_types::accounts::Role;
use berth_types::ids::UserId;
use berth_types::members::Member;
use leptos::prelude::*;

use super::super::confirm::{ConfirmDialog, ConfirmTarget};
use super::super::curl::ListCurl;
use super::super::load_more::LoadMore;
use super::super::parts::{Call, CallProblem, open_url, ready};
use super::super::roles::role_options;
use super::PageState;
use crate::address::use_org_links;
use crate::api;
use crate::session::use_session;
use crate::ui::*;

/// The state of the rows and the dialog.
#[derive(Clone, Copy)]
struct MemberActions {
    state: PageState,
    me: UserId,
    /// The request that changes a role.
    call: Call,
    /// The result of the last change.
    status: RwSignal<String>,
    /// The member of the dialog.
    target: ConfirmTarget<Member>,
    ready: ReadSignal<bool>,
}

/// The table of all members.
#[component]
pub(super) fn People(
    /// The state of the page.
    state: PageState,
    /// The cursor of the next page.
    cursor: Option<String>,
) -> impl IntoView {
    let actions = MemberActions {
        state,
        me: use_session().me.user.id,
        call: Call::idle(),
        status: RwSignal::new(String::new()),
        target: ConfirmTarget::none(),
        ready: ready(),
    };
    let cursor = RwSignal::new(cursor);
    let more = Call::idle();
    let load_more = move |()| {
        let next = api::members::list(state.org, cursor.get_untracked());
        more.run(next, move |page: Rows<Member>| {
            state.members.update(|members| {
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
                <div class="section__aside" role="status">{move || actions.status.get()}</div>
            </div>
            <CallProblem call=actions.call beside_fields=&[]/>
            {table(actions)}
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
            <ListCurl path=Signal::derive(move || format!("/orgs/{}/members", state.org)) label="Members with curl"/>
        </section>
        <RemoveDialog actions=actions/>
    }
}

fn table(actions: MemberActions) -> AnyView {
    // Keyed by member, so that a select of roles stays in its row after a removal.
    let members = actions.state.members;
    let line = move |member: Member| row(&member, actions);
    let rows = view! { <For each=move || members.get() key=|member: &Member| member.user children=line/> };
    live_table(
        "Members",
        &[("Name", ""), ("E-mail", ""), ("Role", ""), ("Member since", ""), ACTIONS],
        rows.into_any(),
    )
}

/// A select of roles for owners, the name of the role for others.
fn role_cell(member: &Member, actions: MemberActions) -> AnyView {
    if !actions.state.owns {
        return member.role.name().into_any();
    }
    let user = member.user;
    let current = RwSignal::new(member.role);
    let label = format!("Role of {}", member.name);
    let choice = NodeRef::<leptos::html::Select>::new();
    // A failed change must not look successful.
    let reset = move || {
        if let (Some(Some(select)), Some(role)) = (choice.try_get_untracked(), current.try_get_untracked()) {
            select.set_value(role.name());
        }
    };
    let links = use_org_links();
    let change = move |ev: leptos::ev::Event| {
        let Some(role) = Role::parse(&event_target_value(&ev)) else { return };
        if actions.call.pending.get_untracked() {
            reset();
            return;
        }
        actions.status.set(String::new());
        let team = links.path("/team");
        let answer = api::members::change(actions.state.org, user, role);
        let work = async move {
            let answer = answer.await;
            if answer.is_err() {
                reset();
            }
            answer
        };
        actions.call.run(work, move |member: Member| {
            if user == actions.me {
                // The contents of the page depend on the role.
                open_url(&team);
                return;
            }
            actions.status.set(format!("Role of {}: {}.", member.name, member.role.name()));
            current.set(member.role);
            actions.state.reload_changes();
        });
    };
    view! {
        <select
            class="select"
            aria-label=label
            disabled=move || !actions.ready.get()
            node_ref=choice
            on:change=change
        >
            {role_options(member.role)}
        </select>
    }
    .into_any()
}

fn row(member: &Member, actions: MemberActions) -> AnyView {
    let own = member.user == actions.me;
    let name = member.name.clone();
    let email = member.email.clone();
    let you = own.then(|| view! { <span class="table__sub">"you"</span> });
    let (word, label) = if own {
        ("Leave", "Leave the organization".to_owned())
    } else {
        ("Remove", format!("Remove {}", member.name))
    };
    let button = (own || actions.state.owns)
        .then(|| actions.target.button(member.clone(), word, label, actions.ready));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{you}</th>
            <td role="cell" data-label="E-mail"><span class="break">{email}</span></td>
            <td role="cell" data-label="Role">{role_cell(member, actions)}</td>
            <td role="cell" class="nowrap" data-label="Member since"><When at=member.joined_at/></td>
            <td role="cell" class="table__actions">{button}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn RemoveDialog(actions: MemberActions) -> impl IntoView {
    let call = Call::idle();
    let own = move || actions.target.one.with(|member| member.as_ref().is_some_and(|m| m.user == actions.me));
    let title = Signal::derive(move || {
        let name =
            actions.target.one.with(|member| member.as_ref().map(|m| m.name.clone()).unwrap_or_default());
        if own() { "Leave the organization?".to_owned() } else { format!("Remove {name}?") }
    });
    let consequence = move || {
        if own() {
            "You lose access to this organization immediately. Your API tokens stop working, and your invitations are withdrawn. Your jobs continue and are charged as before. Only an owner can invite you again."
        } else {
            "The member loses access to this organization immediately. API tokens of the member stop working, and invitations by the member are withdrawn. Jobs of the member continue and are charged as before."
        }
    };
    let verb = Signal::derive(move || {
        let verb = if own() { "Leave organization" } else { "Remove member" };
        verb.to_owned()
    });
    let remove = move |()| {
        let Some(member) = actions.target.one.get_untracked() else { return };
        let user = member.user;
        call.run(api::members::remove(actions.state.org, user), move |()| {
            if user == actions.me {
                // A full load, so that no data of the organization remains in the page.
                open_url("/");
                return;
            }
            actions.target.open.set(false);
            actions.status.set(format!("{} removed.", member.name));
            actions.state.members.update(|members| members.retain(|known| known.user != user));
            actions.state.reload_changes();
        });
    };
    view! {
        <ConfirmDialog
            id="remove-member"
            title=title
            open=actions.target.open
            call=call
            keep="Cancel"
            verb=verb
            confirm=Callback::new(remove)
        >
            <p>{consequence}</p>
        </ConfirmDialog>
    }
}
