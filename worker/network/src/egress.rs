//! The egress policies of attempts, and the rules of nftables for one attempt.

use std::fmt::Write as _;

use ipnet::IpNet;

use super::places::INTERFACE;

/// The most ranges of one attempt.
const MOST_RANGES: usize = 1_024;
/// The word for the internet in a record.
const INTERNET: &str = "internet";
/// The word for its absence.
const CLOSED: &str = "closed";

/// The addresses outside of the host that an attempt may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egress {
    /// True if the internet, the resolvers of names and the ranges of `--job-reach` are open.
    pub internet: bool,
    /// Further open ranges, without an overlap.
    reach: Vec<IpNet>,
}

impl Egress {
    /// The default: the internet and no further range.
    pub const INTERNET: Self = Self { internet: true, reach: Vec::new() };

    /// Reads the ranges of a policy, such as `10.8.0.0/16`.
    ///
    /// # Errors
    /// A text is no range, or there are too many.
    pub fn parse(internet: bool, ranges: &[String]) -> Result<Self, String> {
        if ranges.len() > MOST_RANGES {
            return Err(format!("more than {MOST_RANGES} ranges of addresses are open to the job"));
        }
        let range = |text: &String| {
            let range: Result<IpNet, _> = text.parse();
            range.map_err(|_| format!("{text} is no range of addresses"))
        };
        let ranges = ranges.iter().map(range).collect::<Result<Vec<IpNet>, String>>()?;
        // A set of nftables refuses ranges that overlap.
        Ok(Self { internet, reach: IpNet::aggregate(&ranges) })
    }

    /// True for the rules of all attempts without a policy of their own.
    pub fn is_default(&self) -> bool {
        self.internet && self.reach.is_empty()
    }
}

/// The rules of an attempt with a policy of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlaceRules {
    /// The number of the attempt's place.
    pub place: u32,
    pub egress: Egress,
}

/// The command that opens ranges in a chain. Empty without ranges.
fn accept_line(family: &str, chain: &str, ranges: &[String]) -> String {
    if ranges.is_empty() {
        return String::new();
    }
    format!("add rule {chain} {family} daddr {{ {} }} accept\n", ranges.join(", "))
}

impl PlaceRules {
    /// The commands for `nft -f` that add the rules to a table, also to one that has them already.
    pub fn additions(&self, table: &str) -> String {
        let (interface, number) = (format!("{INTERFACE}{}", self.place), self.place);
        let chain = format!("inet {table} place_{number}");
        let texts = |is_v4: bool| -> Vec<String> {
            let ranges = self.egress.reach.iter().filter(|range| matches!(range, IpNet::V4(_)) == is_v4);
            ranges.map(ToString::to_string).collect()
        };
        let mut out = format!(
            "add chain {chain}\nflush chain {chain}\n\
             add rule {chain} ip daddr @closed reject with icmpx admin-prohibited\n\
             add rule {chain} ip6 daddr @closed_v6 reject with icmpx admin-prohibited\n"
        );
        out += &accept_line("ip", &chain, &texts(true));
        out += &accept_line("ip6", &chain, &texts(false));
        let rest = if self.egress.internet { "goto internet" } else { "reject with icmpx admin-prohibited" };
        // A write to a string does not fail.
        let _ = writeln!(out, "add rule {chain} {rest}");
        let _ = writeln!(out, "add element inet {table} places {{ \"{interface}\" : goto place_{number} }}");
        if !self.egress.internet {
            let _ = writeln!(out, "add element inet {table} offline {{ \"{interface}\" }}");
        }
        out
    }

    /// The commands for `nft -f` that remove the rules from a table, also from one without them.
    pub fn removals(&self, table: &str) -> String {
        let (interface, number) = (format!("{INTERFACE}{}", self.place), self.place);
        // A deletion of an absent object fails, so the objects are added first.
        let mut out = self.additions(table);
        let _ = writeln!(out, "delete element inet {table} places {{ \"{interface}\" }}");
        if !self.egress.internet {
            let _ = writeln!(out, "delete element inet {table} offline {{ \"{interface}\" }}");
        }
        let _ = writeln!(out, "flush chain inet {table} place_{number}");
        let _ = writeln!(out, "delete chain inet {table} place_{number}");
        out
    }

    /// The rules as a line for their record.
    pub fn record(&self) -> String {
        let internet = if self.egress.internet { INTERNET } else { CLOSED };
        let ranges = self.egress.reach.iter().map(|range| format!(" {range}"));
        format!("{} {internet}{}\n", self.place, ranges.collect::<String>())
    }

    /// Reads a record. `None`: it is damaged.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_suffix('\n')?.split(' ');
        let place = words.next()?.parse().ok()?;
        let internet = match words.next()? {
            INTERNET => true,
            CLOSED => false,
            _ => return None,
        };
        let ranges: Vec<String> = words.map(str::to_owned).collect();
        Some(Self { place, egress: Egress::parse(internet, &ranges).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(internet: bool, ranges: &[&str]) -> PlaceRules {
        let ranges: Vec<String> = ranges.iter().map(|text| (*text).to_owned()).collect();
        PlaceRules { place: 7, egress: Egress::parse(internet, &ranges).unwrap() }
    }

    #[test]
    fn a_policy_closes_before_it_opens_its_ranges_and_closes_the_rest() {
        let text = rules(false, &["10.8.0.0/16", "10.8.4.0/24", "fd00:8::/32"]).additions("berth_x");
        let place = |line: &str| text.find(line).unwrap_or_else(|| panic!("{line}: {text}"));
        let closed = place("place_7 ip daddr @closed reject");
        let open = place("place_7 ip daddr { 10.8.0.0/16 } accept");
        assert!(closed < open, "{text}");
        assert!(place("place_7 ip6 daddr { fd00:8::/32 } accept") < place("place_7 reject with"), "{text}");
        place("places { \"berth-7\" : goto place_7 }");
        place("offline { \"berth-7\" }");
        let open = rules(true, &["10.8.0.0/16"]).additions("berth_x");
        assert!(open.contains("place_7 goto internet") && !open.contains("offline"), "{open}");
        let none = rules(false, &[]).additions("berth_x");
        assert!(!none.contains(" accept"), "{none}");
    }

    #[test]
    fn a_record_has_the_whole_policy_and_a_damaged_one_is_noticed() {
        for rules in [rules(false, &[]), rules(true, &["10.8.0.0/16", "fd00:8::/32"])] {
            let record = rules.record();
            assert_eq!(PlaceRules::parse(&record), Some(rules));
            assert_eq!(PlaceRules::parse(record.trim_end()), None, "cut off");
        }
        for damaged in ["", "\n", "7\n", "x closed\n", "7 open\n", "7 closed 10.8.0.0/99\n"] {
            assert_eq!(PlaceRules::parse(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn ranges_are_bounded_and_checked() {
        let many = vec!["10.0.0.1/32".to_owned(); MOST_RANGES + 1];
        assert!(Egress::parse(true, &many).is_err());
        assert!(Egress::parse(true, &["10.0.0.1 } accept".to_owned()]).is_err());
        assert!(Egress::INTERNET.is_default());
        assert!(!rules(false, &[]).egress.is_default() && !rules(true, &["10.8.0.0/16"]).egress.is_default());
    }
}
