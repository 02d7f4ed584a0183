//! The data of the promise of a service, and its refresh.

use std::future::Future;

use berth_service_types::promises::{JudgedWindow, ServicePromise};
use berth_types::Page;
use berth_types::ids::{OrgId, ServiceId};
use futures::join;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::limits::replace;
use super::super::load_more::{joined, refresh_limit};
use crate::api;
use crate::api::Answer;

/// The windows of a page of the list.
pub const WINDOWS: u32 = 50;
/// The interval of requests: the counts of a window are sums of many rows.
pub const REFRESH_MS: u64 = 60_000;

/// The promise with the first page of the judged windows.
#[derive(Clone, Serialize, Deserialize)]
pub struct LoadedPromise {
    promise: ServicePromise,
    windows: Page<JudgedWindow>,
    offered: bool,
}

fn load(
    org: OrgId,
    id: ServiceId,
    limit: u32,
) -> impl Future<Output = Answer<LoadedPromise>> + Send + 'static {
    let promise = api::services::promise(org, id);
    let windows = api::services::promise_windows(org, id, None, limit);
    let offered = api::services::offered_promises(org);
    async move {
        let (promise, windows, offered) = join!(promise, windows, offered);
        // Without this answer the dialog has the reason.
        let offered = !offered.is_ok_and(|page| page.items.is_empty());
        Ok(LoadedPromise { promise: promise?, windows: windows?, offered })
    }
}

/// Loads the first data of the promise.
pub fn load_first(org: OrgId, id: ServiceId) -> impl Future<Output = Answer<LoadedPromise>> + Send + 'static {
    load(org, id, WINDOWS)
}

/// The signals of the promise.
#[derive(Clone, Copy)]
pub struct LivePromise {
    org: OrgId,
    id: ServiceId,
    /// The choice with its present window; absent until it is read.
    pub known: RwSignal<Option<ServicePromise>>,
    /// The judged windows, newest first.
    pub windows: RwSignal<Vec<JudgedWindow>>,
    /// The cursor of the next page of windows.
    pub cursor: RwSignal<Option<String>>,
    /// False if no promise is offered.
    pub offered: RwSignal<bool>,
    /// True after a failed request.
    pub failed: RwSignal<bool>,
    /// The number of choices on this page. Data that were asked for before the last one are older than its answer.
    choices: StoredValue<u32>,
}

impl LivePromise {
    /// Returns the signals with the first data, which are absent after a failed request.
    pub fn new(org: OrgId, id: ServiceId, loaded: Option<LoadedPromise>) -> Self {
        let failed = loaded.is_none();
        let (known, windows, offered) = match loaded {
            Some(LoadedPromise { promise, windows, offered }) => (Some(promise), windows, offered),
            None => (None, Page::whole(Vec::new()), true),
        };
        Self {
            org,
            id,
            known: RwSignal::new(known),
            windows: RwSignal::new(windows.items),
            cursor: RwSignal::new(windows.next_cursor),
            offered: RwSignal::new(offered),
            failed: RwSignal::new(failed),
            choices: StoredValue::new(0),
        }
    }

    /// Loads the data again, with the number of choices before the request.
    pub fn load(self) -> impl Future<Output = Answer<(u32, LoadedPromise)>> + Send + 'static {
        let choices = self.choices.get_value();
        let fresh = load(self.org, self.id, refresh_limit(self.windows.with_untracked(Vec::len)));
        async move { Ok((choices, fresh.await?)) }
    }

    /// Shows the answer to a choice.
    pub fn show_choice(self, fresh: ServicePromise) {
        self.choices.update_value(|choices| *choices = choices.wrapping_add(1));
        self.known.set(Some(fresh));
    }

    /// Shows newer data. Data from before a choice are ignored.
    pub fn apply(self, (choices, fresh): (u32, LoadedPromise)) {
        // The page may have been left during a request.
        let Some(shown) = self.windows.try_get_untracked() else { return };
        replace(self.offered, fresh.offered);
        if self.choices.try_get_value() != Some(choices) {
            return;
        }
        let page = joined(shown, self.cursor.get_untracked(), fresh.windows, |window| window.begin_at);
        replace(self.known, Some(fresh.promise));
        replace(self.windows, page.items);
        replace(self.cursor, page.next_cursor);
    }
}
