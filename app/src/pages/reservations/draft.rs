//! Parsing of the reservation form to a request for a quote.
//!
//! Pure. Only the syntax is checked, with the pointers of the portal; the portal checks the values.

use berth_types::jobs::Topology;
use berth_types::problems::FieldError;
use berth_types::reservations::{Every, NewQuote, Repeat};
use berth_types::time::Timestamp;

use crate::ui::clock::WallError;

/// The input of the form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The slug of the offering.
    pub offering: String,
    /// The input of the nodes.
    pub nodes: String,
    /// The input of the devices per node.
    pub devices: String,
    /// The start or the error of its input.
    pub begin: Result<Timestamp, WallError>,
    /// The end or the error of its input.
    pub end: Result<Timestamp, WallError>,
    /// The topology.
    pub topology: Topology,
    /// The interval of a series.
    pub every: Option<Every>,
    /// The input of the occurrences.
    pub occurrences: String,
}

impl Draft {
    /// Parses the input.
    ///
    /// # Errors
    /// One error for each invalid field.
    pub fn request(&self) -> Result<NewQuote, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut number = |text: &str, pointer: &str, noun: &str| {
            text.trim().parse().unwrap_or_else(|_| {
                errors.push(FieldError::new(pointer, format!("Enter a whole number of {noun}.")));
                1_u32
            })
        };
        let nodes = number(&self.nodes, "/nodes", "nodes");
        let gpus_per_node = number(&self.devices, "/gpus_per_node", "devices");
        let repeat = self
            .every
            .map(|every| Repeat { every, count: number(&self.occurrences, "/repeat/count", "occurrences") });
        for (pointer, time) in [("/starts_at", self.begin), ("/ends_at", self.end)] {
            if let Err(error) = time {
                errors.push(FieldError::new(pointer, error.text()));
            }
        }
        match (self.begin, self.end) {
            (Ok(starts_at), Ok(ends_at)) if errors.is_empty() => Ok(NewQuote {
                offering: self.offering.clone(),
                nodes,
                gpus_per_node,
                starts_at,
                ends_at,
                topology: self.topology,
                repeat,
            }),
            _ => Err(errors),
        }
    }
}

/// Returns the option of an interval.
pub const fn every_name(every: Option<Every>) -> &'static str {
    match every {
        None => "never",
        Some(Every::Day) => "daily",
        Some(Every::Week) => "weekly",
    }
}

/// Parses an option; never for other text.
pub fn parse_every(name: &str) -> Option<Every> {
    [Some(Every::Day), Some(Every::Week)].into_iter().find(|every| every_name(*every) == name).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> Draft {
        let begin: Timestamp = "2026-11-22T09:00:00Z".parse().unwrap();
        Draft {
            offering: "h100-80gb".to_owned(),
            nodes: " 2 ".to_owned(),
            devices: "1".to_owned(),
            begin: Ok(begin),
            end: Ok(begin.plus_seconds(7_200)),
            topology: Topology::SameRack,
            every: Some(Every::Week),
            occurrences: "4".to_owned(),
        }
    }

    #[test]
    fn a_form_becomes_a_request() {
        let quote = draft().request().unwrap();
        assert_eq!((quote.nodes, quote.gpus_per_node, quote.topology), (2, 1, Topology::SameRack));
        assert_eq!(quote.repeat, Some(Repeat { every: Every::Week, count: 4 }));
        // Without an interval, the occurrences are ignored.
        let once = Draft { every: None, occurrences: "often".to_owned(), ..draft() }.request().unwrap();
        assert_eq!(once.repeat, None);
    }

    #[test]
    fn each_invalid_field_has_an_error() {
        let invalid = Draft {
            nodes: "many".to_owned(),
            devices: "-1".to_owned(),
            begin: Err(WallError::Unreadable),
            end: Err(WallError::Skipped),
            occurrences: String::new(),
            ..draft()
        };
        let errors = invalid.request().unwrap_err();
        assert!(errors.last().unwrap().detail.contains("skip this time"), "{errors:?}");
        let pointers: Vec<String> = errors.into_iter().map(|error| error.pointer).collect();
        assert_eq!(pointers, ["/nodes", "/gpus_per_node", "/repeat/count", "/starts_at", "/ends_at"]);
    }

    #[test]
    fn options_survive_parsing() {
        for every in [None, Some(Every::Day), Some(Every::Week)] {
            assert_eq!(parse_every(every_name(every)), every);
        }
        assert_eq!(parse_every("hourly"), None);
    }
}
