//! The common dependencies of all parts of the portal: database, settings, clock, randomness, changes.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use berth_store::Db;
use berth_store::budgets::Notice;
use berth_types::ids::OrgId;
use berth_types::time::Timestamp;
use rand::{Rng, RngCore};
use rand_chacha::ChaCha20Rng;

use crate::changes::{Change, Changes};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::envelope::Keys;
use crate::live::Live;
use crate::repeated::RepeatedEvents;
use crate::settings::Settings;

/// The shared dependencies. A clone only increments a reference count.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

impl Deref for Context {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// The contents of a [`Context`].
pub struct Inner {
    pub db: Db,
    pub settings: Settings,
    pub changes: Changes,
    pub live: Arc<Live>,
    /// The free space of the data directory.
    pub disk: Disk,
    pub repeated: RepeatedEvents,
    /// Opened at the first use.
    keys: Mutex<Option<Arc<Keys>>>,
    clock: Arc<dyn Clock>,
    rng: Mutex<ChaCha20Rng>,
}

impl Context {
    pub fn new(db: Db, settings: Settings, clock: Arc<dyn Clock>, rng: ChaCha20Rng) -> Self {
        let live: Arc<Live> = Arc::default();
        let changes = Changes::default();
        changes.subscribe(live.clone());
        let disk = Disk::new(&settings.data, settings.min_free_bytes);
        let (keys, rng, repeated) = (Mutex::default(), Mutex::new(rng), RepeatedEvents::default());
        Self(Arc::new(Inner { db, settings, changes, live, disk, repeated, keys, clock, rng }))
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Milliseconds of a monotonic clock.
    pub fn monotonic_ms(&self) -> i64 {
        self.clock.monotonic_ms()
    }

    /// Runs `draw` with the portal's random generator.
    pub fn random<T>(&self, draw: impl FnOnce(&mut ChaCha20Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A new id, ordered by time (UUID version 7).
    pub fn new_id<T: From<uuid::Uuid>>(&self, now: Timestamp) -> T {
        let mut bytes = [0u8; 10];
        self.random(|rng| rng.fill_bytes(&mut bytes));
        let millis = u64::try_from(now.millis()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid().into()
    }

    pub fn salt(&self) -> [u8; 16] {
        self.random(|rng| rng.random())
    }

    /// The keys for sealed secrets.
    ///
    /// # Errors
    /// A key file cannot be read or created, or has no key.
    pub fn keys(&self) -> Result<Arc<Keys>, String> {
        let mut opened = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = opened.as_ref() {
            return Ok(keys.clone());
        }
        let keys = Keys::open(&self.settings.secrets_key_file(), &self.settings.secrets_old_keys)?;
        let keys = Arc::new(keys);
        *opened = Some(keys.clone());
        Ok(keys)
    }

    /// Passes a committed change to all listeners.
    pub fn publish(&self, change: Change) {
        self.changes.publish(&change);
    }

    /// A notice for webhooks and mail. The transaction of its cause has to write it.
    pub fn notice(
        &self,
        org: OrgId,
        kind: &str,
        subject: String,
        detail: String,
        data: &serde_json::Value,
    ) -> Notice {
        let at = self.now();
        let (id, kind) = (self.new_id(at), kind.to_owned());
        Notice { id, org, kind, subject, detail, data: data.to_string(), at }
    }
}
