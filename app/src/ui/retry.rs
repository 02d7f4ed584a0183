//! Recovery of a page from a failed load: a button, and automatic attempts after an interruption.

use berth_types::problems::Problem;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::{ProblemNotice, later, ready};
use crate::api;
use crate::live::pause_ms;

/// The repetition of a failed load.
#[derive(Clone, Copy)]
pub struct Retry {
    load: Callback<()>,
    /// Attempts since the last success.
    failures: StoredValue<u32>,
}

impl Retry {
    /// Returns the repetition of `load` during the life of the calling component.
    pub fn new(load: impl Fn() + Send + Sync + 'static) -> Self {
        Self { load: Callback::new(move |()| load()), failures: StoredValue::new(0) }
    }

    /// Resets the pause after a successful load.
    pub fn succeeded(self) {
        let _ = self.failures.try_update_value(|failures| *failures = 0);
    }

    /// Loads again, unless the page has ended.
    fn run(self) {
        let _ = self.load.try_run(());
    }

    /// Loads again when the portal answers, during the life of the calling component.
    pub fn when_portal_answers(self) {
        let round = RwSignal::new(0_u32);
        Effect::new(move || {
            round.track();
            let failures = self.failures.try_get_value().unwrap_or(0);
            let _ = self.failures.try_update_value(|failures| *failures = failures.saturating_add(1));
            later(pause_ms(failures), move || {
                spawn_local(async move {
                    // The notice stays until the portal answers.
                    if api::accounts::info().await.is_ok() {
                        self.run();
                    } else {
                        let _ = round.try_update(|round| *round = round.wrapping_add(1));
                    }
                });
            });
        });
    }
}

/// Returns true if a later load can succeed without a change by the user.
fn is_temporary(problem: &Problem) -> bool {
    // 0: the portal did not answer.
    problem.status == 0 || problem.status == 429 || problem.status >= 500
}

/// The problem of a failed load. A temporary problem has a button and repeats the load.
#[component]
pub fn RetryNotice(
    /// The problem of the last load.
    problem: Problem,
    /// The repetition.
    retry: Retry,
) -> impl IntoView {
    let ready = ready();
    let again = is_temporary(&problem).then(|| {
        retry.when_portal_answers();
        view! {
            <p class="row">
                <button class="btn" type="button" disabled=move || !ready.get() on:click=move |_| retry.run()>
                    "Try again"
                </button>
                <span class="quiet">"The page loads again when the portal answers."</span>
            </p>
        }
    });
    // A full load, because the session of this page is older than the rule.
    let enrolment = (problem.code == "auth.factor_required").then(|| {
        view! {
            <p class="row">
                <a class="btn" href="/account/second-factors" rel="external">"Add second factor"</a>
            </p>
        }
    });
    view! {
        <ProblemNotice problem=problem/>
        {enrolment}
        {again}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_problems_are_repeated() {
        let problem = |status: u16| Problem { status, ..Problem::not_found() };
        for (status, temporary) in
            [(0, true), (429, true), (500, true), (503, true), (400, false), (403, false), (404, false)]
        {
            assert_eq!(is_temporary(&problem(status)), temporary, "{status}");
        }
    }
}
