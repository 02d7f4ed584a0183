//! Series of readings for charts: the readings averaged over one step, or at their own step if that is
//! longer.
//!
//! Pure: no files, no clock.

use berth_types::metrics::Series;

use super::codec::{Block, COLUMNS, Row};
use super::tiers::Mean;

/// Number of points of a series without a requested step.
const DEFAULT_POINTS: u64 = 600;
/// Greatest number of points of a series.
const MAX_POINTS: u64 = 10_000;

/// A time in whole seconds before all readings.
const BEFORE_ALL: i64 = i64::MIN;

/// The readings between two times in seconds, averaged over steps of `step_s` seconds (0: a step that fits
/// the time span), and the step of the result. Readings that are kept at a longer step come at that step.
pub fn collect(blocks: Vec<Block>, from: Option<f64>, to: Option<f64>, step_s: u64) -> (u64, Vec<Series>) {
    let in_span = |at_s: i64| {
        let at = at_s as f64;
        from.is_none_or(|from| at >= from) && to.is_none_or(|to| at <= to)
    };
    let mut devices: Vec<(Series, Vec<Row>)> = Vec::new();
    for Block { rank, device, memory_total_mib, rows, .. } in blocks {
        let mut rows: Vec<Row> = rows.into_iter().filter(|row| in_span(row.at_s)).collect();
        match devices.iter_mut().find(|(s, _)| (s.rank, s.device) == (rank, device)) {
            Some((series, known)) => {
                series.memory_total_mib = memory_total_mib;
                known.append(&mut rows);
            }
            None => devices.push((empty(rank, device, memory_total_mib), rows)),
        }
    }
    devices.retain(|(_, rows)| !rows.is_empty());
    devices.sort_by_key(|(s, _)| (s.rank, s.device));
    let times = || devices.iter().flat_map(|(_, rows)| rows.iter().map(|row| row.at_s));
    let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let span = last.saturating_sub(first).max(0).unsigned_abs();
    let step = if step_s > 0 { step_s.max(span / MAX_POINTS) } else { span / DEFAULT_POINTS }.max(1);
    let series = devices.into_iter().map(|(series, rows)| filled(series, rows, step)).collect();
    (step, series)
}

fn empty(rank: u32, device: u32, memory_total_mib: f64) -> Series {
    Series {
        rank,
        device,
        memory_total_mib,
        at_s: vec![],
        utilization_percent: vec![],
        memory_used_mib: vec![],
        power_watts: vec![],
        temperature_celsius: vec![],
    }
}

fn filled(mut series: Series, mut rows: Vec<Row>, step: u64) -> Series {
    // A file is ordered by step, not by time.
    rows.sort_by_key(|row| row.at_s);
    let step = i64::try_from(step).unwrap_or(i64::MAX);
    let mut means = [Mean::default(); COLUMNS];
    let mut open = BEFORE_ALL;
    for row in rows {
        let slot = super::tiers::floor_to(row.at_s, step);
        if slot != open && open != BEFORE_ALL {
            flush(&mut series, open, &mut means);
        }
        open = slot;
        means.iter_mut().zip(row.values).for_each(|(mean, value)| mean.add(value));
    }
    if open != BEFORE_ALL {
        flush(&mut series, open, &mut means);
    }
    series
}

fn flush(s: &mut Series, at_s: i64, [utilization, memory, power, temperature]: &mut [Mean; COLUMNS]) {
    s.at_s.push(at_s as f64);
    s.utilization_percent.push(utilization.finish());
    s.memory_used_mib.push(memory.finish());
    s.power_watts.push(power.finish());
    s.temperature_celsius.push(temperature.finish());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(step_s: u32, device: u32, rows: impl Iterator<Item = (i64, f64)>) -> Block {
        let rows = rows.map(|(at_s, v)| Row { at_s, values: [Some(v), None, None, None] }).collect();
        Block { rank: 0, device, step_s, memory_total_mib: 1.0, rows }
    }

    #[test]
    fn the_step_fits_the_range_that_is_asked_for() {
        let all = || {
            let old = block(10, 0, (0..360).map(|n| (n * 10, 5.0)));
            vec![old, block(1, 0, (3_600..4_500).map(|n| (n, (n % 2) as f64)))]
        };
        let (step, series) = collect(all(), None, None, 0);
        assert_eq!(step, 7, "4,499 seconds in 600 points");
        assert!(series[0].at_s.len() <= 700 && series[0].at_s.is_sorted(), "{}", series[0].at_s.len());
        let (step, series) = collect(all(), Some(4_000.0), None, 0);
        assert_eq!((step, series[0].at_s.len(), series[0].at_s[0]), (1, 500, 4_000.0));
        // A request for a shorter step does not refine readings at ten seconds.
        let (step, series) = collect(all(), Some(0.0), Some(99.5), 1);
        assert_eq!((step, series[0].at_s.len()), (1, 10));
        let (step, series) = collect(all(), Some(3_590.0), Some(3_619.0), 30);
        assert_eq!((step, &series[0].at_s), (30, &vec![3_570.0, 3_600.0]));
        assert_eq!(series[0].utilization_percent, [Some(5.0), Some(0.5)]);
    }

    #[test]
    fn what_is_asked_for_finer_than_allowed_is_coarser() {
        let long = vec![block(1, 0, [(0, 1.0), (1_000_000, 1.0)].into_iter())];
        assert_eq!(collect(long, None, None, 1).0, 100);
        assert_eq!(collect(vec![], None, None, 0), (1, vec![]));
        let none = vec![block(1, 0, [(5, 1.0)].into_iter())];
        assert_eq!(collect(none, Some(9.0), Some(1.0), 0), (1, vec![]), "a range that ends before it begins");
    }

    #[test]
    fn devices_stand_in_order() {
        let blocks = vec![block(1, 1, [(2, 1.0)].into_iter()), block(1, 0, [(1, 1.0)].into_iter())];
        let devices: Vec<u32> = collect(blocks, None, None, 0).1.iter().map(|s| s.device).collect();
        assert_eq!(devices, [0, 1]);
    }
}
