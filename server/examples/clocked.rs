//! A complete portal with a movable clock, for tests of effects that take days.
//!
//! Each line on standard input is a command, with one line as its answer:
//!
//! - `forward 86400` moves the clock by so many seconds and runs the work that is due then. The answer is
//!   `moved 86400`, the sum of all moves. The loops sleep by the system's clock, so the command runs or wakes
//!   them.
//! - `hold` keeps the scheduler from starting a pass until `settle`; everything else continues. The answer is
//!   `held`.
//! - `settle` ends the hold and runs passes until one has nothing more to decide. The answer is `settled 2`,
//!   the number of decisions that its passes committed.
//!
//! The answer to a failed command is `failed: ` with the reason. The program ends with its standard input.
//! With `--still` the clock stands at the second of the start (`stands at ` with the time) and moves only by
//! commands.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use berth_foundation::Settings;
use berth_foundation::clock::{Clock, SystemClock};
use berth_server::loops;
use berth_server::portal::Portal;
use berth_server::serve::{STACK_BYTES, serve};
use berth_server::web::Assets;
use berth_services::promises::Promises;
use berth_store::{Db, StoreError};
use berth_types::time::Timestamp;
use clap::Parser;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const YEAR_S: i64 = 365 * 86_400;
/// Passes of one `settle`. A scheduler that needs more never ends.
const MAX_PASSES: u32 = 1_000;

#[derive(Parser)]
struct Args {
    /// The data directory of the portal; it exists already.
    #[arg(long)]
    data: PathBuf,
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    worker_listen: SocketAddr,
    /// The URL for browsers; by default the address of `--listen`.
    #[arg(long)]
    public_url: Option<String>,
    /// The built pages; none when absent.
    #[arg(long)]
    web: Option<PathBuf>,
    /// The clock moves by commands only.
    #[arg(long)]
    still: bool,
}

/// The system's clock or a fixed time, plus an offset.
struct MovableClock {
    fixed_at: Option<Timestamp>,
    offset_s: AtomicI64,
}

impl MovableClock {
    fn new(still: bool) -> Self {
        // A whole second, so that all times of a test are whole seconds.
        let second = |now: Timestamp| now.micros().div_euclid(1_000_000) * 1_000_000;
        let fixed_at = still.then(|| Timestamp::from_micros(second(SystemClock.now())));
        Self { fixed_at, offset_s: AtomicI64::new(0) }
    }
}

impl Clock for MovableClock {
    fn now(&self) -> Timestamp {
        let base = self.fixed_at.unwrap_or_else(|| SystemClock.now());
        base.plus_seconds(self.offset_s.load(Ordering::SeqCst))
    }

    // Leases need the same time as the workers, and the workers' clocks do not move.
    fn monotonic_ms(&self) -> i64 {
        SystemClock.monotonic_ms()
    }
}

/// Prints a line. A failure means that the test is about to end this program.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The lines of standard input.
fn lines() -> UnboundedReceiver<String> {
    let (sender, lines) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Runs once every loop that depends on the clock.
async fn run_due_work(portal: &Portal) -> Result<(), StoreError> {
    portal.reservations.tick_reservations().await?;
    portal.drains.tick_drains().await?;
    portal.planner.wake();
    loops::check_budgets(&portal.budgets, &portal.attempts, None).await?;
    portal.invoices.bill_last_month().await?;
    portal.reconciliations.reconcile().await?;
    let promises = Promises::new(portal.context.clone());
    while promises.judge().await? {}
    Ok(())
}

/// The command of a line.
enum Command {
    Forward(i64),
    Hold,
    Settle,
}

impl Command {
    fn parse(line: &str) -> Option<Self> {
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

/// Moves the clock, runs the due work and returns the answer.
async fn forward(portal: &Portal, clock: &MovableClock, seconds: i64) -> Result<String, String> {
    let before = clock.offset_s.fetch_add(seconds, Ordering::SeqCst);
    run_due_work(portal).await.map_err(|e| e.to_string())?;
    Ok(format!("moved {}", before.saturating_add(seconds)))
}

/// Runs passes until there is nothing more to decide, and returns the answer.
async fn settle(portal: &Portal) -> Result<String, String> {
    let mut decisions = 0;
    for _ in 0..MAX_PASSES {
        let pass = portal.scheduler.pass().await.map_err(|e| e.to_string())?;
        decisions += pass.committed;
        if pass.committed == 0 && !pass.unfinished {
            return Ok(format!("settled {decisions}"));
        }
    }
    Err(format!("after {MAX_PASSES} passes there is still something to decide"))
}

/// Runs the commands of all lines.
async fn run_commands(portal: Portal, clock: Arc<MovableClock>, mut lines: UnboundedReceiver<String>) {
    let mut held = None;
    while let Some(line) = lines.recv().await {
        let answer = match Command::parse(&line) {
            Some(Command::Forward(seconds)) => forward(&portal, &clock, seconds).await,
            Some(Command::Hold) => {
                if held.is_none() {
                    held = Some(portal.scheduler.lock_passes().await);
                }
                Ok("held".to_owned())
            }
            Some(Command::Settle) => {
                drop(held.take());
                settle(&portal).await
            }
            None => Err("a line is `forward SECONDS`, `hold` or `settle`".to_owned()),
        };
        match answer {
            Ok(answer) => print_line(&answer),
            Err(why) => print_line(&format!("failed: {why}")),
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
        public_url: args.public_url.unwrap_or_else(|| format!("http://{}", args.listen)),
        ..Settings::default()
    };
    let clock = Arc::new(MovableClock::new(args.still));
    if let Some(at) = clock.fixed_at {
        print_line(&format!("stands at {at}"));
    }
    let portal = Portal::new(db, settings, clock.clone(), ChaCha20Rng::from_os_rng())?;
    let commands = run_commands(portal.clone(), clock, lines());
    serve(portal, assets, listener, worker_listener, commands).await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_env_filter("info,sqlx=warn").with_writer(std::io::stderr).init();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().thread_stack_size(STACK_BYTES).enable_all().build()?;
    runtime.block_on(run(Args::parse()))?;
    Ok(())
}
