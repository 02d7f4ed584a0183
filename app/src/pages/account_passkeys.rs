//! The passkeys of the signed-in person.

use berth_types::ids::PasskeyId;
use berth_types::passkeys::{AddedPasskey, NewPasskey, Passkey, RenamePasskey};
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::confirm::{ConfirmDialog, ConfirmTarget};
use super::dialog_form::DialogForm;
use super::parts::{Call, CallProblem, Submit, ready};
use crate::ui::*;
use crate::{api, passkeys};

const FIELDS: &[&str] = &["/name"];
/// Characters of a name; the same as in the portal.
const MAX_NAME_CHARS: usize = 100;

/// A passkey in a dialog.
type Named = (PasskeyId, String);

/// Returns the problem of a name. A name is checked before the browser makes a passkey that nobody would have.
fn problem_of_name(name: &str) -> Option<Problem> {
    match name.chars().count() {
        0 => Some(Problem::invalid_field("/name", "This field is required.")),
        1..=MAX_NAME_CHARS => None,
        _ => Some(Problem::invalid_field("/name", "Use at most 100 characters.")),
    }
}

/// The card with the passkeys and the form for another one.
#[component]
pub fn PasskeysCard(
    /// The passkeys.
    list: RwSignal<Vec<Passkey>>,
    /// False at an address without passkeys.
    available: bool,
    /// True with a confirmed app.
    has_app: RwSignal<bool>,
    /// Gets the recovery codes of the first second factor, or none.
    added: Callback<Vec<String>>,
    /// Runs after a removal.
    removed: Callback<()>,
) -> impl IntoView {
    let ready = ready();
    let status = RwSignal::new(String::new());
    let (renaming, removal) = (ConfirmTarget::<Named>::none(), ConfirmTarget::<Named>::none());
    let rows = view! {
        <For
            each=move || list.get()
            key=|passkey| (passkey.id, passkey.name.clone())
            children=move |passkey| row(&passkey, ready, renaming, removal)
        />
    }
    .into_any();
    let heads = [("Name", ""), ("Added", ""), ("Last used", ""), ACTIONS];
    let form = if available {
        view! { <AddPasskey list=list status=status added=added/> }.into_any()
    } else {
        view! {
            <p class="quiet">
                "Browsers have passkeys only at an https address with a domain name, and this portal has another address. Ask the operator for such an address."
            </p>
        }
        .into_any()
    };
    view! {
        <section class="card" aria-labelledby="passkeys">
            <h2 class="card__title" id="passkeys">"Passkeys"</h2>
            <p>
                "A passkey is on your phone, computer or security key. You unlock the device (finger, face or PIN) and are signed in, without password or code."
            </p>
            <div hidden=move || list.with(Vec::is_empty)>
                {table_of("Passkeys, oldest first", &heads, vec![rows])}
            </div>
            <p class="quiet said" role="status" hidden=move || !available && list.with(Vec::is_empty) && status.with(String::is_empty)>
                {move || status.get()}
            </p>
            {form}
        </section>
        <RenameDialog target=renaming list=list status=status/>
        <RemoveDialog target=removal list=list status=status has_app=has_app removed=removed/>
    }
}

fn row(
    passkey: &Passkey,
    ready: ReadSignal<bool>,
    renaming: ConfirmTarget<Named>,
    removal: ConfirmTarget<Named>,
) -> AnyView {
    let one = (passkey.id, passkey.name.clone());
    let used = match passkey.last_used_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => view! { <span class="quiet">"never"</span> }.into_any(),
    };
    let remove = removal.button(one.clone(), "Remove", format!("Remove {}", passkey.name), ready);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="break">{passkey.name.clone()}</span></th>
            <td role="cell" class="nowrap" data-label="Added"><When at=passkey.created_at/></td>
            <td role="cell" class="nowrap" data-label="Last used">{used}</td>
            <td role="cell" class="table__actions">
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=format!("Rename {}", passkey.name)
                    disabled=move || !ready.get()
                    on:click=move |_| {
                        renaming.one.set(Some(one.clone()));
                        renaming.open.set(true);
                    }
                >
                    "Rename"
                </button>
                {remove}
            </td>
        </tr>
    }
    .into_any()
}

/// The form for another passkey.
#[component]
fn AddPasskey(
    /// The passkeys.
    list: RwSignal<Vec<Passkey>>,
    /// The text about the last change.
    status: RwSignal<String>,
    /// Gets the recovery codes of the first second factor, or none.
    added: Callback<Vec<String>>,
) -> impl IntoView {
    let call = Call::idle();
    let name = RwSignal::new(String::new());
    let add = move |event: SubmitEvent| {
        event.prevent_default();
        let chosen = name.with_untracked(|name| name.trim().to_owned());
        if let Some(problem) = problem_of_name(&chosen) {
            call.problem.set(Some(problem));
            return;
        }
        let request = async move {
            let begun = api::passkeys::begin_registration().await?;
            let credential = passkeys::create(&begun.options).await?;
            api::passkeys::register(&NewPasskey { name: chosen, credential }).await
        };
        call.run(request, move |made: AddedPasskey| {
            name.set(String::new());
            status.set(format!("Passkey added: {}.", made.passkey.name));
            list.update(|list| list.push(made.passkey));
            // The page may have been left.
            let _ = added.try_run(made.recovery_codes);
        });
    };
    view! {
        <form class="form" method="post" on:submit=add>
            <CallProblem call=call beside_fields=FIELDS/>
            <Field
                label="Name of the new passkey"
                name="passkey-name"
                kind="text"
                value=name
                hint=Some("Such as the device that keeps it.".to_owned())
                error=call.field("/name")
            />
            <div class="form__actions">
                <Submit call=call quiet=true>"Add passkey"</Submit>
            </div>
        </form>
    }
}

#[component]
fn RenameDialog(
    /// The passkey with another name.
    target: ConfirmTarget<Named>,
    /// The passkeys.
    list: RwSignal<Vec<Passkey>>,
    /// The text about the last change.
    status: RwSignal<String>,
) -> impl IntoView {
    let call = Call::idle();
    let name = RwSignal::new(String::new());
    let reset = move |()| {
        let present = target.one.with_untracked(|one| one.as_ref().map(|one| one.1.clone()));
        name.set(present.unwrap_or_default());
    };
    let submit = move |()| {
        let Some((id, _)) = target.one.get_untracked() else { return };
        let body = RenamePasskey { name: name.with_untracked(|name| name.trim().to_owned()) };
        call.run_for(
            move || {
                target.one.try_with_untracked(|one| one.as_ref().is_some_and(|one| one.0 == id)) == Some(true)
            },
            api::passkeys::rename(id, &body),
            move |fresh: Passkey, shown| {
                if shown {
                    target.open.set(false);
                }
                status.set(format!("Passkey renamed: {}.", fresh.name));
                list.update(|list| {
                    if let Some(known) = list.iter_mut().find(|known| known.id == id) {
                        *known = fresh;
                    }
                });
            },
        );
    };
    view! {
        <DialogForm
            id="rename-passkey"
            title="Rename the passkey"
            open=target.open
            call=call
            keep="Keep name"
            verb="Rename passkey"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <CallProblem call=call beside_fields=FIELDS/>
            <Field label="New name" name="passkey-new-name" kind="text" value=name error=call.field("/name")/>
        </DialogForm>
    }
}

#[component]
fn RemoveDialog(
    /// The passkey to remove.
    target: ConfirmTarget<Named>,
    /// The passkeys.
    list: RwSignal<Vec<Passkey>>,
    /// The text about the last change.
    status: RwSignal<String>,
    /// True with a confirmed app.
    has_app: RwSignal<bool>,
    /// Runs after the removal.
    removed: Callback<()>,
) -> impl IntoView {
    let call = Call::idle();
    let is_last = move || !has_app.get() && list.with(Vec::len) < 2;
    let remove = move |()| {
        let Some((id, name)) = target.one.get_untracked() else { return };
        call.run_for(
            move || {
                target.one.try_with_untracked(|one| one.as_ref().is_some_and(|one| one.0 == id)) == Some(true)
            },
            api::passkeys::remove(id),
            move |(), shown| {
                if shown {
                    target.open.set(false);
                }
                list.update(|list| list.retain(|passkey| passkey.id != id));
                status.set(format!("Passkey removed: {name}."));
                // The page may have been left.
                let _ = removed.try_run(());
            },
        );
    };
    view! {
        <ConfirmDialog
            id="remove-passkey"
            title=target.title("Remove", "passkey", |one| one.1.as_str())
            open=target.open
            call=call
            keep="Keep passkey"
            verb="Remove passkey"
            confirm=Callback::new(remove)
        >
            <p>"The passkey no longer signs in here. Delete it on its device too. All your other sessions end."</p>
            <p hidden=move || !is_last()>
                "It is your last second factor: the sign-in then needs only your password, and the recovery codes end."
            </p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::problem_of_name;

    #[test]
    fn a_name_is_checked_before_the_passkey_is_made() {
        assert!(problem_of_name("Laptop").is_none() && problem_of_name(&"x".repeat(100)).is_none());
        assert!(problem_of_name("").is_some() && problem_of_name(&"x".repeat(101)).is_some());
    }
}
