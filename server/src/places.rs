//! Places for connections: a limit in all, a limit for each network, and a limit for each /48 of IPv6 addresses.
//!
//! A customer of a network provider has a /64 or a /48 of IPv6 addresses, so many networks can have one sender.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use berth_foundation::proxies::network;

/// The share of one /48 in all places: one of this number.
const SITE_SHARE: usize = 2;

/// Places, and the numbers of the taken ones.
#[derive(Debug)]
pub struct Places {
    max: usize,
    per_network: usize,
    /// The number in all, and the numbers by group.
    counts: Mutex<(usize, HashMap<Group, usize>)>,
}

/// Addresses with a limit in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Group {
    Network(IpAddr),
    /// The first address of a /48.
    Site(Ipv6Addr),
}

/// The groups of an address.
fn groups(address: IpAddr) -> impl Iterator<Item = Group> {
    let network = network(address);
    let site = match network {
        IpAddr::V6(address) => Some(Group::Site(Ipv6Addr::from_bits(address.to_bits() >> 80 << 80))),
        IpAddr::V4(_) => None,
    };
    std::iter::once(Group::Network(network)).chain(site)
}

impl Places {
    pub fn new(max: usize, per_network: usize) -> Arc<Self> {
        Arc::new(Self { max, per_network, counts: Mutex::default() })
    }

    fn limit(&self, group: Group) -> usize {
        match group {
            Group::Network(_) => self.per_network,
            Group::Site(_) => self.max.div_ceil(SITE_SHARE),
        }
    }

    /// A place for a sender at this address; `None` beyond a limit. A sender without an address has no limit but the
    /// limit in all.
    pub fn find(self: &Arc<Self>, sender: Option<IpAddr>) -> Option<Place> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, by_group) = &mut *counts;
        let full = |group: Group| by_group.get(&group).is_some_and(|count| *count >= self.limit(group));
        if *all >= self.max || sender.into_iter().flat_map(groups).any(full) {
            return None;
        }
        *all += 1;
        for group in sender.into_iter().flat_map(groups) {
            *by_group.entry(group).or_default() += 1;
        }
        Some(Place { places: self.clone(), sender })
    }
}

/// One taken place. Its drop frees it.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    sender: Option<IpAddr>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.0 = counts.0.saturating_sub(1);
        for group in self.sender.into_iter().flat_map(groups) {
            if let Some(count) = counts.1.get_mut(&group) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    counts.1.remove(&group);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Arc<Places>, addresses: impl IntoIterator<Item = String>) -> Vec<Place> {
        addresses.into_iter().filter_map(|address| places.find(Some(address.parse().unwrap()))).collect()
    }

    #[test]
    fn connections_are_limited_in_all_and_by_network() {
        let places = Places::new(8, 2);
        let first = take(&places, (0..3).map(|_| "192.0.2.1".to_owned()));
        assert_eq!(first.len(), 2);
        assert!(take(&places, ["::ffff:192.0.2.1".to_owned()]).is_empty(), "the same sender");
        let others = take(&places, (0..20).map(|n| format!("198.51.100.{n}")));
        assert_eq!(others.len(), 6);
        drop(first);
        assert_eq!(take(&places, ["192.0.2.1".to_owned()]).len(), 1);
        drop(others);
        assert_eq!(*places.counts.lock().unwrap(), (0, HashMap::new()));
    }

    #[test]
    fn one_site_has_half_of_all_places() {
        let places = Places::new(8, 2);
        let site = take(&places, (0..20).map(|n| format!("2001:db8:1:{n}::1")));
        assert_eq!(site.len(), 4);
        assert_eq!(take(&places, (0..20).map(|n| format!("2001:db8:2:{n}::1"))).len(), 4);
        assert!(take(&places, ["2001:db8:1:99::1".to_owned()]).is_empty());
        drop(site);
        assert_eq!(*places.counts.lock().unwrap(), (0, HashMap::new()));
    }

    #[test]
    fn a_sender_without_an_address_has_the_limit_in_all() {
        let places = Places::new(8, 2);
        let taken: Vec<Place> = (0..20).filter_map(|_| places.find(None)).collect();
        assert_eq!(taken.len(), 8);
        assert!(take(&places, ["192.0.2.1".to_owned()]).is_empty());
    }
}
