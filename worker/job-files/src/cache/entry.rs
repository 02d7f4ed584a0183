//! The keys and the names of cached files.

use std::fmt::Write;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The longest id of an organization in bytes.
const MOST_ID: usize = 64;
/// The hexadecimal digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// A content in the files of one organization.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CacheKey {
    /// The id of the organization, which is the name of a directory.
    organization: String,
    /// In hexadecimal digits.
    sha256: String,
}

impl CacheKey {
    /// `None`: this is no id of an organization, or no SHA-256 of 32 bytes. Such a file is not cached.
    pub fn new(organization: &str, sha256: &[u8]) -> Option<Self> {
        let digits = sha256.iter().fold(String::new(), |mut text, byte| {
            // A write into a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        Self::from_digits(organization, &digits)
    }

    pub(super) fn from_digits(organization: &str, sha256: &str) -> Option<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let named = (1..=MOST_ID).contains(&organization.len()) && organization.chars().all(plain);
        let digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        let hash = sha256.len() == HASH_DIGITS && sha256.chars().all(digit);
        (named && hash).then(|| Self { organization: organization.to_owned(), sha256: sha256.to_owned() })
    }

    pub(super) fn organization(&self) -> &str {
        &self.organization
    }

    pub(super) fn sha256(&self) -> &str {
        &self.sha256
    }
}

/// The inode of a file and the time of its last change. Every write alters it, and no link does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStamp {
    inode: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl FileStamp {
    pub fn from_metadata(file: &Metadata) -> Self {
        Self { inode: file.ino(), modified_s: file.mtime(), modified_ns: file.mtime_nsec() }
    }
}

/// The name of a cached file. It has the stamp of the file, so name and stamp reach the disk in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryName {
    pub sha256: String,
    pub stamp: FileStamp,
    /// The start of the host in which the file was stored. After another one its content may be torn.
    pub boot: String,
}

impl EntryName {
    pub fn text(&self) -> String {
        let FileStamp { inode, modified_s, modified_ns } = self.stamp;
        format!("{}.{inode}.{modified_s}.{modified_ns}.{}", self.sha256, self.boot)
    }

    /// `None`: this is another text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, '.');
        let sha256 = parts.next()?.to_owned();
        let inode = parts.next()?.parse().ok()?;
        let modified_s = parts.next()?.parse().ok()?;
        let modified_ns = parts.next()?.parse().ok()?;
        let boot = parts.next()?.to_owned();
        Some(Self { sha256, stamp: FileStamp { inode, modified_s, modified_ns }, boot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_directory_of_its_own_and_a_hash() {
        let key = CacheKey::new("org_01-a", &[0xab; 32]).unwrap();
        assert_eq!((key.organization(), key.sha256()), ("org_01-a", "ab".repeat(32).as_str()));
        for bad in ["", ".", "..", "a/b", "a.b", "ä", &"o".repeat(65)] {
            assert_eq!(CacheKey::new(bad, &[0; 32]), None, "{bad:?}");
        }
        for bad in [&[0; 31][..], &[0; 33], &[]] {
            assert_eq!(CacheKey::new("org", bad), None);
        }
        assert_eq!(CacheKey::from_digits("org", &"AB".repeat(32)), None);
    }

    #[test]
    fn a_name_has_the_stamp() {
        let stamp = FileStamp { inode: 7, modified_s: -3, modified_ns: 9 };
        let name = EntryName { sha256: "ab".repeat(32), stamp, boot: "1-2".to_owned() };
        assert_eq!(EntryName::parse(&name.text()), Some(name));
        for bad in ["", "ab", "ab.1.2.3", "ab.x.2.3.b", "ab.1.2.-.b"] {
            assert_eq!(EntryName::parse(bad), None, "{bad:?}");
        }
    }
}
