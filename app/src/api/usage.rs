//! Usage and cost.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::usage::{GroupBy, Usage};
use serde::{Deserialize, Serialize};

use super::Answer;
use super::escape::escaped;

/// The period and the group of a usage query.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UsageQuery {
    /// The first day; the default is 30 days until the last day.
    pub from: Option<String>,
    /// The last day, inclusive; the default is today.
    pub until: Option<String>,
    /// The group of the rows.
    pub group: GroupBy,
    /// The label key of a group by label.
    pub label: String,
}

impl UsageQuery {
    /// All groups with their names in a query.
    pub const GROUPS: [(GroupBy, &str); 5] = [
        (GroupBy::Day, "day"),
        (GroupBy::Offering, "offering"),
        (GroupBy::Mode, "mode"),
        (GroupBy::Member, "member"),
        (GroupBy::Label, "label"),
    ];

    /// Returns the name of a group.
    pub fn group_name(group: GroupBy) -> &'static str {
        Self::GROUPS.into_iter().find(|(known, _)| *known == group).map_or("day", |(_, name)| name)
    }

    /// Finds the group of a name.
    pub fn parse_group(name: &str) -> Option<GroupBy> {
        Self::GROUPS.into_iter().find(|(_, known)| *known == name).map(|(group, _)| group)
    }

    /// Returns a query that the portal accepts: a group by label without a key becomes a group by day.
    pub fn answerable(&self) -> Self {
        let without_key = self.group == GroupBy::Label && self.label.is_empty();
        Self { group: if without_key { GroupBy::Day } else { self.group }, ..self.clone() }
    }

    /// Returns the query string with `?`; empty for the default query.
    pub fn text(&self) -> String {
        let mut parts = Vec::new();
        for (name, day) in [("from", &self.from), ("until", &self.until)] {
            if let Some(day) = day {
                parts.push(format!("{name}={}", escaped(day)));
            }
        }
        if self.group != GroupBy::Day {
            parts.push(format!("group={}", Self::group_name(self.group)));
        }
        if self.group == GroupBy::Label && !self.label.is_empty() {
            parts.push(format!("label={}", escaped(&self.label)));
        }
        if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
    }

    /// Returns the address of the result as CSV.
    pub fn csv_path(&self, org: OrgId) -> String {
        let text = self.answerable().text();
        let separator = if text.is_empty() { "?" } else { "&" };
        format!("/api/v1/orgs/{org}/usage{text}{separator}format=csv")
    }
}

/// Gets the daily usage of an organization.
pub fn get(org: OrgId, query: UsageQuery) -> impl Future<Output = Answer<Usage>> + Send + 'static {
    super::get(format!("/orgs/{org}/usage{}", query.answerable().text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_not_in_the_query() {
        let all = UsageQuery::default();
        assert_eq!(all.text(), "");
        let some = UsageQuery {
            from: Some("2026-11-01".to_owned()),
            group: GroupBy::Label,
            label: "team & co".to_owned(),
            ..UsageQuery::default()
        };
        assert_eq!(some.text(), "?from=2026-11-01&group=label&label=team%20%26%20co");
        let unnamed = UsageQuery { label: String::new(), ..some };
        assert_eq!(unnamed.text(), "?from=2026-11-01&group=label");
        assert_eq!(unnamed.answerable().text(), "?from=2026-11-01");
    }

    #[test]
    fn the_csv_address_has_the_same_query() {
        let org: OrgId = "org_00000000000000000000000001".parse().unwrap();
        assert!(UsageQuery::default().csv_path(org).ends_with("/usage?format=csv"));
        let by_mode = UsageQuery { group: GroupBy::Mode, ..UsageQuery::default() };
        assert!(by_mode.csv_path(org).ends_with("/usage?group=mode&format=csv"));
    }

    #[test]
    fn names_are_those_of_the_api() {
        for (group, name) in UsageQuery::GROUPS {
            assert_eq!(serde_json::to_value(group).unwrap(), name);
            assert_eq!(UsageQuery::parse_group(name), Some(group));
            assert_eq!(UsageQuery::group_name(group), name);
        }
        assert_eq!(UsageQuery::parse_group("nonsense"), None);
    }
}
