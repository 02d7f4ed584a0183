//! The connections without a known token.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use berth_system::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most of them at the same time. Further connections wait in the queue of the kernel.
const MOST: usize = 256;
/// The most of one address, so that no host alone keeps all gateways away.
const MOST_OF_ADDRESS: usize = 128;

#[derive(Clone)]
pub(crate) struct PendingHandshakes {
    permits: Arc<Semaphore>,
    addresses: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Default for PendingHandshakes {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(MOST)), addresses: Arc::default() }
    }
}

/// A connection without a known token. Its drop makes room.
pub(crate) struct PendingHandshake {
    address: IpAddr,
    addresses: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _permit: OwnedSemaphorePermit,
}

impl PendingHandshakes {
    /// Waits for room for a connection. `None`: there is none any more.
    pub(crate) async fn reserve(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().acquire_owned().await.ok()
    }

    /// Begins a handshake with an address. `None`: it has too many.
    pub(crate) fn begin(&self, address: IpAddr, permit: OwnedSemaphorePermit) -> Option<PendingHandshake> {
        let mut addresses = lock(&self.addresses);
        let count = addresses.entry(address).or_default();
        if *count >= MOST_OF_ADDRESS {
            return None;
        }
        *count += 1;
        drop(addresses);
        Some(PendingHandshake { address, addresses: self.addresses.clone(), _permit: permit })
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        let mut addresses = lock(&self.addresses);
        if let Some(count) = addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn one_address_leaves_room_for_others() {
        let pending = PendingHandshakes::default();
        let (greedy, other, third): (IpAddr, IpAddr, IpAddr) =
            ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), "::1".parse().unwrap());
        let mut held = Vec::new();
        for address in [greedy, other] {
            for _ in 0..128 {
                held.push(pending.begin(address, pending.reserve().await.unwrap()).unwrap());
            }
            if address == greedy {
                let permit = pending.reserve().await.unwrap();
                assert!(pending.begin(greedy, permit).is_none(), "the refused one makes room");
            }
        }
        let waiting = timeout(Duration::from_millis(50), pending.reserve());
        assert!(waiting.await.is_err(), "256 are pending");
        held.pop();
        let permit = pending.reserve().await.unwrap();
        assert!(pending.begin(third, permit).is_some());
        drop(held);
        assert!(lock(&pending.addresses).is_empty() && pending.permits.available_permits() == 256);
    }
}
