//! The state that all requests and tasks of a gateway share.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use berth_serving::rates::Rates;
use berth_serving::reports::{MAX_DRAINED, MAX_LOADS, ServiceLoad};
use berth_serving::snapshot::{ReplicaId, Snapshot};
use berth_types::ids::ServiceId;
use tokio::sync::Notify;

use crate::bodies::BodyMemory;
use crate::clock::now_ms;
use crate::journal::put;
use crate::ledger::Ledger;
use crate::service::ServiceState;
use crate::settings::Settings;
use crate::shares::Shares;
use crate::view::View;

/// The file of the last snapshot.
const SNAPSHOT: &str = "snapshot.json";
/// Services that left and have no request, until the reports have named their replicas.
const MAX_LEFT: usize = 1_000;

/// Counts since the start, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    pub requests: AtomicU64,
    /// Requests that the gateway answered with a refusal.
    pub refused: AtomicU64,
    /// Tries after the first one.
    pub retries: AtomicU64,
    pub connections: AtomicU64,
}

/// The shared parts.
pub struct Shared {
    pub settings: Settings,
    pub ledger: Arc<Ledger>,
    pub rates: Arc<Mutex<Rates>>,
    pub memory: BodyMemory,
    /// The places for requests until the heads of their answers.
    pub requests: Arc<Shares>,
    pub counters: Counters,
    /// A report is due at once.
    pub report_due: Arc<Notify>,
    view: RwLock<Option<Arc<View>>>,
    /// The text of the snapshot in use, until the disk has it.
    unkept: Mutex<Option<Vec<u8>>>,
    /// The states of all services, with those that have left: they have requests yet, or the next reports name their replicas.
    states: Mutex<HashMap<ServiceId, Arc<ServiceState>>>,
    /// The time of the last word of the portal about its snapshot.
    confirmed_ms: AtomicU64,
}

impl Shared {
    /// Opens the data directory, with the last snapshot.
    ///
    /// # Errors
    /// The directory is not usable.
    pub fn open(settings: Settings) -> Result<Arc<Self>, String> {
        let ledger = Ledger::open(&settings.data)?;
        let shared = Arc::new(Self {
            ledger,
            rates: Arc::default(),
            memory: BodyMemory::new(settings.limits.body_bytes),
            requests: Shares::new(settings.limits.requests),
            counters: Counters::default(),
            report_due: Arc::default(),
            view: RwLock::default(),
            unkept: Mutex::default(),
            states: Mutex::default(),
            confirmed_ms: AtomicU64::new(now_ms()),
            settings,
        });
        shared.open_last(&shared.settings.data.join(SNAPSHOT));
        Ok(shared)
    }

    /// Takes over the snapshot of the last start. Without it the gateway waits for the portal.
    fn open_last(&self, path: &Path) {
        let Ok(text) = std::fs::read(path) else { return };
        let taken = Snapshot::from_json(&text).map_err(|e| e.to_string());
        if let Err(error) = taken.and_then(|snapshot| self.take_over(snapshot)) {
            tracing::warn!(error, "the last snapshot is not usable");
        }
    }

    /// The snapshot in use.
    pub fn view(&self) -> Option<Arc<View>> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of the snapshot in use; 0 without one.
    pub fn snapshot_number(&self) -> u64 {
        self.view().map_or(0, |view| view.routes.snapshot().number)
    }

    fn states(&self) -> MutexGuard<'_, HashMap<ServiceId, Arc<ServiceState>>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next snapshot over, and keeps its text for the next start.
    ///
    /// # Errors
    /// The snapshot is an older one or has a fault, or a file of a new number cannot be written.
    pub fn renew(&self, text: &[u8]) -> Result<(), String> {
        let snapshot = Snapshot::from_json(text).map_err(|e| e.to_string())?;
        let number = snapshot.number;
        if number <= self.snapshot_number() {
            return Err("the portal sent an older snapshot".to_owned());
        }
        let is_new_number = !self.has_number(snapshot.gateway_number);
        // The next start would end the credit of the new number by a file with the former one. All else does not wait for
        // the disk.
        if is_new_number {
            self.keep(text)?;
            // A repetition would put the former number back.
            *self.unkept() = None;
        }
        self.take_over(snapshot)?;
        tracing::debug!(number, "a snapshot is in use");
        if is_new_number {
            return Ok(());
        }
        let mut unkept = self.unkept();
        match self.keep(text) {
            Ok(()) => *unkept = None,
            Err(error) => {
                // Only the first of a row is a warning.
                if unkept.replace(text.to_vec()).is_none() {
                    tracing::warn!(error, "the snapshot in use is not kept for the next start");
                }
            }
        }
        Ok(())
    }

    /// Writes the text of a snapshot for the next start.
    fn keep(&self, text: &[u8]) -> Result<(), String> {
        put(&self.settings.data.join(SNAPSHOT), text).map_err(|e| format!("{SNAPSHOT}: {e}"))
    }

    fn unkept(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.unkept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the disk has an older snapshot than the one in use.
    pub fn is_unkept(&self) -> bool {
        self.unkept().is_some()
    }

    /// Tries again to keep the snapshot in use for the next start.
    pub fn keep_again(&self) {
        let mut unkept = self.unkept();
        if unkept.as_ref().is_some_and(|text| self.keep(text).is_ok()) {
            *unkept = None;
            tracing::info!("the snapshot in use is kept for the next start");
        }
    }

    /// True if the snapshot in use has this number of the gateway.
    fn has_number(&self, gateway: u64) -> bool {
        self.view().is_some_and(|view| view.routes.snapshot().gateway_number == gateway)
    }

    /// Takes over a snapshot. One with a fault changes nothing.
    ///
    /// # Errors
    /// The snapshot has a fault, or the journal cannot be written.
    fn take_over(&self, snapshot: Snapshot) -> Result<(), String> {
        let last = self.view();
        self.ledger.open_credit(snapshot.gateway_number).map_err(|e| format!("the journal: {e}"))?;
        let mut states = self.states();
        let new = |id: ServiceId| {
            let state = states.entry(id).or_insert_with(|| ServiceState::new(id, self.report_due.clone()));
            state.clone()
        };
        let view = Arc::new(View::new(snapshot, last.as_deref(), new).map_err(|e| e.to_string())?);
        for state in view.services.values() {
            state.come_back();
        }
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Some(view.clone());
        for service in &view.routes.snapshot().services {
            if let Some(state) = view.services.get(&service.id) {
                state.update(service);
            }
        }
        for (id, state) in states.iter() {
            if !view.services.contains_key(id) {
                state.leave();
            }
        }
        let mut room = MAX_LEFT;
        states.retain(|id, state| {
            let is_used = view.services.contains_key(id) || state.counts().0 > 0;
            let is_kept = is_used || (room > 0 && !state.is_over());
            room -= usize::from(is_kept && !is_used);
            is_kept
        });
        drop(states);
        let keys: std::collections::HashSet<_> =
            view.routes.snapshot().keys.iter().map(|key| key.id).collect();
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).retain(|key| keys.contains(&key));
        Ok(())
    }

    /// The portal has confirmed its snapshot.
    pub fn confirm(&self) {
        self.confirmed_ms.store(now_ms(), Ordering::Relaxed);
    }

    /// Milliseconds since the last word of the portal about its snapshot.
    pub fn snapshot_age_ms(&self) -> u64 {
        now_ms().saturating_sub(self.confirmed_ms.load(Ordering::Relaxed))
    }

    /// Does what is due by time alone: waiting requests with another choice, and unused connections.
    pub fn tick(&self) {
        let states: Vec<Arc<ServiceState>> = self.states().values().cloned().collect();
        for state in states {
            state.tick();
        }
        if let Some(view) = self.view() {
            for upstream in view.upstreams() {
                upstream.close_old();
            }
        }
    }

    /// The loads for a report, those with waiting requests first.
    pub fn loads(&self) -> Vec<ServiceLoad> {
        let mut loads: Vec<ServiceLoad> = self.states().values().filter_map(|state| state.load()).collect();
        loads.sort_unstable_by_key(|load| std::cmp::Reverse((load.waiting, load.in_flight, load.begun)));
        let rest = loads.split_off(loads.len().min(MAX_LOADS));
        self.restore_loads(&rest);
        loads
    }

    /// These loads did not reach the portal.
    pub fn restore_loads(&self, loads: &[ServiceLoad]) {
        let states = self.states();
        for load in loads {
            if let Some(state) = states.get(&load.service) {
                state.restore_load(load);
            }
        }
    }

    /// The draining replicas without a request of this gateway, then those of services that left: all of theirs drain. These
    /// come last, because the end of the last request of their service says the same.
    pub fn drained(&self) -> Vec<ReplicaId> {
        let Some(view) = self.view() else { return Vec::new() };
        let mut drained = Vec::new();
        for service in &view.routes.snapshot().services {
            let Some(state) = view.services.get(&service.id) else { continue };
            let replicas = service.revisions.iter().flat_map(|revision| &revision.replicas);
            let draining = replicas.filter(|replica| replica.draining).map(|replica| replica.id);
            drained.extend(draining.filter(|replica| state.is_free(*replica)));
        }
        let mut states = self.states();
        drained.extend(states.values().flat_map(|state| state.free_after_leave()));
        states.retain(|_, state| !state.is_over());
        drop(states);
        drained.truncate(MAX_DRAINED);
        drained
    }

    /// The requests at replicas and those that wait, of all services.
    pub fn counts(&self) -> (u64, u64) {
        self.states().values().fold((0, 0), |(in_flight, waiting), state| {
            let counts = state.counts();
            (in_flight + u64::from(counts.0), waiting + counts.1 as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use berth_serving::snapshot::VERSION;
    use serde_json::json;

    use super::*;
    use crate::settings::{GatewayToken, Limits, PortalUrl};

    fn text(number: u64, gateway: u64) -> Vec<u8> {
        let snapshot = json!({
            "version": VERSION, "number": number, "gateway_number": gateway, "authority": "", "services": [], "keys": [],
        });
        serde_json::to_vec(&snapshot).unwrap()
    }

    #[test]
    fn the_snapshot_of_a_new_number_is_kept_before_the_credit_of_the_former_one_ends() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings {
            portal: PortalUrl::parse("https://portal.example.org").unwrap(),
            token: GatewayToken::parse("bgw_one").unwrap(),
            portal_ca: None,
            data: dir.path().to_owned(),
            limits: Limits::default(),
        };
        let shared = Shared::open(settings).unwrap();
        let (file, journal) = (dir.path().join(SNAPSHOT), dir.path().join("journal.jsonl"));
        let books = || std::fs::read(&journal).unwrap();
        shared.renew(&text(1, 7)).unwrap();
        assert!(shared.renew(&text(1, 7)).is_err(), "it is in use already");
        let former = books();
        // A file cannot take the place of a directory.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        shared.renew(&text(2, 7)).unwrap();
        assert_eq!(shared.snapshot_number(), 2, "revocations do not wait for the disk");
        shared.keep_again();
        assert!(shared.is_unkept(), "the disk has no room yet");
        assert!(shared.renew(&text(3, 8)).is_err());
        assert_eq!((shared.snapshot_number(), books()), (2, former.clone()), "the credit stays");
        std::fs::remove_dir(&file).unwrap();
        shared.keep_again();
        assert_eq!((std::fs::read(&file).unwrap(), shared.is_unkept()), (text(2, 7), false));
        shared.renew(&text(3, 8)).unwrap();
        assert_eq!((shared.snapshot_number(), std::fs::read(&file).unwrap()), (3, text(3, 8)));
        assert_ne!(books(), former, "the credit of the new number begins");
    }
}
