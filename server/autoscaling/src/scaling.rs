//! The wanted number of replicas of a service, from the reports of the gateways.
//!
//! The wish of a moment is the number of requests divided by the target, between floor and ceiling. The number
//! rises to the lowest wish of the last `up_delay_s` and falls to the highest wish of the last `down_delay_s`,
//! so that neither a short peak nor a short trough changes it. Without any report the number stays.

mod drains;
mod schedule;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use berth_types::time::{Timestamp, duration_text};

use crate::GatewayId;
pub use drains::{Drain, DrainEnd, DrainReport, Replica, replicas_to_drain};
pub use schedule::{MINUTES_A_WEEK, WeeklyWindow, minute_of_week, next_change, scheduled_floor};

/// The age at which a report no longer counts, in seconds.
pub const REPORT_AGE_S: i64 = 15;
/// The most gateways whose reports count for one service.
pub const MAX_GATEWAYS: usize = 1_000;
/// The most replicas of a service.
pub const MAX_REPLICAS: u32 = 1_000;
/// The longest delay of a policy in seconds.
pub const MAX_DELAY_S: u32 = 3_600;
/// The longest idle time of a policy in seconds.
pub const MAX_IDLE_S: u32 = 7 * 86_400;
/// The most windows of a schedule.
pub const MAX_WINDOWS: usize = 100;
/// The most changes of the wish in memory: more than one a second over the longest delay.
const MAX_CHANGES: usize = 4_096;

/// The rule by which a service scales.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Requests in flight and waiting for each replica.
    pub target: u32,
    /// The least number of replicas. With 0 the service falls asleep after `idle_s` without a request.
    pub floor: u32,
    /// The greatest number of replicas.
    pub ceiling: u32,
    /// The number rises after this time of higher wishes.
    pub up_delay_s: u32,
    /// The number falls after this time of lower wishes.
    pub down_delay_s: u32,
    /// The time without a request after which the number falls to zero; at least `down_delay_s`.
    pub idle_s: u32,
    /// The number rises at once to at most twice the ready replicas and this number.
    pub step: u32,
    /// Higher floors at some times of the week.
    pub schedule: Vec<WeeklyWindow>,
    /// The decisions are shown and not applied.
    pub shadow: bool,
}

/// The reason why a policy is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("the target must be at least 1 request")]
    Target,
    #[error("the ceiling must be 1 to {MAX_REPLICAS} replicas")]
    Ceiling,
    #[error("the floor must not be above the ceiling")]
    Floor,
    #[error("a delay must be at most {MAX_DELAY_S} seconds")]
    Delay,
    #[error("the idle time must be at least the delay down and at most {MAX_IDLE_S} seconds")]
    Idle,
    #[error("the step must be 1 to {MAX_REPLICAS} replicas")]
    Step,
    #[error("the schedule must have at most {MAX_WINDOWS} windows")]
    Windows,
    #[error(
        "a window of the schedule must begin and end at different minutes of the week, with a floor up to the ceiling"
    )]
    Window,
}

impl Policy {
    /// Checks the limits of all fields.
    ///
    /// # Errors
    /// The first field beyond its limit.
    pub fn check(&self) -> Result<(), PolicyError> {
        let window = |w: &WeeklyWindow| w.is_valid() && w.floor <= self.ceiling;
        let checks = [
            (self.target >= 1, PolicyError::Target),
            ((1..=MAX_REPLICAS).contains(&self.ceiling), PolicyError::Ceiling),
            (self.floor <= self.ceiling, PolicyError::Floor),
            (self.up_delay_s.max(self.down_delay_s) <= MAX_DELAY_S, PolicyError::Delay),
            ((self.down_delay_s..=MAX_IDLE_S).contains(&self.idle_s), PolicyError::Idle),
            ((1..=MAX_REPLICAS).contains(&self.step), PolicyError::Step),
            (self.schedule.len() <= MAX_WINDOWS, PolicyError::Windows),
            (self.schedule.iter().all(window), PolicyError::Window),
        ];
        checks.into_iter().find(|(met, _)| !met).map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// The requests of a service at one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    pub in_flight: u32,
    pub waiting: u32,
    /// A request began since the report before. Most requests end before the next report.
    pub begun: bool,
    /// The time at which the portal received it.
    pub at: Timestamp,
}

/// The replicas of a service that are not drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fleet {
    pub replicas: u32,
    /// Those that can answer now.
    pub ready: u32,
}

/// The requests of a service at all gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    pub in_flight: u64,
    pub waiting: u64,
}

/// The cause of a number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The requests need this number.
    Load,
    /// The requests need less than the floor.
    Floor,
    /// The requests need more than the ceiling.
    Ceiling,
    /// The requests need more, and the delay up has not passed.
    DelayUp,
    /// The requests need less, and the delay down has not passed.
    DelayDown,
    /// The requests need more than one step.
    Step,
    /// The first request wakes the service.
    Wake,
    /// No request is there, and the idle time has not passed.
    Awake,
    /// No request came for this time.
    Idle { millis: i64 },
    /// No gateway reports.
    Silent,
}

/// The wanted number of replicas with its reason. Its text is a sentence for the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub replicas: u32,
    /// False in shadow mode.
    pub applied: bool,
    pub cause: Cause,
    pub load: Load,
    /// The requests for each replica of the policy.
    pub target: u32,
    /// The floor of the schedule at present; 0 outside of its windows.
    pub scheduled: u32,
}

/// `1 request`, `41 requests`.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let would = if self.applied { "" } else { "would be " };
        write!(f, "{would}{}: ", counted(self.replicas.into(), "replica"))?;
        self.write_cause(f)?;
        if self.scheduled > 0 {
            write!(f, "; the schedule has the floor {}", self.scheduled)?;
        }
        Ok(())
    }
}

impl Decision {
    fn write_cause(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause {
            Cause::Idle { millis } => return write!(f, "no request for {}", duration_text(millis)),
            Cause::Silent => return f.write_str("no gateway reports, so the number stays"),
            _ => {}
        }
        write!(f, "{} in flight", counted(self.load.in_flight, "request"))?;
        if self.load.waiting > 0 {
            write!(f, " and {} waiting", self.load.waiting)?;
        }
        write!(f, ", {} for each", self.target)?;
        f.write_str(match self.cause {
            Cause::Floor => "; the floor holds",
            Cause::Ceiling => "; the ceiling holds",
            Cause::DelayUp => "; the delay up has not passed",
            Cause::DelayDown => "; the delay down has not passed",
            Cause::Step => "; the next step comes when these are ready",
            Cause::Wake => "; the first request wakes the service",
            Cause::Awake => "; the idle time has not passed",
            Cause::Load | Cause::Idle { .. } | Cause::Silent => "",
        })
    }
}

/// The wishes of the last time, each from its time until the next one.
#[derive(Debug, Clone, Default)]
struct Wishes(VecDeque<(Timestamp, u32)>);

impl Wishes {
    fn add(&mut self, at: Timestamp, wish: u32) {
        if self.0.back().is_some_and(|(_, last)| *last == wish) {
            return;
        }
        self.0.push_back((at, wish));
        let oldest = at.plus_seconds(-i64::from(MAX_DELAY_S));
        // A wish is past when the next one began before all windows.
        while self.0.len() > MAX_CHANGES || self.0.get(1).is_some_and(|(next, _)| *next <= oldest) {
            self.0.pop_front();
        }
    }

    /// The wishes that were in force within the last `seconds`.
    fn within(&self, now: Timestamp, seconds: u32) -> impl Iterator<Item = u32> + '_ {
        let from = now.plus_seconds(-i64::from(seconds));
        let current = move |end: Option<Timestamp>| end.is_none_or(|end| end > from);
        self.with_ends().filter(move |(_, end)| current(*end)).map(|(wish, _)| wish)
    }

    /// All wishes with the times at which the next ones began.
    fn with_ends(&self) -> impl Iterator<Item = (u32, Option<Timestamp>)> + '_ {
        let ends = self.0.iter().skip(1).map(|(next, _)| Some(*next)).chain([None]);
        self.0.iter().zip(ends).map(|((_, wish), end)| (*wish, end))
    }

    /// The time at which the last of these former wishes is `seconds` in the past.
    fn gone_at(&self, seconds: u32, is_one: impl Fn(u32) -> bool) -> Option<Timestamp> {
        let ends = self.with_ends().filter(|(wish, _)| is_one(*wish)).filter_map(|(_, end)| end);
        ends.max().map(|end| end.plus_seconds(i64::from(seconds)))
    }
}

/// The wish of a moment.
struct Wish {
    /// The replicas that the requests need, without bounds.
    needed: u32,
    floor: u32,
    bounded: u32,
    idle_millis: i64,
}

/// The reports and wishes of one service.
#[derive(Debug, Clone, Default)]
pub struct Scaler {
    reports: BTreeMap<GatewayId, Report>,
    wishes: Wishes,
    /// The latest time of a decision; a clock set back does not move it.
    now: Option<Timestamp>,
    /// The latest time at which a request was there, or none was excluded.
    busy: Option<Timestamp>,
}

impl Scaler {
    /// Adds the report of a gateway. An older report than the last one, or one of too many gateways, does not
    /// count.
    pub fn report(&mut self, gateway: GatewayId, report: Report) {
        let room = self.reports.len() < MAX_GATEWAYS;
        match self.reports.get_mut(&gateway) {
            Some(last) if last.at <= report.at => *last = report,
            None if room => {
                self.reports.insert(gateway, report);
            }
            _ => {}
        }
    }

    /// The requests at all gateways that report; `None` if none does.
    fn load(&mut self, now: Timestamp) -> Option<Load> {
        let oldest = now.plus_seconds(-REPORT_AGE_S);
        self.reports.retain(|_, report| report.at > oldest);
        let add = |sum: Load, report: &Report| Load {
            in_flight: sum.in_flight + u64::from(report.in_flight),
            waiting: sum.waiting + u64::from(report.waiting),
        };
        (!self.reports.is_empty()).then(|| self.reports.values().fold(Load::default(), add))
    }

    /// Decides the number of replicas. `utc_offset_min` is the offset of the schedule's time zone.
    pub fn decide(&mut self, policy: &Policy, fleet: Fleet, now: Timestamp, utc_offset_min: i32) -> Decision {
        let now = self.now.map_or(now, |last| last.max(now));
        if self.now.replace(now).is_none() {
            // A new scaler has seen nothing, so the present number is its first wish.
            self.wishes.add(now, fleet.replicas);
        }
        let load = self.load(now);
        let begun = self.reports.values().any(|report| report.begun);
        let busy = begun || load.is_none_or(|load| load.in_flight + load.waiting > 0);
        let since = if busy { now } else { self.busy.unwrap_or(now) };
        self.busy = Some(since);
        let scheduled = scheduled_floor(&policy.schedule, now, utc_offset_min);
        let floor = policy.floor.max(scheduled).min(policy.ceiling);
        let (replicas, cause) = match load {
            None => (fleet.replicas, Cause::Silent),
            Some(load) => {
                let wish = wish(policy, fleet, load, floor, now.millis_since(since));
                self.wishes.add(now, wish.bounded);
                self.number(policy, fleet, &wish, now)
            }
        };
        Decision {
            replicas: replicas.clamp(floor, policy.ceiling.max(floor)),
            applied: !policy.shadow,
            cause,
            load: load.unwrap_or_default(),
            target: policy.target,
            scheduled,
        }
    }

    /// The end of the delay that the last decision names, if the requests stay as they are.
    pub fn delay_ends(&self, policy: &Policy, decision: &Decision) -> Option<Timestamp> {
        let number = decision.replicas;
        match decision.cause {
            Cause::DelayUp => self.wishes.gone_at(policy.up_delay_s, |wish| wish <= number),
            Cause::DelayDown => self.wishes.gone_at(policy.down_delay_s, |wish| wish >= number),
            _ => None,
        }
    }

    /// Applies the delays and the step to the wishes.
    fn number(&self, policy: &Policy, fleet: Fleet, wish: &Wish, now: Timestamp) -> (u32, Cause) {
        if wish.bounded == 0 {
            return (0, Cause::Idle { millis: wish.idle_millis });
        }
        let wakes = fleet.replicas == 0 && wish.needed > 0;
        let low = self.wishes.within(now, policy.up_delay_s).min().unwrap_or(0);
        let high = self.wishes.within(now, policy.down_delay_s).max().unwrap_or(MAX_REPLICAS);
        let up = low.max(u32::from(wakes));
        let step = fleet.replicas.max(fleet.ready.saturating_mul(2).saturating_add(policy.step));
        let moved = if up > fleet.replicas { up.min(step) } else { fleet.replicas.min(high) };
        let number = moved.clamp(wish.floor, policy.ceiling.max(wish.floor));
        let cause = if wakes {
            Cause::Wake
        } else if number < wish.bounded {
            if up > number { Cause::Step } else { Cause::DelayUp }
        } else if number > wish.bounded {
            Cause::DelayDown
        } else if wish.needed > number {
            Cause::Ceiling
        } else if wish.needed < number {
            if wish.floor < number { Cause::Awake } else { Cause::Floor }
        } else {
            Cause::Load
        };
        (number, cause)
    }
}

fn wish(policy: &Policy, fleet: Fleet, load: Load, floor: u32, idle_millis: i64) -> Wish {
    let needed = (load.in_flight + load.waiting).div_ceil(u64::from(policy.target.max(1)));
    let needed = u32::try_from(needed).unwrap_or(u32::MAX);
    // An idle service keeps one replica until its idle time has passed.
    let idle = idle_millis >= i64::from(policy.idle_s).saturating_mul(1_000);
    let awake = u32::from(needed == 0 && fleet.replicas > 0 && !idle);
    let bounded = needed.max(awake).clamp(floor, policy.ceiling.max(floor));
    Wish { needed, floor, bounded, idle_millis }
}

#[cfg(test)]
mod tests;
