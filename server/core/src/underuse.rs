//! The rule for idle devices: their mean utilization over a sliding window of minutes.
//!
//! The module has no job and no clock: readings come with their times. Missing readings prove nothing: a minute needs
//! readings of all ranks, and a window with too few such minutes is never judged.

use berth_types::time::Timestamp;

/// The mean utilization, in percent, below which devices count as idle.
pub const BELOW_PERCENT: u32 = 40;
/// The length of the window in seconds.
pub const WINDOW_S: u32 = 3_600;
/// The least part of the window's minutes, in percent, that must have readings of all ranks.
const COVERED_PERCENT: usize = 80;
const MINUTE_MICROS: i64 = 60_000_000;

/// A window with idle devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Underused {
    /// The mean utilization over the window.
    pub percent: f64,
    /// The begin of the window.
    pub since: Timestamp,
    /// The length of the window in seconds.
    pub for_s: i64,
}

impl Underused {
    /// The end of the window.
    pub const fn until(&self) -> Timestamp {
        self.since.plus_seconds(self.for_s)
    }

    /// The mean rounded down, so that it never equals the threshold above it.
    pub fn whole_percent(&self) -> u8 {
        self.percent.clamp(0.0, 100.0) as u8
    }
}

/// The readings of one rank in one minute.
#[derive(Debug, Clone, Copy, Default)]
struct Readings {
    sum: f64,
    count: u32,
}

/// The readings of all devices of one attempt in a sliding window.
///
/// A minute counts by the mean of its ranks, and a rank by the mean of its readings, so their number gives no weight.
/// The memory holds one sum for each minute and rank, for any number of readings.
#[derive(Debug, Clone)]
pub struct IdleWindow {
    below_percent: f64,
    /// The minutes of the window and the present minute, each at its number modulo the length, with all ranks.
    ring: Vec<Vec<Readings>>,
    /// The minute of each rank's end. From then on the rank needs no readings.
    ended: Vec<Option<i64>>,
    /// The latest minute with a reading.
    newest: Option<i64>,
    first: Timestamp,
    /// The minute at the end of the last judged window.
    judged: Option<i64>,
    /// No report comes before this minute.
    quiet_until: Option<i64>,
}

const fn minute_of(at: Timestamp) -> i64 {
    at.micros().div_euclid(MINUTE_MICROS)
}

impl IdleWindow {
    /// A window of `for_s` seconds, rounded up to minutes, with the threshold `below_percent`, for an attempt with this
    /// number of ranks.
    pub fn new(below_percent: u32, for_s: u32, ranks: usize) -> Self {
        let minutes = usize::try_from(for_s.div_ceil(60).max(1)).unwrap_or(usize::MAX - 1);
        let ranks = ranks.max(1);
        Self {
            below_percent: f64::from(below_percent),
            ring: vec![vec![Readings::default(); ranks]; minutes + 1],
            ended: vec![None; ranks],
            newest: None,
            first: Timestamp::default(),
            judged: None,
            quiet_until: None,
        }
    }

    /// The length of the window in minutes.
    fn minutes(&self) -> i64 {
        i64::try_from(self.ring.len()).unwrap_or(i64::MAX) - 1
    }

    fn slot(&self, minute: i64) -> usize {
        usize::try_from(minute.rem_euclid(self.minutes() + 1)).unwrap_or(0)
    }

    /// Records the report of a window that ended at `until`. The next report needs another whole window.
    pub fn mark_reported(&mut self, until: Timestamp) {
        self.quiet_until = Some(minute_of(until) + self.minutes());
    }

    /// Records the end of a rank.
    pub fn end_rank(&mut self, rank: u32, at: Timestamp) {
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        if let Some(ended) = self.ended.get_mut(rank) {
            *ended = Some(minute_of(at));
        }
    }

    /// Adds a past reading of one device of a rank, without a judgement.
    pub fn add_past(&mut self, rank: u32, at: Timestamp, utilization_percent: f64) {
        if !utilization_percent.is_finite() {
            return;
        }
        let (minute, minutes) = (minute_of(at), self.minutes());
        match self.newest.filter(|newest| (minute - newest).abs() <= minutes) {
            Some(newest) => {
                for passed in newest + 1..=minute {
                    let slot = self.slot(passed);
                    if let Some(slot) = self.ring.get_mut(slot) {
                        slot.fill(Readings::default());
                    }
                }
                self.newest = Some(newest.max(minute));
            }
            // This is the first reading, the first after a whole window without any, or the clock was set.
            None => {
                self.ring.iter_mut().for_each(|slot| slot.fill(Readings::default()));
                (self.newest, self.first, self.judged) = (Some(minute), at, None);
            }
        }
        let (slot, rank) = (self.slot(minute), usize::try_from(rank).unwrap_or(usize::MAX));
        if let Some(readings) = self.ring.get_mut(slot).and_then(|ranks| ranks.get_mut(rank)) {
            readings.sum += utilization_percent.clamp(0.0, 100.0);
            readings.count = readings.count.saturating_add(1);
        }
    }

    /// Adds a reading of one device of a rank; `None` if the driver reports no utilization. The first reading of each
    /// minute judges the window that ended with the minute before.
    pub fn add(&mut self, rank: u32, at: Timestamp, utilization_percent: Option<f64>) -> Option<Underused> {
        self.add_past(rank, at, utilization_percent.filter(|u| u.is_finite())?);
        if self.judged == self.newest {
            return None;
        }
        self.judged = self.newest;
        self.judge(self.newest?)
    }

    /// The mean utilization of a minute; `None` if a rank that ran has no reading in it.
    fn mean(&self, minute: i64) -> Option<f64> {
        let (mut sum, mut count) = (0.0, 0_u32);
        for (readings, ended) in self.ring.get(self.slot(minute))?.iter().zip(&self.ended) {
            if readings.count > 0 {
                sum += readings.sum / f64::from(readings.count);
                count += 1;
            } else if ended.is_none_or(|ended| minute < ended) {
                return None;
            }
        }
        (count > 0).then(|| sum / f64::from(count))
    }

    fn judge(&mut self, now: i64) -> Option<Underused> {
        let minutes = self.minutes();
        let since = Timestamp::from_micros((now - minutes).saturating_mul(MINUTE_MICROS));
        // The range also holds after a clock set back to before the last report.
        let quiet = self.quiet_until.is_some_and(|until| (until - minutes..until).contains(&now));
        if quiet || since < self.first {
            return None;
        }
        let (mut sum, mut covered) = (0.0, 0_usize);
        for mean in ((now - minutes)..now).filter_map(|minute| self.mean(minute)) {
            sum += mean;
            covered += 1;
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

    /// Adds a reading every ten seconds, and returns the seconds of the reports.
    fn reports(
        window: &mut IdleWindow,
        seconds: std::ops::Range<i64>,
        value: impl Fn(i64) -> Option<f64>,
    ) -> Vec<i64> {
        let added = seconds.step_by(10);
        added.filter(|s| window.add(0, second(*s), value(*s)).is_some()).collect()
    }

    #[test]
    fn an_idle_hour_is_reported_once_an_hour_while_it_lasts() {
        let mut window = IdleWindow::new(40, 3_600, 1);
        let idle = window.clone().add(0, second(0), Some(3.0));
        assert_eq!(idle, None, "no hour has passed");
        assert_eq!(reports(&mut window, 0..12_000, |_| Some(3.0)), [3_600, 7_200, 10_800]);
        // Busy again for most of an hour, and idle once more.
        assert_eq!(reports(&mut window, 12_000..20_000, |_| Some(90.0)), [] as [i64; 0]);
        let again = reports(&mut window, 20_000..28_000, |_| Some(0.0));
        assert!(again.len() == 2 && again[1] - again[0] == 3_600, "{again:?}");
    }

    #[test]
    fn a_report_covers_the_window() {
        let mut window = IdleWindow::new(40, 600, 1);
        let value = |s: i64| Some(if s % 60 < 30 { 20.0 } else { 30.5 });
        let found = (0..=600).step_by(10).find_map(|s| window.add(0, second(s), value(s))).unwrap();
        assert_eq!((found.since, found.until(), found.for_s), (second(0), second(600), 600));
        assert_eq!((found.percent, found.whole_percent()), (25.25, 25));
        let edge = Underused { percent: 39.99, ..found };
        assert_eq!(edge.whole_percent(), 39);
    }

    #[test]
    fn the_mean_is_over_all_devices_that_report() {
        let mut window = IdleWindow::new(40, 600, 1);
        for s in (0..1_200).step_by(10) {
            // One device of two is busy, and a third reports no utilization.
            let busy = window.add(0, second(s), Some(90.0));
            let idle = window.add(0, second(s), Some(0.0));
            assert_eq!((busy, idle, window.add(0, second(s), None)), (None, None, None));
        }
    }

    #[test]
    fn missing_readings_prove_nothing() {
        for silent in [None, Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!(reports(&mut IdleWindow::new(100, 600, 1), 0..5_000, |_| silent), [] as [i64; 0]);
        }
        // Two minutes of ten may be missing, three may not.
        let without = |missing: i64| move |s: i64| (s / 60 % 10 >= missing).then_some(0.0);
        assert_eq!(reports(&mut IdleWindow::new(40, 600, 1), 0..3_000, without(3)), [] as [i64; 0]);
        assert!(!reports(&mut IdleWindow::new(40, 600, 1), 0..3_000, without(2)).is_empty());
    }

    /// Adds a reading of each of these ranks every ten seconds, and returns the seconds of the reports.
    fn reports_of(window: &mut IdleWindow, seconds: std::ops::Range<i64>, ranks: &[(u32, f64)]) -> Vec<i64> {
        let mut out = Vec::new();
        for at in seconds.step_by(10) {
            let found = ranks.iter().filter_map(|(rank, value)| window.add(*rank, second(at), Some(*value)));
            out.extend(found.map(|_| at));
        }
        out
    }

    #[test]
    fn a_rank_without_readings_proves_nothing_about_the_others() {
        let nothing: [i64; 0] = [];
        let mut window = IdleWindow::new(20, 600, 2);
        // One rank is busy. Its readings are absent later.
        assert_eq!(reports_of(&mut window, 0..1_200, &[(0, 90.0), (1, 5.0)]), nothing);
        assert_eq!(reports_of(&mut window, 1_200..6_000, &[(1, 5.0)]), nothing);
        assert_eq!(reports_of(&mut window, 6_000..9_000, &[(7, 1.0), (1, 5.0)]), nothing, "an unknown rank");
        // Both are idle. The windows from before hold too few minutes of both.
        assert_eq!(reports_of(&mut window, 9_000..9_700, &[(0, 2.0), (1, 5.0)]), [9_480]);
    }

    #[test]
    fn each_rank_has_the_same_weight_in_a_minute() {
        let mut window = IdleWindow::new(40, 600, 2);
        // One reading of the busy rank in a minute, and six of the idle one.
        for s in (0..1_200).step_by(10) {
            let busy = if s % 60 == 0 { window.add(0, second(s), Some(90.0)) } else { None };
            assert_eq!((busy, window.add(1, second(s), Some(0.0))), (None, None), "{s}");
        }
    }

    #[test]
    fn a_rank_needs_no_readings_from_its_end_on() {
        let mut window = IdleWindow::new(20, 600, 2);
        assert_eq!(reports_of(&mut window, 0..300, &[(0, 1.0), (1, 1.0)]), [] as [i64; 0]);
        let mut late = window.clone();
        window.end_rank(1, second(300));
        assert_eq!(reports_of(&mut window, 300..1_000, &[(0, 1.0)]), [600]);
        // A silence before the end stays one.
        late.end_rank(1, second(600));
        assert_eq!(reports_of(&mut late, 300..1_200, &[(0, 1.0)]), [1_080]);
        late.end_rank(9, second(0));
    }

    #[test]
    fn a_new_window_uses_past_readings_and_reports() {
        let mut window = IdleWindow::new(40, 600, 1);
        (0..600).step_by(60).for_each(|s| window.add_past(0, second(s), 1.0));
        let mut reported = window.clone();
        assert!(window.add(0, second(605), Some(1.0)).is_some(), "the first reading after it is enough");
        reported.mark_reported(second(300));
        assert_eq!(reports(&mut reported, 600..1_500, |_| Some(1.0)), [900]);
        let mut empty = IdleWindow::new(40, 600, 1);
        empty.mark_reported(second(300));
        assert_eq!(reports(&mut empty, 600..1_500, |_| Some(1.0)), [1_200]);
    }

    #[test]
    fn a_set_clock_does_not_stop_reports_for_ever() {
        let mut window = IdleWindow::new(40, 600, 1);
        window.add(0, Timestamp::from_micros(i64::MAX), Some(1.0));
        window.add(0, Timestamp::from_micros(i64::MIN), Some(1.0));
        assert_eq!(reports(&mut window, 0..700, |_| Some(1.0)), [600]);
        assert_eq!(reports(&mut window, -86_400..-85_700, |_| Some(1.0)), [-85_800]);
    }

    /// The same rule over all readings so far.
    #[derive(Default)]
    struct Naive {
        below: f64,
        minutes: i64,
        ranks: u32,
        readings: Vec<(u32, Timestamp, f64)>,
        judged: Option<i64>,
        reported: Option<i64>,
    }

    impl Naive {
        fn add(&mut self, rank: u32, at: Timestamp, value: Option<f64>) -> Option<Underused> {
            let (value, minutes) = (value?, self.minutes);
            let newest = self.readings.iter().map(|(_, at, _)| minute_of(*at)).max();
            if newest.is_some_and(|newest| (newest - minute_of(at)).abs() > minutes) {
                self.readings.clear();
                self.judged = None;
            }
            self.readings.push((rank, at, value));
            let now = self.readings.iter().map(|(_, at, _)| minute_of(*at)).max()?;
            if self.judged.replace(now) == Some(now) {
                return None;
            }
            let quiet = self.reported.is_some_and(|minute| minute <= now && now < minute + minutes);
            let since = Timestamp::from_micros((now - minutes) * MINUTE_MICROS);
            if quiet || since < self.readings.first()?.1 {
                return None;
            }
            let mut means = Vec::new();
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            for minute in now - minutes..now {
                let of_rank = |rank: u32| -> Vec<f64> {
                    let here =
                        self.readings.iter().filter(|(r, at, _)| *r == rank && minute_of(*at) == minute);
                    here.map(|(.., v)| *v).collect()
                };
                let ranks: Vec<Vec<f64>> = (0..self.ranks).map(of_rank).collect();
                if ranks.iter().all(|values| !values.is_empty()) {
                    let ranks: Vec<f64> = ranks.iter().map(|values| mean(values)).collect();
                    means.push(mean(&ranks));
                }
            }
            let covered = means.len() as i64 * 100 >= minutes * 80;
            let percent = mean(&means);
            if !covered || percent >= self.below {
                return None;
            }
            self.reported = Some(now);
            Some(Underused { percent, since, for_s: minutes * 60 })
        }
    }

    /// The seconds to the next reading, its rank and its value.
    fn reading() -> impl Strategy<Value = (i64, u32, Option<f64>)> {
        let step = prop_oneof![12 => 0i64..45, 2 => 45i64..200, 1 => -90i64..0, 1 => -4_000i64..4_000];
        let value = prop_oneof![8 => 0u32..60, 1 => 60u32..=100].prop_map(f64::from);
        (step, 0u32..3, prop_oneof![9 => value.prop_map(Some), 1 => Just(None)])
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_all_readings(
            readings in prop::collection::vec(reading(), 1..400), below in 1u32..=100, minutes in 1u32..12,
            ranks in 1u32..=3,
        ) {
            let mut window = IdleWindow::new(below, minutes * 60, ranks as usize);
            let (below, length) = (f64::from(below), i64::from(minutes));
            let mut naive = Naive { below, minutes: length, ranks, ..Naive::default() };
            let mut at = 0;
            for (step, rank, value) in readings {
                let rank = rank % ranks;
                // The readings of several ranks come together.
                at += if step > 0 && rank > 0 { 0 } else { step };
                let expected = naive.add(rank, second(at), value);
                prop_assert_eq!(window.add(rank, second(at), value), expected);
                prop_assert_eq!(window.ring.len(), minutes as usize + 1);
            }
        }
    }
}
