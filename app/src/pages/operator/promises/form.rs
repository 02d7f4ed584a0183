//! The form of a class of promises: its input, and its dialog.

use berth_service_types::promises::{
    FIRST_TOKEN_MS, MAX_CREDIT_BASIS_POINTS, MAX_GOOD_PPM, MAX_SURCHARGE_BASIS_POINTS, MAX_WAKE_MS,
    NewPromise, PatchPromise, Promise, PromiseTerms, PromiseWindow, PromisedShare, PromisedTime,
};
use berth_types::change_requests::Outcome;
use berth_types::money::parse_amount_micros;
use berth_types::problems::{FieldError as Wrong, Problem};
use leptos::prelude::*;

use super::super::super::dialog_form::DialogForm;
use super::super::super::parts::{Call, CallProblem, FormKey};
use super::super::super::services::promise_text::{time_text, typed_percent, typed_seconds, window_text};
use super::super::waiting::EffectTime;
use super::PromisesState;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] =
    &["/name", "/terms/availability", "/terms/first_token", "/terms/wake", SURCHARGE_FIELD];
const SURCHARGE_FIELD: &str = "/terms/surcharge_basis_points";
const SHARE: &str =
    "Enter a percentage from 0.0001 to 100, such as 99.9. For no promise leave all fields empty.";
const WITHIN: &str = "Enter a time from 0.001 to 900 seconds.";
const CHOOSE_TIME: &str = "Choose a time.";
const CREDIT: &str = "Enter a percentage from 0 to 100, such as 2.5, with at most two decimals.";

/// The input of a part: percentages, and a time in seconds. A part without input is not promised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct PartInput {
    share: String,
    within: String,
    credit: String,
}

/// Returns terms as input: availability, first token and wake.
fn inputs(terms: &PromiseTerms) -> [PartInput; 3] {
    let input = |good_ppm: u32, within: String, basis_points: u32| {
        let credit = typed_percent(basis_points.saturating_mul(100));
        PartInput { share: typed_percent(good_ppm), within, credit }
    };
    let time =
        |time: PromisedTime| input(time.good_ppm, typed_seconds(time.within_ms), time.credit_basis_points);
    let availability =
        terms.availability.map(|share| input(share.good_ppm, String::new(), share.credit_basis_points));
    [availability, terms.first_token.map(time), terms.wake.map(time)].map(Option::unwrap_or_default)
}

/// The errors of the input.
#[derive(Default)]
struct Errors(Vec<Wrong>);

impl Errors {
    /// Parses a decimal number as units of so many millionths; 0 with an error for another text.
    fn number(
        &mut self,
        text: &str,
        millionths: i64,
        (least, most): (u32, u32),
        error: (String, &str),
    ) -> u32 {
        let all = parse_amount_micros(text).filter(|all| all % millionths == 0);
        let units = all.and_then(|all| u32::try_from(all / millionths).ok());
        units.filter(|units| (least..=most).contains(units)).unwrap_or_else(|| {
            let (pointer, detail) = error;
            self.0.push(Wrong::new(pointer, detail));
            0
        })
    }

    /// Parses a part; `None` without input.
    fn share(&mut self, part: &str, input: &PartInput) -> Option<PromisedShare> {
        if [&input.share, &input.within, &input.credit].iter().all(|text| text.trim().is_empty()) {
            return None;
        }
        let credits = (0, MAX_CREDIT_BASIS_POINTS);
        let (good, credit) =
            (format!("/terms/{part}/good_ppm"), format!("/terms/{part}/credit_basis_points"));
        Some(PromisedShare {
            good_ppm: self.number(&input.share, 100, (1, MAX_GOOD_PPM), (good, SHARE)),
            credit_basis_points: self.number(&input.credit, 10_000, credits, (credit, CREDIT)),
        })
    }

    /// Parses a part with a time; `None` without input.
    fn time(&mut self, part: &str, input: &PartInput, detail: &'static str) -> Option<PromisedTime> {
        let PromisedShare { good_ppm, credit_basis_points } = self.share(part, input)?;
        let pointer = format!("/terms/{part}/within_ms");
        let within_ms = self.number(&input.within, 1_000, (1, MAX_WAKE_MS), (pointer, detail));
        Some(PromisedTime { within_ms, good_ppm, credit_basis_points })
    }
}

/// Parses the terms. No input for the surcharge is none.
///
/// # Errors
/// One error for each invalid field, or one about terms without a part.
fn parse(window: PromiseWindow, surcharge: &str, parts: &[PartInput; 3]) -> Result<PromiseTerms, Vec<Wrong>> {
    let mut errors = Errors::default();
    let surcharge = if surcharge.trim().is_empty() { "0" } else { surcharge };
    let surcharges = (0, MAX_SURCHARGE_BASIS_POINTS);
    let surcharge_basis_points =
        errors.number(surcharge, 10_000, surcharges, (SURCHARGE_FIELD.to_owned(), CREDIT));
    let [availability, first_token, wake] = parts;
    let availability = errors.share("availability", availability);
    let first_token = errors.time("first_token", first_token, CHOOSE_TIME);
    let wake = errors.time("wake", wake, WITHIN);
    if availability.is_none() && first_token.is_none() && wake.is_none() {
        errors.0.push(Wrong::new("/terms", "Promise availability, first tokens or wakes."));
    }
    let terms = PromiseTerms { window, availability, first_token, wake, surcharge_basis_points };
    if errors.0.is_empty() { Ok(terms) } else { Err(errors.0) }
}

/// The signals of a part.
#[derive(Clone, Copy)]
struct PartForm {
    share: RwSignal<String>,
    within: RwSignal<String>,
    credit: RwSignal<String>,
}

impl PartForm {
    fn new() -> Self {
        let empty = || RwSignal::new(String::new());
        Self { share: empty(), within: empty(), credit: empty() }
    }

    fn set(self, PartInput { share, within, credit }: PartInput) {
        self.share.set(share);
        self.within.set(within);
        self.credit.set(credit);
    }

    fn input(self) -> PartInput {
        let text = |signal: RwSignal<String>| signal.get_untracked();
        PartInput { share: text(self.share), within: text(self.within), credit: text(self.credit) }
    }

    /// Returns the fields. The pointers are those of the share and of the credit.
    fn fields(
        self,
        (id, name, good): (&'static str, &'static str, &'static str),
        (call, share, credit): (Call, &'static str, &'static str),
        within: Option<AnyView>,
    ) -> AnyView {
        view! {
            <fieldset class="form__section">
                <legend>{name}</legend>
                <div class="field-row">
                    <NumberField
                        label="Share"
                        id=format!("promise-{id}-share")
                        unit="%"
                        value=self.share
                        hint=good
                        error=call.field(share)
                    />
                    {within}
                    <NumberField
                        label="Credit"
                        id=format!("promise-{id}-credit")
                        unit="%"
                        value=self.credit
                        hint="The part of the charges of the window that a miss gives back."
                        error=call.field(credit)
                    />
                </div>
            </fieldset>
        }
        .into_any()
    }
}

/// Returns the choice of the time to the first token.
fn first_token_field(within: RwSignal<String>, call: Call) -> AnyView {
    let option = move |ms: Option<u32>| {
        let value = ms.map(typed_seconds).unwrap_or_default();
        let (text, own) = (ms.map_or_else(|| "Choose a time".to_owned(), time_text), value.clone());
        let selected = move || within.with(|within| *within == own);
        view! { <option value=value prop:selected=selected>{text}</option> }.into_any()
    };
    let options: Vec<AnyView> =
        std::iter::once(None).chain(FIRST_TOKEN_MS.into_iter().map(Some)).map(option).collect();
    view! {
        <SelectField
            label="Within"
            id="promise-first-token-within"
            error=call.field("/terms/first_token/within_ms")
            choose=Callback::new(move |value: String| within.set(value))
        >
            {options}
        </SelectField>
    }
    .into_any()
}

/// The dialog of a new promise, or of the change of one.
#[component]
pub fn PromiseDialog(state: PromisesState) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let (name, window) = (RwSignal::new(String::new()), RwSignal::new(PromiseWindow::Day));
    let surcharge = RwSignal::new(String::new());
    let parts = [PartForm::new(), PartForm::new(), PartForm::new()];
    let [availability, first_token, wake] = parts;
    let reset = move |()| {
        let one = state.chosen.get_untracked();
        let terms = one.as_ref().map(|one| one.terms);
        name.set(one.map(|one| one.name).unwrap_or_default());
        window.set(terms.map_or(PromiseWindow::Day, |terms| terms.window));
        let percent = |terms: PromiseTerms| typed_percent(terms.surcharge_basis_points.saturating_mul(100));
        surcharge.set(terms.map_or_else(|| "0".to_owned(), percent));
        let inputs = terms.as_ref().map(inputs).unwrap_or_default();
        for (part, input) in parts.into_iter().zip(inputs) {
            part.set(input);
        }
    };
    let submit = move |()| {
        let parts = parts.map(PartForm::input);
        let terms = match parse(window.get_untracked(), &surcharge.get_untracked(), &parts) {
            Ok(terms) => terms,
            Err(errors) => return call.problem.set(Some(Problem::invalid(errors))),
        };
        let name = name.with_untracked(|name| name.trim().to_owned());
        let one = state.chosen.get_untracked();
        let id = one.as_ref().map(|one| one.id);
        let is_shown =
            move || state.chosen.try_with_untracked(|one| one.as_ref().map(|one| one.id)) == Some(id);
        let done = move |outcome: Outcome<Promise>, shown: bool| {
            key.reset();
            state.show(outcome);
            if shown {
                state.editing.set(false);
            }
        };
        match one {
            None => {
                let body = NewPromise { name, terms };
                call.run_for(is_shown, api::services::create_promise(&body, key.for_body(&body)), done);
            }
            Some(one) => {
                // The change of another operator stays.
                let body = PatchPromise {
                    name: (one.name != name).then_some(name),
                    terms: (one.terms != terms).then_some(terms),
                };
                call.run_for(is_shown, api::services::change_promise(one.id, &body), done);
            }
        }
    };
    let title = Signal::derive(move || {
        state.chosen.with(|one| match one {
            Some(one) => format!("Change {}", one.name),
            None => "New promise".to_owned(),
        })
    });
    let verb = Signal::derive(move || {
        let verb = if state.chosen.with(Option::is_some) { "Change promise" } else { "Offer promise" };
        verb.to_owned()
    });
    let choose_window = move |name: String| {
        if let Some(one) = PromiseWindow::parse(&name) {
            window.set(one);
        }
    };
    let option = move |one: PromiseWindow| {
        view! { <option value=one.name() prop:selected=move || window.get() == one>{one.name()}</option> }
            .into_any()
    };
    let windows: Vec<AnyView> = PromiseWindow::ALL.into_iter().map(option).collect();
    let wake_time = view! {
        <NumberField
            label="Within"
            id="promise-wake-within"
            unit="s"
            value=wake.within
            error=call.field("/terms/wake/within_ms")
        />
    }
    .into_any();
    view! {
        <DialogForm
            id="promise"
            title=title
            open=state.editing
            call=call
            keep="Cancel"
            verb=verb
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                {move || {
                    state
                        .chosen
                        .with(Option::is_some)
                        .then_some(
                            "The change applies to later choices. Services that have the promise keep its former terms until they choose it again. ",
                        )
                }} "A part without input is not promised."
            </p>
            <EffectTime waits=state.second_operator at_once="Services can choose the promise at once."/>
            <CallProblem call=call beside_fields=FIELDS/>
            <Field
                label="Name"
                name="promise-name"
                kind="text"
                value=name
                hint=Some("Lower-case letters, digits and hyphens, such as gold.".to_owned())
                error=call.field("/name")
            />
            <SelectField
                label="Window"
                id="promise-window"
                hint=Signal::derive(move || window_text(window.get()).to_owned())
                choose=Callback::new(choose_window)
            >
                {windows}
            </SelectField>
            <NumberField
                label="Surcharge"
                id="promise-surcharge"
                unit="%"
                value=surcharge
                hint="Added to the price of each replica that is submitted with the promise."
                error=call.field(SURCHARGE_FIELD)
            />
            {availability.fields(
                ("availability", "Availability", "The least share of requests without a fault of the platform."),
                (call, "/terms/availability/good_ppm", "/terms/availability/credit_basis_points"),
                None,
            )}
            {first_token.fields(
                ("first-token", "First token", "The least share of answers whose first byte comes in time."),
                (call, "/terms/first_token/good_ppm", "/terms/first_token/credit_basis_points"),
                Some(first_token_field(first_token.within, call)),
            )}
            {wake.fields(
                ("wake", "Wake", "The least share of wakes that get devices in time."),
                (call, "/terms/wake/good_ppm", "/terms/wake/credit_basis_points"),
                Some(wake_time),
            )}
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_survive_input_and_parsing() {
        let cases = [(1, 1, 0), (950_000, 1_250, 250), (1_000_000, MAX_WAKE_MS, MAX_CREDIT_BASIS_POINTS)];
        let bounds = FIRST_TOKEN_MS.map(|ms| (999_000, ms, 1_000));
        for (good_ppm, within_ms, credit_basis_points) in cases.into_iter().chain(bounds) {
            let time = PromisedTime { within_ms, good_ppm, credit_basis_points };
            let share = PromisedShare { good_ppm, credit_basis_points };
            for kinds in 1..8_u32 {
                let has = |kind: u32| kinds & kind != 0;
                let terms = PromiseTerms {
                    window: PromiseWindow::Week,
                    availability: has(1).then_some(share),
                    first_token: has(2).then_some(time),
                    wake: has(4).then_some(time),
                    surcharge_basis_points: credit_basis_points,
                };
                let surcharge = typed_percent(credit_basis_points * 100);
                assert_eq!(parse(PromiseWindow::Week, &surcharge, &inputs(&terms)), Ok(terms));
            }
        }
    }

    #[test]
    fn each_invalid_field_has_an_error() {
        let at = |parts: [(&str, &str, &str); 3]| -> Vec<String> {
            let parts = parts.map(|(share, within, credit)| PartInput {
                share: share.to_owned(),
                within: within.to_owned(),
                credit: credit.to_owned(),
            });
            let errors = parse(PromiseWindow::Day, "100.01", &parts).unwrap_err();
            errors.into_iter().map(|error| error.pointer.replace("/terms", "")).collect()
        };
        let none = ("", " ", "");
        assert_eq!(at([none; 3]), ["/surcharge_basis_points", ""]);
        assert_eq!(at([("0", "", "1"), none, none]), ["/surcharge_basis_points", "/availability/good_ppm"]);
        assert_eq!(
            at([("99.99999", "", "1"), none, none]),
            ["/surcharge_basis_points", "/availability/good_ppm"]
        );
        assert_eq!(
            at([none, ("100", "", "101"), none]),
            ["/surcharge_basis_points", "/first_token/credit_basis_points", "/first_token/within_ms"]
        );
        assert_eq!(
            at([("100.0001", "", ""), none, ("", "901", "2.505")]),
            [
                "/surcharge_basis_points",
                "/availability/good_ppm",
                "/availability/credit_basis_points",
                "/wake/good_ppm",
                "/wake/credit_basis_points",
                "/wake/within_ms"
            ]
        );
    }
}
