//! The gateway of a request: its token, the limit of failed tries, and its places.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_foundation::proxies::network;
use berth_foundation::repeated::MINUTE_MS;
use berth_serving::snapshot::KeyHash;
use berth_store as store;
use berth_store::services::uses_intake::StoredCaller;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;

use super::GatewaySync;

/// The begin of each token of a gateway.
const PREFIX: &str = "bgw_";
/// Bytes of a token; longer ones are refused without a hash.
const MAX_TOKEN_BYTES: usize = 200;
/// Failed tries of one network in a minute.
const MAX_TRIES: u32 = 60;
/// Networks with failed tries in memory. All further ones count together.
const MAX_NETWORKS: usize = 10_000;
/// Accepted tokens in memory.
const MAX_ACCEPTED: usize = 1_000;
/// The network of requests without an address, and of all networks beyond the limit.
const COMMON: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Seconds by which the clock of a gateway may be ahead.
const MAX_AHEAD_S: i64 = 86_400;
/// The refusal of a life beyond that: with it a stolen token would outlive all later lives of its gateway.
pub(super) const LIFE_AHEAD: &str = "The life is more than a day after the clock of the portal. Correct the clock of the \
    gateway. Its directory keeps the life, so remove the gateway, add it anew, and start it with an empty directory.";

/// True unless a life, which is the time of its begin in milliseconds, is far in the future.
pub(super) const fn is_plausible_life(life: i64, now: Timestamp) -> bool {
    life <= now.plus_seconds(MAX_AHEAD_S).millis()
}

/// The hash of a gateway's token in the database: SHA-256 in hexadecimal digits.
pub fn token_hash(token: &str) -> String {
    String::from(KeyHash::new(token))
}

/// A gateway with a valid token.
#[derive(Debug, Clone)]
pub struct CallingGateway {
    pub(super) row: StoredCaller,
}

impl CallingGateway {
    /// The number of the gateway.
    pub fn number(&self) -> u64 {
        u64::try_from(self.row.number).unwrap_or(0)
    }
}

/// The kinds of requests of gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Snapshot,
    Report,
    Credit,
}

/// The requests of one kind of one gateway at the same time.
const MAX_CALLS: usize = 2;

type Calls = Mutex<HashMap<(i64, Call), usize>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running request of a gateway.
#[derive(Debug)]
pub(super) struct Place {
    calls: Arc<Calls>,
    key: (i64, Call),
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut calls = lock(&self.calls);
        if let Some(count) = calls.get_mut(&self.key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                calls.remove(&self.key);
            }
        }
    }
}

/// Failed tries and running requests.
#[derive(Default)]
pub(super) struct Callers {
    /// The begin of the minute of a network, and its failed tries.
    tries: Mutex<HashMap<IpAddr, (i64, u32)>>,
    /// Hashes of accepted tokens: strangers in the network of a gateway do not keep it out.
    accepted: Mutex<HashSet<String>>,
    calls: Arc<Calls>,
}

impl Callers {
    /// The seconds to wait of a network with too many failed tries.
    fn find_wait(&self, from: IpAddr, now_ms: i64) -> Option<u64> {
        let tries = lock(&self.tries);
        let is_counted = tries.len() < MAX_NETWORKS || tries.contains_key(&from);
        let (since, count) = tries.get(if is_counted { &from } else { &COMMON })?;
        let left_ms = since.saturating_add(MINUTE_MS).saturating_sub(now_ms);
        let waits = *count >= MAX_TRIES && left_ms > 0;
        waits.then(|| u64::try_from(left_ms).unwrap_or(0).div_ceil(1_000))
    }

    /// Counts a failed try of a network.
    fn count_failure(&self, from: IpAddr, now_ms: i64) {
        let mut tries = lock(&self.tries);
        let is_over = |since: i64| now_ms.saturating_sub(since) >= MINUTE_MS;
        if tries.len() >= MAX_NETWORKS && !tries.contains_key(&from) {
            tries.retain(|_, (since, _)| !is_over(*since));
        }
        let from = if tries.len() < MAX_NETWORKS || tries.contains_key(&from) { from } else { COMMON };
        let entry = tries.entry(from).or_insert((now_ms, 0));
        if is_over(entry.0) {
            *entry = (now_ms, 0);
        }
        entry.1 = entry.1.saturating_add(1);
    }

    fn is_accepted(&self, hash: &str) -> bool {
        lock(&self.accepted).contains(hash)
    }

    fn set_accepted(&self, hash: &str, accepted: bool) {
        let mut known = lock(&self.accepted);
        if !accepted {
            known.remove(hash);
        } else if known.len() < MAX_ACCEPTED {
            known.insert(hash.to_owned());
        }
    }

    /// A place for a request.
    ///
    /// # Errors
    /// 429 if the gateway has too many requests of this kind.
    pub fn find_place(&self, gateway: &CallingGateway, call: Call) -> Result<Place, Problem> {
        let key = (gateway.row.number, call);
        let mut calls = lock(&self.calls);
        let count = calls.entry(key).or_default();
        if *count >= MAX_CALLS {
            let detail =
                "This gateway has two such requests already. Nothing was changed. Wait for one of them.";
            return Err(Problem::throttled(detail, 1));
        }
        *count += 1;
        Ok(Place { calls: self.calls.clone(), key })
    }
}

/// The refusal of a request without a valid token.
fn refused() -> Problem {
    Problem::new(
        401,
        "auth.required",
        "Token required",
        "Send the token of a gateway as a bearer token. An operator creates it.",
    )
}

impl GatewaySync {
    /// The gateway of a bearer token.
    ///
    /// # Errors
    /// 401 without the token of a gateway that is not removed. 429 after many failed tries from one network.
    pub(super) async fn admit(
        &self,
        token: Option<&str>,
        sender: Option<IpAddr>,
    ) -> Result<CallingGateway, Problem> {
        let (from, now_ms) = (sender.map_or(COMMON, network), self.context.monotonic_ms());
        let is_token = |token: &&str| token.starts_with(PREFIX) && token.len() <= MAX_TOKEN_BYTES;
        let hash = token.filter(is_token).map(KeyHash::new);
        let text = hash.map(String::from).unwrap_or_default();
        if !self.callers.is_accepted(&text)
            && let Some(wait_s) = self.callers.find_wait(from, now_ms)
        {
            return Err(Problem::throttled("Too many wrong tokens from your network. Wait.", wait_s));
        }
        let found = match hash {
            Some(hash) => self.find_caller(hash).await?,
            None => None,
        };
        self.callers.set_accepted(&text, found.is_some());
        let Some(row) = found else {
            self.callers.count_failure(from, now_ms);
            let detail = "A request of a gateway had no valid token.".to_owned();
            let event = self.context.visitor_event("request.refused", "gateway".to_owned(), detail);
            self.context.repeated.defer("gateway token", MINUTE_MS, None, event);
            return Err(refused());
        };
        Ok(CallingGateway { row })
    }

    /// The gateway with the hash of a token. The comparison of the hashes reads all bytes.
    async fn find_caller(&self, hash: KeyHash) -> Result<Option<StoredCaller>, Problem> {
        let mut conn = self.context.db.read().await?;
        let row = store::services::uses_intake::find_caller(&mut conn.tx(), &String::from(hash)).await?;
        Ok(row.filter(|row| KeyHash::try_from(row.token_hash.clone()).is_ok_and(|stored| stored == hash)))
    }

    /// Checks a gateway once more after a long wait.
    ///
    /// # Errors
    /// 401 if it was removed, or has another token.
    pub(super) async fn check_still_valid(&self, gateway: &CallingGateway) -> Result<(), Problem> {
        let mut conn = self.context.db.read().await?;
        let hash = &gateway.row.token_hash;
        let row = store::services::uses_intake::find_caller(&mut conn.tx(), hash).await?;
        row.map(|_| ()).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n))
    }

    #[test]
    fn failed_tries_slow_down_their_network_for_a_minute() {
        let callers = Callers::default();
        for n in 0..MAX_TRIES {
            assert_eq!(callers.find_wait(address(1), 0), None, "{n}");
            callers.count_failure(address(1), 0);
        }
        assert_eq!(callers.find_wait(address(1), 1), Some(60));
        assert_eq!(callers.find_wait(address(2), 1), None);
        assert_eq!(callers.find_wait(address(1), MINUTE_MS), None);
        callers.count_failure(address(1), MINUTE_MS);
        assert_eq!(callers.find_wait(address(1), MINUTE_MS), None, "a new minute begins with one try");
    }

    #[test]
    fn the_networks_and_tokens_in_memory_have_limits() {
        let callers = Callers::default();
        for n in 0..u32::try_from(MAX_NETWORKS).unwrap() + 100 {
            callers.count_failure(address(n), 0);
            callers.set_accepted(&n.to_string(), true);
        }
        assert_eq!(lock(&callers.tries).len(), MAX_NETWORKS + 1);
        assert_eq!(lock(&callers.accepted).len(), MAX_ACCEPTED);
        assert!(callers.find_wait(COMMON, 1).is_some(), "the further networks count together");
        callers.count_failure(address(1_000_000), MINUTE_MS);
        assert_eq!(lock(&callers.tries).len(), 1);
    }
}
