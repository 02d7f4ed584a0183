//! Differences of hosts from most hosts with the same board model, in driver, firmware, kernel or worker
//! version.
//!
//! This module must not know the right value. It only compares hosts with each other.

use std::collections::{BTreeMap, BTreeSet};

/// The name of the fact with the firmware of boards.
pub const FIRMWARE: &str = "vbios";

/// A host as its worker reported it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// The models of its boards.
    pub models: BTreeSet<String>,
    /// The compared facts by name. A fact that was not reported is absent.
    pub facts: BTreeMap<String, String>,
    /// The firmware of its boards by model. It is compared with boards of the same model only.
    pub firmware: BTreeMap<String, String>,
}

impl Host {
    /// The compared facts, each as model, name and value.
    fn compared(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let facts = self.facts.iter().flat_map(move |(fact, value)| {
            self.models.iter().map(move |model| (model.as_str(), fact.as_str(), value.as_str()))
        });
        let firmware = self.firmware.iter().map(|(model, value)| (model.as_str(), FIRMWARE, value.as_str()));
        facts.chain(firmware)
    }
}

/// A fact in which a host differs from most others with the same model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDifference {
    pub fact: String,
    pub model: String,
    /// The value of the majority.
    pub usual: String,
}

/// The value of more than half of the entries, if there is one.
fn usual<'a>(values: &[&'a str]) -> Option<&'a str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(*value).or_default() += 1;
    }
    counts.into_iter().find(|(_, n)| n * 2 > values.len()).map(|(value, _)| value)
}

/// The differences of each host, in the order of the hosts. A fact without a majority has no differences.
pub fn find_differences(hosts: &[Host]) -> Vec<Vec<HostDifference>> {
    let mut by_kind: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for host in hosts {
        for (model, fact, value) in host.compared() {
            by_kind.entry((model, fact)).or_default().push(value);
        }
    }
    let usual: BTreeMap<(&str, &str), &str> =
        by_kind.into_iter().filter_map(|(kind, values)| Some((kind, usual(&values)?))).collect();
    let odd = |host: &Host| {
        let mut found: Vec<HostDifference> = Vec::new();
        for (model, fact, value) in host.compared() {
            let other = usual.get(&(model, fact)).filter(|usual| **usual != value);
            // A fact is reported once per host, for the first model with a difference.
            let known = found.iter().any(|odd| odd.fact == fact);
            if let Some(usual) = other.filter(|_| !known) {
                found.push(HostDifference {
                    fact: fact.to_owned(),
                    model: model.to_owned(),
                    usual: (*usual).to_owned(),
                });
            }
        }
        found
    };
    hosts.iter().map(odd).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(models: &[&str], facts: &[(&str, &str)]) -> Host {
        Host {
            models: models.iter().map(|m| (*m).to_owned()).collect(),
            facts: facts.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            firmware: BTreeMap::new(),
        }
    }

    fn facts_of(hosts: &[Host]) -> Vec<Vec<String>> {
        find_differences(hosts).into_iter().map(|odd| odd.into_iter().map(|o| o.fact).collect()).collect()
    }

    #[test]
    fn the_one_that_differs_is_found() {
        let same = host(&["H100"], &[("driver", "550"), ("kernel", "6.1")]);
        let other = host(&["H100"], &[("driver", "535"), ("kernel", "6.1")]);
        let found = find_differences(&[same.clone(), other.clone(), same.clone()]);
        assert!(found[0].is_empty());
        let odd = HostDifference { fact: "driver".into(), model: "H100".into(), usual: "550".into() };
        assert_eq!(found[1], [odd]);
        // Two values have no majority, and another model is compared separately.
        assert_eq!(facts_of(&[same.clone(), other.clone()]), [[""; 0], []]);
        let a30 = host(&["A30"], &[("driver", "535")]);
        assert_eq!(facts_of(&[same.clone(), same.clone(), a30.clone()])[2], [""; 0]);
        // A host with both models is compared for both.
        let both = host(&["A30", "H100"], &[("driver", "535")]);
        assert_eq!(facts_of(&[same.clone(), same, both, a30.clone(), a30])[2], ["driver"]);
    }

    #[test]
    fn firmware_is_compared_between_boards_of_a_model() {
        let with = |boards: &[(&str, &str)]| Host {
            firmware: boards.iter().map(|(m, v)| ((*m).to_owned(), (*v).to_owned())).collect(),
            ..host(&boards.iter().map(|(m, _)| *m).collect::<Vec<_>>(), &[])
        };
        let (small, large) = (with(&[("A30", "92")]), with(&[("H100", "96")]));
        let both = with(&[("A30", "92"), ("H100", "95")]);
        let found = find_differences(&[small.clone(), small, large.clone(), large, both]);
        let odd = HostDifference { fact: FIRMWARE.into(), model: "H100".into(), usual: "96".into() };
        assert_eq!(found, [vec![], vec![], vec![], vec![], vec![odd]]);
    }

    #[test]
    fn what_is_not_reported_is_not_odd() {
        let full = host(&["H100"], &[("vbios", "96.00")]);
        let silent = host(&["H100"], &[]);
        assert_eq!(facts_of(&[full.clone(), full, silent]), [[""; 0], [], []]);
    }

    proptest! {
        #[test]
        fn fewer_than_half_are_odd(values in prop::collection::vec("[ab]", 0..9)) {
            let hosts: Vec<Host> = values.iter().map(|v| host(&["m"], &[("f", v.as_str())])).collect();
            let odd = find_differences(&hosts).iter().filter(|o| !o.is_empty()).count();
            prop_assert!(odd * 2 < hosts.len().max(1));
        }
    }
}
