//! What is looked at: which days, and by what use is told apart.
//!
//! Pure; the choice lives in the address, so what cannot be asked for is left out here, not refused.

use berth_types::usage::Usage;

use super::super::days;
use crate::api::usage::UsageQuery;

/// The most days that are shown at once.
pub const MOST_DAYS: i64 = 366;

/// A stretch of days that ends today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// So many days, today among them.
    Days(i64),
    /// This month so far.
    Month,
}

impl Preset {
    /// In the order in which they are offered.
    pub const ALL: [Self; 4] = [Self::Days(7), Self::Days(30), Self::Days(90), Self::Month];

    /// What it is called.
    pub fn text(self) -> String {
        match self {
            Self::Days(count) => format!("{count} days"),
            Self::Month => "this month".to_owned(),
        }
    }

    /// The first of its days, when the last one is `today`.
    fn first(self, today: &str) -> Option<String> {
        match self {
            Self::Days(count) => days::plus(today, 1_i64.saturating_sub(count)),
            Self::Month => Some(days::first_of_month(today)),
        }
    }

    /// These days, told apart as before. Thirty days are what is shown anyway.
    pub fn query(self, today: &str, before: UsageQuery) -> UsageQuery {
        let from = if self == Self::Days(30) { None } else { self.first(today) };
        UsageQuery { from, until: None, ..before }
    }

    /// The one that shows what is shown, if one does: what ends on a chosen day does not go on tomorrow.
    pub fn shown(query: &UsageQuery, usage: &Usage) -> Option<Self> {
        let fits = |preset: &Self| preset.first(&usage.until).as_deref() == Some(usage.from.as_str());
        Self::ALL.into_iter().find(fits).filter(|_| query.until.is_none())
    }
}

/// Two days as somebody chose them, or why they are no stretch.
pub fn chosen_days(from: &str, until: &str) -> Result<(String, String), &'static str> {
    match days::length(from, until) {
        None => Err("Choose two days, the first not after the last."),
        Some(length) if length > MOST_DAYS => Err("A year is the most that is shown at once."),
        Some(_) => Ok((from.to_owned(), until.to_owned())),
    }
}

/// The choice that an address has in it, given what the parameters of a name are.
pub fn read(param: impl Fn(&str) -> Option<String>) -> UsageQuery {
    let day = |name: &str| param(name).filter(|text| days::begin_of(text).is_some());
    let (mut from, mut until) = (day("from"), day("until"));
    if let (Some(first), Some(last)) = (&from, &until)
        && chosen_days(first, last).is_err()
    {
        (from, until) = (None, None);
    }
    let group = param("group").and_then(|name| UsageQuery::parse_group(&name)).unwrap_or_default();
    UsageQuery { from, until, group, label: param("label").unwrap_or_default() }
}

/// The address of this page with a choice in it.
pub fn path(query: &UsageQuery) -> String {
    format!("/usage{}", query.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::usage::GroupBy;

    fn of(pairs: &[(&str, &str)]) -> UsageQuery {
        read(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    fn usage(from: &str, until: &str) -> Usage {
        serde_json::from_value(serde_json::json!({
            "currency": "USD", "from": from, "until": until, "rows": [], "device_ms": 0, "cost_micros": 0,
            "idle_reserved_device_ms": 0, "forecast_month_micros": 0, "month_to_date_micros": 0,
        }))
        .unwrap()
    }

    #[test]
    fn an_address_is_read_as_far_as_it_makes_sense() {
        assert_eq!(of(&[]), UsageQuery::default());
        let read = of(&[("from", "2026-11-01"), ("group", "label"), ("label", "project")]);
        assert_eq!((read.from.as_deref(), read.group), (Some("2026-11-01"), GroupBy::Label));
        assert_eq!(path(&read), "/usage?from=2026-11-01&group=label&label=project");
        let bad = of(&[("from", "yesterday"), ("until", "2026-11-31"), ("group", "mood")]);
        assert_eq!(bad, UsageQuery::default());
        assert_eq!(of(&[("from", "2026-11-02"), ("until", "2026-11-01")]), UsageQuery::default());
    }

    #[test]
    fn a_preset_is_told_by_its_days() {
        let today = "2026-11-21";
        for preset in Preset::ALL {
            let query = preset.query(today, UsageQuery::default());
            let from = query.from.clone().unwrap_or_else(|| "2026-10-23".to_owned());
            assert_eq!(Preset::shown(&query, &usage(&from, today)), Some(preset));
        }
        let fixed = UsageQuery { until: Some(today.to_owned()), ..UsageQuery::default() };
        assert_eq!(Preset::shown(&fixed, &usage("2026-11-15", today)), None);
        assert_eq!(Preset::shown(&UsageQuery::default(), &usage("2026-11-14", today)), None);
    }

    #[test]
    fn two_days_are_a_stretch_or_say_why_not() {
        assert!(chosen_days("2026-11-01", "2026-11-01").is_ok());
        assert!(chosen_days("2026-11-02", "2026-11-01").unwrap_err().contains("first"));
        assert!(chosen_days("2025-11-01", "2026-11-21").unwrap_err().contains("year"));
        assert!(chosen_days("", "2026-11-21").is_err());
    }
}
