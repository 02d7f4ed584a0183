//! Period and group of the usage page, as parameters of its address.
//!
//! Pure. Invalid parameters are ignored.

use berth_types::usage::Usage;

use super::super::days;
use crate::api::usage::UsageQuery;

/// The maximum number of shown days.
pub const MAX_DAYS: i64 = 366;

/// A period at or before today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// A number of days, including today.
    Days(i64),
    /// This month so far.
    Month,
    /// The whole last month.
    LastMonth,
}

impl Preset {
    /// All presets in the order of the page.
    pub const ALL: [Self; 5] = [Self::Days(7), Self::Days(30), Self::Days(90), Self::Month, Self::LastMonth];

    /// Returns the label of the preset.
    pub fn text(self) -> String {
        match self {
            Self::Days(count) => format!("{count} days"),
            Self::Month => "This month".to_owned(),
            Self::LastMonth => "Last month".to_owned(),
        }
    }

    /// Returns the first day of the period until `today`.
    fn first(self, today: &str) -> Option<String> {
        match self {
            Self::Days(count) => days::plus(today, 1_i64.saturating_sub(count)),
            Self::Month => Some(days::first_of_month(today)),
            Self::LastMonth => Some(format!("{}-01", days::month_before(today)?)),
        }
    }

    /// Returns the last day of the period; `None` for today.
    fn last(self, today: &str) -> Option<String> {
        match self {
            Self::Days(_) | Self::Month => None,
            Self::LastMonth => days::plus(&days::first_of_month(today), -1),
        }
    }

    /// Returns the query of the period with the group of `before`. Thirty days are the default of the portal.
    pub fn query(self, today: &str, before: UsageQuery) -> UsageQuery {
        let from = if self == Self::Days(30) { None } else { self.first(today) };
        UsageQuery { from, until: self.last(today), ..before }
    }

    /// Finds the preset of the shown period. `today` is absent before hydration: the period of the answer
    /// then ends today, unless the query has a last day.
    pub fn selected(query: &UsageQuery, usage: &Usage, today: Option<&str>) -> Option<Self> {
        let today = match (today, &query.until) {
            (Some(today), Some(_)) => today,
            (None, Some(_)) => return None,
            (_, None) => usage.until.as_str(),
        };
        let fits = |preset: &Self| {
            preset.first(today).as_deref() == Some(usage.from.as_str()) && preset.last(today) == query.until
        };
        Self::ALL.into_iter().find(fits)
    }
}

/// Checks the first and the last day of a period.
///
/// # Errors
/// The days are invalid, in the wrong order or too far apart.
pub fn chosen_days(from: &str, until: &str) -> Result<(String, String), &'static str> {
    match days::day_count(from, until) {
        None => Err("Enter two days; the first day cannot be after the last."),
        Some(length) if length > MAX_DAYS => Err("Enter a period of at most 366 days."),
        Some(_) => Ok((from.to_owned(), until.to_owned())),
    }
}

/// Parses the parameters of an address.
pub fn parse(param: impl Fn(&str) -> Option<String>) -> UsageQuery {
    let day = |name: &str| param(name).filter(|text| days::day_start(text).is_some());
    let (mut from, mut until) = (day("from"), day("until"));
    if let (Some(first), Some(last)) = (&from, &until)
        && chosen_days(first, last).is_err()
    {
        (from, until) = (None, None);
    }
    let group = param("group").and_then(|name| UsageQuery::parse_group(&name)).unwrap_or_default();
    UsageQuery { from, until, group, label: param("label").unwrap_or_default() }
}

/// Returns the address of the page with a query.
pub fn path(query: &UsageQuery) -> String {
    format!("/usage{}", query.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::usage::GroupBy;

    fn parse_pairs(pairs: &[(&str, &str)]) -> UsageQuery {
        parse(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    fn usage(from: &str, until: &str) -> Usage {
        serde_json::from_value(serde_json::json!({
            "currency": "USD", "from": from, "until": until, "rows": [], "device_ms": 0, "cost_micros": 0,
            "idle_reserved_device_ms": 0, "forecast_month_micros": 0, "month_to_date_micros": 0,
        }))
        .unwrap()
    }

    #[test]
    fn invalid_parameters_are_ignored() {
        assert_eq!(parse_pairs(&[]), UsageQuery::default());
        let query = parse_pairs(&[("from", "2026-11-01"), ("group", "label"), ("label", "project")]);
        assert_eq!((query.from.as_deref(), query.group), (Some("2026-11-01"), GroupBy::Label));
        assert_eq!(path(&query), "/usage?from=2026-11-01&group=label&label=project");
        let bad = parse_pairs(&[("from", "yesterday"), ("until", "2026-11-31"), ("group", "mood")]);
        assert_eq!(bad, UsageQuery::default());
        assert_eq!(parse_pairs(&[("from", "2026-11-02"), ("until", "2026-11-01")]), UsageQuery::default());
    }

    #[test]
    fn a_preset_is_recognized_by_its_days() {
        let today = "2026-11-21";
        for preset in Preset::ALL {
            let query = preset.query(today, UsageQuery::default());
            let from = query.from.clone().unwrap_or_else(|| "2026-10-23".to_owned());
            let until = query.until.clone().unwrap_or_else(|| today.to_owned());
            assert_eq!(Preset::selected(&query, &usage(&from, &until), Some(today)), Some(preset));
        }
        let fixed = UsageQuery { until: Some(today.to_owned()), ..UsageQuery::default() };
        assert_eq!(Preset::selected(&fixed, &usage("2026-11-15", today), Some(today)), None);
        assert_eq!(Preset::selected(&UsageQuery::default(), &usage("2026-11-14", today), None), None);
        let month = Preset::LastMonth.query("2027-01-31", UsageQuery::default());
        assert_eq!((month.from.as_deref(), month.until.as_deref()), (Some("2026-12-01"), Some("2026-12-31")));
        let shown = usage("2026-12-01", "2026-12-31");
        assert_eq!(Preset::selected(&month, &shown, None), None, "without a clock no month is the last");
        assert_eq!(Preset::selected(&month, &shown, Some("2027-02-01")), None);
    }

    #[test]
    fn two_days_are_a_period_or_an_error() {
        assert!(chosen_days("2026-11-01", "2026-11-01").is_ok());
        assert!(chosen_days("2026-11-02", "2026-11-01").unwrap_err().contains("first"));
        assert!(chosen_days("2025-11-01", "2026-11-21").unwrap_err().contains("366 days"));
        assert!(chosen_days("", "2026-11-21").is_err());
    }
}
