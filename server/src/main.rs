//! The program `berth-portal`: its command line, and the commands `serve`, `migrate`, `backup`, `secrets rewrap`,
//! `factors remove`, `second-operator end` and `audit verify`.

mod audit_options;
mod backup;
mod edge_options;
mod readings_options;
mod service_options;
mod sso_options;
mod storage_options;
mod upkeep;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_billing::parse_currency;
use berth_core::ports::Origin;
use berth_foundation::Settings;
use berth_foundation::addresses::{
    check_ports_origin, own_public_url, own_worker_url, parse_listener, parse_public_url, parse_worker_url,
};
use berth_foundation::clock::SystemClock;
use berth_foundation::log_line::LogLine;
use berth_foundation::mail::Mailer;
use berth_foundation::objects::Bucket;
use berth_foundation::settings::RequireFactor;
use berth_jobs::Templates;
use berth_server::arguments::{Store, VerifyLog};
use berth_server::portal::Portal;
use berth_server::serve::{STACK_BYTES, serve};
use berth_server::web::Assets;
use clap::{Parser, Subcommand};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use tokio::net::TcpListener;

use audit_options::AuditOptions;
use backup::Backup;
use edge_options::Edge;
use readings_options::Readings;
use sso_options::SsoOptions;
use storage_options::StorageOptions;
use upkeep::{end_second_operator, remove_factors, rewrap};

#[derive(Parser)]
#[command(name = "berth-portal", version, about = "The Berth portal: a self-hosted, multi-tenant GPU cloud.")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves the API.
    Serve(Box<Serve>),
    /// Brings the database to this version and stops.
    Migrate {
        #[command(flatten)]
        store: Store,
    },
    /// Copies the data of the portal, also while it runs.
    Backup(Backup),
    /// Commands for the secrets of organizations while no portal runs.
    Secrets {
        #[command(subcommand)]
        command: Secrets,
    },
    /// Commands for second factors of people while no portal runs.
    Factors {
        #[command(subcommand)]
        command: Factors,
    },
    /// Commands for the rule for a second operator while no portal runs.
    SecondOperator {
        #[command(subcommand)]
        command: SecondOperator,
    },
    /// Commands for the audit log.
    Audit {
        #[command(subcommand)]
        command: Audit,
    },
}

#[derive(Subcommand)]
enum Audit {
    /// Verifies the numbers, the hashes and the signatures of the audit log. Names the first fault with status 1.
    Verify(VerifyLog),
}

#[derive(Subcommand)]
enum Factors {
    /// Removes the authenticator app, the passkeys and the recovery codes of an account, ends its sessions, and stops.
    /// The password alone signs in afterwards.
    Remove {
        #[command(flatten)]
        store: Store,
        /// The e-mail address of the account.
        email: String,
    },
}

#[derive(Subcommand)]
enum SecondOperator {
    /// Ends the rule for a second operator, and stops. It is the way back of a portal with one owner.
    End {
        #[command(flatten)]
        store: Store,
    },
}

#[derive(Subcommand)]
enum Secrets {
    /// Seals all values under former keys again with the present key, and stops.
    Rewrap {
        #[command(flatten)]
        store: Store,
        #[command(flatten)]
        keys: KeyFiles,
    },
}

#[derive(clap::Args)]
struct KeyFiles {
    /// The file with the key for secrets: 32 bytes in base64. By default secrets.key in the data directory;
    /// the portal creates a missing file. The secrets in the database are unreadable without the key.
    #[arg(long, env = "BERTH_SECRETS_KEY_FILE")]
    secrets_key_file: Option<PathBuf>,
    /// The files with former keys, separated by commas. The start seals all values under them again
    /// with the present key.
    #[arg(long, env = "BERTH_SECRETS_OLD_KEY_FILES", value_delimiter = ',')]
    secrets_old_key_files: Vec<PathBuf>,
}

#[derive(clap::Args)]
struct Serve {
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    keys: KeyFiles,
    #[command(flatten)]
    audit: AuditOptions,
    /// The address for browsers and scripts.
    #[arg(long, env = "BERTH_LISTEN", default_value = "127.0.0.1:8080", value_parser = parse_listener)]
    listen: SocketAddr,
    /// The address for workers.
    #[arg(long, env = "BERTH_WORKER_LISTEN", default_value = "127.0.0.1:8081", value_parser = parse_listener)]
    worker_listen: SocketAddr,
    /// The URL of the portal for workers, such as https://portal.example.org:8081. The portal's certificate
    /// contains its host. By default https:// and the address of --worker-listen.
    #[arg(long, env = "BERTH_WORKER_URL", value_parser = parse_worker_url)]
    worker_url: Option<String>,
    /// The validity of a node's certificate in seconds. The renewal follows after two thirds of it.
    #[arg(long, env = "BERTH_NODE_CERTIFICATE_S", default_value_t = 86_400, value_parser = clap::value_parser!(i64).range(60..=31_536_000))]
    node_certificate_s: i64,
    /// The length of a lease in seconds: the longest run of a worker's jobs without contact to this portal.
    /// Then the worker ends the jobs. A little later this portal counts them as ended.
    #[arg(long, env = "BERTH_LEASE_S", default_value_t = 600, value_parser = clap::value_parser!(i64).range(3..=86_400))]
    lease_s: i64,
    /// The directory of the built pages. By default the directory web beside this program, if it exists.
    #[arg(long, env = "BERTH_WEB")]
    web: Option<PathBuf>,
    /// The one currency of this portal: a code of ISO 4217. It is fixed once money has moved.
    #[arg(long, env = "BERTH_CURRENCY", default_value = "USD", value_parser = parse_currency)]
    currency: String,
    /// The portal is behind a proxy with https. Session cookies are Secure. A --public-url with https includes
    /// this option.
    #[arg(long, env = "BERTH_HTTPS")]
    https: bool,
    #[command(flatten)]
    edge: Edge,
    /// Webhooks may have addresses in private networks and plain http, for installations with receivers
    /// beside the portal.
    #[arg(long, env = "BERTH_PRIVATE_WEBHOOKS")]
    private_webhooks: bool,
    #[command(flatten)]
    mail: Mail,
    /// The URL of the portal for browsers, such as https://portal.example.org, for links in mail and for the return
    /// from payments. By default http:// and the address of --listen.
    #[arg(long, env = "BERTH_PUBLIC_URL", value_parser = parse_public_url)]
    public_url: Option<String>,
    /// The origin of the ports of jobs in the browser: https://ports.example.org, or
    /// https://*.ports.example.org with a name for each job. The portal's own host name is refused, because
    /// tenants control these pages. Without this option ports are closed.
    #[arg(long, env = "BERTH_PORTS_ORIGIN")]
    ports_origin: Option<Origin>,
    /// The secret key of Stripe. Without it the portal takes no cards, and all credit comes from the
    /// operator.
    #[arg(long, env = "BERTH_STRIPE_KEY", hide_env_values = true)]
    stripe_key: Option<String>,
    /// The URL of Stripe, or of a server with the same API.
    #[arg(long, env = "BERTH_STRIPE_URL", default_value = "https://api.stripe.com")]
    stripe_url: String,
    /// The signing secrets of Stripe's webhooks (whsec_…), separated by commas; two during a rotation.
    #[arg(long, env = "BERTH_STRIPE_WEBHOOK_SECRETS", hide_env_values = true, value_delimiter = ',')]
    stripe_webhook_secrets: Vec<String>,
    /// The bucket for the files of jobs: s3://BUCKET, with its credentials as AWS_* in the environment.
    /// Without it the files are in the data directory.
    #[arg(long, env = "BERTH_OBJECT_STORE")]
    object_store: Option<String>,
    /// The limit of stored files of one organization in GiB.
    #[arg(long, env = "BERTH_ORG_STORAGE_GIB", default_value_t = 100, value_parser = clap::value_parser!(i64).range(0..=1_048_576))]
    org_storage_gib: i64,
    #[command(flatten)]
    storage: StorageOptions,
    /// The directory of further templates for the launch form: one JSON file each. The portal reads it at its
    /// start and at SIGHUP.
    #[arg(long, env = "BERTH_TEMPLATES")]
    templates: Option<PathBuf>,
    #[command(flatten)]
    accounts: Accounts,
    #[command(flatten)]
    sso: SsoOptions,
    #[command(flatten)]
    readings: Readings,
}

#[derive(clap::Args)]
struct Accounts {
    /// Sign-up is closed. A new account needs an invitation.
    #[arg(long, env = "BERTH_SIGN_UP_CLOSED")]
    sign_up_closed: bool,
    /// The people who need a second factor: all, operators or none. An organization can require one of its members in
    /// any case.
    #[arg(long, env = "BERTH_REQUIRE_SECOND_FACTOR", default_value = "none")]
    require_second_factor: RequireFactor,
}

#[derive(clap::Args)]
struct Mail {
    /// The mail server: smtps://USER:PASSWORD@HOST. Without it the portal writes mail to files in the
    /// directory outbox of the data directory.
    #[arg(long, env = "BERTH_SMTP", hide_env_values = true)]
    smtp: Option<String>,
    /// The sender of mail.
    #[arg(long, env = "BERTH_MAIL_FROM", default_value = "Berth <berth@localhost.localdomain>")]
    mail_from: String,
    /// A sign-up needs the verification of its e-mail address by a link: true or false. By default true with
    /// --smtp and false without it.
    #[arg(long, env = "BERTH_VERIFY_EMAIL")]
    verify_email: Option<bool>,
}

/// Makes the allocator return large freed blocks to the system. By default each of its arenas would keep the
/// memory of one password hash (19 MiB) for ever.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the allocator's settings are a C call")]
fn trim_memory() {
    use nix::libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, mallopt};
    // SAFETY: called before any other thread exists; a refused setting changes nothing.
    unsafe {
        mallopt(M_MMAP_THRESHOLD, 1 << 20);
        mallopt(M_ARENA_MAX, 2);
    }
}

fn main() -> std::process::ExitCode {
    // No other user of this host reads the portal's files.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    #[cfg(target_env = "gnu")]
    trim_memory();
    match tokio::runtime::Builder::new_multi_thread().thread_stack_size(STACK_BYTES).enable_all().build() {
        Ok(runtime) => runtime.block_on(start()),
        Err(error) => {
            eprintln!("berth-portal: the runtime cannot start: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// The filter of log lines. The Stripe library reports each signed event that its types cannot read as an
/// error, though the portal reads it.
fn log_filter() -> tracing_subscriber::EnvFilter {
    let chosen = tracing_subscriber::EnvFilter::try_from_env("BERTH_LOG");
    let filter = chosen.unwrap_or_else(|_| "info,sqlx=warn".into());
    match "stripe_webhook=off".parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    }
}

async fn start() -> std::process::ExitCode {
    tracing_subscriber::fmt().with_env_filter(log_filter()).with_writer(|| LogLine(std::io::stderr())).init();
    match run(Args::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("berth-portal: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), String> {
    match args.command {
        Command::Migrate { store } => {
            store.migrate().await.map(|()| println!("The database has the schema of this version"))
        }
        Command::Secrets { command: Secrets::Rewrap { store, keys } } => rewrap(store, keys).await,
        Command::Factors { command: Factors::Remove { store, email } } => remove_factors(store, &email).await,
        Command::SecondOperator { command: SecondOperator::End { store } } => {
            end_second_operator(store).await
        }
        Command::Audit { command: Audit::Verify(verify) } => {
            verify.run().await.map(|report| println!("{report}"))
        }
        Command::Backup(backup) => backup.run().await.map(|report| println!("{report}")),
        Command::Serve(args) => serve_portal(*args).await,
    }
}

/// The longest wait for the end of another portal.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Opens both ports and the database, and serves until the stop.
async fn serve_portal(args: Serve) -> Result<(), String> {
    let Serve {
        store,
        keys,
        audit,
        listen,
        worker_listen,
        worker_url,
        node_certificate_s,
        lease_s,
        web,
        currency,
        https,
        edge,
        accounts,
        sso,
        private_webhooks,
        mail,
        public_url,
        ports_origin,
        stripe_key,
        stripe_url,
        stripe_webhook_secrets,
        readings,
        object_store,
        org_storage_gib,
        storage,
        templates,
    } = args;
    let keep_readings = readings.keep()?;
    let assets = web.or_else(built_pages).as_deref().map(open_pages).transpose()?;
    let object_store = object_store.as_deref().map(find_bucket).transpose()?;
    let public_url = public_url.unwrap_or_else(|| own_public_url(listen));
    check_ports_origin(ports_origin.as_ref(), &public_url)?;
    let (dns_server, operator_provider) = (sso.dns_server, sso.provider()?);
    // A refused option leaves the data as they are.
    Mailer::new(mail.smtp.as_deref(), &mail.mail_from, Path::new(""))?;
    let lock = store.lock(LOCK_WAIT).await?;
    let listener = bind(listen).await?;
    let worker_listener = bind(worker_listen).await?;
    let db = store.open().await?;
    let worker_at = worker_listener.local_addr().map_err(|e| e.to_string())?;
    let worker_url = worker_url.map_or_else(|| own_worker_url(worker_at), Ok)?;
    let settings = Settings {
        currency,
        https: https || public_url.starts_with("https://"),
        secrets_key: keys.secrets_key_file,
        secrets_old_keys: keys.secrets_old_key_files,
        private_webhooks,
        verify_email: mail.verify_email.unwrap_or(mail.smtp.is_some()),
        smtp: mail.smtp,
        mail_from: mail.mail_from,
        public_url,
        ports_origin,
        stripe_key,
        stripe_url,
        stripe_webhook_secrets,
        sign_up_open: !accounts.sign_up_closed,
        require_factor: accounts.require_second_factor,
        dns_server,
        operator_provider,
        data: store.data,
        keep_readings,
        worker_url,
        worker_program: worker_program(),
        node_certificate_s,
        lease_ms: lease_s * 1_000,
        object_store,
        org_storage_bytes: org_storage_gib << 30,
        templates,
        ..Settings::default()
    };
    let settings = audit.apply(storage.apply(edge.apply(settings)))?;
    let portal = Portal::new(db, settings, Arc::new(SystemClock), ChaCha20Rng::from_os_rng())?;
    prepare(&portal).await?;
    reload_at_hangup(portal.templates.clone());
    lock.keep(serve(portal, assets, listener, worker_listener, stopped())).await
}

/// Checks the data and the settings before the portal serves. The first start makes the keys.
async fn prepare(portal: &Portal) -> Result<(), String> {
    portal.ledger.keep_currency().await?;
    portal.enrolment.authority()?;
    portal.audit_log.check_key().await?;
    portal.audit_push.check()?;
    portal.objects.check().map_err(|e| e.to_string())
}

async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|e| format!("cannot listen on {address}: {e}"))
}

/// The worker program beside this program.
fn worker_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.parent()?.join("berth-worker");
    program.is_file().then_some(program)
}

/// The bucket for the files of jobs.
fn find_bucket(url: &str) -> Result<Bucket, String> {
    Bucket::parse("--object-store", url).map(|(bucket, _)| bucket)
}

fn open_pages(dir: &Path) -> Result<Assets, String> {
    Assets::open(dir).map_err(|e| format!("--web {e}"))
}

/// The directory of built pages beside this program.
fn built_pages() -> Option<PathBuf> {
    let dir = std::env::current_exe().ok()?.parent()?.join("web");
    dir.join("build-id").exists().then_some(dir)
}

/// Reads the templates again at each SIGHUP. Without a directory SIGHUP ends the portal, as by default.
fn reload_at_hangup(templates: Templates) {
    use tokio::signal::unix::{SignalKind, signal};
    if !templates.can_change() {
        return;
    }
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let templates = templates.clone();
            // After a failed reading the present templates stay.
            let _ = tokio::task::spawn_blocking(move || templates.reload()).await;
        }
    });
}

/// Resolves on Ctrl-C or SIGTERM.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut term) => {
            tokio::select! {
                _ = term.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(_) => {
            // Without the handler SIGTERM ends the process at once, and the store survives that.
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_another_form_is_refused_with_its_form() {
        for (option, value, form) in [
            ("--listen", "localhost:8080", "ADDRESS:PORT"),
            ("--worker-listen", "8081", "ADDRESS:PORT"),
            ("--dns-server", "127.0.0.1", "192.0.2.53:53"),
            ("--worker-url", "http://portal.example.org:8081", "https://HOST:PORT"),
            ("--public-url", "portal.example.org", "https://HOST"),
            ("--currency", "EURO", "ISO 4217"),
            ("--currency", "eur", "EUR"),
        ] {
            let refused = Args::try_parse_from(["berth-portal", "serve", option, value]).err().unwrap();
            let text = refused.to_string();
            assert!(text.contains(option) && text.contains(form), "{text}");
        }
        assert!(Args::try_parse_from(["berth-portal", "serve"]).is_ok());
    }
}
