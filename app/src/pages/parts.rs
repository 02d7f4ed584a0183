//! Common parts of the pages: requests with their button, timers, focus, dialogs, the password field, and the
//! states of a page without data.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use berth_types::problems::Problem;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Serialize;

use crate::api::{self, Answer};
use crate::ui::*;

pub use crate::ui::{FieldError, later, open_url, ready};

/// The request of a button or a form, one at a time.
#[derive(Clone, Copy)]
pub struct Call {
    /// True during a request. A second request is not started.
    pub pending: RwSignal<bool>,
    /// The problem of the last request.
    pub problem: RwSignal<Option<Problem>>,
}

impl Call {
    /// Returns a call without a request.
    pub fn idle() -> Self {
        Self { pending: RwSignal::new(false), problem: RwSignal::new(None) }
    }

    /// Waits for the answer and passes it to `done`, or keeps the problem.
    pub fn run<T: 'static>(
        self,
        answer: impl Future<Output = Answer<T>> + 'static,
        done: impl FnOnce(T) + 'static,
    ) {
        self.run_for(|| true, answer, move |value, _| done(value));
    }

    /// Does the same for the item of a dialog. `is_shown` returns true while the dialog has this item: later the
    /// problem of the answer is dropped, and `done` gets false.
    pub fn run_for<T: 'static>(
        self,
        is_shown: impl FnOnce() -> bool + 'static,
        answer: impl Future<Output = Answer<T>> + 'static,
        done: impl FnOnce(T, bool) + 'static,
    ) {
        if self.pending.get_untracked() {
            return;
        }
        self.pending.set(true);
        spawn_local(async move {
            let answer = answer.await;
            self.pending.set(false);
            let shown = is_shown();
            match answer {
                Ok(value) => {
                    if shown {
                        self.problem.set(None);
                    }
                    done(value, shown);
                }
                Err(problem) if shown => self.problem.set(Some(problem)),
                Err(_) => {}
            }
        });
    }

    /// Returns the error of a field.
    pub fn field(self, pointer: &'static str) -> Signal<Option<String>> {
        let problem = self.problem;
        Signal::derive(move || {
            problem.with(|problem| {
                problem.as_ref().and_then(|problem| problem.field(pointer)).map(str::to_owned)
            })
        })
    }

    /// Returns the errors of a list and of its parts as one text.
    pub fn list_field(self, pointer: &'static str) -> Signal<Option<String>> {
        let problem = self.problem;
        Signal::derive(move || problem.with(|problem| errors_into(problem.as_ref()?, pointer)))
    }

    /// Returns true if one of these fields, or a part of it, has an error.
    pub fn has_errors_in(self, fields: &[&str]) -> bool {
        self.problem.with(|problem| {
            problem.as_ref().is_some_and(|problem| {
                problem.errors.iter().any(|error| fields.iter().any(|field| is_into(&error.pointer, field)))
            })
        })
    }

    /// Forgets the errors of a field and of its parts.
    pub fn forget(self, field: &str) {
        self.problem.maybe_update(|problem| {
            let Some(known) = problem else { return false };
            let before = known.errors.len();
            known.errors.retain(|error| !is_into(&error.pointer, field));
            let changed = known.errors.len() < before;
            if changed && known.errors.is_empty() {
                *problem = None;
            }
            changed
        });
    }

    /// Returns the problem, unless the fields show all its errors.
    pub fn unshown(self, beside_fields: &'static [&'static str]) -> Option<Problem> {
        self.problem.get().filter(|problem| !all_beside(problem, beside_fields))
    }
}

/// Returns true if the portal refused a request for good. The outcome is unknown without an answer or a
/// decision.
fn is_refusal(problem: &Problem) -> bool {
    // After the code of another request the first one took effect: a new key would repeat it.
    let is_open = matches!(problem.code.as_str(), "idempotency.in_flight" | "idempotency.other_request");
    let undecided = problem.status == 429 || is_open;
    (400..500).contains(&problem.status) && !undecided
}

/// The Idempotency-Key of a form. A repeated request keeps its key until it is accepted or refused: after a
/// lost answer it takes effect once.
#[derive(Clone, Copy)]
pub struct FormKey(StoredValue<(String, String)>);

impl FormKey {
    /// Returns the key of a form with this call.
    pub fn new(call: Call) -> Self {
        let key = Self(StoredValue::new((String::new(), String::new())));
        Effect::new(move || {
            if call.problem.with(|problem| problem.as_ref().is_some_and(is_refusal)) {
                key.reset();
            }
        });
        key
    }

    /// Returns the key for a request body.
    pub fn for_body<B: Serialize>(self, body: &B) -> Option<String> {
        self.for_text(serde_json::to_string(body).unwrap_or_default())
    }

    /// Returns the key for a request, identified by a text.
    pub fn for_text(self, request: String) -> Option<String> {
        self.0.update_value(|(last, key)| {
            if *last != request || key.is_empty() {
                *key = api::new_key();
                *last = request;
            }
        });
        Some(self.0.with_value(|(_, key)| key.clone())).filter(|key| !key.is_empty())
    }

    /// Discards the key after an accepted request.
    pub fn reset(self) {
        self.0.set_value((String::new(), String::new()));
    }
}

/// Returns true if every error of a problem belongs to one of these fields.
fn all_beside(problem: &Problem, fields: &[&str]) -> bool {
    !problem.errors.is_empty()
        && problem.errors.iter().all(|error| fields.iter().any(|field| is_into(&error.pointer, field)))
}

/// The problem of a call, unless the fields show it.
#[component]
pub fn CallProblem(
    /// The call of the form.
    call: Call,
    /// The pointers of fields with their own errors.
    beside_fields: &'static [&'static str],
) -> impl IntoView {
    move || call.unshown(beside_fields).map(|problem| view! { <ProblemNotice problem=problem/> })
}

/// The submit button of a form, disabled before hydration. During a request it keeps the focus and has no effect.
#[component]
pub fn Submit(
    /// The call of the form.
    call: Call,
    /// True for a destructive action.
    #[prop(optional, into)]
    danger: Signal<bool>,
    /// True beside the primary action of the page.
    #[prop(optional)]
    quiet: bool,
    /// True without an item for the action.
    #[prop(optional, into)]
    disabled: Signal<bool>,
    /// The label.
    children: Children,
) -> impl IntoView {
    let ready = ready();
    let class = move || match (danger.get(), quiet) {
        (true, _) => "btn btn--danger btn--primary",
        (false, true) => "btn",
        (false, false) => "btn btn--primary",
    };
    view! {
        <button
            class=class
            type="submit"
            disabled=move || !ready.get() || disabled.get()
            aria-disabled=move || call.pending.get().then_some("true")
            aria-busy=move || call.pending.get().then_some("true")
            on:click=move |event| {
                // The Enter key in a field comes here too.
                if call.pending.get_untracked() {
                    event.prevent_default();
                }
            }
        >
            {children()}
        </button>
    }
}

/// Returns a signal that navigates to the path in it. Tasks can set it without a router.
pub fn redirect() -> RwSignal<Option<String>> {
    let target = RwSignal::new(None::<String>);
    Effect::new(move || {
        if let Some(path) = target.get() {
            go(&path);
        }
    });
    target
}

/// Returns the URL of this portal, or an example before hydration.
pub fn origin() -> ReadSignal<String> {
    let (origin, set_origin) = signal("https://berth.example".to_owned());
    Effect::new(move || {
        if let Ok(here) = window().location().origin() {
            set_origin.set(here);
        }
    });
    origin
}

/// Returns the browser's Unix time in milliseconds, for ages and for time choices but never for money.
#[cfg(feature = "hydrate")]
pub fn now_ms() -> i64 {
    js_sys::Date::now() as i64
}

/// Returns 0 on the server, which renders without a clock.
#[cfg(not(feature = "hydrate"))]
pub fn now_ms() -> i64 {
    0
}

/// Runs `work` every `ms` milliseconds until the calling effect runs again or ends. A hidden tab pauses; a missed
/// run follows as soon as the tab is visible.
pub fn interval(ms: u64, work: impl Fn() + 'static) {
    let (work, missed) = (Rc::new(work), Rc::new(Cell::new(false)));
    let (due, skipped) = (Rc::clone(&work), Rc::clone(&missed));
    let tick = move || {
        if document().hidden() {
            skipped.set(true);
        } else {
            due();
        }
    };
    if let Ok(handle) = set_interval_with_handle(tick, Duration::from_millis(ms)) {
        on_cleanup(move || handle.clear());
    }
    let listener = window_event_listener_untyped("visibilitychange", move |_| {
        if !document().hidden() && missed.take() {
            work();
        }
    });
    on_cleanup(move || listener.remove());
}

/// Runs `work` every `ms` milliseconds during the life of the page, except in a hidden tab.
pub fn every_visible(ms: u64, work: impl Fn() + Clone + 'static) {
    Effect::new(move || interval(ms, work.clone()));
}

/// Focuses the first element of a selector.
pub fn focus_first(selector: &str) {
    #[cfg(feature = "hydrate")]
    {
        use wasm_bindgen::JsCast;

        let found = document().query_selector(selector).ok().flatten();
        if let Some(element) = found.and_then(|found| found.dyn_into::<web_sys::HtmlElement>().ok()) {
            // An unfocusable element is still visible.
            let _ = element.focus();
        }
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = selector;
}

/// Focuses the first element of a selector after the present change of the page.
pub fn focus_soon(selector: String) {
    // At the next frame the change is drawn.
    request_animation_frame(move || focus_first(&selector));
}

/// Awaits an optional call.
pub async fn when_some<T, F>(call: Option<F>) -> Answer<Option<T>>
where
    F: Future<Output = Answer<T>>,
{
    match call {
        None => Ok(None),
        Some(call) => call.await.map(Some),
    }
}

/// Focuses the content of the page after a dialog whose action removed the button that opened it.
fn restore_focus() {
    #[cfg(feature = "hydrate")]
    {
        // A hidden button of the closed dialog keeps the focus until the next frame.
        let is_hidden = |element: &web_sys::Element| {
            element.closest("dialog:not([open])").is_ok_and(|dialog| dialog.is_some())
        };
        let has_none = |element: web_sys::Element| element.tag_name() == "BODY" || is_hidden(&element);
        if document().active_element().is_none_or(has_none) {
            focus_first("#main");
        }
    }
}

/// A native dialog. Escape closes it.
#[component]
pub fn Modal(
    /// Unique in the page.
    id: &'static str,
    /// The heading.
    #[prop(into)]
    title: Signal<String>,
    /// True with an open dialog.
    open: RwSignal<bool>,
    /// The body and the actions.
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
        <dialog
            class="dialog"
            id=id
            aria-labelledby=labelled
            node_ref=element
            on:close=move |_| {
                // The event can come after the next opening.
                if element.get_untracked().is_some_and(|dialog| dialog.open()) {
                    return;
                }
                open.set(false);
                restore_focus();
            }
        >
            <h2 class="dialog__title" id=title_id>{move || title.get()}</h2>
            {children()}
        </dialog>
    }
}

/// The password field of a sign-in or of a new account.
#[component]
pub fn PasswordField(
    /// The input.
    value: RwSignal<String>,
    /// The error below the field.
    error: Signal<Option<String>>,
    /// True for a new password, with a hint about the rules.
    fresh: bool,
) -> impl IntoView {
    let shown = RwSignal::new(false);
    let input = NodeRef::<leptos::html::Input>::new();
    // A password manager may fill the field before hydration. Afterwards the signal decides.
    Effect::new(move |hydrated: Option<bool>| {
        let expected = value.get();
        let Some(input) = input.get() else { return hydrated.unwrap_or(false) };
        let filled = input.value();
        if hydrated != Some(true) && expected.is_empty() && !filled.is_empty() {
            value.set(filled);
        } else if filled != expected {
            input.set_value(&expected);
        }
        true
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

/// A placeholder with a delayed appearance.
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

/// The empty state of a person without an organization.
#[component]
pub fn NoOrg() -> impl IntoView {
    view! {
        <div class="empty">
            <p class="empty__text">
                "You are not a member of an organization. Ask an owner for an invitation. Operators use the pages under Operator."
            </p>
        </div>
    }
}

/// The mark and the name above the card of a page without navigation.
#[component]
pub fn Brand() -> impl IntoView {
    view! {
        <a class="brand" href="/">
            <PortalName mark="brand__mark"/>
        </a>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::problems::FieldError as Wrong;

    #[test]
    fn a_key_stays_until_a_refusal() {
        let problem = |status: u16, code: &str| Problem { status, ..Problem::new(500, code, "", "") };
        for (status, code, refused) in [
            (422, "request.invalid", true),
            (409, "idempotency.shown_once", true),
            (402, "funds.insufficient", true),
            (409, "idempotency.in_flight", false),
            (422, "idempotency.other_request", false),
            (429, "request.throttled", false),
            (500, "internal", false),
            (0, "network.unreachable", false),
        ] {
            assert_eq!(is_refusal(&problem(status, code)), refused, "{status} {code}");
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
