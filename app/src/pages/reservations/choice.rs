//! The time choice of the calendar and the form. Without requests to the portal.

use berth_types::reservations::Window;
use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::zone::Zone;

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
    /// Returns an empty choice.
    pub fn none(zone: RwSignal<Zone>) -> Self {
        Self {
            zone,
            begin: RwSignal::new(String::new()),
            end: RwSignal::new(String::new()),
            exact: RwSignal::new(None),
        }
    }

    /// Returns start and end; absent for invalid input. Reactive callers track the choice.
    pub fn instants(self) -> (Option<Timestamp>, Option<Timestamp>) {
        let (zone, begin, end) = (self.zone.get(), self.begin.get(), self.end.get());
        let exact = self.exact.with(|exact| {
            exact.as_ref().filter(|exact| exact.begin == begin && exact.end == end).map(|exact| exact.window)
        });
        match exact {
            Some(window) => (Some(window.starts_at), Some(window.ends_at)),
            None => (zone.instant(&begin), zone.instant(&end)),
        }
    }

    /// Returns the window; `None` for an empty or invalid one.
    pub fn window(self) -> Option<Window> {
        let (begin, end) = self.instants();
        let window = Window { starts_at: begin?, ends_at: end? };
        (window.starts_at < window.ends_at).then_some(window)
    }

    /// Tells whether both fields are empty.
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
    pub fn set_zone(self, zone: Zone) {
        let (begin, end) = untrack(move || self.instants());
        self.zone.set(zone);
        match (begin, end) {
            (Some(starts_at), Some(ends_at)) => {
                let window = Window { starts_at, ends_at };
                let (begin, end) = (zone.field(starts_at), zone.field(ends_at));
                self.exact.set(Some(Exact { begin: begin.clone(), end: end.clone(), window }));
                self.begin.set(begin);
                self.end.set(end);
            }
            // A single valid field changes; invalid input stays.
            (begin, end) => {
                self.exact.set(None);
                if let Some(at) = begin {
                    self.begin.set(zone.field(at));
                }
                if let Some(at) = end {
                    self.end.set(zone.field(at));
                }
            }
        }
    }
}

/// Returns the initial window of the form: one hour from the next full hour.
pub fn first_window(now_ms: i64) -> Window {
    let begin = next(now_ms.saturating_mul(1_000), HOUR);
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
