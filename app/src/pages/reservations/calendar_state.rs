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
use crate::pages::parts::every_visible;

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

/// Sends the request for each new query, and again every 15 seconds. Only an answer to the latest request reaches
/// `update`. `failures` counts the failed requests since the last answer.
pub(super) fn poll<Q, T, F>(
    query: Memo<Option<Q>>,
    failures: RwSignal<u32>,
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
                    failures.set(0);
                    update(fresh);
                }
                Err(_) => failures.update(|failures| *failures = failures.saturating_add(1)),
            }
        });
    };
    Effect::new(move || {
        query.track();
        fetch();
    });
    every_visible(REFRESH_MS, fetch);
}

/// Returns the warning after failed requests.
pub(super) fn refresh_warning(failures: u32, is_loading: bool) -> AnyView {
    if failures == 0 {
        return ().into_any();
    }
    let text = if is_loading {
        "calendar unavailable, retrying".to_owned()
    } else {
        let seconds = u64::from(failures).saturating_mul(REFRESH_MS) / 1_000;
        format!("calendar interrupted, retrying; data {seconds} s old")
    };
    view! { <span class="live live--lost" role="status">{text}</span> }.into_any()
}
