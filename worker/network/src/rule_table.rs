//! The table of nftables of a worker: the rules of all attempts, and those of attempts with a policy of their own.
//!
//! A record on the disk has the rules of each such attempt, because networks outlive the daemon.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::egress::PlaceRules;
use super::programs::run;

/// The rules of attempts by the names of their attempts.
type Places = BTreeMap<String, PlaceRules>;

#[derive(Debug)]
pub(crate) struct RuleTable {
    nft: PathBuf,
    /// The name of the table.
    name: String,
    /// The rules of all attempts as a text for `nft`.
    common: String,
    /// The directory of the records.
    records: PathBuf,
    places: Mutex<Places>,
}

/// The records of attempts for which `exists` returns true. The others are removed: the number of their place may be
/// that of another attempt by now.
fn read_records(records: &Path, exists: impl Fn(&str) -> bool) -> Result<Places, String> {
    let failed = |error: io::Error| format!("{} cannot be used: {error}", records.display());
    fs::create_dir_all(records).map_err(failed)?;
    let mut places = Places::new();
    for entry in fs::read_dir(records).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !exists(name) {
            fs::remove_file(&path).map_err(failed)?;
            continue;
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        let rules = PlaceRules::parse(&text).ok_or_else(|| format!("{} is damaged", path.display()))?;
        places.insert(name.to_owned(), rules);
    }
    Ok(places)
}

impl RuleTable {
    /// The table with the records of attempts for which `exists` returns true. It is not written yet.
    ///
    /// # Errors
    /// The records cannot be read.
    pub fn open(
        nft: PathBuf,
        name: String,
        common: String,
        records: PathBuf,
        exists: impl Fn(&str) -> bool,
    ) -> Result<Self, String> {
        let places = Mutex::new(read_records(&records, exists)?);
        Ok(Self { nft, name, common, records, places })
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the table in one step, so no attempt is ever without its rules.
    fn write_all(&self, places: &Places) -> Result<(), String> {
        let additions: String = places.values().map(|rules| rules.additions(&self.name)).collect();
        run(&self.nft, &["-f", "-"], &format!("{}{additions}", self.common)).map(|_| ())
    }

    fn exists(&self) -> Result<bool, String> {
        let line = format!("table inet {}", self.name);
        Ok(run(&self.nft, &["list", "tables"], "")?.lines().any(|found| found.trim() == line))
    }

    /// Writes the table.
    ///
    /// # Errors
    /// The rules cannot be written.
    pub fn write(&self) -> Result<(), String> {
        self.write_all(&self.lock())
    }

    /// Writes the table again if it is gone. `true`: it was gone.
    ///
    /// # Errors
    /// The rules cannot be read or written.
    pub fn restore(&self) -> Result<bool, String> {
        let places = self.lock();
        if self.exists()? {
            return Ok(false);
        }
        self.write_all(&places).map(|()| true)
    }

    /// Adds the rules of an attempt, and their record before.
    ///
    /// # Errors
    /// The record or the rules cannot be written. `remove` removes what is left.
    pub fn add(&self, attempt: &str, rules: PlaceRules) -> Result<(), String> {
        let mut places = self.lock();
        let (file, part) = (self.records.join(attempt), self.records.join(format!("{attempt}.part")));
        fs::write(&part, rules.record())
            .and_then(|()| fs::rename(&part, &file))
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
        let added = run(&self.nft, &["-f", "-"], &rules.additions(&self.name));
        places.insert(attempt.to_owned(), rules);
        match added {
            Err(error) if self.exists()? => Err(error),
            // Another program removed the table a moment ago.
            Err(_) => self.write_all(&places),
            Ok(_) => Ok(()),
        }
    }

    /// The number of the place of an attempt with rules of its own.
    pub fn find_place(&self, attempt: &str) -> Option<u32> {
        self.lock().get(attempt).map(|rules| rules.place)
    }

    /// Removes the rules of an attempt that had this place before and lost it without a removal.
    ///
    /// # Errors
    /// The rules or the record still exist.
    pub fn free_place(&self, place: u32) -> Result<(), String> {
        let old = self.lock().iter().find(|(_, rules)| rules.place == place).map(|(name, _)| name.clone());
        old.map_or(Ok(()), |attempt| self.remove(&attempt))
    }

    /// Removes the rules of an attempt and their record, if there are any.
    ///
    /// # Errors
    /// The rules or the record still exist.
    pub fn remove(&self, attempt: &str) -> Result<(), String> {
        let mut places = self.lock();
        let Some(rules) = places.get(attempt) else { return Ok(()) };
        if let Err(error) = run(&self.nft, &["-f", "-"], &rules.removals(&self.name))
            && self.exists()?
        {
            return Err(error);
        }
        let file = self.records.join(attempt);
        if let Err(error) = fs::remove_file(&file)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(format!("{} cannot be removed: {error}", file.display()));
        }
        places.remove(attempt);
        Ok(())
    }

    /// Deletes the table.
    ///
    /// # Errors
    /// `nft` fails.
    pub fn delete(&self) -> Result<(), String> {
        run(&self.nft, &["delete", "table", "inet", &self.name], "").map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::Egress;

    #[test]
    fn records_of_attempts_without_a_network_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = dir.path().join("egress");
        let rules = PlaceRules { place: 3, egress: Egress::parse(false, &[]).unwrap() };
        fs::create_dir(&records).unwrap();
        for name in ["kept", "gone", "kept.part"] {
            fs::write(records.join(name), rules.record()).unwrap();
        }
        let found = read_records(&records, |name| name == "kept").unwrap();
        assert_eq!(found, Places::from([("kept".to_owned(), rules)]));
        let left: Vec<_> = fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
        fs::write(records.join("kept"), "3 clo").unwrap();
        assert!(read_records(&records, |_| true).unwrap_err().ends_with("is damaged"));
    }
}
