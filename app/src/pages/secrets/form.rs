//! Making a secret, or giving one a new value.
//!
//! Must not judge a value: what the portal refuses stands beside its field.

use berth_types::problems::Problem;
use berth_types::secrets::{PutSecret, Secret};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::parts::{Call, CallProblem, FieldError, Submit};
use super::Desk;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/value"];

/// Puts a secret into its place in a list by name.
fn place(secrets: &mut Vec<Secret>, made: Secret) {
    secrets.retain(|secret| secret.name != made.name);
    let at = secrets.partition_point(|secret| secret.name < made.name);
    secrets.insert(at, made);
}

/// A name, and a value.
#[component]
pub(super) fn SecretForm(
    /// What the page is about.
    desk: Desk,
) -> impl IntoView {
    let call = Call::idle();
    let value = RwSignal::new(String::new());
    let wrong_value = call.field("/value");
    let known = move || desk.secrets.with(|secrets| secrets.iter().any(|s| desk.name.with(|n| *n == s.name)));
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let name = desk.name.get_untracked().trim().to_owned();
        if name.is_empty() {
            call.problem.set(Some(Problem::invalid_field("/name", "Give it a name.")));
            return;
        }
        let body = PutSecret { value: value.get_untracked() };
        call.run(api::secrets::put(desk.org, &name, &body), move |made: Secret| {
            desk.secrets.update(|secrets| place(secrets, made));
            desk.name.set(String::new());
            // It is nowhere in the page any more.
            value.set(String::new());
        });
    };
    view! {
        <form class="form card" method="post" autocomplete="off" on:submit=submit>
            <h2 class="card__title">"Set a secret"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <Field
                label="Name"
                name="secret-name"
                kind="text"
                value=desk.name
                hint=Some("Letters, digits and . _ - such as hf-token. A name that is there gets a new value.".to_owned())
                error=call.field("/name")
                autocomplete=Some("off")
            />
            <div class="field field--wide">
                <label class="field__label" for="secret-value">"Value"</label>
                <textarea
                    class="mono"
                    id="secret-value"
                    rows="3"
                    spellcheck="false"
                    autocomplete="off"
                    aria-describedby="secret-value-hint secret-value-error"
                    aria-invalid=move || wrong_value.get().map(|_| "true")
                    prop:value=move || value.get()
                    on:input=move |ev| value.set(event_target_value(&ev))
                ></textarea>
                <p class="field__hint" id="secret-value-hint">
                    "8 bytes to 32 KiB of text, kept as it is typed. It is not shown again."
                </p>
                <FieldError id="secret-value-error" error=wrong_value/>
            </div>
            <div class="form__actions">
                <Submit call=call>{move || if known() { "Replace value" } else { "Create secret" }}</Submit>
            </div>
        </form>
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
    fn a_secret_stands_once_and_in_order() {
        let mut all = vec![secret("a", 1), secret("c", 1)];
        place(&mut all, secret("b", 1));
        place(&mut all, secret("c", 2));
        let all: Vec<(&str, i64)> = all.iter().map(|s| (s.name.as_str(), s.version)).collect();
        assert_eq!(all, [("a", 1), ("b", 1), ("c", 2)]);
    }
}
