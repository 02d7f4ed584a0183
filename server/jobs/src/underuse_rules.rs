//! Idleness of the devices of a job: their mean utilisation over a sliding window of minutes.
//!
//! Knows no job and no clock: readings come with their times. What was not read says nothing, so a window
//! with too few readings is never judged.

use berth_types::time::Timestamp;

/// The mean utilisation, in percent, below which devices count as idle.
pub const BELOW_PERCENT: u32 = 40;
/// Seconds over which that is judged.
pub const WINDOW_S: u32 = 3_600;
/// Of the minutes of a window, in percent, so many must have readings.
const COVERED_PERCENT: usize = 80;
const MINUTE_MICROS: i64 = 60_000_000;

/// A window in which the devices stood idle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Underused {
    /// Mean utilisation over the window.
    pub percent: f64,
    /// Where the window begins.
    pub since: Timestamp,
    /// Seconds from there to its end.
    pub for_s: i64,
}

impl Underused {
    /// Where the window ends.
    pub const fn until(&self) -> Timestamp {
        self.since.plus_seconds(self.for_s)
    }

    /// Rounded down, so that it never reads as what it stayed below.
    pub fn whole_percent(&self) -> u8 {
        self.percent.clamp(0.0, 100.0) as u8
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Minute {
    sum: f64,
    count: u32,
}

/// Looks at the readings of one attempt, of all its devices together.
///
/// A minute counts by the mean of its readings, so one that was read more often weighs no more. What is kept
/// is one sum for each minute, however many readings come.
#[derive(Debug, Clone)]
pub struct Watch {
    below_percent: f64,
    /// The minutes of the window and the present one, each at its number modulo the length.
    ring: Vec<Minute>,
    /// The latest minute that was read.
    newest: Option<i64>,
    first: Timestamp,
    /// The minute at whose begin the window was judged last.
    judged: Option<i64>,
    /// The minute before which nothing is said again.
    quiet_until: Option<i64>,
}

const fn minute_of(at: Timestamp) -> i64 {
    at.micros().div_euclid(MINUTE_MICROS)
}

impl Watch {
    /// Looks for a mean below `below_percent` over `for_s` seconds, rounded up to minutes.
    pub fn new(below_percent: u32, for_s: u32) -> Self {
        let minutes = usize::try_from(for_s.div_ceil(60).max(1)).unwrap_or(usize::MAX - 1);
        Self {
            below_percent: f64::from(below_percent),
            ring: vec![Minute::default(); minutes + 1],
            newest: None,
            first: Timestamp::default(),
            judged: None,
            quiet_until: None,
        }
    }

    /// Minutes of the window.
    fn minutes(&self) -> i64 {
        i64::try_from(self.ring.len()).unwrap_or(i64::MAX) - 1
    }

    fn at(&self, minute: i64) -> usize {
        usize::try_from(minute.rem_euclid(self.minutes() + 1)).unwrap_or(0)
    }

    /// A window that ended then was reported; the next report needs another whole window.
    pub fn told(&mut self, until: Timestamp) {
        self.quiet_until = Some(minute_of(until) + self.minutes());
    }

    /// Takes in a reading of the past, of one device, without judging by it.
    pub fn recall(&mut self, at: Timestamp, utilization_percent: f64) {
        if !utilization_percent.is_finite() {
            return;
        }
        let (minute, minutes) = (minute_of(at), self.minutes());
        match self.newest.filter(|newest| (minute - newest).abs() <= minutes) {
            Some(newest) => {
                for passed in newest + 1..=minute {
                    let slot = self.at(passed);
                    if let Some(slot) = self.ring.get_mut(slot) {
                        *slot = Minute::default();
                    }
                }
                self.newest = Some(newest.max(minute));
            }
            // The first reading; or nothing was read for a whole window, or the clock was set.
            None => {
                self.ring.fill(Minute::default());
                (self.newest, self.first, self.judged) = (Some(minute), at, None);
            }
        }
        let slot = self.at(minute);
        if let Some(slot) = self.ring.get_mut(slot) {
            slot.sum += utilization_percent.clamp(0.0, 100.0);
            slot.count = slot.count.saturating_add(1);
        }
    }

    /// Takes in a reading of one device; absent where the driver reports none. With the first reading of each
    /// minute the window that ended with the last one is judged.
    pub fn feed(&mut self, at: Timestamp, utilization_percent: Option<f64>) -> Option<Underused> {
        self.recall(at, utilization_percent.filter(|u| u.is_finite())?);
        if self.judged == self.newest {
            return None;
        }
        self.judged = self.newest;
        self.judge(self.newest?)
    }

    fn judge(&mut self, now: i64) -> Option<Underused> {
        let minutes = self.minutes();
        let since = Timestamp::from_micros((now - minutes).saturating_mul(MINUTE_MICROS));
        // Also when the clock was set back to before the last word.
        let quiet = self.quiet_until.is_some_and(|until| (until - minutes..until).contains(&now));
        if quiet || since < self.first {
            return None;
        }
        let (mut sum, mut covered) = (0.0, 0_usize);
        for minute in (now - minutes)..now {
            let slot = self.ring.get(self.at(minute)).copied().unwrap_or_default();
            if slot.count > 0 {
                sum += slot.sum / f64::from(slot.count);
                covered += 1;
            }
        }
        if covered == 0 || covered * 100 < (self.ring.len() - 1) * COVERED_PERCENT {
            return None;
        }
        let percent = sum / covered as f64;
        if percent >= self.below_percent {
            return None;
        }
        self.quiet_until = Some(now + minutes);
        Some(Underused { percent, since, for_s: minutes.saturating_mul(60) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_micros(1_795_000_020_000_000).plus_seconds(second)
    }

    /// Feeds a reading every ten seconds, and gives the seconds at which something was said.
    fn said(
        watch: &mut Watch,
        seconds: std::ops::Range<i64>,
        value: impl Fn(i64) -> Option<f64>,
    ) -> Vec<i64> {
        let fed = seconds.step_by(10);
        fed.filter(|s| watch.feed(second(*s), value(*s)).is_some()).collect()
    }

    #[test]
    fn an_idle_hour_is_told_once_an_hour_while_it_lasts() {
        let mut watch = Watch::new(40, 3_600);
        let idle = watch.clone().feed(second(0), Some(3.0));
        assert_eq!(idle, None, "no hour has passed");
        assert_eq!(said(&mut watch, 0..12_000, |_| Some(3.0)), [3_600, 7_200, 10_800]);
        // Busy again for most of an hour, and idle once more.
        assert_eq!(said(&mut watch, 12_000..20_000, |_| Some(90.0)), [] as [i64; 0]);
        let again = said(&mut watch, 20_000..28_000, |_| Some(0.0));
        assert!(again.len() == 2 && again[1] - again[0] == 3_600, "{again:?}");
    }

    #[test]
    fn what_is_said_is_of_the_window() {
        let mut watch = Watch::new(40, 600);
        let value = |s: i64| Some(if s % 60 < 30 { 20.0 } else { 30.5 });
        let found = (0..=600).step_by(10).find_map(|s| watch.feed(second(s), value(s))).unwrap();
        assert_eq!((found.since, found.until(), found.for_s), (second(0), second(600), 600));
        assert_eq!((found.percent, found.whole_percent()), (25.25, 25));
        let edge = Underused { percent: 39.99, ..found };
        assert_eq!(edge.whole_percent(), 39);
    }

    #[test]
    fn the_mean_is_over_all_devices_that_report() {
        let mut watch = Watch::new(40, 600);
        for s in (0..1_200).step_by(10) {
            // One device of two is busy; a third reports nothing.
            let busy = watch.feed(second(s), Some(90.0));
            let idle = watch.feed(second(s), Some(0.0));
            assert_eq!((busy, idle, watch.feed(second(s), None)), (None, None, None));
        }
    }

    #[test]
    fn where_nothing_is_read_nothing_is_said() {
        for silent in [None, Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!(said(&mut Watch::new(100, 600), 0..5_000, |_| silent), [] as [i64; 0]);
        }
        // Two minutes of ten may be missing, three may not.
        let but = |missing: i64| move |s: i64| (s / 60 % 10 >= missing).then_some(0.0);
        assert_eq!(said(&mut Watch::new(40, 600), 0..3_000, but(3)), [] as [i64; 0]);
        assert!(!said(&mut Watch::new(40, 600), 0..3_000, but(2)).is_empty());
    }

    #[test]
    fn a_watch_that_begins_anew_knows_what_it_is_reminded_of() {
        let mut watch = Watch::new(40, 600);
        (0..600).step_by(60).for_each(|s| watch.recall(second(s), 1.0));
        let mut told = watch.clone();
        assert!(watch.feed(second(605), Some(1.0)).is_some(), "the first reading after it is enough");
        told.told(second(300));
        assert_eq!(said(&mut told, 600..1_500, |_| Some(1.0)), [900]);
        let mut empty = Watch::new(40, 600);
        empty.told(second(300));
        assert_eq!(said(&mut empty, 600..1_500, |_| Some(1.0)), [1_200]);
    }

    #[test]
    fn a_clock_that_is_set_does_not_silence_it_for_ever() {
        let mut watch = Watch::new(40, 600);
        watch.feed(Timestamp::from_micros(i64::MAX), Some(1.0));
        watch.feed(Timestamp::from_micros(i64::MIN), Some(1.0));
        assert_eq!(said(&mut watch, 0..700, |_| Some(1.0)), [600]);
        assert_eq!(said(&mut watch, -86_400..-85_700, |_| Some(1.0)), [-85_800]);
    }

    /// The same, from all readings that ever came.
    #[derive(Default)]
    struct Naive {
        readings: Vec<(Timestamp, f64)>,
        judged: Option<i64>,
        told: Option<i64>,
    }

    impl Naive {
        fn feed(&mut self, at: Timestamp, value: Option<f64>, below: f64, minutes: i64) -> Option<Underused> {
            let value = value?;
            let newest = self.readings.iter().map(|(at, _)| minute_of(*at)).max();
            if newest.is_some_and(|newest| (newest - minute_of(at)).abs() > minutes) {
                self.readings.clear();
                self.judged = None;
            }
            self.readings.push((at, value));
            let now = self.readings.iter().map(|(at, _)| minute_of(*at)).max()?;
            if self.judged.replace(now) == Some(now) {
                return None;
            }
            let quiet = self.told.is_some_and(|told| told <= now && now < told + minutes);
            let since = Timestamp::from_micros((now - minutes) * MINUTE_MICROS);
            if quiet || since < self.readings.first()?.0 {
                return None;
            }
            let mut means = Vec::new();
            for minute in now - minutes..now {
                let of: Vec<f64> = self
                    .readings
                    .iter()
                    .filter(|(at, _)| minute_of(*at) == minute)
                    .map(|(_, v)| *v)
                    .collect();
                if !of.is_empty() {
                    means.push(of.iter().sum::<f64>() / of.len() as f64);
                }
            }
            let covered = means.len() as i64 * 100 >= minutes * 80;
            let percent = means.iter().sum::<f64>() / means.len() as f64;
            if !covered || percent >= below {
                return None;
            }
            self.told = Some(now);
            Some(Underused { percent, since, for_s: minutes * 60 })
        }
    }

    /// Seconds to the next reading, and what it says.
    fn reading() -> impl Strategy<Value = (i64, Option<f64>)> {
        let step = prop_oneof![12 => 0i64..45, 2 => 45i64..200, 1 => -90i64..0, 1 => -4_000i64..4_000];
        let value = prop_oneof![8 => 0u32..60, 1 => 60u32..=100].prop_map(f64::from);
        (step, prop_oneof![9 => value.prop_map(Some), 1 => Just(None)])
    }

    proptest! {
        #[test]
        fn it_says_what_all_readings_say(
            readings in prop::collection::vec(reading(), 1..400), below in 1u32..=100, minutes in 1u32..12,
        ) {
            let mut watch = Watch::new(below, minutes * 60);
            let mut naive = Naive::default();
            let mut at = 0;
            for (step, value) in readings {
                at += step;
                let expected = naive.feed(second(at), value, f64::from(below), i64::from(minutes));
                prop_assert_eq!(watch.feed(second(at), value), expected);
                prop_assert_eq!(watch.ring.len(), minutes as usize + 1);
            }
        }
    }
}
