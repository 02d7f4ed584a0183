//! Secrets that must be read again, sealed: each under a key of its own, which is wrapped by the portal's key.
//!
//! What is sealed opens only in its own place: kind, organization, name and version are bound to it. Keys and
//! nonces come from the system's randomness, never from the portal's, which tests can repeat. Must not know
//! where the sealed texts are kept.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};

use crate::keyfile;

/// Where the key is kept in the data directory.
pub const FILE: &str = "secrets.key";
/// Begins everything that is sealed; another form will have another beginning.
const FORM: &str = "s1";
const KEY: usize = 32;
const NONCE: usize = 24;

/// Why something cannot be sealed or opened. Says nothing of what is inside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    #[error("it is sealed with the key {0}, which this portal was not given")]
    UnknownKey(String),
    #[error("it was changed, or stands in another's place")]
    Forged,
    #[error("it is not sealed as this portal does it")]
    Malformed,
    #[error("the system gives no randomness")]
    Randomness,
}

/// What a sealed text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    pub kind: &'static str,
    pub org: &'a str,
    pub name: &'a str,
    pub version: i64,
}

impl Place<'_> {
    /// As it is bound to one part of an envelope. No two places spell the same.
    fn bound(&self, part: &str) -> Vec<u8> {
        let mut out = Vec::new();
        for text in [FORM, part, self.kind, self.org, self.name] {
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

/// A key that wraps others.
struct Wrapper {
    /// Names it without giving it away.
    id: String,
    cipher: XChaCha20Poly1305,
}

impl Wrapper {
    fn of(key: &[u8]) -> Option<Self> {
        let cipher = XChaCha20Poly1305::new_from_slice(key).ok()?;
        let mut sha = Sha256::new();
        sha.update(b"berth key id");
        sha.update(key);
        let id: String = sha.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Some(Self { id, cipher })
    }

    /// A key as a file holds it: 32 bytes in base64.
    fn read(text: &[u8], file: &Path) -> Result<Self, String> {
        let key = std::str::from_utf8(text).ok().and_then(|text| STANDARD.decode(text.trim()).ok());
        key.as_deref().and_then(Self::of).ok_or_else(|| {
            format!(
                "{}: it holds no key, which is 32 bytes in base64 (openssl rand -base64 32)",
                file.display()
            )
        })
    }
}

/// A nonce, and what was sealed with it.
fn close(cipher: &XChaCha20Poly1305, plain: &[u8], bound: &[u8]) -> Result<String, EnvelopeError> {
    let nonce = random::<NONCE>()?;
    let payload = Payload { msg: plain, aad: bound };
    // It fails only for what is longer than any memory.
    let sealed = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| EnvelopeError::Malformed)?;
    let mut out = nonce.to_vec();
    out.extend(sealed);
    Ok(URL_SAFE_NO_PAD.encode(out))
}

fn disclose(cipher: &XChaCha20Poly1305, text: &str, bound: &[u8]) -> Result<Vec<u8>, EnvelopeError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| EnvelopeError::Malformed)?;
    let (nonce, sealed) = bytes.split_first_chunk::<NONCE>().ok_or(EnvelopeError::Malformed)?;
    let payload = Payload { msg: sealed, aad: bound };
    cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| EnvelopeError::Forged)
}

/// The parts of a sealed text: the wrapping key's id, the wrapped key, the content.
fn parts(sealed: &str) -> Option<(&str, &str, &str)> {
    let mut parts = sealed.split('.');
    let found = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    (found.0 == FORM && parts.next().is_none()).then_some((found.1, found.2, found.3))
}

/// Whether a text is sealed, by whatever key.
pub fn is_sealed(text: &str) -> bool {
    parts(text).is_some()
}

/// The key that seals, and those before it, which still open.
pub struct Keys {
    present: Wrapper,
    former: Vec<Wrapper>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("present", &self.present.id).finish_non_exhaustive()
    }
}

impl Keys {
    /// The key in `file`, which is made where there is none, and the keys before it.
    pub fn open(file: &Path, former: &[PathBuf]) -> Result<Self, String> {
        let text = keyfile::find_or_make(file, || {
            random::<KEY>().map(|key| format!("{}\n", STANDARD.encode(key))).map_err(|e| e.to_string())
        })?;
        Ok(Self { present: Wrapper::read(&text, file)?, former: Self::formers(former)? })
    }

    fn formers(files: &[PathBuf]) -> Result<Vec<Wrapper>, String> {
        let read = |file: &PathBuf| match keyfile::find(file)? {
            Some(text) => Wrapper::read(&text, file),
            None => Err(format!("{}: there is no such file", file.display())),
        };
        files.iter().map(read).collect()
    }

    /// Whether one of these files has the key of each of these sealed texts.
    pub fn all_known(former: &[PathBuf], sealed: &[String]) -> Result<bool, String> {
        let known = Self::formers(former)?;
        let has = |text: &String| parts(text).is_none_or(|(id, ..)| known.iter().any(|key| key.id == id));
        Ok(sealed.iter().all(has))
    }

    /// Names the present key.
    pub fn id(&self) -> &str {
        &self.present.id
    }

    fn wrapper(&self, id: &str) -> Result<&Wrapper, EnvelopeError> {
        let mut all = std::iter::once(&self.present).chain(&self.former);
        all.find(|key| key.id == id).ok_or_else(|| EnvelopeError::UnknownKey(id.to_owned()))
    }

    fn unwrap_key(&self, place: &Place<'_>, id: &str, wrapped: &str) -> Result<Vec<u8>, EnvelopeError> {
        disclose(&self.wrapper(id)?.cipher, wrapped, &place.bound("key"))
    }

    fn wrap_key(&self, place: &Place<'_>, key: &[u8]) -> Result<String, EnvelopeError> {
        close(&self.present.cipher, key, &place.bound("key"))
    }

    /// Seals a text for one place.
    pub fn seal(&self, place: &Place<'_>, plain: &str) -> Result<String, EnvelopeError> {
        let key = random::<KEY>()?;
        let inner = Wrapper::of(&key).ok_or(EnvelopeError::Malformed)?;
        let content = close(&inner.cipher, plain.as_bytes(), &place.bound("content"))?;
        Ok(format!("{FORM}.{}.{}.{content}", self.present.id, self.wrap_key(place, &key)?))
    }

    /// Opens what was sealed for this very place.
    pub fn open_sealed(&self, place: &Place<'_>, sealed: &str) -> Result<String, EnvelopeError> {
        let (id, wrapped, content) = parts(sealed).ok_or(EnvelopeError::Malformed)?;
        let key = self.unwrap_key(place, id, wrapped)?;
        let inner = Wrapper::of(&key).ok_or(EnvelopeError::Malformed)?;
        let plain = disclose(&inner.cipher, content, &place.bound("content"))?;
        String::from_utf8(plain).map_err(|_| EnvelopeError::Malformed)
    }

    /// The same under the present key; `None` when it is that already. The content itself stays as it is.
    pub fn rewrap(&self, place: &Place<'_>, sealed: &str) -> Result<Option<String>, EnvelopeError> {
        let (id, wrapped, content) = parts(sealed).ok_or(EnvelopeError::Malformed)?;
        if id == self.present.id {
            return Ok(None);
        }
        let key = self.unwrap_key(place, id, wrapped)?;
        Ok(Some(format!("{FORM}.{}.{}.{content}", self.present.id, self.wrap_key(place, &key)?)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    const PLACE: Place<'_> = Place { kind: "secret", org: "org_1", name: "hf-token", version: 3 };

    fn keys() -> Keys {
        Keys { present: Wrapper::of(&random::<KEY>().unwrap()).unwrap(), former: Vec::new() }
    }

    #[test]
    fn what_is_sealed_opens_in_its_place_only() {
        let keys = keys();
        let sealed = keys.seal(&PLACE, "hf_0123456789").unwrap();
        assert!(is_sealed(&sealed) && !sealed.contains("hf_0123456789"));
        assert_eq!(keys.open_sealed(&PLACE, &sealed).as_deref(), Ok("hf_0123456789"));
        assert_ne!(keys.seal(&PLACE, "hf_0123456789").unwrap(), sealed, "never twice the same");
        let others = [
            Place { kind: "webhook", ..PLACE },
            Place { org: "org_2", ..PLACE },
            Place { name: "hf-toke", ..PLACE },
            Place { version: 2, ..PLACE },
            // The same letters, cut elsewhere.
            Place { org: "org_1h", name: "f-token", ..PLACE },
        ];
        for other in others {
            assert_eq!(keys.open_sealed(&other, &sealed), Err(EnvelopeError::Forged), "{other:?}");
        }
        let stranger = self::keys();
        let unknown = EnvelopeError::UnknownKey(keys.id().to_owned());
        assert_eq!(stranger.open_sealed(&PLACE, &sealed), Err(unknown));
        for bad in ["", "whsec_abc", "s1.a.b", "s1.a.b.c.d", "s2.a.b.c"] {
            assert!(!is_sealed(bad));
            assert_eq!(keys.open_sealed(&PLACE, bad), Err(EnvelopeError::Malformed), "{bad}");
        }
    }

    #[test]
    fn another_key_takes_over_and_the_content_stays() {
        let mut keys = keys();
        let sealed = keys.seal(&PLACE, "hf_0123456789").unwrap();
        assert_eq!(keys.rewrap(&PLACE, &sealed), Ok(None));
        let old = std::mem::replace(&mut keys.present, Wrapper::of(&random::<KEY>().unwrap()).unwrap());
        assert!(matches!(keys.rewrap(&PLACE, &sealed), Err(EnvelopeError::UnknownKey(_))));
        keys.former.push(old);
        assert_eq!(keys.open_sealed(&PLACE, &sealed).as_deref(), Ok("hf_0123456789"));
        let moved = keys.rewrap(&PLACE, &sealed).unwrap().unwrap();
        assert_eq!(moved.rsplit('.').next(), sealed.rsplit('.').next());
        keys.former.clear();
        assert_eq!(keys.open_sealed(&PLACE, &moved).as_deref(), Ok("hf_0123456789"));
        assert!(keys.rewrap(&Place { version: 4, ..PLACE }, &sealed).is_err());
    }

    #[test]
    fn the_key_is_made_once_and_only_its_owner_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let first = Keys::open(&file, &[]).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let sealed = first.seal(&PLACE, "hf_0123456789").unwrap();
        let again = Keys::open(&file, &[]).unwrap();
        assert_eq!(again.open_sealed(&PLACE, &sealed).as_deref(), Ok("hf_0123456789"));
        let old = dir.path().join("old.key");
        std::fs::rename(&file, &old).unwrap();
        assert_eq!(Keys::all_known(&[], std::slice::from_ref(&sealed)), Ok(false));
        assert_eq!(Keys::all_known(std::slice::from_ref(&old), std::slice::from_ref(&sealed)), Ok(true));
        let rotated = Keys::open(&file, std::slice::from_ref(&old)).unwrap();
        assert_ne!(rotated.id(), first.id());
        assert!(rotated.rewrap(&PLACE, &sealed).unwrap().is_some());
        assert!(Keys::open(&file, &[dir.path().join("none")]).is_err());
        std::fs::write(&file, "c2hvcnQ=").unwrap();
        let said = Keys::open(&file, &[]).unwrap_err();
        assert!(said.contains("32 bytes") && !said.contains("c2hvcnQ"), "{said}");
    }

    proptest! {
        #[test]
        fn every_text_comes_back_and_no_changed_letter_is_accepted(plain in ".{0,200}", at: prop::sample::Index) {
            let keys = keys();
            let sealed = keys.seal(&PLACE, &plain).unwrap();
            prop_assert_eq!(keys.open_sealed(&PLACE, &sealed), Ok(plain));
            let mut changed = sealed.clone().into_bytes();
            let at = at.index(changed.len());
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            prop_assert!(keys.open_sealed(&PLACE, &changed).is_err(), "{}", at);
        }
    }
}
