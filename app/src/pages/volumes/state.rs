//! The shared state of the parts of a volume's page.

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::volumes::{Volume, VolumeEntry};
use futures::join;
use leptos::prelude::*;

use super::super::confirm::ConfirmTarget;
use crate::api;

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
