//! A real portal whose clock is the machine's and some seconds more, for tests of what takes days.
//!
//! `forward 86400` on its standard input moves the clock by so many seconds and does what is due then;
//! `moved 86400` is the answer, with the sum of all moves. It ends when its standard input does. What
//! waits by a clock that nobody moves, as the loops between two looks do, is woken or done here.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use berth_server::clock::{Clock, SystemClock};
use berth_server::portal::{Portal, Settings};
use berth_server::serve::serve;
use berth_server::store::{Db, StoreError};
use berth_server::web::Assets;
use berth_types::time::Timestamp;
use clap::Parser;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const YEAR_S: i64 = 365 * 86_400;

#[derive(Parser)]
struct Args {
    /// The directory of everything that the portal keeps; it is there already.
    #[arg(long)]
    data: PathBuf,
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    worker_listen: SocketAddr,
    /// The built pages.
    #[arg(long)]
    web: PathBuf,
}

/// The machine's clock and so many seconds more.
#[derive(Default)]
struct Ahead(AtomicI64);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus_seconds(self.0.load(Ordering::SeqCst))
    }

    // Leases are counted together with workers, whose clocks do not move.
    fn monotonic_ms(&self) -> i64 {
        SystemClock.monotonic_ms()
    }
}

/// A line for whoever moves the clock; one who has stopped reading is about to end this.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// What is said on standard input, until its end.
fn lines() -> UnboundedReceiver<String> {
    let (tell, heard) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    heard
}

/// One round of every loop that looks at the clock.
async fn do_what_is_due(portal: &Portal) -> Result<(), StoreError> {
    portal.tick_reservations().await?;
    portal.tick_drains().await?;
    portal.live.schedule.notify_one();
    portal.tick_budgets().await?;
    portal.bill_last_month().await?;
    portal.reconcile().await?;
    Ok(())
}

/// Moves the clock as the lines say, until there are no more.
async fn follow(portal: Portal, clock: Arc<Ahead>, mut lines: UnboundedReceiver<String>) {
    while let Some(line) = lines.recv().await {
        let seconds = line.strip_prefix("forward ").and_then(|n| n.trim().parse::<i64>().ok());
        let Some(seconds) = seconds.filter(|n| *n > 0) else {
            say("failed: a line is `forward SECONDS`");
            continue;
        };
        let before = clock.0.fetch_add(seconds, Ordering::SeqCst);
        match do_what_is_due(&portal).await {
            Ok(()) => say(&format!("moved {}", before.saturating_add(seconds))),
            Err(error) => say(&format!("failed: {error}")),
        }
    }
}

async fn run(args: Args) -> Result<(), String> {
    let assets = Assets::open(&args.web)?;
    let db = Db::sqlite(&args.data.join("berth.db")).await.map_err(|e| e.to_string())?;
    let listener = TcpListener::bind(args.listen).await.map_err(|e| e.to_string())?;
    let worker_listener = TcpListener::bind(args.worker_listen).await.map_err(|e| e.to_string())?;
    let settings = Settings {
        data: args.data,
        worker_url: format!("https://{}", args.worker_listen),
        // The workers' clocks do not move with this one.
        node_certificate_s: 20 * YEAR_S,
        portal_certificate_s: 20 * YEAR_S,
        public_url: format!("http://{}", args.listen),
        ..Settings::default()
    };
    let clock = Arc::new(Ahead::default());
    let portal = Portal::new(db, settings, clock.clone(), ChaCha20Rng::from_os_rng());
    let moves = follow(portal.clone(), clock, lines());
    serve(portal, Some(assets), listener, worker_listener, moves).await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_env_filter("info,sqlx=warn").with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(Args::parse()))?;
    Ok(())
}
