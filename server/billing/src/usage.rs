//! Usage of an organization by day, and by offering, mode, member or label.

pub mod routes;

use berth_types::ids::OrgId;
use berth_types::overview::Revenue;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use berth_types::usage::{GroupBy, Usage, UsageRow};

use crate::budgets::MAX_LABEL_BYTES;
use berth_foundation::Context;
use berth_foundation::days::day_of;
use berth_foundation::{Caller, Right};
use berth_store as store;

/// The longest period of one request, in days.
const MAX_DAYS: i64 = 366;

fn date_of(day: i64) -> String {
    let at = Timestamp::from_micros(day.saturating_mul(86_400_000_000));
    at.to_string().chars().take(10).collect()
}

/// Reads a date such as `2026-11-21` as a day number.
fn parse_day(text: &str) -> Option<i64> {
    (text.len() == 10).then(|| format!("{text}T00:00:00Z").parse().ok().map(day_of))?
}

/// The first day of the month of a day.
fn first_of_month(day: i64) -> i64 {
    let month: String = date_of(day).chars().take(8).collect();
    parse_day(&format!("{month}01")).unwrap_or(day)
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
        self.context.authorise_operator(caller)?;
        let today = day_of(self.context.now());
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        Ok(Revenue {
            today_micros: store::usage::total_cost(&mut tx, today, today).await?,
            month_micros: store::usage::total_cost(&mut tx, first_of_month(today), today).await?,
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
            return Err(Problem::malformed("`until` is not before `from`, and at most a year after it."));
        }
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let sums = match (group, label) {
            (GroupBy::Label, Some(label)) => {
                store::usage::by_label(&mut tx, org, (from, until), label).await?
            }
            (GroupBy::Label, None) => {
                return Err(Problem::malformed("Name the label, as in `group=label&label=project`."));
            }
            (other, _) => {
                let key = match other {
                    GroupBy::Offering => "offering",
                    GroupBy::Mode => "mode",
                    GroupBy::Member => "member",
                    _ => "",
                };
                store::usage::by_day(&mut tx, org, (from, until), key).await?
            }
        };
        let rows: Vec<UsageRow> = sums
            .into_iter()
            .map(|(day, key, device_milli_ms, cost_micros)| UsageRow {
                day: date_of(day),
                key,
                device_ms: device_milli_ms / 1_000,
                cost_micros,
            })
            .collect();
        let month_to_date = store::usage::cost(&mut tx, org, first_of_month(today), today).await?;
        let week = store::usage::cost(&mut tx, org, today - 7, today - 1).await?;
        let next_month =
            (today..today + 32).find(|d| *d > today && date_of(*d).ends_with("-01")).unwrap_or(today);
        let available = store::ledger::available(&mut tx, org).await?;
        let (_, rate) = store::jobs::open_use(&mut tx, org).await?;
        let per_hour = berth_types::money::per_hour_micros(rate).unwrap_or(i64::MAX);
        let since = Timestamp::from_micros(from * 86_400_000_000);
        let idle = store::reservations::idle_device_ms(&mut tx, org, since, now).await?;
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
            forecast_month_micros: month_to_date + week / 7 * (next_month - today),
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
    fn a_month_begins_with_its_first_day() {
        for (day, first) in [("2028-02-29", "2028-02-01"), ("2026-11-01", "2026-11-01")] {
            assert_eq!(date_of(first_of_month(parse_day(day).unwrap())), first);
        }
    }
}
