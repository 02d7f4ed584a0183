//! The program `berth-gateway`: its command line.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use berth_gateway::settings::{GatewayToken, Limits, PortalUrl, Settings};
use berth_gateway::{run, tls};
use clap::Parser;
use ipnet::IpNet;
use nix::fcntl::{Flock, FlockArg};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// The variable with the token, where no file has it.
const TOKEN: &str = "BERTH_GATEWAY_TOKEN";

#[derive(Parser)]
#[command(name = "berth-gateway", version, about = "The gateway of services of a Berth portal.")]
struct Args {
    /// The URL of the portal, such as https://portal.example.org. Only a portal on this host may be without TLS.
    #[arg(long, env = "BERTH_PORTAL")]
    portal: String,
    /// The file with the token of this gateway (bgw_…). Without it the variable BERTH_GATEWAY_TOKEN has the token.
    #[arg(long, env = "BERTH_GATEWAY_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// The file with the certificates that the portal's certificate comes from. By default those of the system.
    #[arg(long, env = "BERTH_PORTAL_CA")]
    portal_ca: Option<PathBuf>,
    /// The address for callers.
    #[arg(long, env = "BERTH_GATEWAY_LISTEN", default_value = "127.0.0.1:8083")]
    listen: SocketAddr,
    /// The file with the certificate for callers and its chain. Without it callers speak plain HTTP, as behind a proxy.
    #[arg(long, env = "BERTH_GATEWAY_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The file with the key of the certificate.
    #[arg(long, env = "BERTH_GATEWAY_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The directory for lent amounts, for use that the portal does not know yet, and for the last snapshot.
    #[arg(long, env = "BERTH_GATEWAY_DATA")]
    data: PathBuf,
    #[command(flatten)]
    limits: LimitArgs,
}

#[derive(clap::Args)]
struct LimitArgs {
    /// The longest end of open requests at a stop, in seconds.
    #[arg(long, env = "BERTH_GATEWAY_DRAIN_S", default_value_t = 300, value_parser = clap::value_parser!(u64).range(..=86_400))]
    drain_s: u64,
    /// The longest wait of a request for a replica, in seconds.
    #[arg(long, env = "BERTH_GATEWAY_WAIT_S", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    wait_s: u64,
    /// Connections of callers.
    #[arg(long, env = "BERTH_GATEWAY_CONNECTIONS", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: u32,
    /// Connections of one address. This host and trusted proxies have no limit of their own.
    #[arg(long, env = "BERTH_GATEWAY_ADDRESS_CONNECTIONS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections_per_address: u32,
    /// The networks of the proxies before the gateway, separated by commas. The header X-Forwarded-For of others does
    /// not count.
    #[arg(long, env = "BERTH_GATEWAY_TRUSTED_PROXIES", value_delimiter = ',')]
    trusted_proxies: Vec<IpNet>,
    /// The memory for the bodies of requests in MiB.
    #[arg(long, env = "BERTH_GATEWAY_BODY_MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(256..=1_048_576))]
    body_mib: u32,
}

impl LimitArgs {
    fn limits(self) -> Limits {
        Limits {
            connections: self.max_connections as usize,
            connections_per_address: self.max_connections_per_address as usize,
            proxies: self.trusted_proxies,
            body_bytes: (self.body_mib as usize) << 20,
            drain: Duration::from_secs(self.drain_s),
            wait: Duration::from_secs(self.wait_s),
            ..Limits::default()
        }
    }
}

fn main() -> ExitCode {
    // No other user of this host reads the files of the gateway.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("BERTH_LOG").unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    match serve(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("berth-gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: Args) -> Result<(), String> {
    let portal = PortalUrl::parse(&args.portal)?;
    let token = read_token(args.token_file.as_deref())?;
    let portal_ca = args.portal_ca.as_deref().map(read).transpose()?;
    let acceptor = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(tls::acceptor(certificate, key)?),
        _ => None,
    };
    let data = args.data;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&data)
        .map_err(|e| format!("{} cannot be created: {e}", data.display()))?;
    let _only = lock(&data)?;
    let settings = Settings { portal, token, portal_ca, data, limits: args.limits.limits() };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| format!("the runtime cannot start: {e}"))?;
    let served = runtime.block_on(listen(settings, args.listen, acceptor));
    runtime.shutdown_background();
    served
}

async fn listen(settings: Settings, at: SocketAddr, acceptor: Option<TlsAcceptor>) -> Result<(), String> {
    // Before the listener: a signal at any later time ends the gateway in order.
    let stopped = stopped()?;
    let listener = TcpListener::bind(at).await.map_err(|e| format!("{at} is not usable: {e}"))?;
    let at = listener.local_addr().map_err(|e| e.to_string())?;
    let scheme = if acceptor.is_some() { "https" } else { "http" };
    println!("The gateway listens on {scheme}://{at}");
    run(settings, listener, acceptor, stopped).await
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The token of a file, or of the variable.
fn read_token(file: Option<&Path>) -> Result<GatewayToken, String> {
    let text = match file {
        Some(file) => std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?,
        None => std::env::var(TOKEN)
            .map_err(|_| format!("the gateway needs its token: give --token-file or the variable {TOKEN}"))?,
    };
    GatewayToken::parse(&text)
}

/// Locks the data directory for one gateway.
fn lock(data: &Path) -> Result<Flock<std::fs::File>, String> {
    let path = data.join("gateway.lock");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| format!("another gateway uses the data directory {}", data.display()))
}

/// Resolves on Ctrl-C or SIGTERM.
fn stopped() -> Result<impl Future<Output = ()>, String> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).map_err(|e| format!("signals cannot be received: {e}"));
    let (mut term, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
