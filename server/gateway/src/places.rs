//! Places for connections: a limit in all, and one for each address. An address of IPv6 counts with its /64, because one
//! sender has a whole one.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use crate::settings::Limits;

/// The places, and the taken ones: in all, and by address.
#[derive(Debug)]
pub struct Places {
    limits: Limits,
    taken: Mutex<(usize, HashMap<IpAddr, usize>)>,
}

/// One taken place. Its drop frees it.
#[derive(Debug)]
pub struct ConnectionPlace {
    places: Arc<Places>,
    /// Absent for an address without a limit of its own.
    address: Option<IpAddr>,
}

/// The address of a peer, or its network of IPv6.
pub fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

impl Places {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, taken: Mutex::default() })
    }

    /// A place for a connection of this peer; `None` beyond a limit.
    pub fn find(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionPlace> {
        let is_free = peer.to_canonical().is_loopback() || self.limits.is_proxy(peer);
        let address = (!is_free).then(|| network(peer));
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, by_address) = &mut *taken;
        let own = address.map_or(0, |address| by_address.get(&address).copied().unwrap_or_default());
        if *all >= self.limits.connections || own >= self.limits.connections_per_address {
            return None;
        }
        *all += 1;
        if let Some(address) = address {
            *by_address.entry(address).or_default() += 1;
        }
        Some(ConnectionPlace { places: self.clone(), address })
    }

    /// The taken places.
    pub fn taken(&self) -> usize {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.0 = taken.0.saturating_sub(1);
        if let Some(address) = self.address
            && let Some(count) = taken.1.get_mut(&address)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.1.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(places: &Arc<Places>, peer: &str, count: usize) -> Vec<ConnectionPlace> {
        (0..count).filter_map(|_| places.find(peer.parse().unwrap())).collect()
    }

    #[test]
    fn connections_have_a_limit_in_all_and_for_each_address() {
        let proxies = vec!["192.0.2.0/24".parse().unwrap()];
        let limits = Limits { connections: 10, connections_per_address: 3, proxies, ..Limits::default() };
        let places = Places::new(limits);
        let first = find(&places, "198.51.100.1", 5);
        assert_eq!(first.len(), 3);
        assert!(find(&places, "::ffff:198.51.100.1", 1).is_empty(), "the same address");
        let (one, other) = (find(&places, "2001:db8::1", 2), find(&places, "2001:db8::2", 2));
        assert_eq!((one.len(), other.len()), (2, 1), "one network of IPv6");
        drop((one, other));
        drop(first);
        assert_eq!(find(&places, "198.51.100.1", 5).len(), 3);
        assert_eq!(find(&places, "192.0.2.9", 20).len(), 10, "a proxy has the limit in all");
        assert_eq!(find(&places, "127.0.0.1", 20).len(), 10);
        assert_eq!(*places.taken.lock().unwrap(), (0, HashMap::new()));
    }
}
