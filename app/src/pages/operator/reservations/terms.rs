//! Form of the reservation terms: fees, approval and quote validity. Confirmed reservations keep their terms.

use berth_types::problems::{FieldError as Wrong, Problem};
use berth_types::reservations::ReservationPolicy;
use leptos::prelude::*;

use super::super::super::card_form::CardForm;
use super::super::super::limits::form::NumberField;
use super::super::super::limits::numbers::{Unit, milli_text, parse_milli, parse_whole, typed_milli};
use super::super::super::parts::Call;
use super::lengths::{parse_length, typed_length};
use crate::api;

const FIELDS: &[&str] = &[
    "/cancel_free_before_s",
    "/late_cancel_percent",
    "/early_release_percent",
    "/no_show_after_s",
    "/approval_above_boards_milli",
    "/quote_valid_s",
];

/// The input of the terms.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Draft {
    cancel_free: String,
    late: String,
    early: String,
    no_show: String,
    approval: String,
    quote: String,
}

impl Draft {
    fn from_policy(policy: &ReservationPolicy) -> Self {
        Self {
            cancel_free: typed_length(policy.cancel_free_before_s),
            late: policy.late_cancel_percent.to_string(),
            early: policy.early_release_percent.to_string(),
            no_show: policy.no_show_after_s.map(typed_length).unwrap_or_default(),
            approval: policy.approval_above_boards_milli.map(typed_milli).unwrap_or_default(),
            quote: typed_length(policy.quote_valid_s),
        }
    }

    /// Parses the terms.
    ///
    /// # Errors
    /// One error for each invalid field.
    fn policy(&self) -> Result<ReservationPolicy, Vec<Wrong>> {
        let mut errors = Vec::new();
        let mut valid = |pointer: &str, value: Option<i64>, example: &str| {
            value.unwrap_or_else(|| {
                errors.push(Wrong::new(pointer, example));
                0
            })
        };
        let duration = "Enter a duration, such as 15 min, 12 h or 1 d.";
        let percent = "Enter a whole percentage from 0 to 100.";
        let policy = ReservationPolicy {
            cancel_free_before_s: valid("/cancel_free_before_s", parse_length(&self.cancel_free), duration),
            late_cancel_percent: valid("/late_cancel_percent", parse_whole(&self.late), percent),
            early_release_percent: valid("/early_release_percent", parse_whole(&self.early), percent),
            no_show_after_s: non_empty(&self.no_show)
                .map(|text| valid("/no_show_after_s", parse_length(text), duration)),
            approval_above_boards_milli: non_empty(&self.approval)
                .map(|text| valid("/approval_above_boards_milli", parse_milli(text), Unit::Milli.example())),
            quote_valid_s: valid("/quote_valid_s", parse_length(&self.quote), duration),
        };
        if errors.is_empty() { Ok(policy) } else { Err(errors) }
    }
}

/// Returns trimmed input; `None` without input.
fn non_empty(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// Returns the terms in one line, for audit events.
pub fn policy_text(policy: &ReservationPolicy) -> String {
    let no_show = match policy.no_show_after_s {
        Some(seconds) => format!("automatic return after {} without a job", typed_length(seconds)),
        None => "no automatic return".to_owned(),
    };
    let approval = match policy.approval_above_boards_milli {
        Some(milli) => format!("approval above {} boards", milli_text(milli)),
        None => "no approval".to_owned(),
    };
    format!(
        "Free cancellation until {} before the start, then {} % of the price; early return {} % of the rest; {no_show}; {approval}; quotes valid for {}.",
        typed_length(policy.cancel_free_before_s),
        policy.late_cancel_percent,
        policy.early_release_percent,
        typed_length(policy.quote_valid_s)
    )
}

/// The signals of the form.
#[derive(Clone, Copy)]
struct Fields {
    cancel_free: RwSignal<String>,
    late: RwSignal<String>,
    early: RwSignal<String>,
    no_show: RwSignal<String>,
    approval: RwSignal<String>,
    quote: RwSignal<String>,
}

impl Fields {
    fn new(policy: &ReservationPolicy) -> Self {
        let draft = Draft::from_policy(policy);
        Self {
            cancel_free: RwSignal::new(draft.cancel_free),
            late: RwSignal::new(draft.late),
            early: RwSignal::new(draft.early),
            no_show: RwSignal::new(draft.no_show),
            approval: RwSignal::new(draft.approval),
            quote: RwSignal::new(draft.quote),
        }
    }

    fn set_policy(self, policy: &ReservationPolicy) {
        let draft = Draft::from_policy(policy);
        self.cancel_free.set(draft.cancel_free);
        self.late.set(draft.late);
        self.early.set(draft.early);
        self.no_show.set(draft.no_show);
        self.approval.set(draft.approval);
        self.quote.set(draft.quote);
    }

    fn draft(self) -> Draft {
        Draft {
            cancel_free: self.cancel_free.get_untracked(),
            late: self.late.get_untracked(),
            early: self.early.get_untracked(),
            no_show: self.no_show.get_untracked(),
            approval: self.approval.get_untracked(),
            quote: self.quote.get_untracked(),
        }
    }
}

/// The form of the terms.
#[component]
pub fn TermsForm(
    /// The present terms.
    policy: ReservationPolicy,
) -> impl IntoView {
    let call = Call::idle();
    let status = RwSignal::new("");
    let fields = Fields::new(&policy);
    let submit = move |()| {
        status.set("");
        match fields.draft().policy() {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(policy) => {
                call.run(api::operator_reservations::set_policy(&policy), move |fresh: ReservationPolicy| {
                    fields.set_policy(&fresh);
                    status.set("Saved for new quotes.");
                });
            }
        }
    };
    view! {
        <CardForm
            title="Reservation terms"
            lead="Each quote shows the terms. Changes apply to new quotes; confirmed reservations keep their terms."
            call=call
            beside_fields=FIELDS
            verb="Save terms"
            quiet=true
            status=status
            submit=Callback::new(submit)
        >
            <fieldset class="form__section">
                <legend>"Cancellation and early return"</legend>
                <div class="field-row">
                    <NumberField
                        label="Free cancellation"
                        id="terms-cancel-free"
                        unit="before start"
                        inputmode="text"
                        value=fields.cancel_free
                        hint="Such as 1 d or 12 h. 0 s: until the start."
                        error=call.field("/cancel_free_before_s")
                    />
                    <NumberField
                        label="Late cancellation fee"
                        id="terms-late"
                        unit="%"
                        inputmode="numeric"
                        value=fields.late
                        hint="Part of the price, for a later cancellation before the start."
                        error=call.field("/late_cancel_percent")
                    />
                    <NumberField
                        label="Early return fee"
                        id="terms-early"
                        unit="%"
                        inputmode="numeric"
                        value=fields.early
                        hint="Part of the price of the remaining time, for a return after the start."
                        error=call.field("/early_release_percent")
                    />
                    <NumberField
                        label="Automatic return"
                        id="terms-no-show"
                        unit=""
                        inputmode="text"
                        value=fields.no_show
                        hint="Time from the start without a job, such as 30 min. Costs the early return fee. Empty: never."
                        error=call.field("/no_show_after_s")
                    />
                </div>
            </fieldset>
            <fieldset class="form__section">
                <legend>"Quote and approval"</legend>
                <div class="field-row">
                    <NumberField
                        label="Approval threshold"
                        id="terms-approval"
                        unit="boards"
                        value=fields.approval
                        hint="Larger reservations need your approval; their boards are held meanwhile. Empty: no approval."
                        error=call.field("/approval_above_boards_milli")
                    />
                    <NumberField
                        label="Quote validity"
                        id="terms-quote"
                        unit=""
                        inputmode="text"
                        value=fields.quote
                        hint="Time with a fixed price, such as 15 min. A quote reserves no devices."
                        error=call.field("/quote_valid_s")
                    />
                </div>
            </fieldset>
        </CardForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_survive_input_and_parsing() {
        let usual = ReservationPolicy::default();
        assert_eq!(Draft::from_policy(&usual).policy(), Ok(usual));
        let strict = ReservationPolicy {
            no_show_after_s: Some(1_800),
            approval_above_boards_milli: Some(8_500),
            cancel_free_before_s: 100,
            ..usual
        };
        assert_eq!(Draft::from_policy(&strict).policy(), Ok(strict));
        assert_eq!(
            policy_text(&strict),
            "Free cancellation until 1 min 40 s before the start, then 50 % of the price; \
             early return 50 % of the rest; automatic return after 30 min without a job; \
             approval above 8.5 boards; quotes valid for 15 min."
        );
    }

    #[test]
    fn each_invalid_field_has_an_error() {
        let invalid = Draft {
            late: "half".to_owned(),
            no_show: "soon".to_owned(),
            approval: "all".to_owned(),
            ..Draft::from_policy(&ReservationPolicy::default())
        };
        let at: Vec<String> = invalid.policy().unwrap_err().into_iter().map(|error| error.pointer).collect();
        assert_eq!(at, ["/late_cancel_percent", "/no_show_after_s", "/approval_above_boards_milli"]);
    }
}
