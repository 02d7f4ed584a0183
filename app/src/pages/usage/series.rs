//! Use as bands over days: what the chart draws, and the sums beside it.
//!
//! Pure. Adds up only what the portal listed by day; the sums over everything are the portal's own.

use std::collections::BTreeMap;

use berth_types::usage::{GroupBy, Usage};

use super::super::days;
use super::words::mode_text;

/// Bands that are told apart; what is left is drawn as one more.
const MOST: usize = 7;

/// What is told apart, over all days.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// What it is, to read.
    pub label: String,
    /// Everything beyond the largest ones together.
    pub rest: bool,
    /// Device-milliseconds in all.
    pub device_ms: i64,
    /// Cost in all.
    pub cost_micros: i64,
    /// Cost on each day.
    pub by_day: Vec<i64>,
}

impl Series {
    fn empty(label: String, days: usize) -> Self {
        Self { label, rest: false, device_ms: 0, cost_micros: 0, by_day: vec![0; days] }
    }

    fn add(&mut self, other: &Self) {
        self.device_ms = self.device_ms.saturating_add(other.device_ms);
        self.cost_micros = self.cost_micros.saturating_add(other.cost_micros);
        for (cell, more) in self.by_day.iter_mut().zip(&other.by_day) {
            *cell = cell.saturating_add(*more);
        }
    }

    /// The class with its colour; `index` is its place among the others.
    pub fn class(&self, index: usize) -> String {
        if self.rest { "series-rest".to_owned() } else { format!("series-{}", index.saturating_add(1)) }
    }
}

/// Days from left to right, and bands from the foot up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bands {
    /// Every day, also those on which nothing was charged.
    pub days: Vec<String>,
    /// The dearest first.
    pub series: Vec<Series>,
    /// The end of the scale.
    pub top: i64,
    /// The portal's currency.
    pub currency: String,
}

/// What a key is called.
fn label_of(key: &str, group: GroupBy) -> String {
    match group {
        GroupBy::Day => "Cost".to_owned(),
        GroupBy::Mode => mode_text(key).to_owned(),
        _ if key.is_empty() => "none".to_owned(),
        _ => key.to_owned(),
    }
}

/// The smallest of 1, 2, 5, 10, 20, … that is not below.
fn round_up(most: i64) -> i64 {
    let mut step: i64 = 1;
    loop {
        for factor in [1, 2, 5] {
            let top = step.saturating_mul(factor);
            if top >= most {
                return top;
            }
        }
        let Some(next) = step.checked_mul(10) else { return i64::MAX };
        step = next;
    }
}

impl Bands {
    /// The bands of what the portal listed.
    pub fn of(usage: &Usage, group: GroupBy) -> Self {
        let days = days::stretch(&usage.from, &usage.until);
        let places: BTreeMap<&str, usize> = days.iter().map(String::as_str).zip(0..).collect();
        let mut known: BTreeMap<&str, Series> = BTreeMap::new();
        for row in &usage.rows {
            let series = known
                .entry(row.key.as_str())
                .or_insert_with(|| Series::empty(label_of(&row.key, group), days.len()));
            series.device_ms = series.device_ms.saturating_add(row.device_ms);
            series.cost_micros = series.cost_micros.saturating_add(row.cost_micros);
            let place = places.get(row.day.as_str()).copied();
            if let Some(cell) = place.and_then(|place| series.by_day.get_mut(place)) {
                *cell = cell.saturating_add(row.cost_micros);
            }
        }
        let mut series: Vec<Series> = known.into_values().collect();
        series.sort_by(|a, b| b.cost_micros.cmp(&a.cost_micros).then_with(|| a.label.cmp(&b.label)));
        // One more than are told apart needs no band for the rest.
        if series.len() > MOST + 1 {
            let small = series.split_off(MOST);
            let mut rest =
                Series { rest: true, ..Series::empty(format!("{} others", small.len()), days.len()) };
            small.iter().for_each(|one| rest.add(one));
            series.push(rest);
        }
        let mut bands = Self { days, series, top: 0, currency: usage.currency.clone() };
        let most = (0..bands.days.len()).map(|day| bands.on(day)).max().unwrap_or(0);
        bands.top = round_up(most.max(2));
        bands
    }

    /// What a day cost in all.
    pub fn on(&self, day: usize) -> i64 {
        let of_day = self.series.iter().filter_map(|series| series.by_day.get(day));
        of_day.fold(0_i64, |sum, cost| sum.saturating_add(*cost))
    }

    /// Top and height of every band of a day, in thousandths of the plot; bands stand on each other.
    pub fn stack(&self, day: usize) -> Vec<(i64, i64)> {
        let reach = |micros: i64| {
            let milli = i128::from(micros.max(0)) * 1_000 / i128::from(self.top.max(1));
            i64::try_from(milli.min(1_000)).unwrap_or(1_000)
        };
        let mut below: i64 = 0;
        let mut stack = Vec::with_capacity(self.series.len());
        for series in &self.series {
            let head = below.saturating_add(series.by_day.get(day).copied().unwrap_or(0));
            let (foot, top) = (reach(below), reach(head));
            stack.push((1_000 - top, (top - foot).max(0)));
            below = head;
        }
        stack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(rows: &[(&str, &str, i64)]) -> Usage {
        let rows: Vec<serde_json::Value> = rows
            .iter()
            .map(|(day, key, cost)| {
                serde_json::json!({"day": day, "key": key, "device_ms": 1_000, "cost_micros": cost})
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "currency": "USD", "from": "2026-11-19", "until": "2026-11-21", "rows": rows, "device_ms": 0,
            "cost_micros": 0, "idle_reserved_device_ms": 0, "forecast_month_micros": 0,
            "month_to_date_micros": 0,
        }))
        .unwrap()
    }

    #[test]
    fn every_day_has_its_place_and_the_dearest_band_is_first() {
        let rows = [
            ("2026-11-19", "a", 100),
            ("2026-11-19", "b", 300),
            ("2026-11-21", "b", 50),
            ("2026-01-01", "b", 9),
        ];
        let bands = Bands::of(&usage(&rows), GroupBy::Offering);
        assert_eq!(bands.days, ["2026-11-19", "2026-11-20", "2026-11-21"]);
        let labels: Vec<&str> = bands.series.iter().map(|series| series.label.as_str()).collect();
        assert_eq!(labels, ["b", "a"]);
        assert_eq!(bands.series[0].by_day, [300, 0, 50]);
        assert_eq!((bands.on(0), bands.on(1), bands.on(2), bands.on(9)), (400, 0, 50, 0));
        assert_eq!(bands.top, 500);
        // 300 of 500 from the foot, then 100 of 500 on top of it.
        assert_eq!(bands.stack(0), [(400, 600), (200, 200)]);
        assert_eq!(bands.stack(1), [(1_000, 0), (1_000, 0)]);
    }

    #[test]
    fn what_is_beyond_the_largest_is_one_band() {
        let keys: Vec<String> = (0..12).map(|n| format!("k{n:02}")).collect();
        let rows: Vec<(&str, &str, i64)> =
            keys.iter().zip(0..).map(|(key, n)| ("2026-11-20", key.as_str(), 100 - n)).collect();
        let bands = Bands::of(&usage(&rows), GroupBy::Member);
        assert_eq!(bands.series.len(), MOST + 1);
        let rest = bands.series.last().unwrap();
        assert_eq!(
            (rest.label.as_str(), rest.rest, rest.class(7)),
            ("5 others", true, "series-rest".to_owned())
        );
        assert_eq!(rest.cost_micros, 93 + 92 + 91 + 90 + 89);
        assert_eq!(bands.series[0].class(0), "series-1");
        let sum: i64 = bands.series.iter().map(|series| series.cost_micros).sum();
        assert_eq!(sum, bands.on(1));
    }

    #[test]
    fn a_scale_ends_at_a_round_figure() {
        for (most, top) in [(1, 1), (3, 5), (5, 5), (6, 10), (47_000_000, 50_000_000), (120, 200)] {
            assert_eq!(round_up(most), top);
        }
        assert_eq!(round_up(i64::MAX), i64::MAX);
        let none = Bands::of(&usage(&[]), GroupBy::Day);
        assert_eq!((none.series.len(), none.top, none.stack(0).len()), (0, 2, 0));
    }

    #[test]
    fn keys_read_as_words() {
        assert_eq!(label_of("on_demand", GroupBy::Mode), "on demand");
        assert_eq!(label_of("", GroupBy::Day), "Cost");
        assert_eq!(label_of("", GroupBy::Label), "none");
    }
}
