//! Dialog of a new inference key.
//!
//! Checks only the format of numbers. Errors of the portal appear beside their fields.

use std::str::FromStr;

use berth_service_types::keys::{InferenceKey, NewInferenceKey};
use berth_types::ids::{InferenceKeyId, OrgId};
use berth_types::money::parse_amount_micros;
use berth_types::problems::{FieldError as Wrong, Problem};
use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::super::dialog_form::DialogForm;
use super::super::parts::{Call, CallProblem, FormKey, now_ms};
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &[
    "/name",
    "/models",
    "/requests_per_minute",
    "/tokens_per_minute",
    "/day_budget_micros",
    "/month_budget_micros",
    "/total_budget_micros",
    "/expires_at",
];

const HOUR_MS: i64 = 3_600_000;

/// The choices of an expiry in hours, with their labels; an empty value means no expiry.
const EXPIRIES: [(&str, &str); 5] =
    [("720", "in 30 days"), ("2160", "in 90 days"), ("24", "in 1 day"), ("1", "in 1 hour"), ("", "never")];

/// The input of the form.
#[derive(Debug, Clone, Default)]
struct Draft {
    name: String,
    /// Names with spaces, commas or line breaks between them.
    models: String,
    requests: String,
    tokens: String,
    day: String,
    month: String,
    total: String,
    /// Hours until the expiry; empty for none.
    hours: String,
}

/// Parses an optional value by `parse`.
fn optional<T>(
    text: &str,
    pointer: &str,
    detail: &str,
    parse: impl Fn(&str) -> Option<T>,
    errors: &mut Vec<Wrong>,
) -> Option<T> {
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    let value = parse(text);
    if value.is_none() {
        errors.push(Wrong::new(pointer, detail));
    }
    value
}

/// Returns the expiry of a key that is created at `now_ms`. It counts from the next full hour if it is later than an
/// hour, so that a repeated request after a lost answer has the same body.
fn expires_at(hours: &str, now_ms: i64) -> Option<Timestamp> {
    let hours: i64 = hours.parse().ok()?;
    let full = now_ms.div_euclid(HOUR_MS).saturating_add(1).saturating_mul(HOUR_MS);
    let from = if hours > 1 { full } else { now_ms.div_euclid(60_000).saturating_mul(60_000) };
    Some(Timestamp::from_micros(from.saturating_mul(1_000)).plus_seconds(hours.saturating_mul(3_600)))
}

impl Draft {
    /// Parses the request.
    ///
    /// # Errors
    /// One error for each invalid field.
    fn request(&self, now_ms: i64) -> Result<NewInferenceKey, Vec<Wrong>> {
        let mut errors = Vec::new();
        let count = |text: &str| u64::from_str(text).ok();
        let whole = "Enter a whole number, or leave the field empty.";
        let amount = "Enter an amount, such as 5 or 12.50, or leave the field empty.";
        let requests_per_minute = optional(&self.requests, "/requests_per_minute", whole, count, &mut errors);
        let tokens_per_minute = optional(&self.tokens, "/tokens_per_minute", whole, count, &mut errors);
        let mut money =
            |text: &str, pointer: &str| optional(text, pointer, amount, parse_amount_micros, &mut errors);
        let day_budget_micros = money(&self.day, "/day_budget_micros");
        let month_budget_micros = money(&self.month, "/month_budget_micros");
        let total_budget_micros = money(&self.total, "/total_budget_micros");
        if !errors.is_empty() {
            return Err(errors);
        }
        let models = self.models.split(|c: char| c == ',' || c.is_whitespace());
        Ok(NewInferenceKey {
            name: self.name.trim().to_owned(),
            models: models.filter(|model| !model.is_empty()).map(str::to_owned).collect(),
            requests_per_minute,
            tokens_per_minute,
            day_budget_micros,
            month_budget_micros,
            total_budget_micros,
            expires_at: expires_at(&self.hours, now_ms),
        })
    }
}

/// The dialog with the name, the models, the limits and the budgets of a new key.
#[component]
pub(super) fn KeyDialog(
    org: OrgId,
    /// The listed keys; a new one comes first.
    keys: RwSignal<Vec<InferenceKey>>,
    /// The new key and its secret, shown once.
    secret: RwSignal<Option<(InferenceKeyId, String)>>,
    open: RwSignal<bool>,
    /// The currency of the portal.
    currency: String,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let empty = || RwSignal::new(String::new());
    let (name, models, requests, tokens) = (empty(), empty(), empty(), empty());
    let (day, month, total) = (empty(), empty(), empty());
    let hours = RwSignal::new("720".to_owned());
    let reset = move |()| {
        for field in [name, models, requests, tokens, day, month, total] {
            field.set(String::new());
        }
        hours.set("720".to_owned());
    };
    let submit = move |()| {
        let text = |field: RwSignal<String>| field.get_untracked();
        let draft = Draft {
            name: text(name),
            models: text(models),
            requests: text(requests),
            tokens: text(tokens),
            day: text(day),
            month: text(month),
            total: text(total),
            hours: text(hours),
        };
        let body = match draft.request(now_ms()) {
            Ok(body) => body,
            Err(errors) => return call.problem.set(Some(Problem::invalid(errors))),
        };
        let answer = api::inference_keys::create(org, &body, key.for_body(&body));
        call.run(answer, move |mut made: InferenceKey| {
            key.reset();
            // The list contains no secrets.
            secret.set(made.secret.take().map(|secret| (made.id, secret)));
            keys.update(|keys| keys.insert(0, made));
            open.set(false);
        });
    };
    let options = EXPIRIES.map(|(value, label)| {
        let chosen = move || hours.with(|hours| hours == value);
        view! { <option value=value prop:selected=chosen>{label}</option> }
    });
    let budget = move |label: &'static str,
                       id: &'static str,
                       value: RwSignal<String>,
                       pointer: &'static str| {
        view! { <NumberField label=label id=id unit=currency.clone() value=value error=call.field(pointer)/> }
    };
    view! {
        <DialogForm
            id="create-key"
            title="New inference key"
            open=open
            call=call
            keep="Cancel"
            verb="Create key"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <CallProblem call=call beside_fields=FIELDS/>
            <Field
                label="Name"
                name="key-name"
                kind="text"
                value=name
                hint=Some("Purpose of the key, such as chat-frontend.".to_owned())
                error=call.field("/name")
            />
            <Field
                label="Models"
                name="key-models"
                kind="text"
                value=models
                hint=Some("Comma-separated names of models and of HTTP services, also of later ones. Empty: all.".to_owned())
                error=call.list_field("/models")
            />
            <SelectField
                label="Expiry"
                id="key-expiry"
                error=call.field("/expires_at")
                choose=Callback::new(move |value: String| hours.set(value))
            >
                {options.into_iter().collect_view()}
            </SelectField>
            <div class="field-row">
                <NumberField
                    label="Requests a minute"
                    id="key-requests"
                    unit="requests"
                    value=requests
                    hint="At each gateway. Empty: no limit."
                    inputmode="numeric"
                    error=call.field("/requests_per_minute")
                />
                <NumberField
                    label="Tokens a minute"
                    id="key-tokens"
                    unit="tokens"
                    value=tokens
                    hint="At each gateway. Empty: no limit."
                    inputmode="numeric"
                    error=call.field("/tokens_per_minute")
                />
            </div>
            <div class="field-row">
                {budget("Budget a day", "key-day", day, "/day_budget_micros")}
                {budget("Budget a month", "key-month", month, "/month_budget_micros")}
                {budget("Budget in all", "key-total", total, "/total_budget_micros")}
            </div>
            <p class="field__hint">"Budgets count the price of tokens by days and months of UTC. Empty: no limit."</p>
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_fields_are_no_limits() {
        let key = Draft { name: " ci ".to_owned(), ..Draft::default() }.request(0).unwrap();
        assert_eq!((key.name.as_str(), key.models.len(), key.expires_at), ("ci", 0, None));
        assert_eq!((key.requests_per_minute, key.tokens_per_minute), (None, None));
        assert_eq!(
            (key.day_budget_micros, key.month_budget_micros, key.total_budget_micros),
            (None, None, None)
        );
    }

    #[test]
    fn limits_budgets_and_models_are_in_the_request() {
        let draft = Draft {
            models: "qwen, chat\n".to_owned(),
            requests: " 60 ".to_owned(),
            total: "12.50".to_owned(),
            hours: "24".to_owned(),
            ..Draft::default()
        };
        let key = draft.request(1).unwrap();
        assert_eq!(
            (key.models.as_slice(), key.requests_per_minute),
            (["qwen".to_owned(), "chat".to_owned()].as_slice(), Some(60))
        );
        assert_eq!(key.total_budget_micros, Some(12_500_000));
        // From the next full hour on.
        assert_eq!(key.expires_at, Some(Timestamp::from_micros(25 * 3_600_000_000)));
    }

    #[test]
    fn a_key_for_an_hour_ends_within_an_hour() {
        for now_ms in [0, 59_999, 60_000, 3_599_999] {
            let end = expires_at("1", now_ms).unwrap().millis();
            assert!(end > now_ms && end <= now_ms + HOUR_MS, "{now_ms}");
        }
    }

    #[test]
    fn each_wrong_limit_has_its_pointer() {
        let bad = Draft { requests: "many".to_owned(), month: "-1 €".to_owned(), ..Draft::default() };
        let errors = bad.request(0).unwrap_err();
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/requests_per_minute", "/month_budget_micros"]);
    }
}
