//! A real portal whose clock is the machine's and some seconds more, for tests of what takes days.
//!
//! Lines on its standard input, each with one line as its answer:
//!
//! - `forward 86400` moves the clock by so many seconds and does what is due then: `moved 86400`, the sum of all
//!   moves. What waits by a clock that nobody moves, as the loops between two looks do, is woken or done here.
//! - `hold`: no pass of the scheduler begins until `settle`; everything else goes on: `held`.
//! - `settle` ends that, and passes until a pass has nothing more to decide: `settled 2`, the decisions kept
//!   by the passes of this line.
//!
//! What fails is answered by `failed: ` and why. It ends when its standard input does. With `--still` the clock
//! stands at the second of the start (`stands at ` and when), and moves by these lines alone.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use berth_foundation::Settings;
use berth_foundation::clock::{Clock, SystemClock};
use berth_server::loops;
use berth_server::portal::Portal;
use berth_server::serve::serve;
use berth_server::web::Assets;
use berth_store::{Db, StoreError};
use berth_types::time::Timestamp;
use clap::Parser;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const YEAR_S: i64 = 365 * 86_400;
/// A scheduler that decides more than this in a row never comes to an end.
const MOST_PASSES: u32 = 1_000;

#[derive(Parser)]
struct Args {
    /// The directory of everything that the portal keeps; it is there already.
    #[arg(long)]
    data: PathBuf,
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    worker_listen: SocketAddr,
    /// The built pages; none when absent.
    #[arg(long)]
    web: Option<PathBuf>,
    /// The clock does not go on by itself.
    #[arg(long)]
    still: bool,
}

/// The machine's clock, or one that stands, and so many seconds more.
struct Ahead {
    stands: Option<Timestamp>,
    seconds: AtomicI64,
}

impl Ahead {
    fn new(still: bool) -> Self {
        // A whole second, so that all times of a test are.
        let second = |now: Timestamp| now.micros().div_euclid(1_000_000) * 1_000_000;
        let stands = still.then(|| Timestamp::from_micros(second(SystemClock.now())));
        Self { stands, seconds: AtomicI64::new(0) }
    }
}

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        let from = self.stands.unwrap_or_else(|| SystemClock.now());
        from.plus_seconds(self.seconds.load(Ordering::SeqCst))
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
    portal.reservations.tick_reservations().await?;
    portal.drains.tick_drains().await?;
    portal.planner.wake();
    loops::check_budgets(&portal.budgets, &portal.attempts).await?;
    portal.invoices.bill_last_month().await?;
    portal.reconciliations.reconcile().await?;
    Ok(())
}

/// What a line asks for.
enum Order {
    Forward(i64),
    Hold,
    Settle,
}

impl Order {
    fn of(line: &str) -> Option<Self> {
        match line.trim() {
            "hold" => Some(Self::Hold),
            "settle" => Some(Self::Settle),
            line => {
                let seconds: i64 = line.strip_prefix("forward ")?.trim().parse().ok()?;
                (seconds > 0).then_some(Self::Forward(seconds))
            }
        }
    }
}

/// Moves the clock and does what is due then; the answer.
async fn forward(portal: &Portal, clock: &Ahead, seconds: i64) -> Result<String, String> {
    let before = clock.seconds.fetch_add(seconds, Ordering::SeqCst);
    do_what_is_due(portal).await.map_err(|e| e.to_string())?;
    Ok(format!("moved {}", before.saturating_add(seconds)))
}

/// Passes until there is nothing more to decide; the answer.
async fn settle(portal: &Portal) -> Result<String, String> {
    let mut kept = 0;
    for _ in 0..MOST_PASSES {
        let pass = portal.scheduler.pass().await.map_err(|e| e.to_string())?;
        kept += pass.kept;
        if pass.kept == 0 && !pass.unfinished {
            return Ok(format!("settled {kept}"));
        }
    }
    Err(format!("after {MOST_PASSES} passes there is still something to decide"))
}

/// Does what the lines say, until there are no more.
async fn follow(portal: Portal, clock: Arc<Ahead>, mut lines: UnboundedReceiver<String>) {
    let mut held = None;
    while let Some(line) = lines.recv().await {
        let answer = match Order::of(&line) {
            Some(Order::Forward(seconds)) => forward(&portal, &clock, seconds).await,
            Some(Order::Hold) => {
                if held.is_none() {
                    held = Some(portal.scheduler.hold().await);
                }
                Ok("held".to_owned())
            }
            Some(Order::Settle) => {
                drop(held.take());
                settle(&portal).await
            }
            None => Err("a line is `forward SECONDS`, `hold` or `settle`".to_owned()),
        };
        match answer {
            Ok(answer) => say(&answer),
            Err(why) => say(&format!("failed: {why}")),
        }
    }
}

async fn run(args: Args) -> Result<(), String> {
    let assets = args.web.as_deref().map(Assets::open).transpose()?;
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
    let clock = Arc::new(Ahead::new(args.still));
    if let Some(at) = clock.stands {
        say(&format!("stands at {at}"));
    }
    let portal = Portal::new(db, settings, clock.clone(), ChaCha20Rng::from_os_rng());
    let moves = follow(portal.clone(), clock, lines());
    serve(portal, assets, listener, worker_listener, moves).await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_env_filter("info,sqlx=warn").with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(Args::parse()))?;
    Ok(())
}
