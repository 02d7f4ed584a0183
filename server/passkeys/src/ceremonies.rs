//! Open ceremonies. They are in memory: a restart of the portal ends them.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_types::time::Timestamp;
use lru::LruCache;

/// Seconds of a ceremony. The library has the same limit on the monotonic clock.
pub const CEREMONY_S: i64 = 300;

/// The open ceremonies by their key: a challenge or a user. The least recent one makes room for a new one.
pub struct Ceremonies<S>(Mutex<LruCache<u128, (S, Timestamp)>>);

impl<S> Ceremonies<S> {
    /// A table for at most `entries` ceremonies.
    pub fn new(entries: usize) -> Self {
        Self(Mutex::new(LruCache::new(NonZeroUsize::new(entries).unwrap_or(NonZeroUsize::MIN))))
    }

    fn entries(&self) -> MutexGuard<'_, LruCache<u128, (S, Timestamp)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a ceremony, in place of one with the same key. Returns its end.
    pub fn open(&self, key: u128, state: S, now: Timestamp) -> Timestamp {
        let expires_at = now.plus_seconds(CEREMONY_S);
        self.entries().put(key, (state, expires_at));
        expires_at
    }

    /// Takes a ceremony out, so that each one has one answer. `None` for an unknown or expired one.
    pub fn end(&self, key: u128, now: Timestamp) -> Option<S> {
        let (state, expires_at) = self.entries().pop(&key)?;
        (expires_at > now).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(0).plus_seconds(seconds)
    }

    #[test]
    fn a_ceremony_has_one_answer_within_five_minutes() {
        let all = Ceremonies::new(10);
        assert_eq!(all.open(1, "a", at(0)), at(CEREMONY_S));
        assert_eq!(all.end(2, at(0)), None);
        assert_eq!(all.end(1, at(CEREMONY_S - 1)), Some("a"));
        assert_eq!(all.end(1, at(1)), None);
        all.open(3, "b", at(0));
        assert_eq!(all.end(3, at(CEREMONY_S)), None);
    }

    #[test]
    fn the_number_of_ceremonies_is_fixed() {
        let all = Ceremonies::new(10);
        for n in 0..20 {
            all.open(n, (), at(0));
        }
        assert_eq!(all.entries().len(), 10);
        assert_eq!(all.end(9, at(1)), None);
        assert_eq!(all.end(19, at(1)), Some(()));
    }
}
