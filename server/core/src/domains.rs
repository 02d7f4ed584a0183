//! The proof of a domain by its record in DNS: the pauses between checks, and the end of a confirmation without its
//! record.

use berth_types::time::Timestamp;

const HOUR_S: i64 = 3_600;
const DAY_S: i64 = 86_400;
/// Seconds of the checks for a domain without a confirmation, and of a confirmation without its record.
const WAIT_S: i64 = 7 * DAY_S;
/// Seconds between the checks of the first hour for a domain without a confirmation.
const FIRST_PAUSE_S: i64 = 300;

/// The name of the record of a domain.
pub fn record_name(domain: &str) -> String {
    format!("_berth.{domain}")
}

/// The value of the record with a proof.
pub fn record_value(proof: &str) -> String {
    format!("berth-verification={proof}")
}

/// A host name, then its parent domains with a dot, the nearest first.
pub fn with_parents(host: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(host), |name| name.split_once('.').map(|(_, parent)| parent))
        .take_while(|name| name.contains('.'))
}

/// The answer of DNS about the record of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Found,
    Missing,
    /// No server answered, which proves nothing.
    Unknown,
}

/// The state of a domain that DNS confirms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DomainState {
    /// The begin of the checks for the confirmation.
    pub pending_since: Timestamp,
    pub confirmed_at: Option<Timestamp>,
    /// The first check without the record of a confirmed domain.
    pub missing_since: Option<Timestamp>,
}

/// The change of a domain by a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The confirmation stays as it is.
    Same,
    Confirmed,
    /// The record of a confirmed domain is missing for the first time.
    Missing,
    /// The record was missing for seven days: the confirmation ends.
    Unconfirmed,
}

/// A domain after a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    pub state: DomainState,
    pub step: Step,
    /// The time of the next check by the portal; absent after seven days without a confirmation.
    pub next_check_at: Option<Timestamp>,
}

/// The time of the first check by the portal after the begin of the checks.
pub const fn first_check(pending_since: Timestamp) -> Timestamp {
    pending_since.plus_seconds(FIRST_PAUSE_S)
}

/// The domain after a check at `now`.
pub fn after_check(state: DomainState, answer: Answer, now: Timestamp) -> Checked {
    let in_seconds = |seconds: i64| Some(now.plus_seconds(seconds));
    let same = |state: DomainState, seconds: i64| Checked {
        state,
        step: Step::Same,
        next_check_at: in_seconds(seconds),
    };
    match (state.confirmed_at, answer) {
        (None, Answer::Found) => {
            let state = DomainState { confirmed_at: Some(now), missing_since: None, ..state };
            Checked { step: Step::Confirmed, ..same(state, DAY_S) }
        }
        (None, Answer::Missing | Answer::Unknown) => {
            let pause_s = if now < state.pending_since.plus_seconds(HOUR_S) { FIRST_PAUSE_S } else { HOUR_S };
            let is_over = now >= state.pending_since.plus_seconds(WAIT_S);
            let checked = same(state, pause_s);
            Checked { next_check_at: checked.next_check_at.filter(|_| !is_over), ..checked }
        }
        (Some(_), Answer::Found) => same(DomainState { missing_since: None, ..state }, DAY_S),
        (Some(_), Answer::Unknown) => same(state, HOUR_S),
        (Some(_), Answer::Missing) => match state.missing_since {
            None => {
                let state = DomainState { missing_since: Some(now), ..state };
                Checked { step: Step::Missing, ..same(state, HOUR_S) }
            }
            Some(since) if now >= since.plus_seconds(WAIT_S) => {
                let state = DomainState { pending_since: now, confirmed_at: None, missing_since: None };
                Checked { step: Step::Unconfirmed, ..same(state, FIRST_PAUSE_S) }
            }
            Some(_) => same(state, HOUR_S),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    const PENDING: DomainState =
        DomainState { pending_since: at(0), confirmed_at: None, missing_since: None };

    #[test]
    fn the_parents_of_a_host_are_whole_domains() {
        let all = |host| with_parents(host).collect::<Vec<&str>>();
        assert_eq!(
            all("a.models.corp.example"),
            ["a.models.corp.example", "models.corp.example", "corp.example"]
        );
        assert_eq!(all("corp.example"), ["corp.example"]);
        assert!(all("example").is_empty() && all("").is_empty());
    }

    #[test]
    fn a_domain_is_checked_for_seven_days_and_less_often_after_an_hour() {
        for answer in [Answer::Missing, Answer::Unknown] {
            let next = |now_s: i64| after_check(PENDING, answer, at(now_s)).next_check_at;
            assert_eq!(next(300), Some(at(600)));
            assert_eq!(next(3_600), Some(at(7_200)));
            assert_eq!(next(WAIT_S - 1), Some(at(WAIT_S - 1 + HOUR_S)));
            assert_eq!(next(WAIT_S), None);
        }
        let found = after_check(PENDING, Answer::Found, at(9));
        assert_eq!((found.step, found.state.confirmed_at), (Step::Confirmed, Some(at(9))));
        assert_eq!(found.next_check_at, Some(at(9 + DAY_S)));
    }

    #[test]
    fn a_confirmation_ends_after_seven_days_without_its_record() {
        let confirmed = DomainState { confirmed_at: Some(at(1)), ..PENDING };
        let first = after_check(confirmed, Answer::Missing, at(DAY_S));
        assert_eq!((first.step, first.state.missing_since), (Step::Missing, Some(at(DAY_S))));
        let later = after_check(first.state, Answer::Missing, at(DAY_S + WAIT_S - 1));
        assert_eq!((later.step, later.state), (Step::Same, first.state));
        // No answer ends no confirmation.
        assert_eq!(after_check(first.state, Answer::Unknown, at(2 * WAIT_S)).state, first.state);
        let restored = after_check(first.state, Answer::Found, at(DAY_S + 60));
        assert_eq!((restored.step, restored.state), (Step::Same, confirmed));
        let end = DAY_S + WAIT_S;
        let over = after_check(first.state, Answer::Missing, at(end));
        assert_eq!((over.step, over.state.confirmed_at), (Step::Unconfirmed, None));
        // The checks for a new confirmation begin at once.
        assert_eq!((over.state.pending_since, over.next_check_at), (at(end), Some(at(end + FIRST_PAUSE_S))));
    }
}
