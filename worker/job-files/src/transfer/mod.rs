//! Files on their way between the worker and the portal: safe access to a job's directory, archives, uploads and
//! downloads. This room does not know what is kept or fetched.

pub mod archive;
mod batch_upload;
mod blocking;
mod client;
mod download;
mod places;
pub mod tree;
mod upload;

pub use batch_upload::{UploadSet, upload_all};
pub use blocking::{blocking, unreadable};
pub use client::{Portal, client};
pub use download::{FetchProgress, fetch_file, fetch_part};
pub use places::{KEPT_DIR, RESTORE, create_file, make_kept_dir, volume_directory, volumes_directory};
pub use upload::{UploadSource, upload};
