//! Page of the change requests: the waiting ones with their decision, the closed ones, and the rule for a second
//! operator.

mod policy;
mod reject;
mod text;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::change_requests::{ChangePolicy, ChangeRequest, ChangeState};
use berth_types::ids::{ChangeRequestId, UserId};
use berth_types::operators::{OperatorRight, OperatorRole};
use futures::try_join;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::policy::PolicySection;
use self::reject::RejectDialog;
use self::text::{merge, state_text, subject_text};
use super::super::confirm::{ConfirmDialog, ConfirmTarget};
use super::super::curl::ListCurl;
use super::super::limits::replace;
use super::super::load_more::LoadMore;
use super::super::org_data::answer_view;
use super::super::parts::{Call, every_visible, ready};
use super::{is_operator, may};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    pending: Vec<ChangeRequest>,
    newest: Rows<ChangeRequest>,
    policy: ChangePolicy,
}

fn load() -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (pending, newest) = (api::change_requests::pending(), api::change_requests::list(None));
    let policy = api::change_requests::policy();
    async move {
        let (pending, newest, policy) = try_join!(pending, newest, policy)?;
        Ok(Loaded { pending: pending.items, newest, policy })
    }
}

/// The page of the change requests.
#[component]
pub fn ChangesPage() -> impl IntoView {
    if is_operator() { view! { <Changes/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Changes() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    let is_part = !may(OperatorRight::Inspect);
    let part = is_part.then(|| {
        view! { <p class="quiet">"Your role reads your own requests and those that it decides."</p> }
    });
    view! {
        <Page title="Change requests".to_owned()>
            <p class="page__lead">
                "With a second operator required, nobody alone moves money, opens a job of an organization or gives a right of operators. Each such act waits here for another operator."
            </p>
            {part}
            {answer_view(data, |loaded| view! { <ChangesView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// The signals of the page.
#[derive(Clone, Copy)]
pub struct ChangesState {
    /// Newest first.
    all: RwSignal<Vec<ChangeRequest>>,
    policy: RwSignal<ChangePolicy>,
    approving: ConfirmTarget<ChangeRequest>,
    rejecting: ConfirmTarget<ChangeRequest>,
    withdrawing: ConfirmTarget<ChangeRequest>,
    /// The result of the last decision.
    status: RwSignal<String>,
    currency: StoredValue<String>,
    me: UserId,
    /// The role of the operator, with whose rights the buttons appear.
    role: Option<OperatorRole>,
    ready: ReadSignal<bool>,
}

impl ChangesState {
    /// Merges requests of an answer. The page may have been left meanwhile.
    fn merge_all(self, fresh: Vec<ChangeRequest>) {
        self.all.maybe_update(|all| {
            let merged = merge(all.clone(), fresh);
            let moved = *all != merged;
            *all = merged;
            moved
        });
    }

    /// Returns true if the role has the right of the act of a request.
    fn decides(self, request: &ChangeRequest) -> bool {
        self.role.is_some_and(|role| request.action.right().is_granted_to(role))
    }

    /// Sends the decision about the request of a dialog. The answer closes the dialog.
    fn send<F>(
        self,
        target: ConfirmTarget<ChangeRequest>,
        call: Call,
        decision: impl FnOnce(ChangeRequestId) -> F,
    ) where
        F: Future<Output = Answer<ChangeRequest>> + 'static,
    {
        let Some(id) = target.one.with_untracked(|one| one.as_ref().map(|one| one.id)) else { return };
        call.run(decision(id), move |request: ChangeRequest| {
            self.decided(request);
            target.open.set(false);
        });
    }

    /// Shows a decided request.
    fn decided(self, request: ChangeRequest) {
        self.status.set(format!("{}: {}.", request.action.title(), request.state.name()));
        self.merge_all(vec![request]);
        // The decision may have changed the rule.
        self.reload();
    }

    fn reload(self) {
        let loaded = load();
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(loaded) = loaded.await {
                self.merge_all(loaded.newest.items);
                self.merge_all(loaded.pending);
                replace(self.policy, loaded.policy);
            }
        });
    }
}

#[component]
fn ChangesView(loaded: Loaded) -> impl IntoView {
    let Loaded { pending, newest: Rows { items, next_cursor }, policy } = loaded;
    let me = use_session().me;
    let state = ChangesState {
        all: RwSignal::new(merge(items, pending)),
        policy: RwSignal::new(policy),
        approving: ConfirmTarget::none(),
        rejecting: ConfirmTarget::none(),
        withdrawing: ConfirmTarget::none(),
        status: RwSignal::new(String::new()),
        currency: StoredValue::new(me.currency),
        me: me.user.id,
        role: me.operator_role,
        ready: ready(),
    };
    every_visible(30_000, move || state.reload());
    let is_pending = |request: &ChangeRequest| request.state == ChangeState::Pending;
    let waiting =
        move || state.all.with(|all| all.iter().filter(|one| is_pending(one)).cloned().collect::<Vec<_>>());
    let none = Memo::new(move |_| state.all.with(|all| !all.iter().any(is_pending)));
    let own = Memo::new(move |_| {
        state.all.with(|all| all.iter().filter(|one| is_pending(one) && one.requested_by == state.me).count())
    });
    view! {
        <div class="banner banner--info" hidden=move || own.get() == 0>
            <div class="banner__text">
                <strong class="banner__title">"Your change requests wait for a second operator"</strong>
                "Nothing was changed yet. You cannot approve your own requests."
            </div>
        </div>
        <section class="section">
            <div class="section__head">
                <h2>"Waiting"</h2>
                <div class="section__aside" role="status">{move || state.status.get()}</div>
            </div>
            <div class="empty" hidden=move || !none.get()>
                <p class="empty__text">"No change requests wait. Acts of operators that need a second operator appear here."</p>
            </div>
            <div class="stack" hidden=move || none.get()>
                <For
                    each=waiting
                    key=|request: &ChangeRequest| request.id
                    children=move |request: ChangeRequest| card(request, state)
                />
            </div>
        </section>
        <Closed state=state cursor=next_cursor/>
        <PolicySection state=state/>
        <ApproveDialog state=state/>
        <WithdrawDialog state=state/>
        <RejectDialog state=state/>
    }
}

/// A waiting request with its buttons, or with the roles that decide about it.
fn card(request: ChangeRequest, state: ChangesState) -> AnyView {
    let title = request.action.title();
    let subject = state.currency.with_value(|currency| subject_text(&request, currency));
    let lines: Vec<AnyView> = request
        .detail
        .lines()
        .map(|line| view! { <p class="break">{line.to_owned()}</p> }.into_any())
        .collect();
    let by = format!("{}, ", request.requested_by_name);
    let (at, expires_at) = (request.created_at, request.expires_at);
    let buttons = if request.requested_by == state.me {
        let label = format!("Withdraw: {title}, {subject}");
        let button = state.withdrawing.button(request, "Withdraw", label, state.ready);
        view! { <div class="form__actions">{button}</div> }.into_any()
    } else if !state.decides(&request) {
        let roles = request.action.right().roles_text();
        let text =
            format!("Your role reads this request. An operator with the role {roles} decides about it.");
        view! { <p class="quiet">{text}</p> }.into_any()
    } else {
        let (approve, reject) =
            (format!("Approve: {title}, {subject}"), format!("Reject: {title}, {subject}"));
        let chosen = request.clone();
        view! {
            <div class="form__actions">
                <button
                    class="btn btn--primary btn--small"
                    type="button"
                    aria-label=approve
                    disabled=move || !state.ready.get()
                    on:click=move |_| {
                        state.approving.one.set(Some(chosen.clone()));
                        state.approving.open.set(true);
                    }
                >
                    "Approve"
                </button>
                {state.rejecting.button(request, "Reject", reject, state.ready)}
            </div>
        }
        .into_any()
    };
    view! {
        <article class="card">
            <div class="card__head">
                <h3 class="card__title">{title}</h3>
                <span class="card__aside">{by} <When at=at/></span>
            </div>
            <p class="break"><strong>{subject}</strong></p>
            {lines}
            <p class="quiet">"Expires: " <When at=expires_at/></p>
            {buttons}
        </article>
    }
    .into_any()
}

/// The requests with a decision, and the expired ones.
#[component]
fn Closed(state: ChangesState, cursor: Option<String>) -> impl IntoView {
    let cursor = RwSignal::new(cursor);
    let more = Call::idle();
    let load_more = move |()| {
        let next = api::change_requests::list(cursor.get_untracked());
        more.run(next, move |page: Rows<ChangeRequest>| {
            state.merge_all(page.items);
            cursor.set(page.next_cursor);
        });
    };
    let table = move || {
        state.all.with(|all| {
            let closed = all.iter().filter(|one| one.state != ChangeState::Pending);
            let rows: Vec<AnyView> = closed.map(|one| row(one, state)).collect();
            if rows.is_empty() {
                return empty("No change request was decided yet.");
            }
            let heads =
                [("Act", ""), ("Subject", ""), ("Requested by", ""), ("Requested", ""), ("Decision", "")];
            table_of("Closed change requests, newest first", &heads, rows)
        })
    };
    view! {
        <section class="section">
            <div class="section__head"><h2>"Closed"</h2></div>
            {table}
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
            <ListCurl path="/operator/change-requests" label="Change requests with curl"/>
        </section>
    }
}

fn row(request: &ChangeRequest, state: ChangesState) -> AnyView {
    let subject = state.currency.with_value(|currency| subject_text(request, currency));
    let detail = request.detail.lines().next().unwrap_or_default().to_owned();
    let decided = request.decided_at.map(|at| view! { <span class="table__sub"><When at=at/></span> });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">
                {request.action.title()}<span class="table__sub break">{detail}</span>
            </th>
            <td role="cell" data-label="Subject"><span class="break">{subject}</span></td>
            <td role="cell" data-label="Requested by"><span class="break">{request.requested_by_name.clone()}</span></td>
            <td role="cell" class="nowrap" data-label="Requested"><When at=request.created_at/></td>
            <td role="cell" data-label="Decision"><span class="break">{state_text(request)}</span>{decided}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn ApproveDialog(state: ChangesState) -> impl IntoView {
    let call = Call::idle();
    let target = state.approving;
    let detail =
        move || target.one.with(|one| one.as_ref().map(|one| one.detail.clone()).unwrap_or_default());
    let approve = move |()| state.send(target, call, api::change_requests::approve);
    view! {
        <ConfirmDialog
            id="approve-change"
            title=target.title("Approve", "change request", |one| one.action.title())
            open=target.open
            call=call
            keep="Keep waiting"
            verb="Approve"
            confirm=Callback::new(approve)
        >
            <p class="break">{detail}</p>
            <p>"The act takes effect at once, after a new check of the present state. It is recorded with both names."</p>
        </ConfirmDialog>
    }
}

#[component]
fn WithdrawDialog(state: ChangesState) -> impl IntoView {
    let call = Call::idle();
    let target = state.withdrawing;
    let withdraw = move |()| state.send(target, call, api::change_requests::withdraw);
    view! {
        <ConfirmDialog
            id="withdraw-change"
            title=target.title("Withdraw", "change request", |one| one.action.title())
            open=target.open
            call=call
            keep="Keep request"
            verb="Withdraw request"
            confirm=Callback::new(withdraw)
        >
            <p>"The request ends without effect. You can send it again."</p>
        </ConfirmDialog>
    }
}
