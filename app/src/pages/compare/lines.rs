//! Readings of several jobs as lines over the time since the start of their last attempts. Pure.
//!
//! A point is the mean of all devices of a job over the step of the chart. Values are whole tenths of the unit, so
//! that server and browser draw the same.

use berth_types::metrics::{Metrics, Series};
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The maximum number of points of a line.
const MAX_STEPS: i64 = 200;
/// The longest shown run in seconds.
const MAX_SPAN_S: i64 = 400 * 86_400;
/// The width of a step in the drawing.
const WIDE: usize = 10;
/// The height of the drawing.
pub const HIGH: i64 = 1_000;

/// The quantity of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quantity {
    Utilization,
    Memory,
    Power,
}

impl Quantity {
    pub const ALL: [Self; 3] = [Self::Utilization, Self::Memory, Self::Power];

    /// Returns the name on the screen.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Utilization => "Utilization",
            Self::Memory => "Memory",
            Self::Power => "Power",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Utilization => "%",
            Self::Memory => "GiB",
            Self::Power => "W",
        }
    }

    fn column(self, series: &Series) -> &[Option<f64>] {
        match self {
            Self::Utilization => &series.utilization_percent,
            Self::Memory => &series.memory_used_mib,
            Self::Power => &series.power_watts,
        }
    }

    /// Converts a value of the API into tenths of the unit.
    fn tenths(self, value: f64) -> i64 {
        let value = if self == Self::Memory { value / 1_024.0 } else { value };
        (value * 10.0).round() as i64
    }

    /// Returns tenths of the unit as text: `95 %`, `9.5 GiB`.
    pub fn text(self, tenths: i64) -> String {
        let unit = self.unit();
        match self {
            Self::Memory => format!("{}.{} {unit}", tenths / 10, tenths % 10),
            Self::Utilization | Self::Power => format!("{} {unit}", tenths.saturating_add(5) / 10),
        }
    }

    /// Returns all values of a job.
    fn values(self, metrics: &Metrics) -> impl Iterator<Item = f64> {
        let columns = metrics.series.iter().flat_map(move |series| self.column(series).iter().copied());
        columns.flatten().filter(|value| value.is_finite())
    }

    /// Returns the mean of a job in tenths of the unit; `None` without a value.
    pub fn mean(self, metrics: &Metrics) -> Option<i64> {
        let (mut sum, mut count) = (0.0, 0_u32);
        for value in self.values(metrics) {
            sum += value;
            count = count.saturating_add(1);
        }
        (count > 0).then(|| self.tenths(sum / f64::from(count)))
    }

    /// Returns the highest value of a job in tenths of the unit; `None` without a value.
    pub fn highest(self, metrics: &Metrics) -> Option<i64> {
        self.values(metrics).map(|value| self.tenths(value)).max()
    }
}

/// The readings of a job with the start of its last attempt, if it is known.
pub type JobReadings<'a> = (Option<Timestamp>, &'a Metrics);

/// The line of a job: a value in tenths of the unit for each step, `None` without a reading.
pub type Line = Vec<Option<i64>>;

/// The lines of all jobs in one quantity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chart {
    /// The quantity.
    pub quantity: Quantity,
    /// The upper end of the scale in tenths of the unit.
    pub top: i64,
    /// A line for each job, without values for a job without readings.
    pub lines: Vec<Line>,
}

/// The charts of a comparison with one time axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charts {
    /// The length of a step in seconds.
    pub step_s: i64,
    /// The number of steps.
    pub steps: usize,
    /// A chart for each quantity.
    pub charts: Vec<Chart>,
}

/// Returns the origin of a job's time axis in Unix seconds: the start of the attempt, or else the first reading.
fn origin_s((started, metrics): JobReadings<'_>) -> f64 {
    let first = metrics.series.iter().filter_map(|series| series.at_s.first().copied());
    started.map_or_else(|| first.fold(f64::INFINITY, f64::min), |at| at.millis() as f64 / 1_000.0)
}

/// Returns the whole seconds from the origin to a reading, never below 0.
fn offset_s(at_s: f64, origin_s: f64) -> i64 {
    ((at_s - origin_s).max(0.0) as i64).min(MAX_SPAN_S)
}

fn span_s(job: JobReadings<'_>) -> i64 {
    let origin = origin_s(job);
    let last = job.1.series.iter().filter_map(|series| series.at_s.last().copied());
    last.map(|at| offset_s(at, origin)).max().unwrap_or(0)
}

fn line(quantity: Quantity, job: JobReadings<'_>, step_s: i64, steps: usize) -> Line {
    let origin = origin_s(job);
    let mut sums = vec![(0.0, 0_u32); steps];
    for series in &job.1.series {
        for (at, value) in series.at_s.iter().zip(quantity.column(series)) {
            let Some(value) = value.filter(|value| value.is_finite()) else { continue };
            let step = usize::try_from(offset_s(*at, origin) / step_s.max(1)).unwrap_or(usize::MAX);
            if let Some((sum, count)) = sums.get_mut(step) {
                *sum += value;
                *count = count.saturating_add(1);
            }
        }
    }
    let point = |(sum, count): (f64, u32)| (count > 0).then(|| quantity.tenths(sum / f64::from(count)));
    sums.into_iter().map(point).collect()
}

/// Returns the smallest of 1, 2, 5, 10, 20, … units at or above a value in tenths.
fn round_up(tenths: i64) -> i64 {
    let mut step: i64 = 10;
    loop {
        for factor in [1, 2, 5] {
            let top = step.saturating_mul(factor);
            if top >= tenths {
                return top;
            }
        }
        step = step.saturating_mul(10);
    }
}

fn chart(quantity: Quantity, jobs: &[Option<JobReadings<'_>>], step_s: i64, steps: usize) -> Chart {
    let lines: Vec<Line> = jobs
        .iter()
        .map(|job| job.map_or_else(|| vec![None; steps], |job| line(quantity, job, step_s, steps)))
        .collect();
    let highest = lines.iter().flatten().flatten().copied().max().unwrap_or(0);
    let memory = |(_, metrics): &JobReadings<'_>| {
        metrics.series.iter().map(|series| quantity.tenths(series.memory_total_mib)).max()
    };
    let top = match quantity {
        Quantity::Utilization => 1_000,
        Quantity::Memory => jobs.iter().flatten().filter_map(memory).max().unwrap_or(0).max(highest).max(10),
        Quantity::Power => round_up(highest),
    };
    Chart { quantity, top, lines }
}

impl Charts {
    /// Returns the charts of jobs; `None` for a job that cannot be read. Without any reading there are no charts.
    pub fn new(jobs: &[Option<JobReadings<'_>>]) -> Self {
        let read: Vec<JobReadings<'_>> =
            jobs.iter().flatten().copied().filter(|(_, metrics)| !metrics.series.is_empty()).collect();
        if read.is_empty() {
            return Self { step_s: 1, steps: 0, charts: Vec::new() };
        }
        let span = read.iter().map(|job| span_s(*job)).max().unwrap_or(0);
        // A step shorter than that of the readings would have gaps.
        let coarsest = read.iter().map(|(_, metrics)| i64::try_from(metrics.step_s).unwrap_or(1)).max();
        let step_s = coarsest.unwrap_or(1).clamp(1, MAX_SPAN_S).max(span / MAX_STEPS + 1);
        let steps = usize::try_from(span / step_s + 1).unwrap_or(1);
        let charts = Quantity::ALL.into_iter().map(|quantity| chart(quantity, jobs, step_s, steps)).collect();
        Self { step_s, steps, charts }
    }

    /// Returns the width of the drawing.
    pub fn width(&self) -> usize {
        self.steps.saturating_mul(WIDE)
    }
}

/// Returns the middle of a step in the drawing.
pub const fn middle(step: usize) -> usize {
    step.saturating_mul(WIDE).saturating_add(WIDE / 2)
}

/// Returns the path of a line in the drawing, with gaps where values are absent. A single value is a short stroke.
pub fn path(line: &[Option<i64>], top: i64) -> String {
    let mut path = String::new();
    let mut drawn = false;
    for (step, value) in line.iter().enumerate() {
        let Some(value) = value else {
            drawn = false;
            continue;
        };
        let y = HIGH - (value.saturating_mul(HIGH) / top.max(1)).clamp(0, HIGH);
        let x = middle(step);
        if drawn {
            path.push_str(&format!("L{x} {y}"));
        } else {
            path.push_str(&format!("M{} {y}H{x}", step.saturating_mul(WIDE)));
        }
        drawn = true;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings of one device from `first_s` on, one a step.
    fn metrics(step_s: u64, first_s: f64, utilization: &[Option<f64>]) -> Metrics {
        let at_s = (0..utilization.len()).map(|step| first_s + step as f64 * step_s as f64).collect();
        let absent = vec![None; utilization.len()];
        let series = Series {
            rank: 0,
            device: 0,
            memory_total_mib: 10_240.0,
            at_s,
            utilization_percent: utilization.to_vec(),
            memory_used_mib: vec![Some(1_536.0); utilization.len()],
            power_watts: absent.clone(),
            temperature_celsius: absent,
        };
        Metrics { step_s, series: vec![series] }
    }

    fn started(second: i64) -> Option<Timestamp> {
        Some(Timestamp::from_micros(second * 1_000_000))
    }

    #[test]
    fn lines_begin_at_the_start_of_each_job() {
        let first = metrics(1, 100.0, &[Some(10.0), None, Some(30.0)]);
        let second = metrics(1, 5_002.0, &[Some(50.0)]);
        let charts = Charts::new(&[Some((started(100), &first)), None, Some((started(5_000), &second))]);
        assert_eq!((charts.step_s, charts.steps), (1, 3));
        let utilization = &charts.charts[0];
        assert_eq!((utilization.quantity, utilization.top), (Quantity::Utilization, 1_000));
        let expected: [Line; 3] =
            [vec![Some(100), None, Some(300)], vec![None, None, None], vec![None, None, Some(500)]];
        assert_eq!(utilization.lines, expected);
        assert_eq!(charts.charts[1].top, 100, "the memory of the device is the scale");
        assert_eq!(charts.charts[1].lines[0], [Some(15), Some(15), Some(15)]);
        assert_eq!((charts.charts[2].top, charts.charts[2].lines[0][0]), (10, None), "no power was reported");
    }

    #[test]
    fn a_step_is_the_mean_of_devices_and_no_shorter_than_a_reading() {
        let mut gang = metrics(1, 0.0, &[Some(0.0), Some(100.0)]);
        gang.series.push(metrics(1, 0.0, &[Some(40.0), Some(60.0)]).series.remove(0));
        let coarse = metrics(60, 0.0, &[Some(20.0), Some(40.0)]);
        let charts = Charts::new(&[Some((None, &gang)), Some((None, &coarse))]);
        assert_eq!((charts.step_s, charts.steps), (60, 2));
        assert_eq!(charts.charts[0].lines, [vec![Some(500), None], vec![Some(200), Some(400)]]);
        let long = metrics(1, 0.0, &vec![Some(1.0); 1_000]);
        let charts = Charts::new(&[Some((None, &long))]);
        assert_eq!((charts.step_s, charts.steps), (5, 200));
        assert_eq!(charts.charts[0].lines[0].len(), 200);
        assert!(charts.charts[0].lines[0].iter().all(Option::is_some));
    }

    #[test]
    fn without_readings_there_are_no_charts() {
        let none = Metrics { step_s: 1, series: Vec::new() };
        assert!(Charts::new(&[Some((started(1), &none)), None]).charts.is_empty());
        assert_eq!(Quantity::Power.mean(&none), None);
        let absent = metrics(1, 0.0, &[None]);
        assert_eq!(
            (Quantity::Utilization.mean(&absent), Quantity::Utilization.highest(&absent)),
            (None, None)
        );
    }

    #[test]
    fn means_and_maxima_have_units() {
        let readings = metrics(1, 0.0, &[Some(10.0), None, Some(95.0)]);
        assert_eq!(Quantity::Utilization.mean(&readings), Some(525));
        assert_eq!(Quantity::Utilization.highest(&readings), Some(950));
        assert_eq!(Quantity::Memory.mean(&readings), Some(15));
        assert_eq!(Quantity::Utilization.text(525), "53 %");
        assert_eq!(Quantity::Memory.text(15), "1.5 GiB");
        assert_eq!(Quantity::Power.text(7_000), "700 W");
    }

    #[test]
    fn a_path_has_gaps() {
        assert_eq!(path(&[Some(0), Some(1_000), None, Some(500)], 1_000), "M0 1000H5L15 0M30 500H35");
        assert_eq!(path(&[None], 1_000), "");
        assert_eq!(path(&[Some(9_999)], 0), "M0 0H5");
        assert_eq!([0, 10, 11, 201, 7_000].map(round_up), [10, 10, 20, 500, 10_000]);
    }
}
