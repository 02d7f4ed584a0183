//! The index of the cache in memory: the cached files in the order of their last use. It does no IO.

use std::collections::{BTreeMap, HashMap};

use super::entry::{CacheKey, FileStamp};

/// The most cached files, so that index and directories stay small.
const MOST_FILES: usize = 200_000;

/// A cached file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CacheEntry {
    /// The name in the directory of its organization.
    pub name: String,
    pub bytes: u64,
    pub stamp: FileStamp,
    /// The content was compared with its hash since the start of the host.
    pub checked: bool,
}

/// The cached files.
#[derive(Debug, Default)]
pub(super) struct CacheIndex {
    /// With the number of the last use.
    entries: HashMap<CacheKey, (u64, CacheEntry)>,
    by_use: BTreeMap<u64, CacheKey>,
    uses: u64,
    bytes: u64,
    /// The bytes of files on their way into the cache.
    reserved_bytes: u64,
}

impl CacheIndex {
    pub fn files(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a file as the last used one, and returns the file that it replaces.
    pub fn insert(&mut self, key: CacheKey, entry: CacheEntry) -> Option<CacheEntry> {
        let replaced = self.remove(&key);
        self.uses += 1;
        self.bytes = self.bytes.saturating_add(entry.bytes);
        self.by_use.insert(self.uses, key.clone());
        self.entries.insert(key, (self.uses, entry));
        replaced
    }

    pub fn remove(&mut self, key: &CacheKey) -> Option<CacheEntry> {
        let (used, entry) = self.entries.remove(key)?;
        self.by_use.remove(&used);
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        Some(entry)
    }

    /// Removes a file unless another one has replaced it. `false`: the index does not have it.
    pub fn remove_named(&mut self, key: &CacheKey, name: &str) -> bool {
        let known = self.entries.get(key).is_some_and(|(_, entry)| entry.name == name);
        known && self.remove(key).is_some()
    }

    /// Finds a file, which is the last used one from now on.
    pub fn find_for_use(&mut self, key: &CacheKey) -> Option<CacheEntry> {
        let (used, entry) = self.entries.get_mut(key)?;
        self.by_use.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.by_use.insert(self.uses, key.clone());
        Some(entry.clone())
    }

    /// Notes that the content of a file has its hash.
    pub fn set_checked(&mut self, key: &CacheKey, name: &str) {
        if let Some((_, entry)) = self.entries.get_mut(key).filter(|(_, entry)| entry.name == name) {
            entry.checked = true;
        }
    }

    /// The files, the least recently used first.
    pub fn oldest_first(&self) -> impl Iterator<Item = (&CacheKey, &CacheEntry)> {
        self.by_use.values().filter_map(|key| Some((key, &self.entries.get(key)?.1)))
    }

    /// Reserves bytes for a new file, and removes the least recently used files until it fits. Returns the removed
    /// files. `None`: it would not fit into an empty cache, and nothing was removed.
    pub fn reserve(&mut self, bytes: u64, most_bytes: u64) -> Option<Vec<(CacheKey, CacheEntry)>> {
        let reserved = self.reserved_bytes.checked_add(bytes).filter(|all| *all <= most_bytes)?;
        self.reserved_bytes = reserved;
        let mut removed = Vec::new();
        while self.bytes.saturating_add(reserved) > most_bytes || self.entries.len() >= MOST_FILES {
            let Some(key) = self.by_use.first_key_value().map(|(_, key)| key.clone()) else { break };
            let Some(entry) = self.remove(&key) else { break };
            removed.push((key, entry));
        }
        Some(removed)
    }

    /// Returns reserved bytes.
    pub fn release(&mut self, bytes: u64) {
        self.reserved_bytes = self.reserved_bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> CacheKey {
        CacheKey::new("org", &[n; 32]).unwrap()
    }

    fn entry(name: &str, bytes: u64) -> CacheEntry {
        let stamp = FileStamp::from_metadata(&std::fs::metadata("/").unwrap());
        CacheEntry { name: name.to_owned(), bytes, stamp, checked: false }
    }

    fn index() -> CacheIndex {
        let mut index = CacheIndex::default();
        for n in 1..=3 {
            assert_eq!(index.insert(key(n), entry(&n.to_string(), 10)), None);
        }
        index
    }

    fn names(index: &CacheIndex) -> Vec<&str> {
        index.oldest_first().map(|(_, entry)| entry.name.as_str()).collect()
    }

    #[test]
    fn the_least_recently_used_file_goes_first() {
        let mut index = index();
        assert_eq!(index.find_for_use(&key(1)).unwrap().name, "1");
        assert_eq!((names(&index), index.bytes()), (vec!["2", "3", "1"], 30));
        let removed = index.reserve(15, 30).unwrap();
        assert_eq!(removed.iter().map(|(_, entry)| entry.name.as_str()).collect::<Vec<_>>(), ["2", "3"]);
        assert_eq!((names(&index), index.bytes()), (vec!["1"], 10));
    }

    #[test]
    fn files_on_their_way_count() {
        let mut index = index();
        assert!(index.reserve(10, 40).unwrap().is_empty());
        assert_eq!(index.reserve(31, 40), None, "both together are larger than the cache");
        assert_eq!(names(&index), ["1", "2", "3"], "nothing was removed in vain");
        assert_eq!(index.reserve(10, 40).unwrap().len(), 1);
        index.release(20);
        assert!(index.reserve(20, 40).unwrap().is_empty());
    }

    #[test]
    fn a_replaced_file_is_returned_and_counted_once() {
        let mut index = index();
        assert_eq!(index.insert(key(2), entry("new", 5)).unwrap().name, "2");
        assert_eq!((names(&index), index.bytes(), index.files()), (vec!["1", "3", "new"], 25, 3));
        assert!(!index.remove_named(&key(2), "2"), "the old file is no longer there");
        index.set_checked(&key(2), "2");
        assert!(!index.find_for_use(&key(2)).unwrap().checked);
        index.set_checked(&key(2), "new");
        assert!(index.find_for_use(&key(2)).unwrap().checked);
        assert!(index.remove_named(&key(2), "new") && index.find_for_use(&key(2)).is_none());
    }
}
