//! Which hosts differ from the others of their kind: another driver, firmware, kernel or worker.
//!
//! Must not know what is right: it compares hosts with each other only.

use std::collections::{BTreeMap, BTreeSet};

/// A host as its worker reported it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// Models of its boards.
    pub models: BTreeSet<String>,
    /// What is compared, by name; what was not reported is left out.
    pub facts: BTreeMap<String, String>,
}

/// A fact in which a host differs from most others with the same model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Odd {
    pub fact: String,
    pub model: String,
    /// What most have.
    pub usual: String,
}

/// The value that more than half of these have.
fn usual<'a>(values: &[&'a str]) -> Option<&'a str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(*value).or_default() += 1;
    }
    counts.into_iter().find(|(_, n)| n * 2 > values.len()).map(|(value, _)| value)
}

/// What is odd about each host, in the order of the hosts. Where no value has a majority nobody differs
/// from it.
pub fn odd_ones(hosts: &[Host]) -> Vec<Vec<Odd>> {
    let mut by_kind: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for host in hosts {
        for model in &host.models {
            for (fact, value) in &host.facts {
                by_kind.entry((model, fact)).or_default().push(value);
            }
        }
    }
    let usual: BTreeMap<(&str, &str), &str> =
        by_kind.into_iter().filter_map(|(kind, values)| Some((kind, usual(&values)?))).collect();
    let odd = |host: &Host| {
        let of_fact = |(fact, value): (&String, &String)| {
            let differs = |model: &String| {
                let usual = usual.get(&(model.as_str(), fact.as_str()))?;
                (*usual != value.as_str()).then(|| Odd {
                    fact: fact.clone(),
                    model: model.clone(),
                    usual: (*usual).to_owned(),
                })
            };
            host.models.iter().find_map(differs)
        };
        host.facts.iter().filter_map(of_fact).collect()
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
        }
    }

    fn facts_of(hosts: &[Host]) -> Vec<Vec<String>> {
        odd_ones(hosts).into_iter().map(|odd| odd.into_iter().map(|o| o.fact).collect()).collect()
    }

    #[test]
    fn the_one_that_differs_is_told() {
        let same = host(&["H100"], &[("driver", "550"), ("kernel", "6.1")]);
        let other = host(&["H100"], &[("driver", "535"), ("kernel", "6.1")]);
        let found = odd_ones(&[same.clone(), other.clone(), same.clone()]);
        assert!(found[0].is_empty());
        let odd = Odd { fact: "driver".into(), model: "H100".into(), usual: "550".into() };
        assert_eq!(found[1], [odd]);
        // Of two nobody knows which is right, and another model is another kind.
        assert_eq!(facts_of(&[same.clone(), other.clone()]), [[""; 0], []]);
        let a30 = host(&["A30"], &[("driver", "535")]);
        assert_eq!(facts_of(&[same.clone(), same.clone(), a30.clone()])[2], [""; 0]);
        // A host with both models is compared with both kinds.
        let both = host(&["A30", "H100"], &[("driver", "535")]);
        assert_eq!(facts_of(&[same.clone(), same, both, a30.clone(), a30])[2], ["driver"]);
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
            let odd = odd_ones(&hosts).iter().filter(|o| !o.is_empty()).count();
            prop_assert!(odd * 2 < hosts.len().max(1));
        }
    }
}
