//! Settings that an operator gives when the portal starts.

use std::path::PathBuf;

use berth_core::ports::Origin;
use berth_recordings::Keep;

use crate::envelope;
use crate::objects::Bucket;

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
