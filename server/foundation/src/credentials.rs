//! New random secrets, and the check of a secret by its hash. The portal does not store the secrets
//! themselves.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::Rng;
use sha2::{Digest, Sha256};

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const PREFIX: &str = "berth_";

fn digit(i: u32) -> char {
    BASE62.get((i % 62) as usize).map_or('0', |c| char::from(*c))
}

/// CRC-32 of the random part as six base62 characters.
fn checksum(random: &str) -> String {
    let mut crc = crc32fast::hash(random.as_bytes());
    let mut out = ['0'; 6];
    for slot in out.iter_mut().rev() {
        *slot = digit(crc % 62);
        crc /= 62;
    }
    out.iter().collect()
}

/// A new API token: `berth_`, 30 random base62 characters and 6 base62 characters of checksum.
pub fn new_api_token(rng: &mut impl Rng) -> String {
    let random: String = (0..30).map(|_| digit(rng.random_range(0..62))).collect();
    format!("{PREFIX}{random}{}", checksum(&random))
}

/// True if a text has the form of an API token. Other texts need no lookup in the database.
pub fn looks_like_api_token(text: &str) -> bool {
    text.strip_prefix(PREFIX)
        .filter(|rest| rest.len() == 36 && rest.is_ascii())
        .and_then(|rest| rest.split_at_checked(30))
        .is_some_and(|(random, sum)| checksum(random) == sum)
}

/// 256 random bits in base64, for cookies and one-time tickets.
pub fn new_opaque(rng: &mut impl Rng) -> String {
    let mut bytes = [0u8; 32];
    rng.fill(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A new key of 160 bits for TOTP, the length that RFC 4226 recommends.
pub fn new_totp_key(rng: &mut impl Rng) -> [u8; 20] {
    let mut bytes = [0u8; 20];
    rng.fill(&mut bytes);
    bytes
}

/// A new recovery code of 140 bits: 28 letters and digits without `i`, `l`, `o` and `u`, in seven groups.
pub fn new_recovery_code(rng: &mut impl Rng) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut group = || -> String {
        (0..4).filter_map(|_| ALPHABET.get(rng.random_range(0..32_usize))).map(|c| char::from(*c)).collect()
    };
    [(); 7].map(|()| group()).join("-")
}

/// The SHA-256 hash of a text.
pub fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// The SHA-256 hash of a secret, which the database has instead of the secret. A plain hash is enough, since
/// the secrets are long and random.
pub fn fingerprint(secret: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(secret))
}

/// The key of a session: the fingerprint of its cookie.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionKey(Arc<str>);

impl SessionKey {
    pub fn from_cookie(cookie: &str) -> Self {
        Self(fingerprint(cookie).into())
    }

    /// The key of a session with this stored hash of its cookie.
    pub fn from_hash(hash: &str) -> Self {
        Self(hash.into())
    }

    /// The stored hash of the cookie.
    pub fn hash(&self) -> &str {
        &self.0
    }

    /// A short name of the session for records. It gives no access.
    pub fn short_name(&self) -> String {
        self.0.chars().take(8).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_recovery_code_has_140_bits() {
        let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(7);
        let code = new_recovery_code(&mut rng);
        // Each character is one of 32.
        assert_eq!(code.split('-').map(str::len).collect::<Vec<_>>(), [4; 7], "{code}");
        assert_ne!(code, new_recovery_code(&mut rng));
        assert_ne!(new_totp_key(&mut rng), new_totp_key(&mut rng));
    }

    #[test]
    fn a_token_is_recognised_and_a_typo_is_not() {
        let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(7);
        let token = new_api_token(&mut rng);
        assert_eq!(token.len(), 42);
        assert!(looks_like_api_token(&token));
        for i in 6..token.len() {
            let mut typo = token.clone().into_bytes();
            typo[i] = if typo[i] == b'x' { b'y' } else { b'x' };
            assert!(!looks_like_api_token(&String::from_utf8(typo).unwrap()));
        }
        for bad in ["", "berth_", "ghp_abc", &"é".repeat(21)] {
            assert!(!looks_like_api_token(bad));
        }
        assert_ne!(fingerprint(&token), fingerprint("other"));
    }
}
