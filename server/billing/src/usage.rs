//! Usage of an organization by day, and by offering, mode, member or label.

pub mod routes;

use std::collections::BTreeMap;

use berth_core::rating::charge_micros;
use berth_types::ids::OrgId;
use berth_types::operators::OperatorRight;
use berth_types::overview::Revenue;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use berth_types::usage::{GroupBy, Usage, UsageRow};

use crate::budgets::MAX_LABEL_BYTES;
use berth_foundation::Context;
use berth_foundation::days::day_of;
use berth_foundation::{Caller, Right};
use berth_store::usage::{OpenCharge, Sums};
use berth_store::{self as store, StoreError, Tx};

/// The longest period of one request, in days.
const MAX_DAYS: i64 = 366;

fn date_of(day: i64) -> String {
    day_start(day).to_string().chars().take(10).collect()
}

/// Reads a date such as `2026-11-21` as a day number.
fn parse_day(text: &str) -> Option<i64> {
    (text.len() == 10).then(|| format!("{text}T00:00:00Z").parse().ok().map(day_of))?
}

/// Milliseconds of a day.
const DAY_MS: i64 = 86_400_000;

/// The begin of a day.
fn day_start(day: i64) -> Timestamp {
    Timestamp::from_micros(day.saturating_mul(DAY_MS * 1_000))
}

/// The first day of the month of a day, and the first day of the next month.
fn month_days(today: i64) -> (i64, i64) {
    let is_first = |day: &i64| date_of(*day).ends_with("-01");
    let first = (today - 30..=today).rev().find(is_first).unwrap_or(today);
    (first, (today + 1..today + 32).find(is_first).unwrap_or(today + 1))
}

/// Adds the use without a label to the sums of its values, under the empty key. The rows then add up to all
/// use.
fn with_unlabelled(all: Sums, labelled: Sums) -> Sums {
    let mut sums: BTreeMap<(i64, String), (i64, i64)> = BTreeMap::new();
    for (day, _, device_milli_ms, micros) in all {
        sums.insert((day, String::new()), (device_milli_ms, micros));
    }
    // An empty value is no label, so its use stays in the rest.
    let labelled = labelled.into_iter().filter(|(_, value, ..)| !value.is_empty());
    for (day, value, device_milli_ms, micros) in labelled {
        let rest = sums.entry((day, String::new())).or_default();
        rest.0 -= device_milli_ms;
        rest.1 -= micros;
        sums.insert((day, value), (device_milli_ms, micros));
    }
    let row = |((day, key), (device_milli_ms, micros))| (day, key, device_milli_ms, micros);
    sums.into_iter().filter(|(_, sum)| *sum != (0, 0)).map(row).collect()
}

/// The expected charges of a month from `begin` to `end`: those so far, and the larger of two estimates of the
/// rest. One is the charges of what runs now, each at most its hold. The other is the mean of the month, over
/// at least one day.
fn forecast_micros(
    spent_micros: i64,
    open: &[OpenCharge],
    (begin, end): (Timestamp, Timestamp),
    now: Timestamp,
) -> i64 {
    let left_ms = end.millis_since(now).max(0);
    let charge = |one: &OpenCharge| {
        let further = charge_micros(one.nano_per_second, left_ms).unwrap_or(i64::MAX);
        further.saturating_add(one.uncharged_micros).min(one.held_micros)
    };
    let running = open.iter().map(charge).fold(0, i64::saturating_add);
    let elapsed_ms = now.millis_since(begin).max(DAY_MS);
    let mean = i128::from(spent_micros.max(0)) * i128::from(left_ms) / i128::from(elapsed_ms);
    spent_micros.saturating_add(running.max(i64::try_from(mean).unwrap_or(i64::MAX)))
}

/// Sums the use of an organization by day and group.
async fn sums(
    tx: &mut Tx<'_>,
    org: OrgId,
    days: (i64, i64),
    (group, label): (GroupBy, &str),
) -> Result<Sums, StoreError> {
    let key = match group {
        GroupBy::Day => "",
        GroupBy::Offering => "offering",
        GroupBy::Mode => "mode",
        GroupBy::Member => "member",
        GroupBy::Label => {
            let labelled = store::usage::by_label(tx, org, days, label).await?;
            return Ok(with_unlabelled(store::usage::by_day(tx, org, days, "").await?, labelled));
        }
    };
    store::usage::by_day(tx, org, days, key).await
}

/// Reports of charged device time and its cost.
#[derive(Clone)]
pub struct UsageReports {
    context: Context,
}

impl UsageReports {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// The charges of all organizations of today and of this month, for an operator.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn revenue(&self, caller: &Caller) -> Result<Revenue, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let today = day_of(self.context.now());
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        Ok(Revenue {
            today_micros: store::usage::total_cost(&mut tx, today, today).await?,
            month_micros: store::usage::total_cost(&mut tx, month_days(today).0, today).await?,
        })
    }

    /// The usage of an organization between two days, both included. The default is the last thirty days.
    pub async fn usage(
        &self,
        caller: &Caller,
        org: OrgId,
        (from, until): (Option<&str>, Option<&str>),
        group: GroupBy,
        label: Option<&str>,
    ) -> Result<Usage, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        if label.is_some_and(|label| label.len() > MAX_LABEL_BYTES || label.chars().any(char::is_control)) {
            return Err(Problem::malformed("`label` has at most 63 printable characters."));
        }
        let now = self.context.now();
        let today = day_of(now);
        let parse_or = |text: Option<&str>, default: i64| match text {
            None => Ok(default),
            Some(text) => parse_day(text)
                .ok_or_else(|| Problem::malformed("`from` and `until` are days such as 2026-11-21.")),
        };
        let until = parse_or(until, today)?;
        let from = parse_or(from, until - 29)?;
        if until < from || until - from >= MAX_DAYS {
            return Err(Problem::malformed(
                "`until` must not be before `from`, and at most 366 days after it.",
            ));
        }
        if group == GroupBy::Label && label.is_none() {
            return Err(Problem::malformed("Enter the label, as in `group=label&label=project`."));
        }
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let sums = sums(&mut tx, org, (from, until), (group, label.unwrap_or_default())).await?;
        let rows: Vec<UsageRow> = sums
            .into_iter()
            .map(|(day, key, device_milli_ms, cost_micros)| UsageRow {
                day: date_of(day),
                key,
                device_ms: device_milli_ms / 1_000,
                cost_micros,
            })
            .collect();
        let (first, next_first) = month_days(today);
        let month_to_date = store::usage::cost(&mut tx, org, first, today).await?;
        let open = store::usage::list_open(&mut tx, org).await?;
        let month = (day_start(first), day_start(next_first));
        let available = store::ledger::available(&mut tx, org).await?;
        let (_, rate) = store::jobs::open_use(&mut tx, org).await?;
        let per_hour = berth_types::money::per_hour_micros(rate).unwrap_or(i64::MAX);
        let period = (day_start(from), day_start(until + 1).min(now));
        let idle = store::reservations::idle_device_ms(&mut tx, org, period, now).await?;
        let underused = store::underuse::cost(&mut tx, org, from, until).await?;
        Ok(Usage {
            currency: self.context.settings.currency.clone(),
            from: date_of(from),
            until: date_of(until),
            device_ms: rows.iter().map(|r| r.device_ms).sum(),
            cost_micros: rows.iter().map(|r| r.cost_micros).sum(),
            rows,
            idle_reserved_device_ms: idle,
            underused_micros: underused,
            runway_hours: (per_hour > 0).then(|| available.max(0) / per_hour),
            forecast_month_micros: forecast_micros(month_to_date, &open, month, now),
            month_to_date_micros: month_to_date,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates_there_and_back() {
        for day in ["1970-01-01", "2028-02-29", "2026-11-21"] {
            assert_eq!(date_of(parse_day(day).unwrap()), day);
        }
        for bad in ["2026-02-30", "today", "2026-1-01", "2026-11-21T00:00:00Z"] {
            assert_eq!(parse_day(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_month_has_its_first_day_and_the_next_one() {
        for (today, first, next) in [
            ("2026-11-21", "2026-11-01", "2026-12-01"),
            ("2028-02-29", "2028-02-01", "2028-03-01"),
            ("2026-12-31", "2026-12-01", "2027-01-01"),
            ("2026-05-01", "2026-05-01", "2026-06-01"),
        ] {
            let (from, until) = month_days(parse_day(today).unwrap());
            assert_eq!((date_of(from).as_str(), date_of(until).as_str()), (first, next), "{today}");
        }
    }

    #[test]
    fn use_without_the_label_is_the_rest_of_each_day() {
        let all = vec![(1, String::new(), 1_000, 100), (2, String::new(), 500, 50), (3, String::new(), 7, 7)];
        let value = |day: i64, value: &str, sum: i64| (day, value.to_owned(), sum * 10, sum);
        let labelled =
            vec![value(1, "alpha", 30), value(1, "beta", 20), value(2, "alpha", 50), value(3, "", 7)];
        let rows = with_unlabelled(all, labelled);
        let expected = vec![
            value(1, "", 50),
            value(1, "alpha", 30),
            value(1, "beta", 20),
            value(2, "alpha", 50),
            (3, String::new(), 7, 7),
        ];
        assert_eq!(rows, expected);
        assert_eq!(rows.iter().map(|row| row.3).sum::<i64>(), 157, "no charge is lost");
        assert!(with_unlabelled(Vec::new(), Vec::new()).is_empty());
    }

    #[test]
    fn a_forecast_is_more_than_the_charges_so_far() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let month = (at("2026-11-01T00:00:00Z"), at("2026-12-01T00:00:00Z"));
        let middle = at("2026-11-16T00:00:00Z");
        // Half of the month is over, so its mean doubles the charges.
        assert_eq!(forecast_micros(10, &[], month, middle), 20);
        assert_eq!(forecast_micros(0, &[], month, middle), 0);
        // A job of a thousandth a second for the rest of the month, and one whose hold ends before.
        let job = |held_micros| OpenCharge { held_micros, uncharged_micros: 5, nano_per_second: 1_000_000 };
        let rest = 15 * 86_400 * 1_000;
        assert_eq!(forecast_micros(10, &[job(i64::MAX)], month, middle), 10 + rest + 5);
        assert_eq!(forecast_micros(10, &[job(700), job(300)], month, middle), 1_010);
        // On the first day the mean counts a whole day, and at the end nothing more is expected.
        assert_eq!(forecast_micros(10, &[], month, at("2026-11-01T00:01:00Z")), 10 + 299);
        assert_eq!(forecast_micros(10, &[], month, month.1), 10);
        assert_eq!(forecast_micros(i64::MAX, &[job(i64::MAX)], month, middle), i64::MAX);
    }
}
