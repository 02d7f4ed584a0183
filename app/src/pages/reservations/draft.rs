//! What is typed into the booking form, and the request for a price that it means.
//!
//! Pure; must not decide what the portal accepts: only what cannot be a request at all is refused
//! here, under the same pointers that the portal uses.

use berth_types::jobs::Topology;
use berth_types::problems::FieldError;
use berth_types::reservations::{Every, NewQuote, Repeat};
use berth_types::time::Timestamp;

/// The form as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The slug of an offering.
    pub offering: String,
    /// Nodes, as typed.
    pub nodes: String,
    /// Devices on each node, as typed.
    pub devices: String,
    /// When it begins; absent when no time is typed.
    pub begin: Option<Timestamp>,
    /// When it is over.
    pub end: Option<Timestamp>,
    /// How near each other its devices must be.
    pub closeness: Topology,
    /// After how long it comes again.
    pub every: Option<Every>,
    /// How many times it is in all, as typed.
    pub times: String,
}

impl Draft {
    /// The request, or what keeps the form from being one.
    pub fn request(&self) -> Result<NewQuote, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut number = |text: &str, pointer: &str, what: &str| {
            text.trim().parse().unwrap_or_else(|_| {
                errors.push(FieldError::new(pointer, format!("Give a whole number of {what}.")));
                1_u32
            })
        };
        let nodes = number(&self.nodes, "/nodes", "nodes");
        let gpus_per_node = number(&self.devices, "/gpus_per_node", "devices");
        let repeat =
            self.every.map(|every| Repeat { every, count: number(&self.times, "/repeat/count", "times") });
        if self.begin.is_none() {
            errors.push(FieldError::new("/starts_at", "Give a date and a time."));
        }
        if self.end.is_none() {
            errors.push(FieldError::new("/ends_at", "Give a date and a time."));
        }
        match (self.begin, self.end) {
            (Some(starts_at), Some(ends_at)) if errors.is_empty() => Ok(NewQuote {
                offering: self.offering.clone(),
                nodes,
                gpus_per_node,
                starts_at,
                ends_at,
                topology: self.closeness,
                repeat,
            }),
            _ => Err(errors),
        }
    }
}

/// The value of an option for how often it repeats.
pub const fn every_name(every: Option<Every>) -> &'static str {
    match every {
        None => "never",
        Some(Every::Day) => "daily",
        Some(Every::Week) => "weekly",
    }
}

/// What an option stands for; never for anything unknown.
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
            begin: Some(begin),
            end: Some(begin.plus_seconds(7_200)),
            closeness: Topology::SameRack,
            every: Some(Every::Week),
            times: "4".to_owned(),
        }
    }

    #[test]
    fn a_form_becomes_a_request() {
        let quote = draft().request().unwrap();
        assert_eq!((quote.nodes, quote.gpus_per_node, quote.topology), (2, 1, Topology::SameRack));
        assert_eq!(quote.repeat, Some(Repeat { every: Every::Week, count: 4 }));
        // A field that cannot be used is not meant.
        let once = Draft { every: None, times: "often".to_owned(), ..draft() }.request().unwrap();
        assert_eq!(once.repeat, None);
    }

    #[test]
    fn every_fault_is_told_at_its_place() {
        let bad = Draft {
            nodes: "many".to_owned(),
            devices: "-1".to_owned(),
            begin: None,
            end: None,
            times: String::new(),
            ..draft()
        };
        let pointers: Vec<String> =
            bad.request().unwrap_err().into_iter().map(|error| error.pointer).collect();
        assert_eq!(pointers, ["/nodes", "/gpus_per_node", "/repeat/count", "/starts_at", "/ends_at"]);
    }

    #[test]
    fn options_are_read_back() {
        for every in [None, Some(Every::Day), Some(Every::Week)] {
            assert_eq!(parse_every(every_name(every)), every);
        }
        assert_eq!(parse_every("hourly"), None);
    }
}
