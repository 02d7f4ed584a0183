//! The key for the checkpoints of the audit log, and the last checkpoint outside of the database.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_store::audit::Checkpoint;
use rand::TryRngCore;
use rand::rngs::OsRng;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::keyfile;

/// The Ed25519 key for checkpoints.
pub struct AuditKey(Ed25519KeyPair);

impl AuditKey {
    /// The name of the key file in the data directory.
    pub const FILE: &'static str = "audit.key";

    /// Reads the key. A missing file is created, readable by its owner only.
    ///
    /// # Errors
    /// The file cannot be read or created, or has no key.
    pub fn open(file: &Path) -> Result<Self, String> {
        let make = || -> Result<String, String> {
            let mut seed = [0u8; 32];
            let filled = OsRng.try_fill_bytes(&mut seed);
            filled.map_err(|_| "the system provides no random numbers".to_owned())?;
            Ok(STANDARD.encode(seed))
        };
        Self::parse(&keyfile::find_or_make(file, make)?, file)
    }

    /// Reads an existing key.
    ///
    /// # Errors
    /// The file is missing, cannot be read, or has no key.
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = keyfile::find(file)?.ok_or_else(|| format!("{} does not exist", file.display()))?;
        Self::parse(&text, file)
    }

    /// Parses the contents of a key file: 32 bytes in base64.
    fn parse(text: &[u8], file: &Path) -> Result<Self, String> {
        let seed = std::str::from_utf8(text).ok().and_then(|text| STANDARD.decode(text.trim()).ok());
        let pair = seed.and_then(|seed| Ed25519KeyPair::from_seed_unchecked(&seed).ok());
        pair.map(Self).ok_or_else(|| {
            format!("{}: expected a key of 32 bytes in base64 (openssl rand -base64 32)", file.display())
        })
    }

    /// The public key in hexadecimal digits.
    pub fn public_key(&self) -> String {
        hex::encode(self.0.public_key())
    }

    /// The signature of a checkpoint after the checkpoint with the signature `before`, in hexadecimal digits.
    pub fn sign(&self, checkpoint: &Checkpoint, before: &str) -> String {
        hex::encode(self.0.sign(signed_text(checkpoint, before).as_bytes()))
    }

    /// True if this key signed the checkpoint after the checkpoint with the signature `before`.
    pub fn has_signed(&self, checkpoint: &Checkpoint, before: &str) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, self.0.public_key());
        let signature = hex::decode(&checkpoint.signature).unwrap_or_default();
        key.verify(signed_text(checkpoint, before).as_bytes(), &signature).is_ok()
    }
}

/// The text under a signature. It has the signature before it, so no checkpoint can be left out.
fn signed_text(checkpoint: &Checkpoint, before: &str) -> String {
    let Checkpoint { number, seq, hash, at, signature: _ } = checkpoint;
    format!("berth-audit-checkpoint-1\n{number}\n{seq}\n{hash}\n{at}\n{before}")
}

/// The last checkpoint as a file, which shows the removal of checkpoints from the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCheckpoint {
    pub number: i64,
    pub seq: i64,
    pub hash: String,
    pub signature: String,
}

impl From<&Checkpoint> for LastCheckpoint {
    fn from(checkpoint: &Checkpoint) -> Self {
        Self {
            number: checkpoint.number,
            seq: checkpoint.seq,
            hash: checkpoint.hash.clone(),
            signature: checkpoint.signature.clone(),
        }
    }
}

impl LastCheckpoint {
    /// The name of the file in the data directory.
    pub const FILE: &'static str = "audit.last";

    /// Reads the file, or returns `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read, or has other contents.
    pub fn find(file: &Path) -> Result<Option<Self>, String> {
        let Some(text) = keyfile::find(file)? else { return Ok(None) };
        serde_json::from_slice(&text).map(Some).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put(&self, file: &Path) -> Result<(), String> {
        let text = serde_json::to_vec(self).map_err(|e| e.to_string())?;
        replace(file, &text).map_err(|e| format!("{}: {e}", file.display()))
    }
}

/// Replaces a file as a whole.
fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    let part = file.with_extension("part");
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    out.write_all(text)?;
    out.sync_all()?;
    std::fs::rename(&part, file)?;
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn checkpoint() -> Checkpoint {
        Checkpoint { number: 2, seq: 40, hash: "ab".to_owned(), at: 7, signature: String::new() }
    }

    #[test]
    fn a_signature_covers_the_checkpoint_and_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(AuditKey::FILE);
        assert!(AuditKey::read(&file).is_err());
        let key = AuditKey::open(&file).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let signed = Checkpoint { signature: key.sign(&checkpoint(), "before"), ..checkpoint() };
        let same = AuditKey::read(&file).unwrap();
        assert_eq!(same.public_key(), key.public_key());
        assert!(same.has_signed(&signed, "before"));
        assert!(!key.has_signed(&signed, "other"));
        assert!(!key.has_signed(&checkpoint(), "before"));
        for other in [
            Checkpoint { number: 3, ..signed.clone() },
            Checkpoint { seq: 41, ..signed.clone() },
            Checkpoint { hash: "ac".to_owned(), ..signed.clone() },
            Checkpoint { at: 8, ..signed.clone() },
        ] {
            assert!(!key.has_signed(&other, "before"), "{other:?}");
        }
        let foreign = AuditKey::open(&dir.path().join("other.key")).unwrap();
        assert!(!foreign.has_signed(&signed, "before"));
    }

    #[test]
    fn the_last_checkpoint_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(LastCheckpoint::FILE);
        assert_eq!(LastCheckpoint::find(&file), Ok(None));
        for number in 1..3 {
            let last = LastCheckpoint::from(&Checkpoint { number, ..checkpoint() });
            last.put(&file).unwrap();
            assert_eq!(LastCheckpoint::find(&file), Ok(Some(last)));
        }
        std::fs::write(&file, "{").unwrap();
        assert!(LastCheckpoint::find(&file).is_err());
    }
}
