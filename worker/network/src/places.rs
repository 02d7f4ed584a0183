//! The addresses of jobs: numbered places in a range, each with one address for the host and one for the job.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::Ipv4Net;

/// The first part of the name of the host's interface of a job; the number of its place follows.
pub(crate) const INTERFACE: &str = "berth-";
/// The range of the jobs' addresses of version 6, and its first four groups.
pub(crate) const RANGE_V6: &str = "fd62:6572:7468::/64";
const GROUPS_V6: [u16; 4] = [0xfd62, 0x6572, 0x7468, 0];
/// The lengths of the prefix of a range: from 32,767 places to 7.
const PREFIXES: std::ops::RangeInclusive<u8> = 16..=28;

/// Reads a range for the addresses of jobs.
///
/// # Errors
/// The text is no range of version 4 with a prefix of 16 to 28 bits.
pub fn parse_subnet(text: &str) -> Result<Ipv4Net, String> {
    let range: Option<Ipv4Net> = text.parse().ok();
    range
        .map(|range| range.trunc())
        .filter(|range| PREFIXES.contains(&range.prefix_len()))
        .ok_or_else(|| "expected ADDRESS/16 to ADDRESS/28, such as 100.125.0.0/16".to_owned())
}

/// The addresses of one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub number: u32,
    pub host: Ipv4Addr,
    pub job: Ipv4Addr,
    pub host_v6: Ipv6Addr,
    pub job_v6: Ipv6Addr,
}

impl Place {
    /// The name of the host's interface. It is unique on the host, so its creation claims the place.
    pub fn interface(&self) -> String {
        format!("{INTERFACE}{}", self.number)
    }
}

/// The number of places. The first pair of addresses is left out, because it has the address of the range itself.
fn place_count(range: Ipv4Net) -> u32 {
    (1u32 << (31 - u32::from(range.prefix_len().clamp(1, 30)))) - 1
}

/// The place with this number in a range.
fn place(range: Ipv4Net, number: u32) -> Place {
    let first = u32::from(range.network()).saturating_add(number.saturating_mul(2));
    let low = u16::try_from(number.saturating_mul(2)).unwrap_or(u16::MAX - 1);
    let [a, b, c, d] = GROUPS_V6;
    Place {
        number,
        host: Ipv4Addr::from(first),
        job: Ipv4Addr::from(first.saturating_add(1)),
        host_v6: Ipv6Addr::new(a, b, c, d, 0, 0, 0, low),
        job_v6: Ipv6Addr::new(a, b, c, d, 0, 0, 0, low.saturating_add(1)),
    }
}

/// The next free place after the last one. Places go in turn, so late packets of an ended job reach no new one.
pub(crate) fn next_place(range: Ipv4Net, last: u32, taken: &HashSet<u32>) -> Option<Place> {
    let count = place_count(range);
    let number = |n: u32| (last.saturating_add(n) % count) + 1;
    (0..count).map(number).find(|number| !taken.contains(number)).map(|number| place(range, number))
}

/// The numbers of the places in use, from the kernel's list of interfaces (`/proc/net/dev`).
pub(crate) fn taken_places(interfaces: &str) -> HashSet<u32> {
    let names = interfaces.lines().filter_map(|line| line.split_once(':'));
    names.filter_map(|(name, _)| name.trim().strip_prefix(INTERFACE)?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_a_prefix_of_16_to_28_bits() {
        assert_eq!(parse_subnet("100.125.3.4/16").unwrap().to_string(), "100.125.0.0/16");
        for bad in ["", "100.125.0.0", "10.0.0.0/8", "10.0.0.0/29", "fd00::/64", "x/16"] {
            assert!(parse_subnet(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_place_is_given_once_and_in_turn() {
        let range = parse_subnet("10.9.8.0/28").unwrap();
        let (mut taken, mut last) = (HashSet::new(), 0);
        for number in 1..=7 {
            let next = next_place(range, last, &taken).unwrap();
            assert_eq!(next.number, number);
            assert!(range.contains(&next.host) && range.contains(&next.job));
            assert!(taken.insert(number));
            last = number;
        }
        assert_eq!(next_place(range, last, &taken), None, "the range is used up");
        taken.remove(&3);
        taken.remove(&7);
        let next = next_place(range, 3, &taken).unwrap();
        assert_eq!(
            (next.number, next.interface().as_str()),
            (7, "berth-7"),
            "the place just left comes last"
        );
        assert_eq!(format!("{} {}", next.host, next.job), "10.9.8.14 10.9.8.15");
        assert_eq!(next.job_v6.to_string(), "fd62:6572:7468::f");
    }

    #[test]
    fn the_largest_range_fits_the_addresses_of_version_6() {
        let range = parse_subnet("100.125.0.0/16").unwrap();
        let last = next_place(range, 32_766, &HashSet::new()).unwrap();
        assert_eq!((last.number, last.job.to_string().as_str()), (32_767, "100.125.255.255"));
        assert_eq!(last.job_v6.to_string(), "fd62:6572:7468::ffff");
        assert_eq!(next_place(range, 32_767, &HashSet::new()).unwrap().number, 1);
    }

    #[test]
    fn interfaces_of_jobs_are_recognised() {
        let text =
            "Inter-|   Receive  |\n face |bytes\n    lo:  0 0\nberth-12: 7 0\n berth-x: 1\n  eth0: 1\n";
        assert_eq!(taken_places(text), HashSet::from([12]));
    }
}
