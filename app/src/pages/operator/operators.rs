//! Page of the operators with their roles. Owners add, change and remove operators; others read the list.

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::change_requests::{ChangePolicy, ChangeRequest, Outcome};
use berth_types::ids::UserId;
use berth_types::operators::{
    ChangeOperator, NewOperator, Operator, OperatorRight, OperatorRole, RemoveOperator,
};
use futures::try_join;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::card_form::CardForm;
use super::super::dialog_form::DialogForm;
use super::super::load_more::{LoadMore, append};
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, FormKey, open_url, ready};
use super::waiting::{EffectTime, WaitingNotice};
use super::{may, read_only};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

const FIELDS: &[&str] = &["/email", "/reason"];

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    rows: Rows<Operator>,
    policy: ChangePolicy,
}

fn load() -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (rows, policy) = (api::operators::list(None), api::change_requests::policy());
    async move {
        let (rows, policy) = try_join!(rows, policy)?;
        Ok(Loaded { rows, policy })
    }
}

/// The page of the operators, for roles that read people.
#[component]
pub fn OperatorsPage() -> impl IntoView {
    if may(OperatorRight::Inspect) {
        view! { <Operators/> }.into_any()
    } else {
        view! { <NotFound/> }.into_any()
    }
}

#[component]
fn Operators() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Operators".to_owned()>
            <p class="page__lead">
                "Each operator has one role. A new role counts from the next request on, and each change is in the audit log. With the rule for a second operator another owner must approve a change that gives a right."
            </p>
            {read_only(OperatorRight::ManagePortal)}
            {answer_view(data, |loaded| view! { <OperatorsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// The act of a dialog.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Change,
    Remove,
}

/// The signals of the rows and the dialogs.
#[derive(Clone, Copy)]
struct PageState {
    operators: RwSignal<Vec<Operator>>,
    /// The operator of the dialog.
    chosen: RwSignal<Option<Operator>>,
    changing: RwSignal<bool>,
    removing: RwSignal<bool>,
    /// The result of the last action.
    status: RwSignal<String>,
    /// The last action, if it waits for a second operator.
    waiting: RwSignal<Option<ChangeRequest>>,
    /// True with the rule for a second operator.
    second_operator: bool,
    me: UserId,
    /// True if the role changes operators.
    manages: bool,
    ready: ReadSignal<bool>,
}

impl PageState {
    fn open(self, operator: Operator, act: Act) {
        self.chosen.set(Some(operator));
        match act {
            Act::Change => self.changing.set(true),
            Act::Remove => self.removing.set(true),
        }
    }

    fn chosen_name(self) -> String {
        self.chosen.with(|one| one.as_ref().map_or_else(|| "the operator".to_owned(), |one| one.name.clone()))
    }

    /// Shows the result of an action, or its change request.
    fn show(self, outcome: Outcome<Operator>) {
        match outcome {
            Outcome::Requested(request) => {
                self.status.set(String::new());
                self.waiting.set(Some(*request));
            }
            Outcome::Done(operator) => {
                self.waiting.set(None);
                self.replace(operator);
            }
        }
    }

    /// Shows an operator after a change. The own role decides about all pages, so they load again.
    fn replace(self, operator: Operator) {
        if operator.user == self.me {
            open_url("/operator");
            return;
        }
        self.status.set(format!("{}: {}.", operator.name, operator.role.name()));
        self.operators.update(|all| {
            if let Some(known) = all.iter_mut().find(|known| known.user == operator.user) {
                *known = operator;
            } else {
                all.insert(0, operator);
            }
        });
    }
}

#[component]
fn OperatorsView(loaded: Loaded) -> impl IntoView {
    let Loaded { rows, policy } = loaded;
    let state = PageState {
        operators: RwSignal::new(rows.items),
        chosen: RwSignal::new(None),
        changing: RwSignal::new(false),
        removing: RwSignal::new(false),
        status: RwSignal::new(String::new()),
        waiting: RwSignal::new(None),
        second_operator: policy.second_operator,
        me: use_session().me.user.id,
        manages: may(OperatorRight::ManagePortal),
        ready: ready(),
    };
    let cursor = RwSignal::new(rows.next_cursor);
    let more = Call::idle();
    let load_more = move |()| {
        more.run(api::operators::list(cursor.get_untracked()), move |page: Rows<Operator>| {
            state.operators.update(|all| append(all, page.items, |operator| operator.user));
            cursor.set(page.next_cursor);
        });
    };
    let form = state.manages.then(|| view! { <AddForm state=state/> });
    let dialogs = state.manages.then(|| view! { <ChangeDialog state=state/><RemoveDialog state=state/> });
    view! {
        <WaitingNotice waiting=state.waiting/>
        {form}
        <section class="section">
            {table(state)}
            <p class="quiet said" role="status">{move || state.status.get()}</p>
        </section>
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
        {roles()}
        {dialogs}
    }
}

/// The rights of each role.
fn roles() -> AnyView {
    let row = |role: OperatorRole| {
        view! {
            <tr role="row">
                <th role="rowheader" scope="row">{role.name()}</th>
                <td role="cell" data-label="Rights">{role.description()}</td>
            </tr>
        }
        .into_any()
    };
    let rows = OperatorRole::ALL.into_iter().map(row).collect();
    view! {
        <section class="section">
            <h2>"Roles"</h2>
            {table_of("Roles and their rights", &[("Role", ""), ("Rights", "")], rows)}
        </section>
    }
    .into_any()
}

fn table(state: PageState) -> AnyView {
    // A row is drawn again after a change of its role.
    let rows = view! {
        <For
            each=move || state.operators.get()
            key=|operator: &Operator| (operator.user, operator.role)
            children=move |operator: Operator| row(&operator, state)
        />
    };
    live_table(
        "Operators, newest account first",
        &[("Operator", ""), ("Role", ""), ("Second factor", ""), ("Last seen", ""), ACTIONS],
        rows.into_any(),
    )
}

/// Returns the button of a row that opens a dialog.
fn button(operator: &Operator, act: Act, state: PageState) -> AnyView {
    let (class, verb, label) = match act {
        Act::Change => ("btn btn--small", "Change role", format!("Change role of {}", operator.name)),
        Act::Remove => ("btn btn--danger btn--small", "Remove", format!("Remove {}", operator.name)),
    };
    let operator = operator.clone();
    view! {
        <button
            class=class
            type="button"
            aria-label=label
            disabled=move || !state.ready.get()
            on:click=move |_| state.open(operator.clone(), act)
        >
            {verb}
        </button>
    }
    .into_any()
}

fn row(operator: &Operator, state: PageState) -> AnyView {
    let (name, email) = (operator.name.clone(), operator.email.clone());
    let you = (operator.user == state.me).then(|| view! { <span class="table__sub">"you"</span> });
    let disabled = operator.disabled_at.map(|_| view! { <span class="table__sub">"account disabled"</span> });
    let factor = if operator.second_factor { "yes" } else { "no" };
    let last_seen = match operator.last_seen_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => "no session".into_any(),
    };
    let buttons =
        state.manages.then(|| Vec::from([Act::Change, Act::Remove].map(|act| button(operator, act, state))));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}<span class="table__sub break">{email}</span>{you}</th>
            <td role="cell" data-label="Role">{operator.role.name()}{disabled}</td>
            <td role="cell" data-label="Second factor">{factor}</td>
            <td role="cell" class="nowrap" data-label="Last seen">{last_seen}</td>
            <td role="cell" class="table__actions">{buttons}</td>
        </tr>
    }
    .into_any()
}

/// The select of a role with its rights below.
#[component]
fn OperatorRoleField(
    /// The id of the field; unique in the page.
    id: &'static str,
    /// The chosen role.
    role: RwSignal<OperatorRole>,
) -> impl IntoView {
    let option = move |one: OperatorRole| {
        let initial = role.get_untracked() == one;
        view! {
            <option value=one.name() selected=initial prop:selected=move || role.get() == one>
                {one.name()}
            </option>
        }
    };
    let hint = Signal::derive(move || role.get().description().to_owned());
    let choose = move |name: String| {
        if let Some(chosen) = OperatorRole::parse(&name) {
            role.set(chosen);
        }
    };
    view! {
        <SelectField label="Role" id=id hint=hint choose=Callback::new(choose)>
            {OperatorRole::ALL.into_iter().map(option).collect_view()}
        </SelectField>
    }
}

/// The field of the reason for the audit log.
#[component]
fn ReasonField(
    /// The id of the field; unique in the page.
    id: &'static str,
    reason: RwSignal<String>,
    error: Signal<Option<String>>,
) -> impl IntoView {
    view! {
        <TextField label="Reason" id=id max_length=300 value=reason hint="Shown in the audit log." error=error/>
    }
}

/// The form of a new operator.
#[component]
fn AddForm(state: PageState) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let (email, reason) = (RwSignal::new(String::new()), RwSignal::new(String::new()));
    let role = RwSignal::new(OperatorRole::Auditor);
    let submit = move |()| {
        let body = NewOperator {
            email: email.get_untracked().trim().to_owned(),
            role: role.get_untracked(),
            reason: reason.get_untracked().trim().to_owned(),
        };
        call.run(api::operators::add(&body, key.for_body(&body)), move |outcome: Outcome<Operator>| {
            key.reset();
            state.show(outcome);
            email.set(String::new());
            reason.set(String::new());
        });
    };
    view! {
        <CardForm
            title="New operator"
            call=call
            beside_fields=FIELDS
            verb="Add operator"
            submit=Callback::new(submit)
        >
            <div class="field-row">
                <Field
                    label="E-mail"
                    name="operator-email"
                    kind="email"
                    value=email
                    hint=Some("Of an account with a password. The sessions of the person end.".to_owned())
                    error=call.field("/email")
                />
                <OperatorRoleField id="operator-role" role=role/>
            </div>
            <ReasonField id="operator-reason" reason=reason error=call.field("/reason")/>
            <EffectTime waits=state.second_operator at_once="The person is an operator at once."/>
        </CardForm>
    }
}

/// The dialog of another role.
#[component]
fn ChangeDialog(state: PageState) -> impl IntoView {
    let call = Call::idle();
    let open = state.changing;
    let reason = RwSignal::new(String::new());
    let role = RwSignal::new(OperatorRole::Auditor);
    let title = Signal::derive(move || format!("Change role of {}", state.chosen_name()));
    // A lower role needs no approval.
    let gives_right = move || {
        let present = state.chosen.with(|one| one.as_ref().map(|one| one.role));
        present.is_some_and(|present| role.get().exceeds(present))
    };
    let waits = Signal::derive(move || state.second_operator && gives_right());
    let reset = move |()| {
        reason.set(String::new());
        if let Some(present) = state.chosen.with_untracked(|one| one.as_ref().map(|one| one.role)) {
            role.set(present);
        }
    };
    let submit = move |()| {
        let Some(user) = state.chosen.with_untracked(|one| one.as_ref().map(|one| one.user)) else { return };
        let body =
            ChangeOperator { role: role.get_untracked(), reason: reason.get_untracked().trim().to_owned() };
        call.run(api::operators::change(user, &body), move |outcome: Outcome<Operator>| {
            state.show(outcome);
            open.set(false);
        });
    };
    view! {
        <DialogForm
            id="change-operator"
            title=title
            open=open
            call=call
            keep="Keep role"
            verb="Change role"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <EffectTime
                waits=waits
                at_once="Sessions and API tokens of the operator stay and have the new role at once."
            />
            <CallProblem call=call beside_fields=FIELDS/>
            <OperatorRoleField id="change-role" role=role/>
            <ReasonField id="change-reason" reason=reason error=call.field("/reason")/>
        </DialogForm>
    }
}

/// The dialog of the removal.
#[component]
fn RemoveDialog(state: PageState) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let open = state.removing;
    let reason = RwSignal::new(String::new());
    let title = Signal::derive(move || format!("Remove {} as an operator?", state.chosen_name()));
    let reset = move |()| reason.set(String::new());
    let submit = move |()| {
        let Some(operator) = state.chosen.get_untracked() else { return };
        let user = operator.user;
        let body = RemoveOperator { reason: reason.get_untracked().trim().to_owned() };
        let once = key.for_text(format!("{user} {}", body.reason));
        call.run(api::operators::remove(user, &body, once), move |()| {
            key.reset();
            if user == state.me {
                open_url("/");
                return;
            }
            state.status.set(format!("{}: removed.", operator.name));
            state.operators.update(|all| all.retain(|one| one.user != user));
            open.set(false);
        });
    };
    view! {
        <DialogForm
            id="remove-operator"
            title=title
            open=open
            call=call
            keep="Keep operator"
            verb="Remove operator"
            danger=true
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                "The person loses all rights of an operator at once, and the operator's API tokens of the person end. The account and its organizations stay."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <ReasonField id="remove-reason" reason=reason error=call.field("/reason")/>
        </DialogForm>
    }
}
