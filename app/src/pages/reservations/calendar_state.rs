//! The signals of the time in the calendar, and the requests for its frame.

use std::future::Future;
use std::sync::Arc;

use berth_types::reservations::Window;
use berth_types::time::Timestamp;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::choice::Choice;
use super::clock::{Frame, View};
use crate::api::Answer;
use crate::pages::parts::{every_visible, now_ms};

/// Milliseconds between two requests.
const REFRESH_MS: u64 = 15_000;

/// The signals of the time, common to all grids of the calendar.
#[derive(Clone, Copy)]
pub struct CalendarState {
    /// The time choice.
    pub choice: Choice,
    /// The Unix time in milliseconds; 0 before hydration.
    pub now: RwSignal<i64>,
    /// The columns; absent before hydration.
    pub frame: Memo<Option<Arc<Frame>>>,
    /// The first cell of an incomplete selection.
    pub first: RwSignal<Option<Window>>,
    /// The text of the cell below the pointer or the keyboard focus.
    pub pointed: RwSignal<String>,
    pub(super) view: RwSignal<View>,
    /// A day of the frame, counted from 1970-01-01.
    pub(super) day: RwSignal<Option<i64>>,
}

impl CalendarState {
    /// Returns the browser's time.
    pub fn present(self) -> Timestamp {
        Timestamp::from_micros(self.now.get().saturating_mul(1_000))
    }

    /// Returns start and end of the frame; `None` before hydration.
    pub fn period(self) -> Option<(Timestamp, Timestamp)> {
        self.frame.with(|frame| frame.as_ref().map(|frame| (frame.from(), frame.until())))
    }

    pub(super) fn today(self) -> i64 {
        let zone = self.choice.zone.get_untracked();
        zone.wall(Timestamp::from_micros(self.now.get_untracked().saturating_mul(1_000))).day()
    }
}

/// The Unix times of the latest requests in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Updates {
    /// The last answer; absent before the first one.
    answered_ms: Option<i64>,
    /// The last failure; absent after an answer.
    failed_ms: Option<i64>,
}

/// Sends the request for each new query, and again every 15 seconds. Only an answer to the latest request reaches
/// `update`.
pub(super) fn poll<Q, T, F>(
    query: Memo<Option<Q>>,
    updates: RwSignal<Updates>,
    request: impl Fn(Q) -> F + Copy + 'static,
    update: impl Fn(T) + Copy + 'static,
) where
    Q: Clone + PartialEq + Send + Sync + 'static,
    T: 'static,
    F: Future<Output = Answer<T>> + 'static,
{
    let last_request = StoredValue::new(0_u64);
    let fetch = move || {
        let Some(query) = query.get_untracked() else { return };
        let number = last_request.get_value().wrapping_add(1);
        last_request.set_value(number);
        let answer = request(query);
        spawn_local(async move {
            let answer = answer.await;
            if last_request.try_get_value() != Some(number) {
                return;
            }
            match answer {
                Ok(fresh) => {
                    updates.set(Updates { answered_ms: Some(now_ms()), failed_ms: None });
                    update(fresh);
                }
                Err(_) => updates.update(|updates| updates.failed_ms = Some(now_ms())),
            }
        });
    };
    Effect::new(move || {
        query.track();
        fetch();
    });
    every_visible(REFRESH_MS, fetch);
}

/// Returns the text of the warning after a failed request; `None` after an answer.
fn warning_text(updates: Updates, is_loading: bool) -> Option<String> {
    let failed_ms = updates.failed_ms?;
    Some(match updates.answered_ms.filter(|_| !is_loading) {
        None => "calendar unavailable, retrying".to_owned(),
        Some(answered_ms) => {
            let seconds = failed_ms.saturating_sub(answered_ms).max(0) / 1_000;
            format!("calendar interrupted, retrying; data {seconds} s old")
        }
    })
}

/// Returns the warning after failed requests.
pub(super) fn refresh_warning(updates: Updates, is_loading: bool) -> AnyView {
    match warning_text(updates, is_loading) {
        None => ().into_any(),
        Some(text) => view! { <span class="live live--lost" role="status">{text}</span> }.into_any(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_has_the_age_of_the_last_answer() {
        let failed = Updates { answered_ms: Some(1_000), failed_ms: Some(121_500) };
        let text = |updates: Updates| warning_text(updates, false);
        assert_eq!(text(failed).as_deref(), Some("calendar interrupted, retrying; data 120 s old"));
        assert_eq!(text(Updates { failed_ms: None, ..failed }), None);
        assert_eq!(warning_text(failed, true).as_deref(), Some("calendar unavailable, retrying"));
        let never = Updates { answered_ms: None, failed_ms: Some(9) };
        assert_eq!(text(never).as_deref(), Some("calendar unavailable, retrying"));
    }
}
