//! Use of each limit, and the closest limit.
//!
//! Pure. The portal counts the use.

use berth_types::quotas::{Limits, Used};

use super::kinds::{LimitKind, Subject};
use super::numbers::Unit;

/// A limit with its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The label.
    pub label: String,
    /// The meaning.
    pub hint: &'static str,
    noun: String,
    unit: Unit,
    used: i64,
    maximum: Option<i64>,
}

impl Line {
    /// Returns the use.
    pub fn used_text(&self, currency: &str) -> String {
        self.unit.text(self.used, currency)
    }

    /// Returns the limit; nothing without a limit.
    pub fn maximum_text(&self, currency: &str) -> Option<String> {
        Some(self.unit.text(self.maximum?, currency))
    }

    /// Returns the rest of the limit, at least 0; nothing without a limit.
    pub fn remaining_text(&self, currency: &str) -> Option<String> {
        Some(self.unit.text(self.maximum?.saturating_sub(self.used).max(0), currency))
    }

    /// Returns the use in thousandths of the limit, at most 1000; nothing without a limit.
    pub fn used_milli(&self) -> Option<i64> {
        let maximum = self.maximum?;
        if maximum <= 0 {
            return Some(1_000);
        }
        let milli = i128::from(self.used.max(0)) * 1_000 / i128::from(maximum);
        i64::try_from(milli.min(1_000)).ok()
    }

    /// Returns `0.125 of 0.5 boards at once`; nothing without a limit.
    pub fn sentence(&self, currency: &str) -> Option<String> {
        Some(format!("{} of {} {}", self.used_text(currency), self.maximum_text(currency)?, self.noun))
    }
}

fn used_value(kind: LimitKind, used: &Used) -> i64 {
    match kind {
        LimitKind::Boards => used.boards_milli,
        LimitKind::RunningJobs => used.running_jobs,
        LimitKind::Spend => used.spend_per_hour_micros,
        LimitKind::QueuedJobs => used.queued_jobs,
        LimitKind::BoardHours => used.board_hours_milli,
        LimitKind::ReservedBoards => used.reserved_boards_milli,
        // These limits have no use.
        LimitKind::GuaranteedBoards | LimitKind::Weight => 0,
    }
}

/// Lists all limits with a use; limits on devices are last.
pub fn lines(limits: &Limits, used: &Used) -> Vec<Line> {
    let kinds = LimitKind::COUNTED.into_iter().map(|kind| {
        let (unit, maximum) = match kind {
            // The limit is in hours, the use in thousandths of an hour.
            LimitKind::BoardHours => {
                (Unit::Milli, kind.value(limits).map(|hours| hours.saturating_mul(1_000)))
            }
            _ => (kind.unit(), kind.value(limits)),
        };
        let (label, noun) = (kind.label().to_owned(), kind.noun().to_owned());
        Line { label, hint: kind.hint(), noun, unit, used: used_value(kind, used), maximum }
    });
    let devices = limits.devices.iter().map(|(slug, maximum)| Line {
        label: Subject::Devices(slug.clone()).label(),
        hint: "Devices in use. A job beyond the limit waits.",
        noun: format!("{slug} at once"),
        unit: Unit::Milli,
        used: used.devices_milli.get(slug).copied().unwrap_or(0),
        maximum: Some(maximum.saturating_mul(1_000)),
    });
    kinds.chain(devices).collect()
}

/// Returns the limit with the largest used part; nothing without limits.
pub fn closest_limit(limits: &Limits, used: &Used) -> Option<Line> {
    let limiting = lines(limits, used).into_iter().filter(|line| line.maximum.is_some());
    limiting.reduce(|closest, next| if next.used_milli() > closest.used_milli() { next } else { closest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited() -> Limits {
        let devices = [("a30-24gb".to_owned(), 2)].into();
        Limits {
            boards_milli: Some(500),
            running_jobs: Some(10),
            board_hours_per_month: Some(20),
            devices,
            ..Limits::default()
        }
    }

    #[test]
    fn the_closest_limit_has_the_largest_used_part() {
        let used = Used { boards_milli: 125, running_jobs: 2, board_hours_milli: 4_500, ..Used::default() };
        let text = |limits: &Limits, used: &Used| closest_limit(limits, used).and_then(|l| l.sentence("USD"));
        assert_eq!(text(&limited(), &used).as_deref(), Some("0.125 of 0.5 boards at once"));
        let used = Used { devices_milli: [("a30-24gb".to_owned(), 1_000)].into(), ..used };
        assert_eq!(text(&limited(), &used).as_deref(), Some("1 of 2 a30-24gb at once"));
        let money = Limits { spend_per_hour_micros: Some(2_000_000), ..Limits::default() };
        let used = Used { spend_per_hour_micros: 500_000, ..Used::default() };
        assert_eq!(text(&money, &used).as_deref(), Some("$0.50 of $2.00 cost per hour"));
        assert_eq!(text(&Limits::default(), &used), None);
        assert_eq!(text(&Limits { weight_milli: Some(2_000), ..Limits::default() }, &used), None);
    }

    #[test]
    fn a_line_has_a_rest() {
        let used = Used { board_hours_milli: 4_500, running_jobs: 12, ..Used::default() };
        let all = lines(&limited(), &used);
        let line = |label: &str| all.iter().find(|line| line.label == label).unwrap().clone();
        let hours = line("Board-hours per month");
        assert_eq!(hours.used_text("USD"), "4.5");
        assert_eq!(hours.remaining_text("USD").as_deref(), Some("15.5"));
        assert_eq!(hours.used_milli(), Some(225));
        // The limit was lowered below the use.
        let jobs = line("Running jobs");
        assert_eq!((jobs.remaining_text("USD").as_deref(), jobs.used_milli()), (Some("0"), Some(1_000)));
        let free = line("Queued jobs");
        assert_eq!(
            (free.maximum_text("USD"), free.remaining_text("USD"), free.used_milli()),
            (None, None, None)
        );
        assert_eq!(all.len(), 7);
        let none = Limits { running_jobs: Some(0), ..Limits::default() };
        assert_eq!(closest_limit(&none, &Used::default()).unwrap().used_milli(), Some(1_000));
    }
}
