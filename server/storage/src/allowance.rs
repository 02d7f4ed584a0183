//! The limits of an organization's stored bytes. An organization without credit has a smaller limit, because
//! nobody pays for its disk.

use berth_foundation::Settings;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::ids::OrgId;
use berth_types::problems::Problem;

/// The limits of stored bytes in the portal's settings.
#[derive(Debug, Clone, Copy)]
pub struct StorageLimits {
    org_bytes: i64,
    /// The limit of an organization that never had credit.
    free_bytes: i64,
    /// The limit of its stored submissions.
    free_jobs: i64,
}

/// The limit that an organization would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// The limit of every organization, in bytes.
    Storage(i64),
    /// The limit without credit, in bytes.
    FreeStorage(i64),
}

impl Exceeded {
    /// A sentence about the limit, and the next step.
    pub fn text(self) -> String {
        match self {
            Self::Storage(limit) => {
                format!(
                    "The file storage of the organization is full ({} GiB). Remove some files.",
                    limit >> 30
                )
            }
            Self::FreeStorage(limit) => format!(
                "The file storage of the organization is full: without credit it has {} MiB. Add credit, request credit from the operator, or remove some files.",
                limit >> 20
            ),
        }
    }
}

impl StorageLimits {
    pub const fn new(settings: &Settings) -> Self {
        Self {
            org_bytes: settings.org_storage_bytes,
            free_bytes: settings.free_storage_bytes,
            free_jobs: settings.free_jobs,
        }
    }

    /// Returns true if `bytes` are beyond the limit without credit, so that the credit of the organization counts.
    const fn needs_credit(self, bytes: i64) -> bool {
        bytes > self.free_bytes && self.free_bytes < self.org_bytes
    }

    /// The limit that an organization with `bytes` stored bytes in all exceeds.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn find_exceeded(
        self,
        tx: &mut Tx<'_>,
        org: OrgId,
        bytes: i64,
    ) -> Result<Option<Exceeded>, StoreError> {
        if self.needs_credit(bytes) && !store::storage::has_credit(tx, org).await? {
            return Ok(Some(Exceeded::FreeStorage(self.free_bytes)));
        }
        Ok((bytes > self.org_bytes).then_some(Exceeded::Storage(self.org_bytes)))
    }

    /// The limit of an organization in bytes, and true if it is the limit without credit.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn find_limit(self, tx: &mut Tx<'_>, org: OrgId) -> Result<(i64, bool), StoreError> {
        let is_free = self.needs_credit(i64::MAX) && !store::storage::has_credit(tx, org).await?;
        Ok(if is_free { (self.free_bytes, true) } else { (self.org_bytes, false) })
    }

    /// The limit of stored submissions without credit.
    pub const fn free_jobs(self) -> i64 {
        self.free_jobs
    }

    /// Refuses a further submission with `bytes` if the stored submissions and logs are at a limit. Files are
    /// not summed here: they have no part in submissions.
    ///
    /// # Errors
    /// A refusal, or the database cannot be read.
    pub async fn check_submission(self, tx: &mut Tx<'_>, org: OrgId, bytes: i64) -> Result<(), WriteError> {
        let used = store::storage::stored_bytes(tx, org).await?;
        let total = used.total().saturating_add(bytes);
        if (used.submissions >= self.free_jobs || self.needs_credit(total))
            && !store::storage::has_credit(tx, org).await?
        {
            let detail = format!(
                "Without credit the organization can store {} jobs, and {} MiB of submissions and logs. Nothing was submitted or charged. Add credit, or request credit from the operator.",
                self.free_jobs,
                self.free_bytes >> 20
            );
            return Err(full(detail).into());
        }
        if total > self.org_bytes {
            let detail = format!(
                "The submissions and logs of the organization fill its storage ({} GiB). Nothing was submitted or charged. Shorten the retention of ended jobs, or ask the operator for more storage.",
                self.org_bytes >> 30
            );
            return Err(full(detail).into());
        }
        Ok(())
    }
}

/// The problem of a full storage.
pub(crate) fn full(detail: String) -> Problem {
    Problem::conflict("storage.full", "Storage full", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_counts_only_between_the_two_limits() {
        let limits = StorageLimits { org_bytes: 1_000, free_bytes: 100, free_jobs: 1 };
        assert!(!limits.needs_credit(100) && limits.needs_credit(101));
        let equal = StorageLimits { free_bytes: 1_000, ..limits };
        assert!(!equal.needs_credit(i64::MAX), "the smaller limit decides");
    }

    #[test]
    fn a_refusal_names_the_limit_and_the_next_step() {
        assert!(Exceeded::Storage(2 << 30).text().contains("is full (2 GiB). Remove"));
        let text = Exceeded::FreeStorage(100 << 20).text();
        assert!(text.contains("100 MiB") && text.contains("Add credit"), "{text}");
    }
}
