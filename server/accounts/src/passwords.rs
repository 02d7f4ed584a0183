//! Password rules and hashing. argon2id runs outside the async threads, with a limit on concurrent hashes.

use std::sync::Arc;

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use berth_types::problems::FieldError;
use tokio::sync::Semaphore;

/// Minimum length of a password as the only factor (NIST SP 800-63B-4).
pub const MIN_CHARS: usize = 15;
pub const MAX_CHARS: usize = 1_024;

/// argon2id with OWASP's first recommendation: 19 MiB, two passes, one lane.
fn argon2() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::new(19 * 1024, 2, 1, None).unwrap_or_default())
}

/// Checks length and strength of a new password. `known` has the user's own words, such as name and address.
pub fn check(pointer: &str, password: &str, known: &[&str]) -> Option<FieldError> {
    let chars = password.chars().count();
    if chars < MIN_CHARS {
        return Some(FieldError::new(pointer, "Use at least 15 characters, such as a few random words."));
    }
    if chars > MAX_CHARS {
        return Some(FieldError::new(pointer, "Use at most 1024 characters."));
    }
    // The estimate is slow for long texts, and a long password is strong by its length, so only the head is
    // scored.
    let head: String = password.chars().take(64).collect();
    let weak = zxcvbn::zxcvbn(&head, known).score() < zxcvbn::Score::Three;
    weak.then(|| FieldError::new(pointer, "This password is among the most common. Choose another."))
}

/// Hashes and verifies passwords with a limit on concurrent hashes.
#[derive(Clone)]
pub struct Hasher {
    permits: Arc<Semaphore>,
}

/// A hash could not be computed or parsed.
#[derive(Debug, thiserror::Error)]
#[error("a password cannot be hashed")]
pub struct HashError;

impl Hasher {
    pub fn new(max_concurrent: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(max_concurrent.max(1))) }
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HashError> {
        let _permit = self.permits.acquire().await.map_err(|_| HashError)?;
        tokio::task::spawn_blocking(work).await.map_err(|_| HashError)
    }

    /// Returns the PHC string of a password with this salt.
    pub async fn hash(&self, password: String, salt: [u8; 16]) -> Result<String, HashError> {
        self.run_blocking(move || {
            let hash: PasswordHash =
                argon2().hash_password_with_salt(password.as_bytes(), &salt).map_err(|_| HashError)?;
            Ok(hash.to_string())
        })
        .await?
    }

    /// Returns true if the password matches the hash. Without a hash (unknown account) it takes the same time
    /// and returns false.
    pub async fn verify(&self, password: String, hash: Option<String>) -> Result<bool, HashError> {
        self.run_blocking(move || {
            let Some(hash) = hash else {
                let made: Result<PasswordHash, _> =
                    argon2().hash_password_with_salt(password.as_bytes(), &[0; 16]);
                return Ok(made.is_err());
            };
            let hash = PasswordHash::new(&hash).map_err(|_| HashError)?;
            Ok(argon2().verify_password(password.as_bytes(), &hash).is_ok())
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

    #[tokio::test]
    async fn only_the_right_password_is_verified() {
        let hasher = Hasher::new(1);
        let hash = hasher.hash("lantern quay seven".to_owned(), [3; 16]).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(hasher.verify("lantern quay seven".to_owned(), Some(hash.clone())).await.unwrap());
        assert!(!hasher.verify("lantern quay eight".to_owned(), Some(hash)).await.unwrap());
        assert!(!hasher.verify("lantern quay seven".to_owned(), None).await.unwrap());
    }
}
