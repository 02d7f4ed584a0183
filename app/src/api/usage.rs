//! What was used and what it cost.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::usage::{GroupBy, Usage};
use serde::{Deserialize, Serialize};

use super::Answer;
use super::escape::escaped;

/// Which use is meant, and by what it is told apart.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UsageQuery {
    /// The first day; thirty days up to the last one when absent.
    pub from: Option<String>,
    /// The last day, which counts; today when absent.
    pub until: Option<String>,
    /// By what it is told apart.
    pub group: GroupBy,
    /// The key of the label, where it is told apart by one.
    pub label: String,
}

impl UsageQuery {
    /// Every way to tell use apart, with its name in a query.
    pub const GROUPS: [(GroupBy, &str); 5] = [
        (GroupBy::Day, "day"),
        (GroupBy::Offering, "offering"),
        (GroupBy::Mode, "mode"),
        (GroupBy::Member, "member"),
        (GroupBy::Label, "label"),
    ];

    /// The name of a way to tell use apart.
    pub fn group_name(group: GroupBy) -> &'static str {
        Self::GROUPS.into_iter().find(|(known, _)| *known == group).map_or("day", |(_, name)| name)
    }

    /// What a name stands for.
    pub fn parse_group(name: &str) -> Option<GroupBy> {
        Self::GROUPS.into_iter().find(|(_, known)| *known == name).map(|(group, _)| group)
    }

    /// The same, as far as the portal can answer it: without a label there is nothing to group by.
    pub fn answerable(&self) -> Self {
        let nameless = self.group == GroupBy::Label && self.label.is_empty();
        Self { group: if nameless { GroupBy::Day } else { self.group }, ..self.clone() }
    }

    /// As the end of an address: nothing, or from the question mark on.
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

    /// The address at which the same comes as a file for a spreadsheet.
    pub fn csv_path(&self, org: OrgId) -> String {
        let text = self.answerable().text();
        let with = if text.is_empty() { "?" } else { "&" };
        format!("/api/v1/orgs/{org}/usage{text}{with}format=csv")
    }
}

/// What an organization used, by day.
pub fn get(org: OrgId, query: UsageQuery) -> impl Future<Output = Answer<Usage>> + Send + 'static {
    super::get(format!("/orgs/{org}/usage{}", query.answerable().text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_no_more_than_it_must() {
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
    fn a_file_has_the_same_query() {
        let org: OrgId = "org_00000000000000000000000001".parse().unwrap();
        assert!(UsageQuery::default().csv_path(org).ends_with("/usage?format=csv"));
        let by_mode = UsageQuery { group: GroupBy::Mode, ..UsageQuery::default() };
        assert!(by_mode.csv_path(org).ends_with("/usage?group=mode&format=csv"));
    }

    #[test]
    fn names_are_those_of_the_wire() {
        for (group, name) in UsageQuery::GROUPS {
            assert_eq!(serde_json::to_value(group).unwrap(), name);
            assert_eq!(UsageQuery::parse_group(name), Some(group));
            assert_eq!(UsageQuery::group_name(group), name);
        }
        assert_eq!(UsageQuery::parse_group("nonsense"), None);
    }
}
