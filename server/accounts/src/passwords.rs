//! Password rules and hashing. argon2id runs outside the async threads, with a limit on concurrent hashes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use berth_foundation::PasswordCost;
use berth_rest::Disconnect;
use berth_types::problems::{FieldError, Problem};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{common_passwords, context_words};

/// Minimum length of a password as the only factor (NIST SP 800-63B-4).
pub const MIN_CHARS: usize = 15;
pub const MAX_CHARS: usize = 1_024;

/// argon2id with one lane. A cost outside its bounds gives the default of the library, which is that of `PasswordCost`.
fn argon2(cost: PasswordCost) -> Argon2<'static> {
    let params = Params::new(cost.memory_kib, cost.passes, 1, None).unwrap_or_default();
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// Checks length and strength of a new password. `known` has the texts that strangers know: name and address of the
/// user, and the names of the organization and of the portal (`context_words`).
pub fn check(pointer: &str, password: &str, known: &[&str]) -> Option<FieldError> {
    let chars = password.chars().count();
    if chars < MIN_CHARS {
        return Some(FieldError::new(pointer, "Use at least 15 characters, such as a few random words."));
    }
    if chars > MAX_CHARS {
        return Some(FieldError::new(pointer, "Use at most 1024 characters."));
    }
    if context_words::is_made_of(password, known) {
        let detail = "This password consists of names that strangers know, such as yours, your organization's or the portal's. Add other words.";
        return Some(FieldError::new(pointer, detail));
    }
    // The estimate is slow for long texts, and a long password is strong by its length, so only the head is
    // scored.
    let head: String = password.chars().take(64).collect();
    let is_common =
        common_passwords::is_common(password) || zxcvbn::zxcvbn(&head, known).score() < zxcvbn::Score::Three;
    is_common.then(|| FieldError::new(pointer, "This password is among the most common. Choose another."))
}

/// Requests that wait for a hash. A hash takes some 20 ms, so the last of them waits below half a second.
const MAX_WAITING: usize = 32;
/// The seconds before the next attempt when the queue is full.
const RETRY_S: u64 = 2;

/// Hashes and verifies passwords with limits on concurrent hashes and on waiting requests.
#[derive(Clone)]
pub struct Hasher {
    permits: Arc<Semaphore>,
    /// Places for waiting and running requests.
    places: Arc<Semaphore>,
    /// The number of computed hashes.
    computed: Arc<AtomicU64>,
    /// The cost of new hashes. A stored hash names its own.
    cost: PasswordCost,
}

/// A place in the queue of hashes. Its drop frees it.
#[derive(Debug)]
pub struct Place(OwnedSemaphorePermit);

/// A password could not be hashed or verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    #[error("too many passwords wait for their hashes")]
    Busy,
    #[error("the sender disconnected before the hash")]
    Disconnected,
    #[error("a password cannot be hashed")]
    Failed,
}

impl From<HashError> for Problem {
    fn from(error: HashError) -> Self {
        match error {
            HashError::Busy | HashError::Disconnected => Self::unavailable(
                "Too many people sign in or sign up at this moment. Nothing was changed. Try again in a few seconds.",
                RETRY_S,
            ),
            HashError::Failed => Self::internal(),
        }
    }
}

impl Hasher {
    pub fn new(max_concurrent: usize, cost: PasswordCost) -> Self {
        let max_concurrent = max_concurrent.max(1);
        Self {
            permits: Arc::new(Semaphore::new(max_concurrent)),
            places: Arc::new(Semaphore::new(max_concurrent + MAX_WAITING)),
            computed: Arc::default(),
            cost,
        }
    }

    /// The number of hashes that were computed since the start.
    pub fn hashes(&self) -> u64 {
        self.computed.load(Ordering::Relaxed)
    }

    /// Reserves a place in the queue.
    ///
    /// # Errors
    /// The queue is full.
    pub fn reserve(&self) -> Result<Place, HashError> {
        self.places.clone().try_acquire_owned().map(Place).map_err(|_| HashError::Busy)
    }

    /// Runs work outside the async threads, in the order of the calls. Work of a sender that disconnects before its
    /// start is dropped.
    async fn run_blocking<T: Send + 'static>(
        &self,
        place: Place,
        sender: &Disconnect,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HashError> {
        let permit = tokio::select! {
            biased;
            () = sender.wait() => return Err(HashError::Disconnected),
            permit = self.permits.clone().acquire_owned() => permit.map_err(|_| HashError::Failed)?,
        };
        // The permit is held until the end of the work, also when the caller is dropped before.
        let computed = self.computed.clone();
        let run = move || {
            let done = work();
            computed.fetch_add(1, Ordering::Relaxed);
            drop((permit, place.0));
            done
        };
        tokio::task::spawn_blocking(run).await.map_err(|_| HashError::Failed)
    }

    /// Returns the PHC string of a password with this salt.
    ///
    /// # Errors
    /// The queue is full, or the sender disconnected while the request waited.
    pub async fn hash(
        &self,
        password: String,
        salt: [u8; 16],
        sender: &Disconnect,
    ) -> Result<String, HashError> {
        let argon2 = argon2(self.cost);
        self.run_blocking(self.reserve()?, sender, move || {
            let hash: PasswordHash =
                argon2.hash_password_with_salt(password.as_bytes(), &salt).map_err(|_| HashError::Failed)?;
            Ok(hash.to_string())
        })
        .await?
    }

    /// Returns true if the password matches the hash. Without a hash (unknown account) it takes the same time
    /// and returns false.
    ///
    /// # Errors
    /// The sender disconnected while the request waited.
    pub async fn verify(
        &self,
        place: Place,
        password: String,
        hash: Option<String>,
        sender: &Disconnect,
    ) -> Result<bool, HashError> {
        let argon2 = argon2(self.cost);
        self.run_blocking(place, sender, move || {
            let Some(hash) = hash else {
                let made: Result<PasswordHash, _> =
                    argon2.hash_password_with_salt(password.as_bytes(), &[0; 16]);
                return Ok(made.is_err());
            };
            let hash = PasswordHash::new(&hash).map_err(|_| HashError::Failed)?;
            Ok(argon2.verify_password(password.as_bytes(), &hash).is_ok())
        })
        .await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_common_passwords_are_refused() {
        for bad in ["", "short", "passwordpassword", "aaaaaaaaaaaaaaaaaaaa", "123456789012345"] {
            assert!(check("/password", bad, &[]).is_some(), "{bad}");
        }
        assert!(check("/password", &"x".repeat(1 << 20), &[]).is_some());
        assert_eq!(check("/password", "lantern quay seven drizzle", &[]), None);
    }

    #[test]
    fn breached_passwords_are_refused() {
        // The estimate alone accepts it.
        let breached = "nuncateolvidare";
        assert!(zxcvbn::zxcvbn(breached, &[]).score() >= zxcvbn::Score::Three);
        assert!(check("/password", breached, &[]).is_some_and(|error| error.detail.contains("most common")));
    }

    #[test]
    fn passwords_of_known_names_are_refused() {
        let password = "Wolfenbuettel-Rechenzentrum";
        assert_eq!(check("/password", password, &["Berth"]), None);
        assert!(check("/password", password, &["Rechenzentrum Wolfenbuettel"]).is_some());
    }

    /// All of them are long enough, and are in the list of common passwords of `zxcvbn`.
    #[test]
    fn long_passwords_of_the_list_of_common_ones_are_refused() {
        for common in [
            "mailcreated5240",
            "1qaz2wsx3edc4rfv",
            "hd764nw5d7e1vb1",
            "lhbjkjubz2957704",
            "nemvxyheqdd5oqxyxyzi",
            "q1w2e3r4t5y6u7i8o9p0",
            "passwordstandard",
            "bpgjldsgjldthnf",
            "zxcvbnm123456789",
        ] {
            assert!(
                common.chars().count() >= MIN_CHARS && check("/password", common, &[]).is_some(),
                "{common}"
            );
        }
    }

    #[tokio::test]
    async fn only_the_right_password_is_verified() {
        let hasher = Hasher::new(1, PasswordCost::default());
        let sender = Disconnect::default();
        let hash = hasher.hash("lantern quay seven".to_owned(), [3; 16], &sender).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        let verify = |password: &str, hash| {
            hasher.verify(hasher.reserve().unwrap(), password.to_owned(), hash, &sender)
        };
        assert!(verify("lantern quay seven", Some(hash.clone())).await.unwrap());
        assert!(!verify("lantern quay eight", Some(hash)).await.unwrap());
        assert!(!verify("lantern quay seven", None).await.unwrap());
        assert_eq!(hasher.hashes(), 4);
    }

    /// A hasher with one permit, and work that holds it until the returned sender is dropped.
    async fn busy() -> (Hasher, std::sync::mpsc::Sender<()>) {
        let hasher = Hasher::new(1, PasswordCost::default());
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (started, start) = tokio::sync::oneshot::channel();
        let holder = hasher.clone();
        tokio::spawn(async move {
            let work = move || {
                let _ = started.send(());
                let _ = released.recv();
            };
            holder.run_blocking(holder.reserve().unwrap(), &Disconnect::default(), work).await
        });
        start.await.unwrap();
        (hasher, release)
    }

    #[tokio::test]
    async fn the_queue_is_bounded() {
        let (hasher, release) = busy().await;
        let sender = Disconnect::default();
        let run = || hasher.run_blocking(hasher.reserve().unwrap(), &sender, || ());
        let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(run())).collect();
        for one in &mut waiting {
            assert!(futures::poll!(one).is_pending());
        }
        assert_eq!(hasher.reserve().err(), Some(HashError::Busy));
        drop(release);
        for one in waiting {
            assert_eq!(one.await, Ok(()));
        }
        assert_eq!(run().await, Ok(()));
    }

    #[tokio::test]
    async fn work_of_a_disconnected_sender_is_dropped() {
        let (hasher, release) = busy().await;
        let sender = Disconnect::default();
        let guard = sender.guard();
        let place = hasher.reserve().unwrap();
        let mut abandoned = Box::pin(hasher.run_blocking(place, &sender, || ()));
        assert!(futures::poll!(&mut abandoned).is_pending());
        drop(guard);
        assert_eq!(abandoned.await, Err(HashError::Disconnected));
        drop(release);
        let place = hasher.reserve().unwrap();
        assert_eq!(hasher.run_blocking(place, &Disconnect::default(), || ()).await, Ok(()));
    }
}
