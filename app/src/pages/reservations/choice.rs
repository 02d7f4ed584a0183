//! The time choice of the calendar and the form. Without requests to the portal.

use berth_types::reservations::Window;
use berth_types::time::Timestamp;
use leptos::prelude::*;

use crate::ui::Zone;
use crate::ui::clock::WallError;

/// A minute and an hour in microseconds.
const MINUTE: i64 = 60_000_000;
const HOUR: i64 = 60 * MINUTE;

/// The exact window of two texts. Fields have only minutes, and a zone may repeat an hour; the window of an
/// unchanged selection stays exact.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exact {
    begin: String,
    end: String,
    window: Window,
}

/// Start and end as texts of fields in the chosen zone.
#[derive(Clone, Copy)]
pub struct Choice {
    /// The zone of the texts.
    pub zone: RwSignal<Zone>,
    /// The input of the start.
    pub begin: RwSignal<String>,
    /// The input of the end.
    pub end: RwSignal<String>,
    exact: RwSignal<Option<Exact>>,
}

impl Choice {
    /// Returns an empty choice in the zone of the page. It follows the page and keeps its instants.
    pub fn new(page: RwSignal<Zone>) -> Self {
        let choice = Self {
            zone: RwSignal::new(page.get_untracked()),
            begin: RwSignal::new(String::new()),
            end: RwSignal::new(String::new()),
            exact: RwSignal::new(None),
        };
        Effect::new(move || choice.set_zone(page.get()));
        choice
    }

    /// Returns the window of an unchanged selection.
    fn exact_window(self) -> Option<Window> {
        let (begin, end) = (self.begin.get(), self.end.get());
        self.exact.with(|exact| {
            exact.as_ref().filter(|exact| exact.begin == begin && exact.end == end).map(|exact| exact.window)
        })
    }

    /// Returns start and end, each with the error of its input. Reactive callers track the choice.
    pub fn instants(self) -> (Result<Timestamp, WallError>, Result<Timestamp, WallError>) {
        let zone = self.zone.get();
        match self.exact_window() {
            Some(window) => (Ok(window.starts_at), Ok(window.ends_at)),
            None => (self.begin.with(|begin| zone.instant(begin)), self.end.with(|end| zone.instant(end))),
        }
    }

    /// Returns the remark about the input of a time that the zone repeats.
    pub fn remark(self) -> Option<String> {
        if self.exact_window().is_some() {
            return None;
        }
        let zone = self.zone.get();
        let begin = self.begin.with(|begin| zone.remark(begin));
        begin.or_else(|| self.end.with(|end| zone.remark(end)))
    }

    /// Returns the window; `None` for an empty or invalid one.
    pub fn window(self) -> Option<Window> {
        let (begin, end) = self.instants();
        let window = Window { starts_at: begin.ok()?, ends_at: end.ok()? };
        (window.starts_at < window.ends_at).then_some(window)
    }

    /// Returns true if both fields are empty.
    pub fn empty(self) -> bool {
        self.begin.with(String::is_empty) && self.end.with(String::is_empty)
    }

    /// Sets the window.
    pub fn set(self, window: Window) {
        if untrack(move || self.window()) == Some(window) {
            return;
        }
        let zone = self.zone.get_untracked();
        let (begin, end) = (zone.field(window.starts_at), zone.field(window.ends_at));
        self.exact.set(Some(Exact { begin: begin.clone(), end: end.clone(), window }));
        self.begin.set(begin);
        self.end.set(end);
    }

    /// Clears both fields.
    pub fn clear(self) {
        self.exact.set(None);
        self.begin.set(String::new());
        self.end.set(String::new());
    }

    /// Changes the zone and keeps the instants.
    fn set_zone(self, zone: Zone) {
        if self.zone.get_untracked() == zone {
            return;
        }
        let (begin, end) = untrack(move || self.instants());
        self.zone.set(zone);
        match (begin, end) {
            (Ok(starts_at), Ok(ends_at)) => {
                let window = Window { starts_at, ends_at };
                let (begin, end) = (zone.field(starts_at), zone.field(ends_at));
                self.exact.set(Some(Exact { begin: begin.clone(), end: end.clone(), window }));
                self.begin.set(begin);
                self.end.set(end);
            }
            // A single valid field changes; invalid input stays.
            (begin, end) => {
                self.exact.set(None);
                if let Ok(at) = begin {
                    self.begin.set(zone.field(at));
                }
                if let Ok(at) = end {
                    self.end.set(zone.field(at));
                }
            }
        }
    }
}

/// The least time to the start of the initial window: the portal refuses a start of more than a minute ago.
const LEAD: i64 = 10 * MINUTE;

/// Returns the initial window of the form: one hour from the first full hour after ten minutes.
pub fn first_window(now_ms: i64) -> Window {
    let begin = next(now_ms.saturating_mul(1_000).saturating_add(LEAD), HOUR);
    let starts_at = Timestamp::from_micros(begin);
    Window { starts_at, ends_at: starts_at.plus_seconds(3_600) }
}

/// Returns the first multiple of `step` from `micros` on.
fn next(micros: i64, step: i64) -> i64 {
    micros.saturating_add(step - 1).div_euclid(step).saturating_mul(step)
}

/// Returns the selectable rest of a column: a started column begins at the next full minute.
pub fn selectable((from, until): (Timestamp, Timestamp), now: Timestamp) -> Option<Window> {
    let starts_at = if from >= now { from } else { Timestamp::from_micros(next(now.micros(), MINUTE)) };
    (starts_at < until).then_some(Window { starts_at, ends_at: until })
}

/// Returns the window from the earlier start to the later end.
pub fn union(a: Window, b: Window) -> Window {
    Window { starts_at: a.starts_at.min(b.starts_at), ends_at: a.ends_at.max(b.ends_at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_initial_window_is_the_next_full_hour() {
        let now = at("2026-11-22T09:15:10Z").millis();
        let window = first_window(now);
        assert_eq!(
            (window.starts_at, window.ends_at),
            (at("2026-11-22T10:00:00Z"), at("2026-11-22T11:00:00Z"))
        );
        for (now, start) in [("09:50:00", "10:00:00"), ("09:50:01", "11:00:00"), ("23:55:00", "01:00:00")] {
            let window = first_window(at(&format!("2026-11-22T{now}Z")).millis());
            assert_eq!(window.starts_at.clock(), start, "{now}");
        }
    }

    #[test]
    fn the_past_is_not_selectable() {
        let column = (at("2026-11-22T09:00:00Z"), at("2026-11-22T09:30:00Z"));
        let begin = |now: &str| selectable(column, at(now)).map(|window| window.starts_at.clock());
        assert_eq!(begin("2026-11-22T08:00:00Z").as_deref(), Some("09:00:00"));
        assert_eq!(begin("2026-11-22T09:10:30Z").as_deref(), Some("09:11:00"));
        assert_eq!(begin("2026-11-22T09:29:30Z"), None);
        assert_eq!(begin("2026-11-22T10:00:00Z"), None);
    }

    #[test]
    fn two_columns_span_the_time_between() {
        let window = |from: &str, until: &str| Window { starts_at: at(from), ends_at: at(until) };
        let late = window("2026-11-22T11:00:00Z", "2026-11-22T11:30:00Z");
        let early = window("2026-11-22T09:00:00Z", "2026-11-22T09:30:00Z");
        assert_eq!(union(late, early), window("2026-11-22T09:00:00Z", "2026-11-22T11:30:00Z"));
        assert_eq!(union(early, early), early);
    }
}
