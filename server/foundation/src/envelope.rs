//! Envelope encryption of stored secrets. Each secret has its own key, and the portal's key encrypts
//! ("wraps") it.
//!
//! A sealed text opens only with its own context: kind, organization, name and version are authenticated
//! data. Keys and nonces come from the randomness of the operating system, never from the portal's generator,
//! which tests can repeat. Must not know the storage of the sealed texts.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use rand::TryRngCore;
use rand::rngs::OsRng;
use ring::hmac;
use sha2::{Digest, Sha256};

use crate::keyfile;

/// The name of the key file in the data directory.
pub const FILE: &str = "secrets.key";
/// The prefix of a sealed text. It names the version of the format.
const FORMAT: &str = "s1";
const KEY: usize = 32;
const NONCE: usize = 24;

/// The reason of a failed seal or open. It contains no part of the plain text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    #[error("it is sealed with the key {0}, which this portal does not have")]
    UnknownKey(String),
    #[error("it was changed, or belongs to another object")]
    Forged,
    #[error("its format is unknown")]
    Malformed,
    #[error("the system provides no random numbers")]
    Randomness,
}

/// The owner of a sealed text, bound to it as authenticated data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealingContext<'a> {
    pub kind: &'static str,
    pub org: &'a str,
    pub name: &'a str,
    pub version: i64,
}

impl SealingContext<'_> {
    /// The authenticated data for one part of an envelope. Two different contexts never have the same bytes,
    /// since each text follows its length.
    fn associated_data(&self, part: &str) -> Vec<u8> {
        let mut out = Vec::new();
        for text in [FORMAT, part, self.kind, self.org, self.name] {
            out.extend((text.len() as u64).to_be_bytes());
            out.extend(text.as_bytes());
        }
        out.extend(self.version.to_be_bytes());
        out
    }
}

fn random<const N: usize>() -> Result<[u8; N], EnvelopeError> {
    let mut bytes = [0; N];
    OsRng.try_fill_bytes(&mut bytes).map_err(|_| EnvelopeError::Randomness)?;
    Ok(bytes)
}

/// A new random key of 32 bytes in base64.
pub fn new_key() -> Result<String, EnvelopeError> {
    random::<KEY>().map(|key| STANDARD.encode(key))
}

/// A key with its cipher.
struct SealingKey {
    /// Derived from the key by a hash, so it does not reveal the key.
    id: String,
    cipher: XChaCha20Poly1305,
    /// Signs the names of purposes. A signature is the key for its purpose.
    root: hmac::Key,
}

impl SealingKey {
    fn from_bytes(key: &[u8]) -> Option<Self> {
        let cipher = XChaCha20Poly1305::new_from_slice(key).ok()?;
        let mut sha = Sha256::new();
        sha.update(b"berth key id");
        sha.update(key);
        let id = sha.finalize().get(..8).map(hex::encode)?;
        Some(Self { id, cipher, root: hmac::Key::new(hmac::HMAC_SHA256, key) })
    }

    /// The key for one purpose alone.
    fn derive(&self, purpose: &str) -> hmac::Tag {
        hmac::sign(&self.root, purpose.as_bytes())
    }

    /// Parses the contents of a key file: 32 bytes in base64.
    fn parse(text: &[u8], file: &Path) -> Result<Self, String> {
        let key = std::str::from_utf8(text).ok().and_then(|text| STANDARD.decode(text.trim()).ok());
        key.as_deref().and_then(Self::from_bytes).ok_or_else(|| {
            format!("{}: expected a key of 32 bytes in base64 (openssl rand -base64 32)", file.display())
        })
    }
}

/// Encrypts with a new nonce. Returns nonce and ciphertext in base64.
fn encrypt(cipher: &XChaCha20Poly1305, plain: &[u8], aad: &[u8]) -> Result<String, EnvelopeError> {
    let nonce = random::<NONCE>()?;
    let payload = Payload { msg: plain, aad };
    // It fails only for a text beyond the maximum length of the cipher.
    let sealed = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| EnvelopeError::Malformed)?;
    let mut out = nonce.to_vec();
    out.extend(sealed);
    Ok(URL_SAFE_NO_PAD.encode(out))
}

fn decrypt(cipher: &XChaCha20Poly1305, text: &str, aad: &[u8]) -> Result<Vec<u8>, EnvelopeError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| EnvelopeError::Malformed)?;
    let (nonce, sealed) = bytes.split_first_chunk::<NONCE>().ok_or(EnvelopeError::Malformed)?;
    let payload = Payload { msg: sealed, aad };
    cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| EnvelopeError::Forged)
}

/// Splits a sealed text into the id of the wrapping key, the wrapped key and the content.
fn split_sealed(sealed: &str) -> Option<(&str, &str, &str)> {
    let mut parts = sealed.split('.');
    let (format, id, key, content) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    (format == FORMAT && parts.next().is_none()).then_some((id, key, content))
}

/// True if a text has the form of a sealed text, with any key.
pub fn is_sealed(text: &str) -> bool {
    split_sealed(text).is_some()
}

/// The present key for sealing, and former keys only for opening.
pub struct Keys {
    present: SealingKey,
    former: Vec<SealingKey>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("present", &self.present.id).finish_non_exhaustive()
    }
}

impl Keys {
    /// Reads the present key from `file` and the former keys. A missing `file` is created with a new key.
    ///
    /// # Errors
    /// A file cannot be read or created, or has no key.
    pub fn open(file: &Path, former: &[PathBuf]) -> Result<Self, String> {
        let text = keyfile::find_or_make(file, || {
            new_key().map(|key| format!("{key}\n")).map_err(|e| e.to_string())
        })?;
        Ok(Self { present: SealingKey::parse(&text, file)?, former: Self::read_former(former)? })
    }

    fn read_former(files: &[PathBuf]) -> Result<Vec<SealingKey>, String> {
        let read = |file: &PathBuf| match keyfile::find(file)? {
            Some(text) => SealingKey::parse(&text, file),
            None => Err(format!("{}: the file does not exist", file.display())),
        };
        files.iter().map(read).collect()
    }

    /// True if the former keys in these files include the wrapping key of every sealed text.
    pub fn can_open_all(former: &[PathBuf], sealed: &[String]) -> Result<bool, String> {
        let keys = Self::read_former(former)?;
        let has =
            |text: &String| split_sealed(text).is_none_or(|(id, ..)| keys.iter().any(|key| key.id == id));
        Ok(sealed.iter().all(has))
    }

    /// The id of the present key.
    pub fn id(&self) -> &str {
        &self.present.id
    }

    fn get_key(&self, id: &str) -> Result<&SealingKey, EnvelopeError> {
        let mut all = std::iter::once(&self.present).chain(&self.former);
        all.find(|key| key.id == id).ok_or_else(|| EnvelopeError::UnknownKey(id.to_owned()))
    }

    fn unwrap_key(
        &self,
        context: &SealingContext<'_>,
        id: &str,
        wrapped: &str,
    ) -> Result<Vec<u8>, EnvelopeError> {
        decrypt(&self.get_key(id)?.cipher, wrapped, &context.associated_data("key"))
    }

    fn wrap_key(&self, context: &SealingContext<'_>, key: &[u8]) -> Result<String, EnvelopeError> {
        encrypt(&self.present.cipher, key, &context.associated_data("key"))
    }

    /// A key for one purpose alone, derived from the present key by HMAC-SHA-256.
    pub fn derive(&self, purpose: &str) -> hmac::Tag {
        self.present.derive(purpose)
    }

    /// The same from the key with which the portal ran last. That is the present key, unless only a former one sealed these
    /// texts. Without any text it is the first former key for a present key that is new.
    pub fn derive_last(&self, purpose: &str, sealed: &[String], is_new: bool) -> hmac::Tag {
        let has_sealed = |key: &&SealingKey| {
            sealed.iter().any(|text| split_sealed(text).is_some_and(|(id, ..)| id == key.id))
        };
        let found = std::iter::once(&self.present).chain(&self.former).find(has_sealed);
        let last = found.or_else(|| self.former.first().filter(|_| is_new));
        last.unwrap_or(&self.present).derive(purpose)
    }

    /// Seals a text for one context.
    pub fn seal(&self, context: &SealingContext<'_>, plain: &str) -> Result<String, EnvelopeError> {
        let key = random::<KEY>()?;
        let inner = SealingKey::from_bytes(&key).ok_or(EnvelopeError::Malformed)?;
        let content = encrypt(&inner.cipher, plain.as_bytes(), &context.associated_data("content"))?;
        Ok(format!("{FORMAT}.{}.{}.{content}", self.present.id, self.wrap_key(context, &key)?))
    }

    /// Opens a text that was sealed for exactly this context.
    pub fn open_sealed(&self, context: &SealingContext<'_>, sealed: &str) -> Result<String, EnvelopeError> {
        let (id, wrapped, content) = split_sealed(sealed).ok_or(EnvelopeError::Malformed)?;
        let key = self.unwrap_key(context, id, wrapped)?;
        let inner = SealingKey::from_bytes(&key).ok_or(EnvelopeError::Malformed)?;
        let plain = decrypt(&inner.cipher, content, &context.associated_data("content"))?;
        String::from_utf8(plain).map_err(|_| EnvelopeError::Malformed)
    }

    /// Wraps the key of a sealed text with the present key. The content stays unchanged. Returns `None` if
    /// the present key wraps it already.
    pub fn rewrap(
        &self,
        context: &SealingContext<'_>,
        sealed: &str,
    ) -> Result<Option<String>, EnvelopeError> {
        let (id, wrapped, content) = split_sealed(sealed).ok_or(EnvelopeError::Malformed)?;
        if id == self.present.id {
            return Ok(None);
        }
        let key = self.unwrap_key(context, id, wrapped)?;
        Ok(Some(format!("{FORMAT}.{}.{}.{content}", self.present.id, self.wrap_key(context, &key)?)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    const CONTEXT: SealingContext<'_> =
        SealingContext { kind: "secret", org: "org_1", name: "hf-token", version: 3 };

    fn keys() -> Keys {
        Keys { present: SealingKey::from_bytes(&random::<KEY>().unwrap()).unwrap(), former: Vec::new() }
    }

    #[test]
    fn a_sealed_text_opens_only_in_its_context() {
        let keys = keys();
        let sealed = keys.seal(&CONTEXT, "hf_0123456789").unwrap();
        assert!(is_sealed(&sealed) && !sealed.contains("hf_0123456789"));
        assert_eq!(keys.open_sealed(&CONTEXT, &sealed).as_deref(), Ok("hf_0123456789"));
        assert_ne!(keys.seal(&CONTEXT, "hf_0123456789").unwrap(), sealed, "never twice the same");
        let others = [
            SealingContext { kind: "webhook", ..CONTEXT },
            SealingContext { org: "org_2", ..CONTEXT },
            SealingContext { name: "hf-toke", ..CONTEXT },
            SealingContext { version: 2, ..CONTEXT },
            // The same letters with another boundary between organization and name.
            SealingContext { org: "org_1h", name: "f-token", ..CONTEXT },
        ];
        for other in others {
            assert_eq!(keys.open_sealed(&other, &sealed), Err(EnvelopeError::Forged), "{other:?}");
        }
        let stranger = self::keys();
        let unknown = EnvelopeError::UnknownKey(keys.id().to_owned());
        assert_eq!(stranger.open_sealed(&CONTEXT, &sealed), Err(unknown));
        for bad in ["", "whsec_abc", "s1.a.b", "s1.a.b.c.d", "s2.a.b.c"] {
            assert!(!is_sealed(bad));
            assert_eq!(keys.open_sealed(&CONTEXT, bad), Err(EnvelopeError::Malformed), "{bad}");
        }
    }

    #[test]
    fn each_purpose_has_a_key_of_its_own() {
        let keys = Keys { present: SealingKey::from_bytes(&[7; KEY]).unwrap(), former: Vec::new() };
        let signed = |keys: &Keys, purpose: &str| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, keys.derive(purpose).as_ref());
            hex::encode(hmac::sign(&key, b"job_1|1|0"))
        };
        // By the module hmac of Python.
        let expected = "756ff868fdac78c9a422525555348bbe88b9b4740e4233ded34a7980eea1210d";
        assert_eq!(signed(&keys, "berth replica token 1"), expected);
        assert_ne!(signed(&keys, "berth replica token 2"), expected);
        assert_ne!(signed(&self::keys(), "berth replica token 1"), expected);
    }

    #[test]
    fn the_last_key_is_the_one_that_sealed_the_texts() {
        let key = |byte: u8| SealingKey::from_bytes(&[byte; KEY]).unwrap();
        let sealed_by = |byte: u8| {
            let keys = Keys { present: key(byte), former: Vec::new() };
            keys.seal(&CONTEXT, "hf_0123456789").unwrap()
        };
        let keys = Keys { present: key(1), former: vec![key(2), key(3)] };
        let last = |sealed: &[String], is_new: bool| keys.derive_last("a purpose", sealed, is_new);
        for (sealed, is_new, expected) in [
            (vec![], false, 1),
            (vec![], true, 2),
            (vec![sealed_by(3)], true, 3),
            (vec![sealed_by(3)], false, 3),
            (vec![sealed_by(3), sealed_by(1)], false, 1),
            (vec![sealed_by(4)], false, 1),
            (vec!["whsec_not_sealed".to_owned()], true, 2),
        ] {
            let expected = key(expected).derive("a purpose");
            assert_eq!(last(&sealed, is_new).as_ref(), expected.as_ref(), "{sealed:?} {is_new}");
        }
        let only = Keys { present: key(1), former: Vec::new() };
        assert_eq!(only.derive_last("a purpose", &[], true).as_ref(), only.derive("a purpose").as_ref());
    }

    #[test]
    fn a_rewrap_changes_the_key_and_not_the_content() {
        let mut keys = keys();
        let sealed = keys.seal(&CONTEXT, "hf_0123456789").unwrap();
        assert_eq!(keys.rewrap(&CONTEXT, &sealed), Ok(None));
        let old =
            std::mem::replace(&mut keys.present, SealingKey::from_bytes(&random::<KEY>().unwrap()).unwrap());
        assert!(matches!(keys.rewrap(&CONTEXT, &sealed), Err(EnvelopeError::UnknownKey(_))));
        keys.former.push(old);
        assert_eq!(keys.open_sealed(&CONTEXT, &sealed).as_deref(), Ok("hf_0123456789"));
        let moved = keys.rewrap(&CONTEXT, &sealed).unwrap().unwrap();
        assert_eq!(moved.rsplit('.').next(), sealed.rsplit('.').next());
        keys.former.clear();
        assert_eq!(keys.open_sealed(&CONTEXT, &moved).as_deref(), Ok("hf_0123456789"));
        assert!(keys.rewrap(&SealingContext { version: 4, ..CONTEXT }, &sealed).is_err());
    }

    #[test]
    fn the_key_file_is_created_once_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let first = Keys::open(&file, &[]).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let sealed = first.seal(&CONTEXT, "hf_0123456789").unwrap();
        let again = Keys::open(&file, &[]).unwrap();
        assert_eq!(again.open_sealed(&CONTEXT, &sealed).as_deref(), Ok("hf_0123456789"));
        let old = dir.path().join("old.key");
        std::fs::rename(&file, &old).unwrap();
        assert_eq!(Keys::can_open_all(&[], std::slice::from_ref(&sealed)), Ok(false));
        assert_eq!(Keys::can_open_all(std::slice::from_ref(&old), std::slice::from_ref(&sealed)), Ok(true));
        let rotated = Keys::open(&file, std::slice::from_ref(&old)).unwrap();
        assert_ne!(rotated.id(), first.id());
        assert!(rotated.rewrap(&CONTEXT, &sealed).unwrap().is_some());
        assert!(Keys::open(&file, &[dir.path().join("none")]).is_err());
        std::fs::write(&file, "c2hvcnQ=").unwrap();
        let error = Keys::open(&file, &[]).unwrap_err();
        assert!(error.contains("32 bytes") && !error.contains("c2hvcnQ"), "{error}");
    }

    proptest! {
        #[test]
        fn every_text_comes_back_and_no_changed_letter_is_accepted(plain in ".{0,200}", at: prop::sample::Index) {
            let keys = keys();
            let sealed = keys.seal(&CONTEXT, &plain).unwrap();
            prop_assert_eq!(keys.open_sealed(&CONTEXT, &sealed), Ok(plain));
            let mut changed = sealed.clone().into_bytes();
            let at = at.index(changed.len());
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            prop_assert!(keys.open_sealed(&CONTEXT, &changed).is_err(), "{}", at);
        }
    }
}
