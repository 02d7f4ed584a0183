//! Daily usage by group for the chart and the table of totals.
//!
//! Pure. The sums contain the listed rows only; the portal computes the totals of the page.

use std::collections::BTreeMap;

use berth_types::usage::{GroupBy, Usage};

use super::super::days;
use super::text::mode_text;

/// The maximum number of groups with their own band; one more band has the rest.
const MAX_BANDS: usize = 7;

/// One group over all days.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// The label of the group.
    pub label: String,
    /// True for the sum of the smallest groups.
    pub rest: bool,
    /// The total in device-milliseconds.
    pub device_ms: i64,
    /// The total cost in micro-units of the currency.
    pub cost_micros: i64,
    /// The cost of each day in micro-units of the currency.
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

    /// Returns the class of the colour at a position in the list of groups.
    pub fn class(&self, index: usize) -> String {
        if self.rest { "series-rest".to_owned() } else { format!("series-{}", index.saturating_add(1)) }
    }
}

/// The groups of a period, stacked from the bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bands {
    /// All days of the period, also without charges.
    pub days: Vec<String>,
    /// The groups, highest cost first.
    pub series: Vec<Series>,
    /// The upper end of the scale in micro-units of the currency.
    pub top: i64,
    /// The portal's currency.
    pub currency: String,
}

/// Returns the label of a key.
pub fn key_label(key: &str, group: GroupBy) -> String {
    match group {
        GroupBy::Day => "Cost".to_owned(),
        GroupBy::Mode => mode_text(key).to_owned(),
        GroupBy::Label if key.is_empty() => "No label".to_owned(),
        _ if key.is_empty() => "none".to_owned(),
        _ => key.to_owned(),
    }
}

/// Returns the smallest of 1, 2, 5, 10, 20, … at or above a value.
fn round_up(value: i64) -> i64 {
    let mut step: i64 = 1;
    loop {
        for factor in [1, 2, 5] {
            let top = step.saturating_mul(factor);
            if top >= value {
                return top;
            }
        }
        let Some(next) = step.checked_mul(10) else { return i64::MAX };
        step = next;
    }
}

impl Bands {
    /// Groups the rows of the portal.
    pub fn new(usage: &Usage, group: GroupBy) -> Self {
        let days = days::days_between(&usage.from, &usage.until);
        let positions: BTreeMap<&str, usize> = days.iter().map(String::as_str).zip(0..).collect();
        let mut groups: BTreeMap<&str, Series> = BTreeMap::new();
        for row in &usage.rows {
            let series = groups
                .entry(row.key.as_str())
                .or_insert_with(|| Series::empty(key_label(&row.key, group), days.len()));
            series.device_ms = series.device_ms.saturating_add(row.device_ms);
            series.cost_micros = series.cost_micros.saturating_add(row.cost_micros);
            let position = positions.get(row.day.as_str()).copied();
            if let Some(cell) = position.and_then(|position| series.by_day.get_mut(position)) {
                *cell = cell.saturating_add(row.cost_micros);
            }
        }
        let mut series: Vec<Series> = groups.into_values().collect();
        series.sort_by(|a, b| b.cost_micros.cmp(&a.cost_micros).then_with(|| a.label.cmp(&b.label)));
        // A rest of one group is shown as this group.
        if series.len() > MAX_BANDS + 1 {
            let small = series.split_off(MAX_BANDS);
            let mut rest =
                Series { rest: true, ..Series::empty(format!("{} others", small.len()), days.len()) };
            small.iter().for_each(|one| rest.add(one));
            series.push(rest);
        }
        let mut bands = Self { days, series, top: 0, currency: usage.currency.clone() };
        let highest = (0..bands.days.len()).map(|day| bands.day_cost(day)).max().unwrap_or(0);
        bands.top = round_up(highest.max(2));
        bands
    }

    /// Returns the total cost of a day in micro-units of the currency.
    pub fn day_cost(&self, day: usize) -> i64 {
        let costs = self.series.iter().filter_map(|series| series.by_day.get(day));
        costs.fold(0_i64, |sum, cost| sum.saturating_add(*cost))
    }

    /// Returns top and height of the stacked bands of a day in thousandths of the plot.
    pub fn stack(&self, day: usize) -> Vec<(i64, i64)> {
        let height = |micros: i64| {
            let milli = i128::from(micros.max(0)) * 1_000 / i128::from(self.top.max(1));
            i64::try_from(milli.min(1_000)).unwrap_or(1_000)
        };
        let mut below: i64 = 0;
        let mut stack = Vec::with_capacity(self.series.len());
        for series in &self.series {
            let head = below.saturating_add(series.by_day.get(day).copied().unwrap_or(0));
            let (foot, top) = (height(below), height(head));
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
    fn every_day_has_a_position_and_the_highest_cost_is_first() {
        let rows = [
            ("2026-11-19", "a", 100),
            ("2026-11-19", "b", 300),
            ("2026-11-21", "b", 50),
            ("2026-01-01", "b", 9),
        ];
        let bands = Bands::new(&usage(&rows), GroupBy::Offering);
        assert_eq!(bands.days, ["2026-11-19", "2026-11-20", "2026-11-21"]);
        let labels: Vec<&str> = bands.series.iter().map(|series| series.label.as_str()).collect();
        assert_eq!(labels, ["b", "a"]);
        assert_eq!(bands.series[0].by_day, [300, 0, 50]);
        assert_eq!([0, 1, 2, 9].map(|day| bands.day_cost(day)), [400, 0, 50, 0]);
        assert_eq!(bands.top, 500);
        // 300 of 500 from the foot, then 100 of 500 on top of it.
        assert_eq!(bands.stack(0), [(400, 600), (200, 200)]);
        assert_eq!(bands.stack(1), [(1_000, 0), (1_000, 0)]);
    }

    #[test]
    fn the_rest_is_one_band() {
        let keys: Vec<String> = (0..12).map(|n| format!("k{n:02}")).collect();
        let rows: Vec<(&str, &str, i64)> =
            keys.iter().zip(0..).map(|(key, n)| ("2026-11-20", key.as_str(), 100 - n)).collect();
        let bands = Bands::new(&usage(&rows), GroupBy::Member);
        assert_eq!(bands.series.len(), MAX_BANDS + 1);
        let rest = bands.series.last().unwrap();
        assert_eq!(
            (rest.label.as_str(), rest.rest, rest.class(7)),
            ("5 others", true, "series-rest".to_owned())
        );
        assert_eq!(rest.cost_micros, 93 + 92 + 91 + 90 + 89);
        assert_eq!(bands.series[0].class(0), "series-1");
        let sum: i64 = bands.series.iter().map(|series| series.cost_micros).sum();
        assert_eq!(sum, bands.day_cost(1));
    }

    #[test]
    fn a_scale_ends_at_a_round_figure() {
        for (value, top) in [(1, 1), (3, 5), (5, 5), (6, 10), (47_000_000, 50_000_000), (120, 200)] {
            assert_eq!(round_up(value), top);
        }
        assert_eq!(round_up(i64::MAX), i64::MAX);
        let none = Bands::new(&usage(&[]), GroupBy::Day);
        assert_eq!((none.series.len(), none.top, none.stack(0).len()), (0, 2, 0));
    }

    #[test]
    fn keys_have_labels() {
        assert_eq!(key_label("on_demand", GroupBy::Mode), "on demand");
        assert_eq!(key_label("", GroupBy::Day), "Cost");
        assert_eq!(key_label("", GroupBy::Label), "No label");
        assert_eq!(key_label("", GroupBy::Member), "none");
    }
}
