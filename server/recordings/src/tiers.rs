//! The retention of readings: by the second when new, then as means of ten seconds, then as means of a
//! minute, and then removed.
//!
//! Pure: no files, no clock.

use berth_types::time::Timestamp;

use super::codec::{Block, COLUMNS, Row};

/// Greatest difference of a reading's time, by the clock of its host, from the portal's time. A reading far
/// in the future would outlive all others and be the last point of each chart.
const MAX_AHEAD_S: i64 = 60;
const MAX_BEHIND_S: i64 = 15 * 60;

/// True if the time of a reading is close enough to the portal's time.
pub fn is_timely(at: Timestamp, now: Timestamp) -> bool {
    now.plus_seconds(-MAX_BEHIND_S) <= at && at <= now.plus_seconds(MAX_AHEAD_S)
}

/// The age in seconds up to which readings are kept at each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub by_second_s: i64,
    pub by_ten_s: i64,
    pub by_minute_s: i64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { by_second_s: 15 * 60, by_ten_s: 86_400, by_minute_s: 90 * 86_400 }
    }
}

/// The delay of a compaction after the retention of a step. It makes frames longer and compactions rarer. It
/// is half of the retention, and at most `most_s`.
const fn lateness_s(kept_s: i64, most_s: i64) -> i64 {
    if kept_s / 2 < most_s { kept_s / 2 } else { most_s }
}

const TEN_S: i64 = 10;
const MINUTE_S: i64 = 60;

impl Retention {
    /// True if each step is kept for at least as long as the next finer one.
    pub const fn is_valid(self) -> bool {
        self.by_second_s >= MINUTE_S && self.by_ten_s >= self.by_second_s && self.by_minute_s >= self.by_ten_s
    }

    /// The time of the next compaction. The parameters are the first times of the readings at each step.
    fn due_s(self, second: Option<i64>, ten: Option<i64>, minute: Option<i64>) -> i64 {
        let due = |first: Option<i64>, kept_s: i64, most_s: i64| {
            first.map_or(i64::MAX, |at| at.saturating_add(kept_s).saturating_add(lateness_s(kept_s, most_s)))
        };
        due(second, self.by_second_s, 600).min(due(ten, self.by_ten_s, 7_200)).min(due(
            minute,
            self.by_minute_s,
            86_400,
        ))
    }

    /// The time at which a reading by the second is averaged into a longer step.
    pub fn first_due_s(self, at_s: i64) -> i64 {
        self.due_s(Some(at_s), None, None)
    }
}

/// The mean of present values; absent without values.
#[derive(Default, Clone, Copy, Debug)]
pub struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    pub fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value.filter(|v| v.is_finite()) {
            self.sum += value;
            self.count = self.count.saturating_add(1);
        }
    }

    /// Returns the mean and starts a new one.
    pub fn finish(&mut self) -> Option<f64> {
        let Self { sum, count } = std::mem::take(self);
        (count > 0).then(|| sum / f64::from(count))
    }
}

/// The start of the step that contains a time.
pub const fn floor_to(at_s: i64, step_s: i64) -> i64 {
    at_s.div_euclid(step_s).saturating_mul(step_s)
}

/// A step that is being averaged: its start and its means.
type OpenStep = Option<(i64, [Mean; COLUMNS])>;

fn close_step(open: OpenStep, into: &mut Vec<Row>) {
    if let Some((at_s, means)) = open {
        into.push(Row { at_s, values: means.map(|mut mean| mean.finish()) });
    }
}

/// Averages the readings before `before_s` over a longer step, and moves them there.
fn fold(rows: &mut Vec<Row>, before_s: i64, step_s: i64, into: &mut Vec<Row>) {
    rows.sort_by_key(|row| row.at_s);
    let old = rows.partition_point(|row| row.at_s < before_s);
    let mut open: OpenStep = None;
    for row in rows.drain(..old) {
        let slot = floor_to(row.at_s, step_s);
        if open.is_none_or(|(at_s, _)| at_s != slot) {
            close_step(open.take(), into);
            open = Some((slot, [Mean::default(); COLUMNS]));
        }
        if let Some((_, means)) = &mut open {
            means.iter_mut().zip(row.values).for_each(|(mean, value)| mean.add(value));
        }
    }
    close_step(open, into);
}

/// The readings of one device.
#[derive(Debug)]
struct Device {
    rank: u32,
    device: u32,
    memory_total_mib: f64,
    second: Vec<Row>,
    ten: Vec<Row>,
    minute: Vec<Row>,
}

impl Device {
    fn downsample(&mut self, retention: Retention, now_s: i64) {
        // All limits are whole minutes, so no longer step is averaged in two halves.
        let before = |kept_s: i64| floor_to(now_s.saturating_sub(kept_s), MINUTE_S);
        fold(&mut self.second, before(retention.by_second_s), TEN_S, &mut self.ten);
        fold(&mut self.ten, before(retention.by_ten_s), MINUTE_S, &mut self.minute);
        self.minute.sort_by_key(|row| row.at_s);
        let first = before(retention.by_minute_s);
        self.minute.retain(|row| row.at_s >= first);
    }

    fn blocks(self) -> impl Iterator<Item = Block> {
        let Self { rank, device, memory_total_mib, second, ten, minute } = self;
        [(60, minute), (10, ten), (1, second)]
            .into_iter()
            .filter(|(_, rows)| !rows.is_empty())
            .map(move |(step_s, rows)| Block { rank, device, step_s, memory_total_mib, rows })
    }
}

/// Averages all readings of a file over the steps for their age, and removes those beyond their retention.
pub fn downsample(blocks: Vec<Block>, retention: Retention, now_s: i64) -> Vec<Block> {
    let mut devices: Vec<Device> = Vec::new();
    for block in blocks {
        let Block { rank, device, step_s, memory_total_mib, rows } = block;
        if !devices.iter().any(|d| (d.rank, d.device) == (rank, device)) {
            let (second, ten, minute) = (Vec::new(), Vec::new(), Vec::new());
            devices.push(Device { rank, device, memory_total_mib, second, ten, minute });
        }
        let Some(found) = devices.iter_mut().find(|d| (d.rank, d.device) == (rank, device)) else { continue };
        found.memory_total_mib = memory_total_mib;
        let tier = match step_s {
            0..10 => &mut found.second,
            10..60 => &mut found.ten,
            _ => &mut found.minute,
        };
        tier.extend(rows);
    }
    devices
        .into_iter()
        .flat_map(|mut device| {
            device.downsample(retention, now_s);
            device.blocks()
        })
        .collect()
}

/// The time of the next compaction of these readings, in seconds since the epoch; `i64::MAX` without
/// readings.
pub fn due_s(blocks: &[Block], retention: Retention) -> i64 {
    let first = |steps: std::ops::Range<u32>| {
        let blocks = blocks.iter().filter(|b| steps.contains(&b.step_s));
        blocks.flat_map(|b| b.rows.iter().map(|row| row.at_s)).min()
    };
    retention.due_s(first(0..10), first(10..60), first(60..u32::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn block(step_s: u32, rows: Vec<Row>) -> Block {
        Block { rank: 0, device: 0, step_s, memory_total_mib: 80.0, rows }
    }

    fn at(at_s: i64, value: Option<f64>) -> Row {
        Row { at_s, values: [value, Some(1.0), None, None] }
    }

    fn steps(blocks: &[Block]) -> Vec<(u32, i64, i64, usize)> {
        let short = |b: &Block| (b.step_s, b.rows[0].at_s, b.rows[b.rows.len() - 1].at_s, b.rows.len());
        blocks.iter().map(short).collect()
    }

    #[test]
    fn each_second_is_kept_for_a_quarter_of_an_hour_and_then_ten_are_one() {
        let retention = Retention::default();
        // Whole minutes throughout.
        let rows: Vec<Row> = (0..1_800).map(|n| at(NOW - 1_800 + n, Some((n % 10) as f64))).collect();
        let settled = downsample(vec![block(1, rows.clone())], retention, NOW);
        assert_eq!(steps(&settled), [(10, NOW - 1_800, NOW - 910, 90), (1, NOW - 900, NOW - 1, 900)]);
        assert!(settled[0].rows.iter().all(|row| row.values == [Some(4.5), Some(1.0), None, None]));
        // A second before the full minute nothing more is averaged.
        let earlier = downsample(vec![block(1, rows)], retention, NOW - 1);
        assert_eq!(steps(&earlier)[1], (1, NOW - 960, NOW - 1, 960));
    }

    #[test]
    fn tens_become_minutes_after_a_day_and_minutes_go_after_ninety() {
        let retention = Retention::default();
        let day = 86_400;
        let tens: Vec<Row> = (0..12).map(|n| at(NOW - day - 60 + n * 10, Some(n as f64))).collect();
        let settled = downsample(vec![block(10, tens)], retention, NOW);
        assert_eq!(
            steps(&settled),
            [(60, NOW - day - 60, NOW - day - 60, 1), (10, NOW - day, NOW - day + 50, 6)]
        );
        assert_eq!(settled[0].rows[0].values[0], Some(2.5));
        let minutes = vec![at(NOW - 90 * day - 60, None), at(NOW - 90 * day, Some(3.0))];
        let settled = downsample(vec![block(60, minutes)], retention, NOW);
        assert_eq!(steps(&settled), [(60, NOW - 90 * day, NOW - 90 * day, 1)]);
        assert!(downsample(settled, retention, NOW + 60).is_empty());
        // Readings by the second may move to the longest step at once, as after a long stop of the portal.
        let old = vec![at(NOW - 2 * day, Some(1.0)), at(NOW - 91 * day, Some(1.0))];
        let settled = downsample(vec![block(1, old)], retention, NOW);
        assert_eq!(steps(&settled), [(60, NOW - 2 * day, NOW - 2 * day, 1)]);
    }

    #[test]
    fn a_reading_of_another_time_is_not_kept() {
        let now = NOW * 1_000_000;
        let timely = |at: i64| is_timely(Timestamp::from_micros(at), Timestamp::from_micros(now));
        for (micros, kept) in [
            (0, true),
            (60_000_000, true),
            (60_000_001, false),
            (86_400_000_000, false),
            (-900_000_000, true),
            (-900_000_001, false),
            (-86_400_000_000, false),
        ] {
            assert_eq!(timely(now + micros), kept, "{micros}");
        }
        assert!(!timely(i64::MIN) && !timely(i64::MAX));
    }

    #[test]
    fn what_must_be_looked_at_next_is_known() {
        let retention = Retention::default();
        assert_eq!(due_s(&[], retention), i64::MAX);
        assert_eq!(due_s(&[block(1, vec![at(NOW, None)])], retention), NOW + 900 + 450);
        assert_eq!(due_s(&[block(10, vec![at(NOW, None)])], retention), NOW + 86_400 + 7_200);
        assert_eq!(due_s(&[block(60, vec![at(NOW, None)])], retention), NOW + 91 * 86_400);
        assert!(retention.is_valid() && !Retention { by_ten_s: 60, ..retention }.is_valid());
    }

    proptest! {
        /// Each kept reading counts once, for any number and times of compactions.
        #[test]
        fn the_mean_of_all_is_the_same_after_any_number_of_settlings(
            values in prop::collection::vec(0u32..100, 60..400),
            looks in prop::collection::vec(0i64..4_000, 1..6),
        ) {
            let retention = Retention { by_second_s: 60, by_ten_s: 600, by_minute_s: 1_000_000 };
            // Whole minutes, so that all means have the same number of readings.
            let whole = values.len() / 60 * 60;
            let rows: Vec<Row> =
                (0..).zip(&values[..whole]).map(|(n, v)| at(NOW + n, Some(f64::from(*v)))).collect();
            let mean = rows.iter().filter_map(|r| r.values[0]).sum::<f64>() / whole as f64;
            let mut blocks = vec![block(1, rows)];
            let mut looks = looks;
            looks.sort_unstable();
            for look in looks {
                blocks = downsample(blocks, retention, NOW + look);
            }
            let seconds = |b: &Block| b.rows.iter().filter_map(|r| r.values[0]).sum::<f64>() * f64::from(b.step_s);
            let back = blocks.iter().map(seconds).sum::<f64>() / whole as f64;
            prop_assert!((mean - back).abs() < 1e-6, "{} {}", mean, back);
        }

        #[test]
        fn no_time_and_no_value_brings_it_down(
            times in prop::collection::vec(any::<i64>(), 0..30),
            now in any::<i64>(),
            step in prop_oneof![Just(0u32), Just(1), Just(10), Just(60), any::<u32>()],
        ) {
            let rows = times.into_iter().map(|t| at(t, Some(f64::MAX))).collect();
            let settled = downsample(vec![block(step, rows)], Retention::default(), now);
            due_s(&settled, Retention::default());
        }
    }
}
