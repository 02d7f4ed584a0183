//! What several pages share: one call at a time and the button that makes it, timers, a dialog, a password
//! field, the states a page can be in before it has data.
//!
//! Must not know a particular page or a particular call.

use std::future::Future;
use std::time::Duration;

use berth_types::problems::Problem;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Serialize;

use crate::api::{self, Answer};
use crate::ui::*;

/// One request that a button or a form makes: whether it is on its way, and what went wrong.
#[derive(Clone, Copy)]
pub struct Call {
    /// It is on its way; a second one is not started.
    pub pending: RwSignal<bool>,
    /// What the last one was answered with, if it failed.
    pub problem: RwSignal<Option<Problem>>,
}

impl Call {
    /// A call that was not made yet.
    pub fn idle() -> Self {
        Self { pending: RwSignal::new(false), problem: RwSignal::new(None) }
    }

    /// Waits for the answer and hands it to `done`; keeps the problem otherwise.
    pub fn run<T: 'static>(
        self,
        answer: impl Future<Output = Answer<T>> + 'static,
        done: impl FnOnce(T) + 'static,
    ) {
        if self.pending.get_untracked() {
            return;
        }
        self.pending.set(true);
        spawn_local(async move {
            let answer = answer.await;
            self.pending.set(false);
            match answer {
                Ok(value) => {
                    self.problem.set(None);
                    done(value);
                }
                Err(problem) => self.problem.set(Some(problem)),
            }
        });
    }

    /// What is wrong with one field, for the form to show beside it.
    pub fn field(self, pointer: &'static str) -> Signal<Option<String>> {
        let problem = self.problem;
        Signal::derive(move || {
            problem.with(|problem| {
                problem.as_ref().and_then(|problem| problem.field(pointer)).map(str::to_owned)
            })
        })
    }

    /// Whether an error points at, or into, one of these fields.
    pub fn is_wrong_in(self, fields: &[&str]) -> bool {
        self.problem.with(|problem| {
            problem.as_ref().is_some_and(|problem| {
                problem.errors.iter().any(|error| fields.iter().any(|field| is_into(&error.pointer, field)))
            })
        })
    }

    /// The problem, unless every part of it stands beside a field already.
    pub fn unshown(self, beside_fields: &'static [&'static str]) -> Option<Problem> {
        self.problem.get().filter(|problem| !all_beside(problem, beside_fields))
    }
}

/// Whether a problem is the portal's word on what was asked: nothing was done, and what is asked next is
/// another thing. Without an answer, or without a decision, that is not known.
fn judged(problem: &Problem) -> bool {
    let undecided = problem.status == 429 || problem.code == "idempotency.in_flight";
    (400..500).contains(&problem.status) && !undecided
}

/// The Idempotency-Key of a form: the same for as long as the same is asked for and was neither done nor
/// refused, so that trying again after a lost answer does nothing twice.
#[derive(Clone, Copy)]
pub struct FormKey(StoredValue<(String, String)>);

impl FormKey {
    /// For a form that asks by this call.
    pub fn beside(call: Call) -> Self {
        let key = Self(StoredValue::new((String::new(), String::new())));
        Effect::new(move || {
            if call.problem.with(|problem| problem.as_ref().is_some_and(judged)) {
                key.done();
            }
        });
        key
    }

    /// The key for a body that is sent now.
    pub fn of_body<B: Serialize>(self, body: &B) -> Option<String> {
        self.of(serde_json::to_string(body).unwrap_or_default())
    }

    /// The key for what is asked for now.
    pub fn of(self, asked: String) -> Option<String> {
        self.0.update_value(|(last, key)| {
            if *last != asked || key.is_empty() {
                *key = api::new_key();
                *last = asked;
            }
        });
        Some(self.0.with_value(|(_, key)| key.clone())).filter(|key| !key.is_empty())
    }

    /// It is over: what comes next is another thing.
    pub fn done(self) {
        self.0.set_value((String::new(), String::new()));
    }
}

/// Whether a pointer is that of a field, or of something in it.
fn is_into(pointer: &str, field: &str) -> bool {
    pointer.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether every error of a problem points at, or into, one of these fields.
fn all_beside(problem: &Problem, fields: &[&str]) -> bool {
    !problem.errors.is_empty()
        && problem.errors.iter().all(|error| fields.iter().any(|field| is_into(&error.pointer, field)))
}

/// The notice for what no field shows.
#[component]
pub fn CallProblem(
    /// The call of this form.
    call: Call,
    /// Pointers that fields of the form show themselves.
    beside_fields: &'static [&'static str],
) -> impl IntoView {
    move || call.unshown(beside_fields).map(|problem| view! { <ProblemNotice problem=problem/> })
}

/// The button that sends a form: not before the page is alive, and not twice at a time.
#[component]
pub fn Submit(
    /// The call of the form.
    call: Call,
    /// What it says.
    children: Children,
) -> impl IntoView {
    let ready = ready();
    view! {
        <button
            class="btn btn--primary"
            type="submit"
            disabled=move || !ready.get() || call.pending.get()
            aria-busy=move || call.pending.get().then_some("true")
        >
            {children()}
        </button>
    }
}

/// False on the server and in the first client render: a form that is not hydrated would post
/// natively, so its button waits for this.
pub fn ready() -> ReadSignal<bool> {
    let (ready, set_ready) = signal(false);
    Effect::new(move || set_ready.set(true));
    ready
}

/// Set a path to go there. Works from a task, which has no router around it.
pub fn leave() -> RwSignal<Option<String>> {
    let target = RwSignal::new(None::<String>);
    Effect::new(move || {
        if let Some(path) = target.get() {
            go(&path);
        }
    });
    target
}

/// Leaves the app for an address elsewhere, such as a page to pay on. The back button leads here again.
pub fn leave_for(url: &str) {
    #[cfg(feature = "hydrate")]
    if let Some(window) = web_sys::window() {
        // Refused only for what is no address.
        let _ = window.location().assign(url);
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = url;
}

/// The address of this portal; an example until the page runs in a browser.
pub fn origin() -> ReadSignal<String> {
    let (origin, set_origin) = signal("https://berth.example".to_owned());
    Effect::new(move || {
        if let Ok(here) = window().location().origin() {
            set_origin.set(here);
        }
    });
    origin
}

/// Milliseconds since the epoch by the browser's clock. For ages and for what a person chooses,
/// never for money.
#[cfg(feature = "hydrate")]
pub fn now_ms() -> i64 {
    js_sys::Date::now() as i64
}

/// The server draws without a clock: 0.
#[cfg(not(feature = "hydrate"))]
pub fn now_ms() -> i64 {
    0
}

/// Runs `work` every `ms` milliseconds until the effect that calls this runs again or ends.
pub fn interval(ms: u64, work: impl Fn() + 'static) {
    if let Ok(handle) = set_interval_with_handle(work, Duration::from_millis(ms)) {
        on_cleanup(move || handle.clear());
    }
}

/// Runs `work` once after `ms` milliseconds, unless the effect that calls this runs again first.
pub fn later(ms: u64, work: impl FnOnce() + 'static) {
    if let Ok(handle) = set_timeout_with_handle(work, Duration::from_millis(ms)) {
        on_cleanup(move || handle.clear());
    }
}

/// Runs `work` every `ms` milliseconds while the page is shown.
pub fn every(ms: u64, work: impl Fn() + Clone + 'static) {
    Effect::new(move || interval(ms, work.clone()));
}

/// Leaves out calls that need an organization when there is none.
pub async fn when_some<T, F>(call: Option<F>) -> Answer<Option<T>>
where
    F: Future<Output = Answer<T>>,
{
    match call {
        None => Ok(None),
        Some(call) => call.await.map(Some),
    }
}

/// A native dialog: it opens and closes with `open`, and Escape closes it.
#[component]
pub fn Modal(
    /// Unique in the page.
    id: &'static str,
    /// Its heading.
    #[prop(into)]
    title: Signal<String>,
    /// Whether it is open.
    open: RwSignal<bool>,
    /// Body and actions, with their own classes.
    children: Children,
) -> impl IntoView {
    let element = NodeRef::<leptos::html::Dialog>::new();
    Effect::new(move || {
        let wanted = open.get();
        if let Some(dialog) = element.get() {
            if wanted && !dialog.open() {
                let _shown = dialog.show_modal();
            } else if !wanted && dialog.open() {
                dialog.close();
            }
        }
    });
    let title_id = format!("{id}-title");
    let labelled = title_id.clone();
    view! {
        <dialog class="dialog" id=id aria-labelledby=labelled node_ref=element on:close=move |_| open.set(false)>
            <h2 class="dialog__title" id=title_id>{move || title.get()}</h2>
            {children()}
        </dialog>
    }
}

/// The password of a sign-in or of a new account.
#[component]
pub fn PasswordField(
    /// What was typed.
    value: RwSignal<String>,
    /// What is wrong with it.
    error: Signal<Option<String>>,
    /// A new password is being chosen: say what is accepted.
    fresh: bool,
) -> impl IntoView {
    let shown = RwSignal::new(false);
    let input = NodeRef::<leptos::html::Input>::new();
    // A password manager may have filled the field before the page came alive.
    Effect::new(move || {
        if let Some(input) = input.get() {
            let filled = input.value();
            if !filled.is_empty() && value.with_untracked(String::is_empty) {
                value.set(filled);
            }
        }
    });
    let hint = fresh.then(|| {
        view! { <p class="field__hint" id="password-hint">"At least 15 characters; a sentence is fine."</p> }
    });
    let complete = if fresh { "new-password" } else { "current-password" };
    view! {
        <div class="field">
            <label class="field__label" for="password">"Password"</label>
            <input
                id="password"
                name="password"
                type=move || if shown.get() { "text" } else { "password" }
                autocomplete=complete
                spellcheck="false"
                aria-describedby="password-hint password-error"
                aria-invalid=move || error.get().map(|_| "true")
                node_ref=input
                on:input=move |ev| value.set(event_target_value(&ev))
            />
            {hint}
            <FieldError id="password-error" error=error/>
            <p>
                <button class="link-button" type="button" on:click=move |_| shown.update(|shown| *shown = !*shown)>
                    {move || if shown.get() { "Hide password" } else { "Show password" }}
                </button>
            </p>
        </div>
    }
}

/// The line below a field that is not acceptable.
#[component]
pub fn FieldError(
    /// The id that the field's `aria-describedby` names.
    #[prop(into)]
    id: String,
    /// What is wrong.
    error: Signal<Option<String>>,
) -> impl IntoView {
    move || {
        let id = id.clone();
        error.get().map(|text| view! { <p class="field__error" id=id>{text}</p> })
    }
}

/// Keeps the place of what is being fetched; shows itself only when that takes a while.
#[component]
pub fn Loading() -> impl IntoView {
    view! {
        <div class="stack">
            <span class="skeleton skeleton--card">"Loading"</span>
            <span class="skeleton skeleton--row">"Loading"</span>
            <span class="skeleton skeleton--row">"Loading"</span>
        </div>
    }
}

/// Somebody without an organization opened a page of organizations.
#[component]
pub fn NoOrg() -> impl IntoView {
    view! {
        <div class="empty">
            <p class="empty__text">
                "You are in no organization yet, so there is nothing to show here. Ask an owner to invite you; if you operate this portal, the pages under Operator are yours."
            </p>
        </div>
    }
}

/// The mark and name above a card that has no shell around it.
#[component]
pub fn Brand() -> impl IntoView {
    view! {
        <a class="brand" href="/">
            <Mark class="brand__mark"/>
            "Berth"
        </a>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::problems::FieldError as Wrong;

    #[test]
    fn a_key_is_kept_until_something_is_decided() {
        let problem = |status: u16, code: &str| Problem { status, ..Problem::new(500, code, "", "") };
        for (status, code, over) in [
            (422, "request.invalid", true),
            (409, "idempotency.shown_once", true),
            (402, "funds.insufficient", true),
            (409, "idempotency.in_flight", false),
            (429, "request.throttled", false),
            (500, "internal", false),
            (0, "network.unreachable", false),
        ] {
            assert_eq!(judged(&problem(status, code)), over, "{status} {code}");
        }
    }

    #[test]
    fn a_problem_is_shown_once() {
        let problem = Problem::invalid(vec![Wrong::new("/files/a.py", "x"), Wrong::new("/name", "y")]);
        assert!(all_beside(&problem, &["/name", "/files"]));
        assert!(!all_beside(&problem, &["/files"]));
        assert!(!all_beside(&problem, &["/name", "/file"]));
        assert!(!all_beside(&Problem::not_found(), &["/name"]));
    }
}
