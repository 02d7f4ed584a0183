//! View, colours and filter of the cluster page, as parameters of its address.
//!
//! Pure. Invalid parameters are ignored.

use berth_types::cluster::{BoardFilter, BoardState};

use crate::api::nodes::board_query;

/// The path of the page below the organization.
const PATH: &str = "/cluster";

/// Bytes of the longest text of a filter.
const MAX_TEXT_BYTES: usize = 127;

/// The parameters of the address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// True for the table in place of the map.
    pub table: bool,
    /// True for colours by use in place of states.
    pub by_use: bool,
    /// True for a table from the last board to the first.
    pub descending: bool,
    pub filter: BoardFilter,
}

impl Choice {
    /// Parses the parameters of an address.
    pub fn parse(get: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name: &str| {
            let text = get(name).map(|text| text.trim().to_owned());
            text.filter(|text| (1..=MAX_TEXT_BYTES).contains(&text.len()))
        };
        let is = |name: &str, value: &str| get(name).is_some_and(|text| text == value);
        Self {
            table: is("view", "table"),
            by_use: is("colour", "use"),
            descending: is("sort", "desc"),
            filter: BoardFilter {
                model: text("model"),
                rack: text("rack"),
                label: text("label"),
                state: text("state").and_then(|name| BoardState::parse(&name)),
                fits: text("fits"),
                own: is("own", "true"),
                dedicated: is("dedicated", "true"),
            },
        }
    }

    /// Returns the page below the organization.
    pub fn page(&self) -> String {
        let mut parts = board_query(&self.filter);
        let options =
            [(self.table, "view=table"), (self.by_use, "colour=use"), (self.descending, "sort=desc")];
        parts.extend(options.into_iter().filter(|(chosen, _)| *chosen).map(|(_, part)| part.to_owned()));
        if parts.is_empty() { PATH.to_owned() } else { format!("{PATH}?{}", parts.join("&")) }
    }

    /// Returns the query of the table's list without `?`.
    pub fn list_query(&self) -> String {
        let mut parts = board_query(&self.filter);
        if self.descending {
            parts.push("sort=desc".to_owned());
        }
        parts.join("&")
    }

    /// Returns the choice without a filter.
    pub fn unfiltered(&self) -> Self {
        Self { filter: BoardFilter::default(), ..self.clone() }
    }

    /// Returns true if a filter is set.
    pub fn is_filtered(&self) -> bool {
        self.filter != BoardFilter::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &[(&str, &str)]) -> Choice {
        Choice::parse(|name| query.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_choice_survives_its_address() {
        let all = [
            ("view", "table"),
            ("colour", "use"),
            ("sort", "desc"),
            ("model", "H100-80GB"),
            ("rack", "r 1"),
            ("label", "zone=north"),
            ("state", "partly_free"),
            ("fits", "1g.10gb"),
            ("own", "true"),
            ("dedicated", "true"),
        ];
        let choice = parse(&all);
        let path = "/cluster?model=H100-80GB&rack=r%201&label=zone%3Dnorth&state=partly_free&fits=1g.10gb\
                    &own=true&dedicated=true&view=table&colour=use&sort=desc";
        assert_eq!(choice.page(), path);
        assert!(choice.is_filtered() && !choice.unfiltered().is_filtered());
        assert!(
            choice.list_query().ends_with("&own=true&dedicated=true&sort=desc"),
            "{}",
            choice.list_query()
        );
    }

    #[test]
    fn invalid_parameters_are_ignored() {
        let long = "a".repeat(128);
        let none = parse(&[
            ("view", "list"),
            ("state", "ready"),
            ("model", " "),
            ("rack", long.as_str()),
            ("own", "1"),
        ]);
        assert_eq!(none, Choice::default());
        assert_eq!((none.page(), none.list_query()), ("/cluster".to_owned(), String::new()));
    }
}
