//! Shares of places and of memory: nobody gets more than what is free beside it, so nobody alone has more than half (a
//! dynamic threshold, as in the queues of services). The same holds for all callers without a key together, because one
//! sender can have any number of networks of IPv6.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use berth_types::ids::OrgId;

use crate::places::network;

/// The counters of owners. Those with the same counter share its part; the key of the hash is random, so nobody chooses
/// whose part it has.
const COUNTERS: usize = 4_096;

/// The one whose requests count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The organization of a key.
    Org(OrgId),
    /// The network of a caller without a key.
    Network(IpAddr),
}

impl Owner {
    pub fn new(org: Option<OrgId>, address: IpAddr) -> Self {
        org.map_or_else(|| Self::Network(network(address)), Self::Org)
    }
}

/// A number of places or of units of memory, with the taken ones. There is no lock.
#[derive(Debug)]
pub struct Shares {
    all: usize,
    taken: AtomicUsize,
    without_key: AtomicUsize,
    of_owners: Vec<AtomicUsize>,
    hasher: RandomState,
}

/// A taken part. Its drop frees it.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    counter: Counter,
    count: usize,
}

/// The counter of an owner, and whether the owner has a key.
#[derive(Debug, Clone, Copy)]
struct Counter {
    index: usize,
    is_keyed: bool,
}

impl Shares {
    pub fn new(all: usize) -> Arc<Self> {
        let of_owners = std::iter::repeat_with(AtomicUsize::default).take(COUNTERS).collect();
        let (taken, without_key) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { all, taken, without_key, of_owners, hasher: RandomState::new() })
    }

    /// A part for an owner; `None` without room for it.
    pub fn find(self: &Arc<Self>, owner: Owner, count: usize) -> Option<Share> {
        let index = self.hasher.hash_one(owner) % COUNTERS as u64;
        let is_keyed = matches!(owner, Owner::Org(_));
        let counter = Counter { index: usize::try_from(index).unwrap_or_default(), is_keyed };
        self.reserve(counter, count).then(|| Share { shares: self.clone(), counter, count })
    }

    fn reserve(&self, counter: Counter, count: usize) -> bool {
        let Some(of_owner) = self.of_owners.get(counter.index) else { return false };
        let own = of_owner.fetch_add(count, Ordering::Relaxed);
        let class = if counter.is_keyed { 0 } else { self.without_key.fetch_add(count, Ordering::Relaxed) };
        let taken = self.taken.fetch_add(count, Ordering::Relaxed);
        let fits = own.max(class).saturating_add(count) <= self.all.saturating_sub(taken);
        if !fits {
            self.free(counter, count);
        }
        fits
    }

    fn free(&self, counter: Counter, count: usize) {
        if let Some(of_owner) = self.of_owners.get(counter.index) {
            of_owner.fetch_sub(count, Ordering::Relaxed);
        }
        if !counter.is_keyed {
            self.without_key.fetch_sub(count, Ordering::Relaxed);
        }
        self.taken.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Share {
    /// Adds a part of the same owner. Returns false without room for it.
    pub fn grow(&mut self, count: usize) -> bool {
        let fits = self.shares.reserve(self.counter, count);
        if fits {
            self.count += count;
        }
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.free(self.counter, self.count);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn org(number: u128) -> Owner {
        Owner::new(Some(OrgId::from_uuid(Uuid::from_u128(number))), IpAddr::from([192, 0, 2, 1]))
    }

    /// Two owners with counters of their own.
    fn owners(shares: &Shares) -> [Owner; 2] {
        let counter = |owner: &Owner| shares.hasher.hash_one(owner) % COUNTERS as u64;
        let other = (2..).map(org).find(|other| counter(other) != counter(&org(1)));
        [org(1), other.unwrap_or(org(2))]
    }

    fn taken(shares: &Shares) -> (usize, usize) {
        let of_owners = shares.of_owners.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        (shares.taken.load(Ordering::Relaxed), of_owners)
    }

    #[test]
    fn one_owner_gets_half_and_the_next_one_half_of_the_rest() {
        let shares = Shares::new(100);
        let [one, other] = owners(&shares);
        let find = |owner| std::iter::from_fn(|| shares.find(owner, 1)).collect::<Vec<Share>>();
        let of_one = find(one);
        assert_eq!(of_one.len(), 50);
        let of_other = find(other);
        assert_eq!(of_other.len(), 25);
        assert!(shares.find(one, 1).is_none());
        assert_eq!(taken(&shares), (75, 75), "a refusal takes nothing");
        drop(of_one);
        assert_eq!(find(other).len(), 25, "it has half in all");
        drop(of_other);
        assert_eq!(taken(&shares), (0, 0));
    }

    #[test]
    fn all_callers_without_a_key_have_half_together() {
        let shares = Shares::new(100);
        let networks = (0..200).map(|n| Owner::new(None, IpAddr::from([0x2001, 0xdb8, 0, n, 0, 0, 0, 1])));
        let found: Vec<Share> = networks.filter_map(|owner| shares.find(owner, 1)).collect();
        assert_eq!(found.len(), 50);
        assert!(shares.find(org(1), 25).is_some(), "a key has what is left");
        drop(found);
        assert_eq!((taken(&shares), shares.without_key.load(Ordering::Relaxed)), ((0, 0), 0));
    }

    #[test]
    fn a_share_grows_within_its_part() {
        let shares = Shares::new(100);
        let [one, other] = owners(&shares);
        assert!(shares.find(one, 101).is_none());
        let mut share = shares.find(one, 0).unwrap();
        assert!(share.grow(40) && share.grow(20) && !share.grow(1));
        assert_eq!(shares.find(other, 40).map(|share| share.count), Some(40), "what is left");
        assert!(shares.find(other, 41).is_none());
        drop(share);
        assert_eq!(taken(&shares), (0, 0));
    }

    #[test]
    fn a_caller_without_a_key_counts_with_its_network() {
        let owner = |address: &str| Owner::new(None, address.parse().unwrap());
        assert_eq!(owner("2001:db8::1"), owner("2001:db8::2"));
        assert_eq!(owner("::ffff:192.0.2.1"), owner("192.0.2.1"));
        assert_ne!(owner("192.0.2.1"), owner("192.0.2.2"));
        assert_ne!(owner("192.0.2.1"), org(1));
    }
}
