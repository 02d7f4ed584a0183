//! Form for a new secret or a new value of a secret.
//!
//! The portal checks the value; its errors are shown at the field.

use berth_types::problems::Problem;
use berth_types::secrets::{PutSecret, Secret};
use leptos::prelude::*;

use super::super::card_form::CardForm;
use super::super::parts::Call;
use super::PageState;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/value"];

/// Inserts a secret into a list sorted by name, or replaces it.
fn insert_sorted(secrets: &mut Vec<Secret>, made: Secret) {
    secrets.retain(|secret| secret.name != made.name);
    let at = secrets.partition_point(|secret| secret.name < made.name);
    secrets.insert(at, made);
}

/// The name and the value of a secret.
#[component]
pub(super) fn SecretForm(
    /// The state of the page.
    state: PageState,
) -> impl IntoView {
    let call = Call::idle();
    let value = RwSignal::new(String::new());
    let known =
        move || state.secrets.with(|secrets| secrets.iter().any(|s| state.name.with(|n| *n == s.name)));
    let submit = move |()| {
        let name = state.name.get_untracked().trim().to_owned();
        // A name of dots would lead to another address.
        if matches!(name.as_str(), "" | "." | "..") {
            let detail = "Enter a name that begins with a letter or a digit, such as hf-token.";
            call.problem.set(Some(Problem::invalid_field("/name", detail)));
            return;
        }
        let body = PutSecret { value: value.get_untracked() };
        call.run(api::secrets::put(state.org, &name, &body), move |made: Secret| {
            state.secrets.update(|secrets| insert_sorted(secrets, made));
            state.name.set(String::new());
            // The page keeps no copy of the value.
            value.set(String::new());
        });
    };
    let verb = Signal::derive(move || {
        let verb = if known() { "Replace value" } else { "Create secret" };
        verb.to_owned()
    });
    view! {
        <CardForm
            title="New secret or value"
            call=call
            beside_fields=FIELDS
            verb=verb
            submit=Callback::new(submit)
        >
            <Field
                label="Name"
                name="secret-name"
                kind="text"
                value=state.name
                hint=Some("Letters, digits, dots, underscores and hyphens, such as hf-token. An existing secret gets the new value.".to_owned())
                error=call.field("/name")
            />
            <TextArea
                label="Value"
                id="secret-value"
                rows=3
                mono=true
                value=value
                hint="8 bytes to 32 KiB of text, stored unchanged and never shown again."
                error=call.field("/value")
            />
        </CardForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::time::Timestamp;

    fn secret(name: &str, version: i64) -> Secret {
        Secret {
            name: name.to_owned(),
            version,
            created_at: Timestamp::from_micros(0),
            created_by: "Ada".to_owned(),
            updated_at: Timestamp::from_micros(0),
            updated_by: "Ada".to_owned(),
            last_used_at: None,
        }
    }

    #[test]
    fn a_secret_occurs_once_and_in_order() {
        let mut all = vec![secret("a", 1), secret("c", 1)];
        insert_sorted(&mut all, secret("b", 1));
        insert_sorted(&mut all, secret("c", 2));
        let all: Vec<(&str, i64)> = all.iter().map(|s| (s.name.as_str(), s.version)).collect();
        assert_eq!(all, [("a", 1), ("b", 1), ("c", 2)]);
    }
}
