//! The time that is meant: what the calendar and the form both choose and both show.
//!
//! Must not ask the portal.

use berth_types::reservations::Window;
use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::zone::Zone;

/// A minute in microseconds, and an hour.
const MINUTE: i64 = 60_000_000;
const HOUR: i64 = 60 * MINUTE;

/// Instants behind two texts. A field has minutes only and a zone may show a time twice; a time that was
/// chosen and not typed is exact for as long as its texts stand.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exact {
    begin: String,
    end: String,
    window: Window,
}

/// Begin and end, as texts of fields in the chosen zone.
#[derive(Clone, Copy)]
pub struct Choice {
    /// The zone of the texts.
    pub zone: RwSignal<Zone>,
    /// When it begins, as typed.
    pub begin: RwSignal<String>,
    /// When it is over, as typed.
    pub end: RwSignal<String>,
    exact: RwSignal<Option<Exact>>,
}

impl Choice {
    /// Nothing is chosen yet.
    pub fn none(zone: RwSignal<Zone>) -> Self {
        Self {
            zone,
            begin: RwSignal::new(String::new()),
            end: RwSignal::new(String::new()),
            exact: RwSignal::new(None),
        }
    }

    /// What is meant, each end where there is one. Whoever calls this in a reactive place follows it.
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

    /// What is meant, when that is a stretch of time.
    pub fn window(self) -> Option<Window> {
        let (begin, end) = self.instants();
        let window = Window { starts_at: begin?, ends_at: end? };
        (window.starts_at < window.ends_at).then_some(window)
    }

    /// Nothing is typed at all.
    pub fn empty(self) -> bool {
        self.begin.with(String::is_empty) && self.end.with(String::is_empty)
    }

    /// Chooses a stretch of time.
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

    /// Chooses nothing.
    pub fn clear(self) {
        self.exact.set(None);
        self.begin.set(String::new());
        self.end.set(String::new());
    }

    /// Another zone for the same instants.
    pub fn switch(self, zone: Zone) {
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
            // One end alone is read anew; what cannot be read stays as it is.
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

/// The next whole hour, for an hour: what stands in the form before anything is chosen.
pub fn first_window(now_ms: i64) -> Window {
    let begin = next(now_ms.saturating_mul(1_000), HOUR);
    let starts_at = Timestamp::from_micros(begin);
    Window { starts_at, ends_at: starts_at.plus_seconds(3_600) }
}

/// The first multiple of `step` that is not before `micros`.
fn next(micros: i64, step: i64) -> i64 {
    micros.saturating_add(step - 1).div_euclid(step).saturating_mul(step)
}

/// What of a column can be chosen: from the next whole minute where it has begun already.
pub fn still_free((from, until): (Timestamp, Timestamp), now: Timestamp) -> Option<Window> {
    let starts_at = if from >= now { from } else { Timestamp::from_micros(next(now.micros(), MINUTE)) };
    (starts_at < until).then_some(Window { starts_at, ends_at: until })
}

/// From the earlier begin to the later end.
pub fn joined(a: Window, b: Window) -> Window {
    Window { starts_at: a.starts_at.min(b.starts_at), ends_at: a.ends_at.max(b.ends_at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_choice_is_the_next_whole_hour() {
        let now = at("2026-11-22T09:15:10Z").millis();
        let window = first_window(now);
        assert_eq!(
            (window.starts_at, window.ends_at),
            (at("2026-11-22T10:00:00Z"), at("2026-11-22T11:00:00Z"))
        );
    }

    #[test]
    fn what_has_passed_cannot_be_chosen() {
        let column = (at("2026-11-22T09:00:00Z"), at("2026-11-22T09:30:00Z"));
        let begin = |now: &str| still_free(column, at(now)).map(|window| window.starts_at.clock());
        assert_eq!(begin("2026-11-22T08:00:00Z").as_deref(), Some("09:00:00"));
        assert_eq!(begin("2026-11-22T09:10:30Z").as_deref(), Some("09:11:00"));
        assert_eq!(begin("2026-11-22T09:29:30Z"), None);
        assert_eq!(begin("2026-11-22T10:00:00Z"), None);
    }

    #[test]
    fn two_presses_span_what_lies_between_them() {
        let window = |from: &str, until: &str| Window { starts_at: at(from), ends_at: at(until) };
        let late = window("2026-11-22T11:00:00Z", "2026-11-22T11:30:00Z");
        let early = window("2026-11-22T09:00:00Z", "2026-11-22T09:30:00Z");
        assert_eq!(joined(late, early), window("2026-11-22T09:00:00Z", "2026-11-22T11:30:00Z"));
        assert_eq!(joined(early, early), early);
    }
}
