//! The shared state of the parts of a volume's page.

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::volumes::{Volume, VolumeEntry};
use futures::join;
use leptos::prelude::*;

use super::super::confirm::ConfirmTarget;
use crate::api;

/// The state of an upload.
#[cfg_attr(not(feature = "hydrate"), expect(dead_code, reason = "only a browser sends files"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UploadStatus {
    Sending,
    /// Until the next attempt, with the reason.
    Waiting(String),
    Done,
    Cancelled,
    /// With the error of the portal.
    Refused(String),
}

/// The upload of one file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileUpload {
    pub path: StoredValue<String>,
    pub bytes: u64,
    pub received: RwSignal<u64>,
    pub status: RwSignal<UploadStatus>,
    /// True after a click on the button to cancel. The upload ends after its present request.
    pub cancelled: RwSignal<bool>,
}

impl FileUpload {
    /// Returns true before the end of the upload, with a subscription.
    pub fn runs(self) -> bool {
        self.status.with(|status| matches!(status, UploadStatus::Sending | UploadStatus::Waiting(_)))
    }

    /// Returns true for an upload that this page sends or has completed, with a subscription.
    pub fn is_sent(self) -> bool {
        self.runs() || self.status.with(|status| matches!(status, UploadStatus::Done))
    }
}

/// The shared state of the parts of the page.
#[derive(Clone, Copy)]
pub(super) struct VolumeState {
    pub org: OrgId,
    pub volume: RwSignal<Volume>,
    /// The name of the volume.
    pub name: StoredValue<String>,
    /// The current directory, `""` for the root.
    pub dir: StoredValue<String>,
    pub entries: RwSignal<Vec<VolumeEntry>>,
    /// The cursor of the next page of entries.
    pub next: RwSignal<Option<String>>,
    /// The file of the dialog.
    pub target: ConfirmTarget<String>,
    /// The uploads of this page.
    pub uploads: RwSignal<Vec<FileUpload>>,
    /// The unfinished upload of the dialog.
    pub removed: ConfirmTarget<String>,
    pub ready: ReadSignal<bool>,
    /// True with the buttons to upload and to delete.
    pub writes: bool,
}

impl VolumeState {
    /// Reads the volume and the first page of the directory again.
    pub fn reload(self) {
        let (name, dir) = (self.name.get_value(), self.dir.get_value());
        let calls =
            (api::volumes::get_one(self.org, &name), api::volumes::files(self.org, &name, &dir, None));
        leptos::task::spawn_local(async move {
            let (volume, page) = join!(calls.0, calls.1);
            if let Ok(volume) = volume {
                let _closed = self.volume.try_set(volume);
            }
            let page = match page {
                Ok(page) => page,
                Err(problem) if problem.status == 404 => Page::whole(Vec::new()),
                // A failed request leaves the shown entries.
                Err(_) => return,
            };
            let _closed = self.entries.try_set(page.items);
            let _closed = self.next.try_set(page.next_cursor);
        });
    }
}

/// Returns the page of a directory.
pub(super) fn dir_path(name: &str, dir: &str) -> String {
    format!("/volumes/{name}?dir={}", api::volumes::encoded_value(dir))
}
