//! Page of the accounts of all people, with a filter by text. The filter is in the URL.

use std::future::Future;

use berth_types::change_requests::{ChangeRequest, Outcome};
use berth_types::ids::UserId;
use berth_types::operators::OperatorRight;
use berth_types::people::{DisableUser, Person};
use leptos::prelude::*;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use super::super::confirm::{ConfirmDialog, ConfirmTarget};
use super::super::dialog_form::DialogForm;
use super::super::load_more::LoadMore;
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, ready};
use super::waiting::WaitingNotice;
use super::{may, read_only};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

const FIELDS: &[&str] = &["/reason"];

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    text: String,
    people: Vec<Person>,
    cursor: Option<String>,
}

fn load(text: String) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let people = api::people::list(&text, None);
    async move {
        let page = people.await?;
        Ok(Loaded { text, people: page.items, cursor: page.next_cursor })
    }
}

/// The page of all people.
#[component]
pub fn PeoplePage() -> impl IntoView {
    if may(OperatorRight::Inspect) {
        view! { <People/> }.into_any()
    } else {
        view! { <NotFound/> }.into_any()
    }
}

#[component]
fn People() -> impl IntoView {
    let query = use_query_map();
    let text = Memo::new(move |_| {
        query.with(|query| query.get("text").map(|text| text.trim().to_owned()).unwrap_or_default())
    });
    let data: Resource<Answer<Loaded>> = Resource::new(move || text.get(), load);
    view! {
        <Page title="People".to_owned()>
            <p class="page__lead">
                "A disabled account has no sessions, and its password and API tokens are refused. Jobs of the person continue."
            </p>
            {read_only(OperatorRight::ManageOrgs)}
            {answer_view(data, |loaded| view! { <PeopleView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// Returns the filter as a plain form, which also works without scripts.
fn filter_form(text: String) -> AnyView {
    let clear = (!text.is_empty())
        .then(|| view! { <a class="btn btn--quiet" href="/operator/people">"Clear filters"</a> });
    view! {
        <form class="filters" method="get" action="/operator/people" aria-label="Filter">
            <label class="filters__field" for="people-text">
                "Name or e-mail"
                <input class="input" id="people-text" name="text" autocomplete="off" maxlength="100" value=text/>
            </label>
            <button class="btn" type="submit">"Apply filter"</button>
            {clear}
        </form>
    }
    .into_any()
}

/// The signals of the rows and the dialog.
#[derive(Clone, Copy)]
struct PeopleState {
    people: RwSignal<Vec<Person>>,
    /// The person of the dialog.
    chosen: RwSignal<Option<Person>>,
    open: RwSignal<bool>,
    /// The request that enables an account.
    enabling: Call,
    /// The person whose second factor the operator removes.
    factor: ConfirmTarget<Person>,
    /// The result of the last action.
    status: RwSignal<String>,
    /// The last enabling, if it waits for a second operator.
    waiting: RwSignal<Option<ChangeRequest>>,
    me: UserId,
    ready: ReadSignal<bool>,
}

impl PeopleState {
    /// Shows an enabled account, or the change request of an operator's account.
    fn show_enabled(self, outcome: Outcome<Person>) {
        match outcome {
            Outcome::Requested(request) => {
                self.status.set(String::new());
                self.waiting.set(Some(*request));
            }
            Outcome::Done(person) => {
                self.waiting.set(None);
                self.update(person);
            }
        }
    }

    /// Shows the new state of a person.
    fn update(self, person: Person) {
        let state = if person.disabled_at.is_some() { "disabled" } else { "enabled" };
        self.replace(person, state);
    }

    /// Shows the new data of a person, and the result of the last action.
    fn replace(self, person: Person, result: &str) {
        self.status.set(format!("{}: {result}.", person.user.name));
        self.people.update(|people| {
            if let Some(known) = people.iter_mut().find(|known| known.user.id == person.user.id) {
                *known = person;
            }
        });
    }
}

#[component]
fn PeopleView(loaded: Loaded) -> impl IntoView {
    let Loaded { text, people, cursor } = loaded;
    let form = filter_form(text.clone());
    let text = StoredValue::new(text);
    let state = PeopleState {
        people: RwSignal::new(people),
        chosen: RwSignal::new(None),
        open: RwSignal::new(false),
        enabling: Call::idle(),
        factor: ConfirmTarget::none(),
        status: RwSignal::new(String::new()),
        waiting: RwSignal::new(None),
        me: use_session().me.user.id,
        ready: ready(),
    };
    let cursor = RwSignal::new(cursor);
    let more = Call::idle();
    let load_more = move |()| {
        let next = text.with_value(|text| api::people::list(text, cursor.get_untracked()));
        more.run(next, move |page: berth_types::Page<Person>| {
            state.people.update(|people| people.extend(page.items));
            cursor.set(page.next_cursor);
        });
    };
    view! {
        <WaitingNotice waiting=state.waiting/>
        {form}
        <section class="section">
            <CallProblem call=state.enabling beside_fields=&[]/>
            {move || state.people.with(|people| table(people, state))}
            <p class="quiet said" role="status">{move || state.status.get()}</p>
        </section>
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
        <DisableDialog state=state/>
        <FactorDialog state=state/>
    }
}

fn table(people: &[Person], state: PeopleState) -> AnyView {
    if people.is_empty() {
        return empty_filtered("No accounts match the filter.", "/operator/people");
    }
    table_of(
        "Accounts, newest first",
        &[
            ("Person", ""),
            ("State", ""),
            ("Organizations", "num"),
            ("Created", ""),
            ("Last seen", ""),
            ACTIONS,
        ],
        people.iter().map(|person| row(person, state)).collect(),
    )
}

/// Returns the states of an account in words.
fn state_text(person: &Person) -> String {
    if person.deleted_at.is_some() {
        return "deleted".to_owned();
    }
    if let Some(reason) = &person.disabled_reason {
        return format!("disabled: {reason}");
    }
    let verified = if person.email_verified_at.is_some() { "active" } else { "e-mail not verified" };
    if person.user.operator { format!("{verified}, operator") } else { verified.to_owned() }
}

fn row(person: &Person, state: PeopleState) -> AnyView {
    let (name, email) = (person.user.name.clone(), person.user.email.clone());
    let last_seen = match person.last_seen_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => "no session".into_any(),
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}<span class="table__sub break">{email}</span></th>
            <td role="cell" data-label="State"><span class="break">{state_text(person)}</span></td>
            <td role="cell" class="num" data-label="Organizations">{person.organizations}</td>
            <td role="cell" class="nowrap" data-label="Created"><When at=person.created_at/></td>
            <td role="cell" class="nowrap" data-label="Last seen">{last_seen}</td>
            <td role="cell" class="table__actions">{factor_button(person, state)}{action(person, state)}</td>
        </tr>
    }
    .into_any()
}

/// Returns true if the operator changes the account of a person. Only owners change accounts of operators.
fn may_change(person: &Person) -> bool {
    let right = if person.user.operator { OperatorRight::ManagePortal } else { OperatorRight::ManageOrgs };
    person.deleted_at.is_none() && may(right)
}

/// Returns the button that removes a second factor; none without a factor and for the operator's own account.
fn factor_button(person: &Person, state: PeopleState) -> Option<AnyView> {
    if !person.second_factor || !may_change(person) || person.user.id == state.me {
        return None;
    }
    let label = format!("Remove second factor of {}", person.user.name);
    Some(state.factor.button(person.clone(), "Remove second factor", label, state.ready))
}

/// Returns the button of a row; none for a deleted account and for the operator's own one.
fn action(person: &Person, state: PeopleState) -> Option<AnyView> {
    let id = person.user.id;
    if !may_change(person) || id == state.me {
        return None;
    }
    if person.disabled_at.is_some() {
        let label = format!("Enable {}", person.user.name);
        let enable = move |_: leptos::ev::MouseEvent| {
            let enabled = move |outcome: Outcome<Person>| state.show_enabled(outcome);
            state.enabling.run(api::people::enable(id), enabled);
        };
        let button = view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=move || !state.ready.get() || state.enabling.pending.get()
                on:click=enable
            >
                "Enable"
            </button>
        };
        return Some(button.into_any());
    }
    let (label, chosen) = (format!("Disable {}", person.user.name), person.clone());
    let button = view! {
        <button
            class="btn btn--danger btn--small"
            type="button"
            aria-label=label
            disabled=move || !state.ready.get()
            on:click=move |_| {
                state.chosen.set(Some(chosen.clone()));
                state.open.set(true);
            }
        >
            "Disable"
        </button>
    };
    Some(button.into_any())
}

#[component]
fn FactorDialog(state: PeopleState) -> impl IntoView {
    let call = Call::idle();
    let target = state.factor;
    let title = Signal::derive(move || {
        target.one.with(|person| match person {
            Some(person) => format!("Remove the second factor of {}?", person.user.name),
            None => "Remove the second factor?".to_owned(),
        })
    });
    let remove = move |()| {
        let Some(user) = target.one.with_untracked(|person| person.as_ref().map(|person| person.user.id))
        else {
            return;
        };
        call.run(api::people::remove_factors(user), move |person: Person| {
            state.replace(person, "second factor removed");
            target.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="remove-factor"
            title=title
            open=target.open
            call=call
            keep="Keep second factor"
            verb="Remove second factor"
            confirm=Callback::new(remove)
        >
            <p>
                "Do this only for a person whom you know: the password alone signs in afterwards. The sessions of the person end, and the person gets a mail."
            </p>
        </ConfirmDialog>
    }
}

#[component]
fn DisableDialog(state: PeopleState) -> impl IntoView {
    let call = Call::idle();
    let open = state.open;
    let reason = RwSignal::new(String::new());
    let title = Signal::derive(move || {
        state.chosen.with(|person| match person {
            Some(person) => format!("Disable the account of {}?", person.user.name),
            None => "Disable the account?".to_owned(),
        })
    });
    // Two people may have one name.
    let email = move || state.chosen.with(|person| person.as_ref().map(|person| person.user.email.clone()));
    let reset = move |()| reason.set(String::new());
    let submit = move |()| {
        let Some(user) = state.chosen.with_untracked(|person| person.as_ref().map(|person| person.user.id))
        else {
            return;
        };
        let body = DisableUser { reason: reason.get_untracked() };
        call.run(api::people::disable(user, &body), move |person: Person| {
            state.update(person);
            open.set(false);
        });
    };
    view! {
        <DialogForm
            id="disable-account"
            title=title
            open=open
            call=call
            keep="Keep account enabled"
            verb="Disable account"
            danger=true
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p class="quiet break">{email}</p>
            <p>
                "Sessions, terminals, ports and streams of the person end at once. The password and the API tokens are refused until you enable the account. Jobs continue and are charged."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <TextField
                label="Reason"
                id="disable-reason"
                max_length=300
                value=reason
                hint="Shown to the person at the sign-in."
                error=call.field("/reason")
            />
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_one_state() {
        let person = |more: serde_json::Value| -> Person {
            let mut fields = serde_json::json!({
                "user": {"id": "user_00000000000000000000000001", "email": "a@b", "name": "A", "operator": false},
                "created_at": "2026-03-01T09:00:00Z", "organizations": 1,
            });
            let all = fields.as_object_mut().unwrap();
            all.extend(more.as_object().unwrap().clone());
            serde_json::from_value(fields).unwrap()
        };
        let at = "2026-03-01T09:00:00Z";
        for (more, text) in [
            (serde_json::json!({}), "e-mail not verified"),
            (serde_json::json!({"email_verified_at": at}), "active"),
            (serde_json::json!({"disabled_at": at, "disabled_reason": "Unpaid."}), "disabled: Unpaid."),
            (serde_json::json!({"deleted_at": at}), "deleted"),
        ] {
            assert_eq!(state_text(&person(more)), text);
        }
    }
}
