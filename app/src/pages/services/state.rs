//! The data of the page of a service, and its refresh.

use std::future::Future;

use berth_service_types::gateways::GatewayAddress;
use berth_service_types::revisions::Revision;
use berth_service_types::services::{Service, ServiceHour};
use berth_types::Page;
use berth_types::ids::{OrgId, ServiceId};
use berth_types::problems::Problem;
use futures::join;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use super::super::limits::replace;
use super::super::load_more::{joined, refresh_limit};
use super::super::parts::{ready, when_some};
use super::promise_state::{self, LivePromise, LoadedPromise};
use crate::api;
use crate::api::Answer;
use crate::session::use_session;

/// The hours in the chart.
const HOURS: u32 = 24;
/// The revisions of the first page.
const REVISIONS: u32 = 50;

/// The data of the page.
#[derive(Clone, Serialize, Deserialize)]
pub struct Loaded {
    pub org: OrgId,
    pub service: Service,
    revisions: Page<Revision>,
    /// Absent after a failed request, as the gateways.
    hours: Option<Vec<ServiceHour>>,
    gateways: Option<Vec<GatewayAddress>>,
    /// Absent in a refresh, and where it cannot be read.
    promise: Option<LoadedPromise>,
}

/// Loads a service with at most `limit` revisions.
pub fn load(
    org: OrgId,
    id: Option<ServiceId>,
    limit: u32,
) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let calls = id.map(|id| {
        let (service, revisions) =
            (api::services::get_one(org, id), api::services::revisions(org, id, None, limit));
        (service, revisions, api::services::hours(org, id, HOURS), api::services::gateways(org))
    });
    async move {
        // An invalid id is answered like an unknown one.
        let Some((service, revisions, hours, gateways)) = calls else { return Err(Problem::not_found()) };
        let (service, revisions, hours, gateways) = join!(service, revisions, hours, gateways);
        // Without figures or gateways the rest of the page works.
        let hours = hours.ok().map(|page| page.items);
        let with_address = |page: Page<GatewayAddress>| {
            page.items.into_iter().filter(|gateway| !gateway.url.is_empty()).collect::<Vec<_>>()
        };
        let gateways = gateways.ok().map(with_address);
        Ok(Loaded { org, service: service?, revisions: revisions?, hours, gateways, promise: None })
    }
}

/// Loads the first data of the page.
pub fn load_first(
    org: OrgId,
    id: Option<ServiceId>,
) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let page = load(org, id, REVISIONS);
    let promise = id.map(|id| promise_state::load_first(org, id));
    async move {
        let (page, promise) = join!(page, when_some(promise));
        // Without the promise the rest of the page works.
        Ok(Loaded { promise: promise.ok().flatten(), ..page? })
    }
}

/// The signals of the page.
#[derive(Clone, Copy)]
pub struct LiveService {
    pub org: OrgId,
    pub id: ServiceId,
    pub service: RwSignal<Service>,
    /// The revisions, newest first.
    pub revisions: RwSignal<Vec<Revision>>,
    /// The cursor of the next page of revisions.
    pub cursor: RwSignal<Option<String>>,
    /// The use of the last hours; absent until it is read.
    pub hours: RwSignal<Option<Vec<ServiceHour>>>,
    /// The gateways with an address.
    pub gateways: RwSignal<Vec<GatewayAddress>>,
    pub promise: LivePromise,
    /// The number of changes on this page. Data that were asked for before the last one are older than its effect.
    changes: StoredValue<u32>,
    /// True after a failed refresh.
    pub failed: RwSignal<bool>,
    /// True after hydration.
    pub ready: ReadSignal<bool>,
    /// True with buttons for changes.
    pub writes: bool,
    /// True with buttons for inference keys.
    pub manages: bool,
}

impl LiveService {
    /// Returns the signals with the first data.
    pub fn new(loaded: Loaded) -> Self {
        let Loaded { org, service, revisions, hours, gateways, promise } = loaded;
        Self {
            org,
            id: service.id,
            promise: LivePromise::new(org, service.id, promise),
            service: RwSignal::new(service),
            revisions: RwSignal::new(revisions.items),
            cursor: RwSignal::new(revisions.next_cursor),
            hours: RwSignal::new(hours),
            gateways: RwSignal::new(gateways.unwrap_or_default()),
            changes: StoredValue::new(0),
            failed: RwSignal::new(false),
            ready: ready(),
            writes: use_session().runs_in(org),
            manages: use_session().owns(org),
        }
    }

    /// Loads the data again, with the number of changes before the request.
    pub fn load(self) -> impl Future<Output = Answer<(u32, Loaded)>> + Send + 'static {
        let changes = self.changes.get_value();
        let fresh = load(self.org, Some(self.id), refresh_limit(self.revisions.with_untracked(Vec::len)));
        async move { Ok((changes, fresh.await?)) }
    }

    /// Shows newer data. Unchanged data notifies nobody, so that what has the focus keeps it.
    pub fn apply(self, (changes, fresh): (u32, Loaded)) {
        // The page may have been left during a request.
        let Some(known) = self.revisions.try_get_untracked() else { return };
        if self.changes.try_get_value() != Some(changes) {
            return;
        }
        let page = joined(known, self.cursor.get_untracked(), fresh.revisions, |revision| revision.id);
        replace(self.service, fresh.service);
        replace(self.revisions, page.items);
        replace(self.cursor, page.next_cursor);
        // After a failed request the known ones stay.
        if fresh.hours.is_some() {
            replace(self.hours, fresh.hours);
        }
        if let Some(gateways) = fresh.gateways {
            replace(self.gateways, gateways);
        }
    }

    /// Loads and shows the data after a change.
    pub fn reload(self) {
        self.changes.update_value(|changes| *changes = changes.wrapping_add(1));
        let fresh = self.load();
        spawn_local(async move {
            // The next refresh repeats a failed request.
            if let Ok(fresh) = fresh.await {
                self.apply(fresh);
            }
        });
    }
}
