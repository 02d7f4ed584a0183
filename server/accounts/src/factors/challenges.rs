//! Sign-ins that wait for their second factor. They are in memory: a restart of the portal ends them.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_foundation::credentials::fingerprint;
use berth_types::ids::{PasskeyId, UserId};
use berth_types::time::Timestamp;
use lru::LruCache;

use crate::grants::NewGrant;

/// Challenges in memory. The least recent one makes room for a new one; each had a right password.
const ENTRIES: usize = 4_096;
/// Seconds of a challenge.
pub const CHALLENGE_S: i64 = 300;
/// Codes for one challenge.
const TRIES: u8 = 5;

/// A sign-in after its right password.
#[derive(Clone)]
pub struct Pending {
    pub user: UserId,
    pub email: String,
    /// The hash of the right password; empty for an account without a password. A change of the password ends the
    /// challenge.
    pub password_hash: String,
    /// The grant of a provider for the session, after a single sign-on.
    pub grant: Option<NewGrant>,
    /// The passkey of a sign-in without a password. Its removal ends the sign-in.
    pub passkey: Option<PasskeyId>,
}

struct Challenge {
    pending: Pending,
    expires_at: Timestamp,
    tries_left: u8,
}

/// The open challenges by the hash of their value.
pub struct Challenges(Mutex<LruCache<String, Challenge>>);

impl Default for Challenges {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(NonZeroUsize::new(ENTRIES).unwrap_or(NonZeroUsize::MIN))))
    }
}

impl Challenges {
    fn entries(&self) -> MutexGuard<'_, LruCache<String, Challenge>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a challenge. Returns its end.
    pub fn open(&self, challenge: &str, pending: Pending, now: Timestamp) -> Timestamp {
        let expires_at = now.plus_seconds(CHALLENGE_S);
        self.entries().put(fingerprint(challenge), Challenge { pending, expires_at, tries_left: TRIES });
        expires_at
    }

    /// Finds an open challenge without counting a try.
    pub fn find(&self, challenge: &str, now: Timestamp) -> Option<Pending> {
        let mut entries = self.entries();
        let found = entries.get(&fingerprint(challenge))?;
        (found.expires_at > now && found.tries_left > 0).then(|| found.pending.clone())
    }

    /// Counts a try. Returns false for a challenge that has ended.
    pub fn count_try(&self, challenge: &str, now: Timestamp) -> bool {
        let mut entries = self.entries();
        let Some(found) = entries.get_mut(&fingerprint(challenge)) else { return false };
        if found.expires_at <= now {
            return false;
        }
        let Some(left) = found.tries_left.checked_sub(1) else { return false };
        found.tries_left = left;
        true
    }

    /// Ends a challenge. Returns false if it had ended.
    pub fn end(&self, challenge: &str) -> bool {
        self.entries().pop(&fingerprint(challenge)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> Pending {
        Pending {
            user: UserId::from_uuid(uuid::Uuid::from_u128(1)),
            email: "ada@example.org".to_owned(),
            password_hash: "hash".to_owned(),
            grant: None,
            passkey: None,
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(0).plus_seconds(seconds)
    }

    #[test]
    fn a_challenge_has_five_tries_and_five_minutes() {
        let all = Challenges::default();
        assert_eq!(all.open("a", pending(), at(0)), at(CHALLENGE_S));
        assert!(all.find("b", at(0)).is_none() && !all.count_try("b", at(0)));
        for _ in 0..TRIES {
            assert!(all.find("a", at(1)).is_some() && all.count_try("a", at(1)));
        }
        assert!(all.find("a", at(1)).is_none() && !all.count_try("a", at(1)));
        all.open("b", pending(), at(0));
        assert!(all.count_try("b", at(CHALLENGE_S - 1)));
        assert!(all.find("b", at(CHALLENGE_S)).is_none() && !all.count_try("b", at(CHALLENGE_S)));
    }

    #[test]
    fn a_challenge_ends_once_and_their_number_is_fixed() {
        let all = Challenges::default();
        all.open("a", pending(), at(0));
        assert!(all.end("a") && !all.end("a"));
        for n in 0..ENTRIES + 10 {
            all.open(&n.to_string(), pending(), at(0));
        }
        assert_eq!(all.entries().len(), ENTRIES);
    }
}
