//! The terms of reservations: what cancelling costs, what waits for approval, how long a quote holds.
//!
//! Must not change a promise: what was confirmed keeps the terms it was shown, which is the portal's word.

use berth_types::problems::{FieldError as Wrong, Problem};
use berth_types::reservations::ReservationPolicy;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::super::limits::form::NumberField;
use super::super::super::limits::numbers::{Unit, milli_text, parse_milli, parse_whole, typed_milli};
use super::super::super::parts::{Call, CallProblem, ready};
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

/// The terms as they are typed.
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
    fn of(policy: &ReservationPolicy) -> Self {
        Self {
            cancel_free: typed_length(policy.cancel_free_before_s),
            late: policy.late_cancel_percent.to_string(),
            early: policy.early_release_percent.to_string(),
            no_show: policy.no_show_after_s.map(typed_length).unwrap_or_default(),
            approval: policy.approval_above_boards_milli.map(typed_milli).unwrap_or_default(),
            quote: typed_length(policy.quote_valid_s),
        }
    }

    /// The terms, or what keeps the form from being some.
    fn policy(&self) -> Result<ReservationPolicy, Vec<Wrong>> {
        let mut errors = Vec::new();
        let mut take = |pointer: &str, value: Option<i64>, example: &str| {
            value.unwrap_or_else(|| {
                errors.push(Wrong::new(pointer, example));
                0
            })
        };
        let length = "Give a length such as 15 min, 12 h or 1 d.";
        let percent = "Give a whole percentage between 0 and 100.";
        let policy = ReservationPolicy {
            cancel_free_before_s: take("/cancel_free_before_s", parse_length(&self.cancel_free), length),
            late_cancel_percent: take("/late_cancel_percent", parse_whole(&self.late), percent),
            early_release_percent: take("/early_release_percent", parse_whole(&self.early), percent),
            no_show_after_s: some(&self.no_show)
                .map(|text| take("/no_show_after_s", parse_length(text), length)),
            approval_above_boards_milli: some(&self.approval)
                .map(|text| take("/approval_above_boards_milli", parse_milli(text), Unit::Milli.example())),
            quote_valid_s: take("/quote_valid_s", parse_length(&self.quote), length),
        };
        if errors.is_empty() { Ok(policy) } else { Err(errors) }
    }
}

/// What is typed, unless that is nothing.
fn some(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// Terms in one line, for the record of what was done.
pub fn policy_text(policy: &ReservationPolicy) -> String {
    let no_show = match policy.no_show_after_s {
        Some(seconds) => format!("given back when unused for {}", typed_length(seconds)),
        None => "never given back by itself".to_owned(),
    };
    let approval = match policy.approval_above_boards_milli {
        Some(milli) => format!("approval above {} boards", milli_text(milli)),
        None => "no approval".to_owned(),
    };
    format!(
        "Free until {} before, then {} %; {} % of the rest when given back early; {no_show}; {approval}; quotes hold {}.",
        typed_length(policy.cancel_free_before_s),
        policy.late_cancel_percent,
        policy.early_release_percent,
        typed_length(policy.quote_valid_s)
    )
}

/// The signals behind the form.
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
    fn of(policy: &ReservationPolicy) -> Self {
        let draft = Draft::of(policy);
        Self {
            cancel_free: RwSignal::new(draft.cancel_free),
            late: RwSignal::new(draft.late),
            early: RwSignal::new(draft.early),
            no_show: RwSignal::new(draft.no_show),
            approval: RwSignal::new(draft.approval),
            quote: RwSignal::new(draft.quote),
        }
    }

    fn show(self, policy: &ReservationPolicy) {
        let draft = Draft::of(policy);
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
    /// As they are now.
    policy: ReservationPolicy,
) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let said = RwSignal::new("");
    let fields = Fields::of(&policy);
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        said.set("");
        match fields.draft().policy() {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(policy) => {
                call.run(api::operator_reservations::set_policy(&policy), move |fresh: ReservationPolicy| {
                    fields.show(&fresh);
                    said.set("Saved. They hold for what is quoted from now on.");
                });
            }
        }
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Terms"</h2>
            <p class="prose">
                "They are shown with every quote and hold for what is quoted from now on. Reservations that were confirmed keep the terms they were confirmed with."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <fieldset class="form__section">
                <legend>"Cancelling and giving back"</legend>
                <div class="field-row">
                    <NumberField
                        label="Cancelling is free until"
                        id="terms-cancel-free"
                        unit="before"
                        inputmode="text"
                        value=fields.cancel_free
                        hint="So long before it begins, such as 1 d or 12 h. 0 s: until it begins."
                        error=call.field("/cancel_free_before_s")
                    />
                    <NumberField
                        label="Cancelling later costs"
                        id="terms-late"
                        unit="%"
                        inputmode="numeric"
                        value=fields.late
                        hint="Of its price, when it is cancelled after that and before it begins."
                        error=call.field("/late_cancel_percent")
                    />
                    <NumberField
                        label="Giving back early costs"
                        id="terms-early"
                        unit="%"
                        inputmode="numeric"
                        value=fields.early
                        hint="Of the price of what is left, when it is given back while it runs."
                        error=call.field("/early_release_percent")
                    />
                    <NumberField
                        label="Given back when unused for"
                        id="terms-no-show"
                        unit=""
                        inputmode="text"
                        value=fields.no_show
                        hint="From its begin, such as 30 min; it costs as much as giving it back early. Empty: never."
                        error=call.field("/no_show_after_s")
                    />
                </div>
            </fieldset>
            <fieldset class="form__section">
                <legend>"Before it is confirmed"</legend>
                <div class="field-row">
                    <NumberField
                        label="Approval above"
                        id="terms-approval"
                        unit="boards"
                        value=fields.approval
                        hint="Larger ones wait for you, and nobody else gets their boards meanwhile. Empty: none wait."
                        error=call.field("/approval_above_boards_milli")
                    />
                    <NumberField
                        label="A quote holds for"
                        id="terms-quote"
                        unit=""
                        inputmode="text"
                        value=fields.quote
                        hint="Its price stays for so long, such as 15 min. It holds no place."
                        error=call.field("/quote_valid_s")
                    />
                </div>
            </fieldset>
            <div class="form__actions">
                <button
                    class="btn"
                    type="submit"
                    disabled=move || !ready.get() || call.pending.get()
                    aria-busy=move || call.pending.get().then_some("true")
                >
                    "Save terms"
                </button>
                <span class="quiet" role="status">{move || said.get()}</span>
            </div>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_survive_being_shown_and_saved() {
        let usual = ReservationPolicy::default();
        assert_eq!(Draft::of(&usual).policy(), Ok(usual));
        let strict = ReservationPolicy {
            no_show_after_s: Some(1_800),
            approval_above_boards_milli: Some(8_500),
            cancel_free_before_s: 100,
            ..usual
        };
        assert_eq!(Draft::of(&strict).policy(), Ok(strict));
        assert_eq!(
            policy_text(&strict),
            "Free until 1 min 40 s before, then 50 %; 50 % of the rest when given back early; \
             given back when unused for 30 min; approval above 8.5 boards; quotes hold 15 min."
        );
    }

    #[test]
    fn every_fault_is_told_at_its_place() {
        let bad = Draft {
            late: "half".to_owned(),
            no_show: "soon".to_owned(),
            approval: "all".to_owned(),
            ..Draft::of(&ReservationPolicy::default())
        };
        let at: Vec<String> = bad.policy().unwrap_err().into_iter().map(|error| error.pointer).collect();
        assert_eq!(at, ["/late_cancel_percent", "/no_show_after_s", "/approval_above_boards_milli"]);
    }
}
