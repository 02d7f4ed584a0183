//! Audit events that anybody can cause at any rate: one row for each cause and window, with a count.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_types::ids::OrgId;
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;

/// The window of most causes.
pub const MINUTE_MS: i64 = 60_000;
/// The window of causes that last, such as a program with a refused token.
pub const HOUR_MS: i64 = 3_600_000;
/// The most causes in memory. All further ones share one window.
const MAX_CAUSES: usize = 10_000;

/// The time after a row without a further row.
struct Window {
    since: Timestamp,
    length_ms: i64,
    /// The events after the row.
    omitted: u32,
    last: Option<(Option<OrgId>, AuditEvent)>,
}

impl Window {
    const fn new(since: Timestamp, length_ms: i64) -> Self {
        Self { since, length_ms, omitted: 0, last: None }
    }

    fn is_over(&self, now: Timestamp) -> bool {
        now.millis_since(self.since) >= self.length_ms
    }
}

/// The windows of all causes.
#[derive(Default)]
pub struct RepeatedEvents(Mutex<HashMap<String, Window>>);

/// The event for `count` events.
fn counted(mut event: AuditEvent, count: u32) -> AuditEvent {
    if count > 1 {
        event.detail = format!("{} {count} times.", event.detail);
    }
    event
}

/// The cause, or the shared one of all causes beyond the limit.
fn admitted_cause<'a>(windows: &mut HashMap<String, Window>, cause: &'a str, now: Timestamp) -> &'a str {
    if windows.len() >= MAX_CAUSES && !windows.contains_key(cause) {
        windows.retain(|_, window| window.omitted > 0 || !window.is_over(now));
    }
    if windows.contains_key(cause) || windows.len() < MAX_CAUSES { cause } else { "" }
}

impl RepeatedEvents {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event. Returns the event to write, or `None` within the window after the last row of the cause.
    pub fn admit(
        &self,
        cause: &str,
        window_ms: i64,
        org: Option<OrgId>,
        event: AuditEvent,
    ) -> Option<AuditEvent> {
        let (mut windows, now) = (self.lock(), event.at);
        let cause = admitted_cause(&mut windows, cause, now);
        let Some(window) = windows.get_mut(cause) else {
            windows.insert(cause.to_owned(), Window::new(now, window_ms));
            return Some(event);
        };
        if window.is_over(now) {
            let count = window.omitted.saturating_add(1);
            *window = Window::new(now, window_ms);
            return Some(counted(event, count));
        }
        window.omitted = window.omitted.saturating_add(1);
        window.last = Some((org, event));
        None
    }

    /// Counts an event whose row is written at the end of its window. The request waits for no write.
    pub fn defer(&self, cause: &str, window_ms: i64, org: Option<OrgId>, event: AuditEvent) {
        let (mut windows, now) = (self.lock(), event.at);
        let cause = admitted_cause(&mut windows, cause, now);
        let window = windows.entry(cause.to_owned()).or_insert_with(|| Window::new(now, window_ms));
        window.omitted = window.omitted.saturating_add(1);
        window.last = Some((org, event));
    }

    /// Ends the windows that are over at `now`. Returns an event for each of them with omitted events.
    pub fn end_windows(&self, now: Timestamp) -> Vec<(Option<OrgId>, AuditEvent)> {
        let mut due = Vec::new();
        self.lock().retain(|_, window| {
            if !window.is_over(now) {
                return true;
            }
            let count = window.omitted;
            let Some((org, event)) = window.last.take() else { return false };
            due.push((org, counted(event, count)));
            *window = Window::new(now, window.length_ms);
            true
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::ids::AuditEventId;
    use berth_types::quotas::AuditContext;

    fn event(at_s: i64) -> AuditEvent {
        AuditEvent {
            id: AuditEventId::from_uuid(uuid::Uuid::from_u128(1)),
            at: Timestamp::from_micros(at_s * 1_000_000),
            actor: "A visitor".to_owned(),
            action: "session.refused".to_owned(),
            subject: "user".to_owned(),
            detail: "Wrong password.".to_owned(),
            context: AuditContext::default(),
        }
    }

    #[test]
    fn a_cause_has_one_row_a_minute_with_all_its_events() {
        let events = RepeatedEvents::default();
        let admit =
            |cause: &str, at_s| events.admit(cause, MINUTE_MS, None, event(at_s)).map(|event| event.detail);
        assert_eq!(admit("a", 0).as_deref(), Some("Wrong password."));
        assert_eq!(admit("a", 1), None);
        assert_eq!(admit("a", 59), None);
        assert_eq!(admit("b", 59).as_deref(), Some("Wrong password."));
        assert!(events.end_windows(event(59).at).is_empty());
        assert_eq!(admit("a", 60).as_deref(), Some("Wrong password. 3 times."));
        assert_eq!(admit("a", 61), None);
        let due = events.end_windows(event(121).at);
        assert_eq!(due.len(), 1);
        assert_eq!(due[0].1.detail, "Wrong password.");
        // The row of the loop begins another minute.
        assert_eq!(admit("a", 122), None);
        assert_eq!(events.end_windows(event(182).at).len(), 1);
        assert!(events.end_windows(event(300).at).is_empty());
        assert!(events.lock().is_empty());
    }

    #[test]
    fn a_deferred_event_has_its_row_at_the_end_of_its_window() {
        let events = RepeatedEvents::default();
        for at_s in [0, 1, 59] {
            events.defer("a", MINUTE_MS, None, event(at_s));
        }
        assert!(events.end_windows(event(59).at).is_empty());
        let due = events.end_windows(event(60).at);
        assert_eq!((due.len(), due[0].1.detail.as_str()), (1, "Wrong password. 3 times."));
        assert!(events.end_windows(event(120).at).is_empty());
        for n in 0..MAX_CAUSES + 50 {
            events.defer(&n.to_string(), MINUTE_MS, None, event(200));
        }
        assert_eq!(events.lock().len(), MAX_CAUSES + 1);
    }

    #[test]
    fn a_lasting_cause_has_one_row_an_hour() {
        let events = RepeatedEvents::default();
        let admit = |at_s| events.admit("a", HOUR_MS, None, event(at_s)).map(|event| event.detail);
        assert!(admit(0).is_some());
        assert_eq!(admit(61), None);
        assert!(events.end_windows(event(3_599).at).is_empty());
        assert_eq!(events.end_windows(event(3_600).at).len(), 1);
        assert_eq!(admit(7_199), None);
    }

    #[test]
    fn the_causes_in_memory_have_a_limit() {
        let events = RepeatedEvents::default();
        let admitted = |from: usize, to: usize| {
            (from..to).filter(|n| events.admit(&n.to_string(), MINUTE_MS, None, event(0)).is_some()).count()
        };
        assert_eq!(admitted(0, MAX_CAUSES), MAX_CAUSES);
        // The last place is the shared one.
        assert_eq!(admitted(MAX_CAUSES, MAX_CAUSES + 50), 1);
        assert_eq!(events.lock().len(), MAX_CAUSES + 1);
    }
}
