//! The cache of a node: files of volumes by their content, so that a further start fetches nothing again.
//!
//! Each organization has files of its own: a shared inode shows its use by others, for example in the number of its
//! links. A cached file belongs to the worker and is never written again. This room does not know what an attempt may
//! have: it answers for the hashes that the portal lists.

mod entry;
mod file_cache;
mod index;
mod metrics;
mod part;
mod space;

pub use entry::CacheKey;
pub use file_cache::{CacheTotals, CachedFile, FileCache, open_or_warn};
pub use metrics::add_cache;
pub use part::CachePart;

#[cfg(test)]
mod tests;
