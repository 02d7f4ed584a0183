//! The settings that an operator gives at the start of the portal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use berth_core::gang_links::LinkMinimum;
use berth_core::ports::Origin;
use berth_recordings::Retention;
use berth_store::accounts::Session;
use berth_types::accounts::User;
use berth_types::operators::OperatorRole;

use crate::audit_key::AuditKey;
use crate::audit_targets::AuditTargets;
use crate::envelope;
use crate::objects::Bucket;
use crate::proxies::TrustedProxies;

/// The people who need a second factor to use the portal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequireFactor {
    All,
    Operators,
    /// Nobody, except members of organizations that require one.
    #[default]
    None,
}

impl RequireFactor {
    /// True if the portal requires a second factor of this user.
    pub const fn applies_to(self, user: &User) -> bool {
        match self {
            Self::All => true,
            Self::Operators => user.operator,
            Self::None => false,
        }
    }

    /// True if the user of a session needs a second factor, by the rule of an organization or of the portal. One that
    /// the provider of the session verified counts for the portal.
    pub const fn applies_to_session(self, found: &Session) -> bool {
        found.factor_required || (self.applies_to(&found.user) && !found.provider_factor)
    }
}

impl FromStr for RequireFactor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "operators" => Ok(Self::Operators),
            "none" => Ok(Self::None),
            _ => Err("enter all, operators or none".to_owned()),
        }
    }
}

/// The OpenID Connect provider of the operators.
#[derive(Clone)]
pub struct OperatorProvider {
    pub issuer: String,
    pub client_id: String,
    pub client_secret: String,
    /// The group of the operators in the claim `groups`.
    pub group: String,
    /// The role of a person in the group at the first sign-in.
    pub role: OperatorRole,
}

/// The cost of a password's hash by argon2id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PasswordCost {
    pub memory_kib: u32,
    pub passes: u32,
}

impl Default for PasswordCost {
    /// OWASP's first recommendation.
    fn default() -> Self {
        Self { memory_kib: 19 * 1024, passes: 2 }
    }
}

/// The settings of the portal. They are fixed from the start on.
#[derive(Clone)]
pub struct Settings {
    /// ISO 4217 code.
    pub currency: String,
    pub sign_up_open: bool,
    /// The portal is served over https: cookies are `Secure` and have the `__Host-` prefix.
    pub https: bool,
    pub session_idle_s: i64,
    pub session_absolute_s: i64,
    pub require_factor: RequireFactor,
    pub password_cost: PasswordCost,
    /// The provider for the single sign-on of operators. Without it they have passwords only.
    pub operator_provider: Option<OperatorProvider>,
    /// The DNS server for the records of domains. Without it the servers are those of the system.
    pub dns_server: Option<SocketAddr>,
    /// The data directory, with logs and readings.
    pub data: PathBuf,
    /// The retention of readings.
    pub keep_readings: Retention,
    /// The URL of the portal for workers. It is part of the command for joining a host.
    pub worker_url: String,
    /// The worker's program for download by hosts. Without it an operator installs the worker by hand.
    pub worker_program: Option<PathBuf>,
    /// Lifetime of a node's certificate in seconds. The worker renews it after two thirds.
    pub node_certificate_s: i64,
    /// Milliseconds for which attempts continue without contact to the portal.
    pub lease_ms: i64,
    /// Lifetime in seconds of the portal's certificate for workers. The portal makes a new one every day.
    pub portal_certificate_s: i64,
    /// The file with the present key for sealing. The default is a file in the data directory.
    pub secrets_key: Option<PathBuf>,
    /// Files with former keys. At the start the portal wraps the keys of their secrets with the present key.
    pub secrets_old_keys: Vec<PathBuf>,
    /// The file with the key for checkpoints of the audit log. The default is a file in the data directory.
    pub audit_key: Option<PathBuf>,
    /// The destinations of the audit log outside of the portal.
    pub audit_targets: AuditTargets,
    /// Permits webhooks in private networks and with plain http.
    pub private_webhooks: bool,
    /// A URL such as `smtps://user:password@host`. Without it mail goes to files in the data directory.
    pub smtp: Option<String>,
    pub mail_from: String,
    /// A sign-up needs the verification of its e-mail address. Without it each new address counts as verified.
    pub verify_email: bool,
    /// The URL of the portal for browsers.
    pub public_url: String,
    /// Open connections of browsers and scripts.
    pub max_connections: usize,
    /// Requests a second of one person or API token, after twenty times as many at once; 0: no limit.
    pub caller_requests_per_s: u32,
    /// The reverse proxies in front of the portal.
    pub trusted_proxies: TrustedProxies,
    /// The origin of job ports, with a host name other than the portal's. Without it ports are off.
    pub ports_origin: Option<Origin>,
    /// Stripe's secret key. Without it only operators grant credit.
    pub stripe_key: Option<String>,
    pub stripe_url: String,
    /// The secrets of Stripe's event signatures. Several are valid during a rotation.
    pub stripe_webhook_secrets: Vec<String>,
    /// The bucket of jobs' files. Without it they are in the data directory.
    pub object_store: Option<Bucket>,
    /// Limit of one organization for the bytes of jobs' files.
    pub org_storage_bytes: i64,
    /// The same limit for an organization that never had credit.
    pub free_storage_bytes: i64,
    /// The limit of stored submissions of an organization that never had credit.
    pub free_jobs: i64,
    /// Days for which ended jobs keep their submission, logs and files; `None`: for ever.
    pub keep_ended_jobs_days: Option<i64>,
    /// Days for which the use of services, ended replicas, deleted services and revoked keys stay; `None`: for ever.
    pub keep_service_records_days: Option<i64>,
    /// The most credit of one gateway in one organization in an hour, in micro-units of the currency.
    pub gateway_credit_micros: i64,
    /// The least throughput between two nodes of a job.
    pub gang_minimum: LinkMinimum,
    /// Free bytes of the data directory below which the portal refuses uploads, and below half of which also
    /// submissions; 0: no such mark.
    pub min_free_bytes: u64,
    /// The directory of the operator's templates of jobs.
    pub templates: Option<PathBuf>,
    /// Operators have the page of all components, for development.
    pub gallery: bool,
}

impl Settings {
    /// The path of the present key for sealing.
    pub fn secrets_key_file(&self) -> PathBuf {
        self.secrets_key.clone().unwrap_or_else(|| self.data.join(envelope::FILE))
    }

    /// The path of the key for checkpoints of the audit log.
    pub fn audit_key_file(&self) -> PathBuf {
        self.audit_key.clone().unwrap_or_else(|| self.data.join(AuditKey::FILE))
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
            require_factor: RequireFactor::default(),
            password_cost: PasswordCost::default(),
            operator_provider: None,
            dns_server: None,
            data: PathBuf::from("./data"),
            keep_readings: Retention::default(),
            worker_url: "https://127.0.0.1:8081".to_owned(),
            worker_program: None,
            node_certificate_s: 86_400,
            lease_ms: 600_000,
            portal_certificate_s: 30 * 86_400,
            secrets_key: None,
            audit_key: None,
            audit_targets: AuditTargets::default(),
            secrets_old_keys: Vec::new(),
            private_webhooks: false,
            smtp: None,
            mail_from: "Berth <berth@localhost.localdomain>".to_owned(),
            verify_email: false,
            public_url: "http://127.0.0.1:8080".to_owned(),
            max_connections: 8_192,
            caller_requests_per_s: 500,
            trusted_proxies: TrustedProxies::default(),
            ports_origin: None,
            stripe_key: None,
            stripe_url: "https://api.stripe.com".to_owned(),
            stripe_webhook_secrets: Vec::new(),
            object_store: None,
            org_storage_bytes: 100 << 30,
            free_storage_bytes: 100 << 20,
            free_jobs: 100,
            keep_ended_jobs_days: Some(365),
            keep_service_records_days: Some(400),
            gateway_credit_micros: 100_000_000,
            gang_minimum: LinkMinimum::default(),
            min_free_bytes: 0,
            templates: None,
            gallery: false,
        }
    }
}
