//! What is used of each limit, and which limit is the tightest.
//!
//! Pure; what counts and how much is the portal's word.

use berth_types::quotas::{Limits, Used};

use super::kinds::{Kind, Subject};
use super::numbers::Unit;

/// A limit with what counts against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What it is called.
    pub label: String,
    /// What it means.
    pub hint: &'static str,
    noun: String,
    unit: Unit,
    used: i64,
    most: Option<i64>,
}

impl Line {
    /// What is used.
    pub fn used_text(&self, currency: &str) -> String {
        self.unit.text(self.used, currency)
    }

    /// What may be used; nothing without a limit.
    pub fn most_text(&self, currency: &str) -> Option<String> {
        Some(self.unit.text(self.most?, currency))
    }

    /// What is left; nothing without a limit.
    pub fn left_text(&self, currency: &str) -> Option<String> {
        Some(self.unit.text(self.most?.saturating_sub(self.used).max(0), currency))
    }

    /// Thousandths of the limit that are used, at most all of it; nothing without a limit.
    pub fn fullness(&self) -> Option<i64> {
        let most = self.most?;
        if most <= 0 {
            return Some(1_000);
        }
        let milli = i128::from(self.used.max(0)) * 1_000 / i128::from(most);
        i64::try_from(milli.min(1_000)).ok()
    }

    /// `0.125 of 0.5 boards at once`; nothing without a limit.
    pub fn sentence(&self, currency: &str) -> Option<String> {
        Some(format!("{} of {} {}", self.used_text(currency), self.most_text(currency)?, self.noun))
    }
}

fn used_of(kind: Kind, used: &Used) -> i64 {
    match kind {
        Kind::Boards => used.boards_milli,
        Kind::RunningJobs => used.running_jobs,
        Kind::Spend => used.spend_per_hour_micros,
        Kind::QueuedJobs => used.queued_jobs,
        Kind::BoardHours => used.board_hours_milli,
        Kind::ReservedBoards => used.reserved_boards_milli,
        // Nothing counts against these two.
        Kind::GuaranteedBoards | Kind::Weight => 0,
    }
}

/// Every limit that something counts against, those on devices last.
pub fn lines(limits: &Limits, used: &Used) -> Vec<Line> {
    let kinds = Kind::COUNTED.into_iter().map(|kind| {
        let (unit, most) = match kind {
            // The limit is in hours, what is used in thousandths of them.
            Kind::BoardHours => (Unit::Milli, kind.of(limits).map(|hours| hours.saturating_mul(1_000))),
            _ => (kind.unit(), kind.of(limits)),
        };
        let (label, noun) = (kind.label().to_owned(), kind.noun().to_owned());
        Line { label, hint: kind.hint(), noun, unit, used: used_of(kind, used), most }
    });
    let devices = limits.devices.iter().map(|(slug, most)| Line {
        label: Subject::Devices(slug.clone()).label(),
        hint: "At once. A job beyond it waits.",
        noun: format!("{slug} at once"),
        unit: Unit::Milli,
        used: used.devices_milli.get(slug).copied().unwrap_or(0),
        most: Some(most.saturating_mul(1_000)),
    });
    kinds.chain(devices).collect()
}

/// The limit of which the largest part is used; nothing where nothing limits.
pub fn tightest(limits: &Limits, used: &Used) -> Option<Line> {
    let limiting = lines(limits, used).into_iter().filter(|line| line.most.is_some());
    limiting.reduce(|tight, next| if next.fullness() > tight.fullness() { next } else { tight })
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
    fn the_tightest_limit_is_the_fullest() {
        let used = Used { boards_milli: 125, running_jobs: 2, board_hours_milli: 4_500, ..Used::default() };
        let said = |limits: &Limits, used: &Used| tightest(limits, used).and_then(|l| l.sentence("USD"));
        assert_eq!(said(&limited(), &used).as_deref(), Some("0.125 of 0.5 boards at once"));
        let used = Used { devices_milli: [("a30-24gb".to_owned(), 1_000)].into(), ..used };
        assert_eq!(said(&limited(), &used).as_deref(), Some("1 of 2 a30-24gb at once"));
        let money = Limits { spend_per_hour_micros: Some(2_000_000), ..Limits::default() };
        let used = Used { spend_per_hour_micros: 500_000, ..Used::default() };
        assert_eq!(said(&money, &used).as_deref(), Some("$0.50 of $2.00 an hour"));
        assert_eq!(said(&Limits::default(), &used), None);
        assert_eq!(said(&Limits { weight_milli: Some(2_000), ..Limits::default() }, &used), None);
    }

    #[test]
    fn a_line_says_what_is_left() {
        let used = Used { board_hours_milli: 4_500, running_jobs: 12, ..Used::default() };
        let all = lines(&limited(), &used);
        let line = |label: &str| all.iter().find(|line| line.label == label).unwrap().clone();
        let hours = line("Board hours a month");
        assert_eq!(hours.used_text("USD"), "4.5");
        assert_eq!(hours.left_text("USD").as_deref(), Some("15.5"));
        assert_eq!(hours.fullness(), Some(225));
        // A limit that was lowered below what is used has nothing left.
        let jobs = line("Running jobs");
        assert_eq!((jobs.left_text("USD").as_deref(), jobs.fullness()), (Some("0"), Some(1_000)));
        let free = line("Waiting jobs");
        assert_eq!((free.most_text("USD"), free.left_text("USD"), free.fullness()), (None, None, None));
        assert_eq!(all.len(), 7);
        let none = Limits { running_jobs: Some(0), ..Limits::default() };
        assert_eq!(tightest(&none, &Used::default()).unwrap().fullness(), Some(1_000));
    }
}
