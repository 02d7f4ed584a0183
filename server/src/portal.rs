//! What every part of the portal holds on to: store, live news, recordings, clock,
//! randomness, settings.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rand::{Rng, RngCore};
use rand_chacha::ChaCha20Rng;

use crate::authority::Authority;
use crate::clock::Clock;
use crate::depot::{Bucket, Depot};
use crate::envelope::{self, Keys};
use crate::live::Live;
use crate::outbound::Outbound;
use crate::passwords::Hasher;
use crate::ports::Ports;
use crate::recordings::{Keep, Recordings};
use crate::service::files::HandOvers;
use crate::service::keys::InFlight;
use crate::service::leases::Leases;
use crate::service::planner::Planner;
use crate::service::underuse::Watches;
use crate::store::Db;
use crate::stripe::Stripe;
use crate::telemetry::Telemetry;
use crate::throttle::{Invites, Throttle};
use crate::tunnels::Tunnels;
use berth_core::ports::Origin;
use berth_types::time::Timestamp;

/// Settings that do not change while the portal runs.
#[derive(Clone)]
pub struct Settings {
    /// ISO 4217.
    pub currency: String,
    pub sign_up_open: bool,
    /// Served over https: cookies are `Secure` and carry the `__Host-` prefix.
    pub https: bool,
    pub session_idle_s: i64,
    pub session_absolute_s: i64,
    /// Where logs and readings are kept.
    pub data: PathBuf,
    /// For how long readings are kept.
    pub keep_readings: Keep,
    /// Where workers reach the portal, for the line that an operator runs on a host.
    pub worker_url: String,
    /// The worker's program for hosts to fetch; without it a host is set up by hand.
    pub worker_program: Option<PathBuf>,
    /// How long a node's certificate is good; it is renewed when two thirds have passed.
    pub node_certificate_s: i64,
    /// How long what a worker runs goes on without a word from this portal.
    pub lease_ms: i64,
    /// How long the portal's own certificate towards workers is good; a new one is made every day.
    pub portal_certificate_s: i64,
    /// The file with the key that seals secrets; one in the data directory when absent.
    pub secrets_key: Option<PathBuf>,
    /// Files with the keys before it, whose secrets are sealed anew at the start.
    pub secrets_old_keys: Vec<PathBuf>,
    /// Webhooks may lead into private networks, and be plain http.
    pub private_webhooks: bool,
    /// `smtps://user:password@host`; mail goes to files in the data directory without one.
    pub smtp: Option<String>,
    pub mail_from: String,
    /// Where people reach the portal.
    pub public_url: String,
    /// Where ports of jobs are seen: a host name that is not the portal's; without one they are not.
    pub ports_origin: Option<Origin>,
    /// Stripe's secret key; without it the portal lives on credit from the operator.
    pub stripe_key: Option<String>,
    pub stripe_url: String,
    /// What Stripe signs its events with; several while one is being replaced.
    pub stripe_webhook_secrets: Vec<String>,
    /// Where jobs' files are kept; the data directory without one.
    pub object_store: Option<Bucket>,
    /// Bytes of jobs' files that one organization may have.
    pub org_storage_bytes: i64,
}

impl Settings {
    /// Where the key that seals secrets is.
    pub fn secrets_key_file(&self) -> PathBuf {
        self.secrets_key.clone().unwrap_or_else(|| self.data.join(envelope::FILE))
    }

    fn stripe(&self) -> Option<Arc<Stripe>> {
        let key = self.stripe_key.as_deref().filter(|key| !key.is_empty())?;
        // An empty secret would let anybody sign.
        let secrets = self.stripe_webhook_secrets.iter().map(|s| s.trim().to_owned());
        let secrets: Vec<String> = secrets.filter(|s| !s.is_empty()).collect();
        if secrets.is_empty() {
            tracing::warn!("there is no webhook secret of Stripe's, so no payment will ever be credited");
        }
        Stripe::new(&self.stripe_url, key, &secrets).map(Arc::new)
    }

    fn outbound(&self) -> Outbound {
        let outbox = self.data.join("outbox");
        let made = Outbound::new(self.private_webhooks, self.smtp.as_deref(), &self.mail_from, &outbox);
        made.unwrap_or_else(|error| {
            tracing::error!(error, "nothing is sent to webhooks or by mail");
            Outbound::none()
        })
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            currency: "USD".to_owned(),
            sign_up_open: true,
            https: false,
            session_idle_s: 12 * 3_600,
            session_absolute_s: 14 * 86_400,
            data: PathBuf::from("./data"),
            keep_readings: Keep::default(),
            worker_url: "https://127.0.0.1:8081".to_owned(),
            worker_program: None,
            node_certificate_s: 86_400,
            lease_ms: 600_000,
            portal_certificate_s: 30 * 86_400,
            secrets_key: None,
            secrets_old_keys: Vec::new(),
            private_webhooks: false,
            smtp: None,
            mail_from: "Berth <berth@localhost.localdomain>".to_owned(),
            public_url: "http://127.0.0.1:8080".to_owned(),
            ports_origin: None,
            stripe_key: None,
            stripe_url: "https://api.stripe.com".to_owned(),
            stripe_webhook_secrets: Vec::new(),
            object_store: None,
            org_storage_bytes: 100 << 30,
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Portal {
    pub db: Db,
    pub settings: Arc<Settings>,
    pub hasher: Hasher,
    pub live: Arc<Live>,
    pub(crate) planner: Arc<Planner>,
    pub recordings: Recordings,
    pub depot: Arc<Depot>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) outbound: Arc<Outbound>,
    /// Absent: no cards are taken.
    pub(crate) stripe: Option<Arc<Stripe>>,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) invites: Arc<Invites>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) handovers: Arc<HandOvers>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) tunnels: Arc<Tunnels>,
    pub(crate) ports: Arc<Ports>,
    /// Opened when it is first needed.
    authority: Arc<Mutex<Option<Arc<Authority>>>>,
    keys: Arc<Mutex<Option<Arc<Keys>>>>,
    clock: Arc<dyn Clock>,
    rng: Arc<Mutex<ChaCha20Rng>>,
}

impl Portal {
    pub fn new(db: Db, settings: Settings, clock: Arc<dyn Clock>, rng: ChaCha20Rng) -> Self {
        Self {
            db,
            hasher: Hasher::new(2),
            live: Arc::default(),
            planner: Arc::default(),
            throttle: Arc::default(),
            watches: Arc::default(),
            invites: Arc::default(),
            in_flight: Arc::default(),
            leases: Arc::new(Leases::since(clock.monotonic_ms())),
            handovers: Arc::new(HandOvers::since(clock.now())),
            tunnels: Arc::default(),
            ports: Arc::default(),
            outbound: Arc::new(settings.outbound()),
            stripe: settings.stripe(),
            recordings: Recordings::keeping(&settings.data, settings.keep_readings),
            telemetry: Arc::new(Telemetry::new(clock.now())),
            depot: Arc::new(Depot::new(&settings.data, settings.object_store.clone())),
            settings: Arc::new(settings),
            authority: Arc::default(),
            keys: Arc::default(),
            clock,
            rng: Arc::new(Mutex::new(rng)),
        }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// For what must not depend on whoever sets the clock.
    pub(crate) fn monotonic_ms(&self) -> i64 {
        self.clock.monotonic_ms()
    }

    /// The portal's certificate authority, kept in the data directory.
    pub fn authority(&self) -> Result<Arc<Authority>, String> {
        let mut kept = self.authority.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(authority) = kept.as_ref() {
            return Ok(authority.clone());
        }
        let authority = Arc::new(Authority::open(&self.settings.data, self.now())?);
        *kept = Some(authority.clone());
        Ok(authority)
    }

    /// What seals secrets and opens them.
    pub fn keys(&self) -> Result<Arc<Keys>, String> {
        let mut kept = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = kept.as_ref() {
            return Ok(keys.clone());
        }
        let keys = Keys::open(&self.settings.secrets_key_file(), &self.settings.secrets_old_keys)?;
        let keys = Arc::new(keys);
        *kept = Some(keys.clone());
        Ok(keys)
    }

    /// Runs `draw` with the portal's randomness.
    pub fn random<T>(&self, draw: impl FnOnce(&mut ChaCha20Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A new id, ordered by time.
    pub fn new_id<T: From<uuid::Uuid>>(&self, now: Timestamp) -> T {
        let mut bytes = [0u8; 10];
        self.random(|rng| rng.fill_bytes(&mut bytes));
        let millis = u64::try_from(now.millis()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid().into()
    }

    pub fn salt(&self) -> [u8; 16] {
        self.random(|rng| rng.random())
    }
}
