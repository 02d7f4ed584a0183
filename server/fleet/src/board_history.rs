//! The kept readings of boards: means of 10 seconds for an hour and of 60 seconds for a day, in memory.
//!
//! A board has at most 1,802 points of 16 bytes, so 1,000 boards have about 29 MB after a day.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_types::board_samples::BoardSamples;
use berth_types::time::Timestamp;

/// The number of quantities of a board.
const COLUMNS: usize = 4;
/// The length of a step in seconds and the number of kept steps: the last hour and the last day.
const FINE: (i64, usize) = (10, 360);
const COARSE: (i64, usize) = (60, 1_440);
/// The age in seconds at which a reading is removed.
pub const KEPT_S: i64 = 86_400;
/// The most boards with readings. Further boards have none.
const MAX_BOARDS: usize = 10_000;
/// Seconds between two removals of boards without readings.
const SWEEP_S: i64 = 60;
/// Seconds by which the clock may go back. After a greater step the history of a board begins anew.
const MAX_BACK_S: i64 = 60;

/// One reading of a board. A value without a report is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BoardValues {
    pub utilization_percent: Option<f64>,
    pub memory_used_mib: Option<f64>,
    pub power_watts: Option<f64>,
    pub temperature_celsius: Option<f64>,
}

impl BoardValues {
    /// The reading without the values that no board has: no number, negative or too large.
    #[must_use]
    pub fn valid(self) -> Self {
        let within =
            |value: Option<f64>, min: f64, max: f64| value.filter(|value| (min..=max).contains(value));
        Self {
            utilization_percent: within(self.utilization_percent, 0.0, 100.0),
            memory_used_mib: within(self.memory_used_mib, 0.0, 16_777_216.0),
            power_watts: within(self.power_watts, 0.0, 10_000.0),
            temperature_celsius: within(self.temperature_celsius, -50.0, 200.0),
        }
    }

    const fn columns(self) -> [Option<f64>; COLUMNS] {
        [self.utilization_percent, self.memory_used_mib, self.power_watts, self.temperature_celsius]
    }
}

/// The mean of one quantity over a step.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count = self.count.saturating_add(1);
        }
    }

    /// The mean; no number without a value.
    fn finish(self) -> f32 {
        if self.count == 0 { f32::NAN } else { (self.sum / f64::from(self.count)) as f32 }
    }
}

type Point = [f32; COLUMNS];

/// The last steps of one length.
#[derive(Debug)]
struct Ring {
    step_s: i64,
    capacity: usize,
    /// The closed steps without gaps, oldest first. The open step follows them.
    points: VecDeque<Point>,
    /// The number of the open step and its means.
    open: Option<(i64, [Mean; COLUMNS])>,
}

impl Ring {
    const fn new((step_s, capacity): (i64, usize)) -> Self {
        Self { step_s, capacity, points: VecDeque::new(), open: None }
    }

    /// Adds a reading. Times never go back.
    fn add(&mut self, at_s: i64, values: [Option<f64>; COLUMNS]) {
        let slot = at_s.div_euclid(self.step_s);
        let (mut open, mut means) = self.open.unwrap_or((slot, [Mean::default(); COLUMNS]));
        if slot > open {
            self.close(means.map(Mean::finish), slot.saturating_sub(open).saturating_sub(1));
            (open, means) = (slot, [Mean::default(); COLUMNS]);
        }
        means.iter_mut().zip(values).for_each(|(mean, value)| mean.add(value));
        self.open = Some((open, means));
    }

    /// Closes the open step, which `empty_steps` steps without a reading follow.
    fn close(&mut self, point: Point, empty_steps: i64) {
        let empty_steps = usize::try_from(empty_steps).unwrap_or(usize::MAX);
        if empty_steps >= self.capacity {
            self.points.clear();
            return;
        }
        self.push(point);
        for _ in 0..empty_steps {
            self.push([f32::NAN; COLUMNS]);
        }
    }

    fn push(&mut self, point: Point) {
        if self.points.len() >= self.capacity {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// The start of each step in seconds with its point, oldest first, with the open step.
    fn rows(&self) -> Vec<(i64, Point)> {
        let Some((open, means)) = self.open else { return Vec::new() };
        let closed = i64::try_from(self.points.len()).unwrap_or(i64::MAX);
        let first = open.saturating_sub(closed);
        let points = self.points.iter().copied().chain([means.map(Mean::finish)]);
        (first..).zip(points).map(|(slot, point)| (slot.saturating_mul(self.step_s), point)).collect()
    }
}

/// The history of one board.
#[derive(Debug)]
struct BoardHistory {
    fine: Ring,
    coarse: Ring,
    /// The time of the last reading in seconds.
    last_s: i64,
}

impl BoardHistory {
    const fn new() -> Self {
        Self { fine: Ring::new(FINE), coarse: Ring::new(COARSE), last_s: i64::MIN }
    }

    /// Adds a reading. A second has at most one, so that a worker with many messages has no more weight.
    fn add(&mut self, at_s: i64, values: BoardValues) {
        if at_s < self.last_s.saturating_sub(MAX_BACK_S) {
            *self = Self::new();
        }
        if at_s <= self.last_s {
            return;
        }
        self.last_s = at_s;
        self.fine.add(at_s, values.columns());
        self.coarse.add(at_s, values.columns());
    }

    /// The steps that begin between two times in seconds: long ones, then the short ones of the last hour.
    fn rows(&self, from_s: i64, to_s: i64) -> Vec<(i64, Point)> {
        let fine = self.fine.rows();
        let first_fine_s = fine.first().map_or(i64::MAX, |(at_s, _)| *at_s);
        let mut rows = self.coarse.rows();
        // A long step that reaches into the short ones would show their readings twice.
        let step_s = self.coarse.step_s;
        rows.retain(|(at_s, _)| at_s.saturating_add(step_s) <= first_fine_s);
        rows.extend(fine);
        rows.retain(|(at_s, _)| (from_s..=to_s).contains(at_s));
        rows
    }
}

/// A value of a point with one decimal; `None` for no number.
fn shown(value: f32) -> Option<f64> {
    value.is_finite().then(|| (f64::from(value) * 10.0).round() / 10.0)
}

/// The time in whole seconds.
const fn seconds(at: Timestamp) -> i64 {
    at.micros().div_euclid(1_000_000)
}

#[derive(Debug, Default)]
struct Boards {
    by_uuid: HashMap<String, BoardHistory>,
    /// The time in seconds of the last removal of boards without readings.
    swept_s: i64,
}

/// The kept readings of all boards.
#[derive(Debug, Default)]
pub struct BoardHistories {
    boards: Mutex<Boards>,
}

impl BoardHistories {
    fn lock(&self) -> MutexGuard<'_, Boards> {
        self.boards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reading of a board at the portal's time.
    pub fn add(&self, gpu_uuid: &str, at: Timestamp, values: BoardValues) {
        let at_s = seconds(at);
        let mut boards = self.lock();
        if at_s.saturating_sub(boards.swept_s) >= SWEEP_S {
            boards.swept_s = at_s;
            boards.by_uuid.retain(|_, board| board.last_s >= at_s.saturating_sub(KEPT_S));
        }
        if let Some(board) = boards.by_uuid.get_mut(gpu_uuid) {
            board.add(at_s, values.valid());
        } else if boards.by_uuid.len() < MAX_BOARDS {
            let mut board = BoardHistory::new();
            board.add(at_s, values.valid());
            boards.by_uuid.insert(gpu_uuid.to_owned(), board);
        }
    }

    /// The steps of a board that begin between two times, without jobs.
    pub fn samples(&self, gpu_uuid: &str, from: Timestamp, to: Timestamp) -> BoardSamples {
        let rows = self
            .lock()
            .by_uuid
            .get(gpu_uuid)
            .map_or_else(Vec::new, |board| board.rows(seconds(from), seconds(to)));
        let mut samples = BoardSamples::default();
        for (at_s, [utilization, memory, power, temperature]) in rows {
            samples.at_s.push(at_s as f64);
            samples.utilization_percent.push(shown(utilization));
            samples.memory_used_mib.push(shown(memory));
            samples.power_watts.push(shown(power));
            samples.temperature_celsius.push(shown(temperature));
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_S: i64 = 1_800_000_000;

    fn busy(percent: f64) -> BoardValues {
        BoardValues { utilization_percent: Some(percent), ..BoardValues::default() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    #[test]
    fn a_ring_has_its_last_steps_around_its_capacity() {
        for capacity in [1_usize, 2, 3, 8] {
            for steps in 1..=(2 * capacity + 2) {
                let mut ring = Ring::new((10, capacity));
                for step in 0..steps {
                    ring.add(step as i64 * 10 + 3, busy(step as f64).columns());
                }
                let rows = ring.rows();
                // The open step comes in addition to the closed ones.
                let kept = steps.min(capacity + 1);
                let first = steps - kept;
                let expected: Vec<(i64, f32)> =
                    (first..steps).map(|step| (step as i64 * 10, step as f32)).collect();
                let found: Vec<(i64, f32)> = rows.iter().map(|(at_s, point)| (*at_s, point[0])).collect();
                assert_eq!(found, expected, "{capacity} {steps}");
            }
        }
    }

    #[test]
    fn a_gap_has_empty_steps_and_a_long_gap_leaves_nothing() {
        for capacity in [1_i64, 2, 5] {
            for gap in 0..=(capacity + 2) {
                let mut ring = Ring::new((10, capacity as usize));
                ring.add(0, busy(50.0).columns());
                ring.add((gap + 1) * 10, busy(70.0).columns());
                let rows = ring.rows();
                let values: Vec<Option<f64>> = rows.iter().map(|(_, point)| shown(point[0])).collect();
                assert_eq!(rows.last().unwrap().0, (gap + 1) * 10);
                assert_eq!(values.last(), Some(&Some(70.0)));
                let before = if gap < capacity { gap + 1 } else { 0 };
                assert_eq!(values.len() as i64, before + 1, "{capacity} {gap}");
                if gap < capacity {
                    assert_eq!(values[0], Some(50.0), "{capacity} {gap}");
                    assert!(values[1..values.len() - 1].iter().all(Option::is_none), "{capacity} {gap}");
                }
            }
        }
    }

    #[test]
    fn an_hour_has_short_steps_and_a_day_long_ones() {
        let mut board = BoardHistory::new();
        for second in 0..2 * KEPT_S {
            board.add(START_S + second, busy((second % 10) as f64));
        }
        let rows = board.rows(i64::MIN, i64::MAX);
        assert!(rows.len() <= 1_802, "{}", rows.len());
        let last_s = START_S + 2 * KEPT_S - 1;
        assert!(rows.first().unwrap().0 >= last_s - KEPT_S - 120, "{:?}", rows.first());
        assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "the steps are in order");
        let short = rows.windows(2).filter(|pair| pair[1].0 - pair[0].0 == 10).count();
        assert_eq!(short, 360);
        assert!(rows.iter().all(|(_, point)| shown(point[0]) == Some(4.5)), "each step has its mean");
        let some = board.rows(last_s - 95, last_s - 5);
        assert!(some.iter().all(|(at_s, _)| (last_s - 95..=last_s - 5).contains(at_s)) && !some.is_empty());
    }

    #[test]
    fn values_that_no_board_has_are_absent() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -51.0, 1e300, 16_777_217.0] {
            let wrong = Some(value);
            let values = BoardValues {
                utilization_percent: wrong,
                memory_used_mib: wrong,
                power_watts: wrong,
                temperature_celsius: wrong,
            };
            assert_eq!(values.valid(), BoardValues::default(), "{value}");
        }
        let good = BoardValues {
            utilization_percent: Some(100.0),
            memory_used_mib: Some(0.0),
            power_watts: Some(700.0),
            temperature_celsius: Some(-5.0),
        };
        assert_eq!(good.valid(), good);
    }

    #[test]
    fn a_second_has_one_reading_and_a_clock_set_back_begins_anew() {
        let all = BoardHistories::default();
        let read = || all.samples("GPU-1", at(0), at(START_S + 1_000)).utilization_percent;
        all.add("GPU-1", at(START_S), busy(10.0));
        for _ in 0..1_000 {
            all.add("GPU-1", at(START_S), busy(90.0));
        }
        all.add("GPU-1", at(START_S - MAX_BACK_S), busy(90.0));
        assert_eq!(read(), [Some(10.0)]);
        all.add("GPU-1", at(START_S - MAX_BACK_S - 1), busy(30.0));
        assert_eq!(read(), [Some(30.0)]);
        assert_eq!(all.samples("GPU-2", at(0), at(START_S)), BoardSamples::default());
    }

    #[test]
    fn the_number_of_boards_is_limited_and_old_boards_make_room() {
        let all = BoardHistories::default();
        for n in 0..MAX_BOARDS + 5 {
            all.add(&format!("GPU-{n}"), at(START_S), busy(1.0));
        }
        assert_eq!(all.lock().by_uuid.len(), MAX_BOARDS);
        all.add("GPU-new", at(START_S + KEPT_S + 1), busy(1.0));
        assert_eq!(all.lock().by_uuid.len(), 1);
    }
}
