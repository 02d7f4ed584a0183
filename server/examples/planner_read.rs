//! A benchmark of the planner's full read of a long queue.
//!
//! The portal stores the large parts of a submission (script, environment, files) in a table of their own,
//! which only a start reads. The benchmark compares this layout, `separate`, with `same_row`: the same
//! submissions as a part of the jobs' rows.
//!
//! Each layout gets a fresh database, and a process of its own runs the reads, so that no memory of one
//! measurement remains in the other. The first line of the output is JSON, a table follows.
//!
//! Without `--database` (or `DATABASE_URL`) the databases are SQLite files in a temporary directory. With it
//! the program creates two databases on that Postgres server and removes them at the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use berth_foundation::clock::{Clock, SystemClock};
use berth_foundation::{Context, Settings};
use berth_jobs::Planner;
use berth_storage::{HandOvers, VolumeUses};
use berth_store::nodes::{GpuReport, NodeReport};
use berth_store::offerings::StoredOffering;
use berth_store::types::JsonColumn;
use berth_store::{self as store, Db, StoreError, Tx};
use berth_types::accounts::Org;
use berth_types::ids::{NodeId, OfferingId, OrgId};
use berth_types::jobs::NewJob;
use berth_types::nodes::JoinTerms;
use berth_types::time::Timestamp;
use clap::Parser;
use futures::FutureExt;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;
use serde::{Deserialize, Serialize};
use sqlx::Connection;
use uuid::Uuid;

#[derive(Parser)]
struct Args {
    /// Queued jobs; the planner reads at most 200,000.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(i64).range(1..=200_000))]
    jobs: i64,
    /// Bytes of script, environment and files of each submission.
    #[arg(long, default_value_t = 4_096)]
    submission_bytes: usize,
    /// The URL of a database on a Postgres server, with the right to create databases.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database: Option<String>,
    /// The parent of the temporary directories for SQLite; the system's when absent.
    #[arg(long)]
    disk: Option<PathBuf>,
    /// Measures the reads of this existing database and prints the result. Only for this program's own
    /// processes.
    #[arg(long, hide = true)]
    measure: Option<String>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Reads for the times, after a first one.
const READS: usize = 5;
/// Jobs and bytes of submissions in one transaction. The jobs of a transaction have equal submissions.
const BATCH_JOBS: i64 = 5_000;
const BATCH_BYTES: usize = 64 << 20;
const BOARDS: i64 = 8;
const MODEL: &str = "H100-80GB";
const SLUG: &str = "h100-80gb";

/// The place of the large parts of a submission.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// In the table `job_inputs`, as in the portal.
    Separate,
    /// In the row of the job.
    SameRow,
}

impl Layout {
    const fn name(self) -> &'static str {
        match self {
            Self::Separate => "separate",
            Self::SameRow => "same_row",
        }
    }
}

/// The time and the memory of the planner's full reads in one process.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Measurement {
    /// The read into an empty engine; the next two are of the later reads.
    first_ms: f64,
    best_ms: f64,
    median_ms: f64,
    /// The growth of `VmRSS` from before the first read to after the last one.
    growth_mb: f64,
    /// `VmHWM`: the peak of the whole process during the reads.
    peak_mb: f64,
}

#[derive(Serialize)]
struct Report {
    engine: &'static str,
    jobs: i64,
    submission_bytes: usize,
    fill_s: f64,
    separate: Measurement,
    same_row: Measurement,
    /// The median time of `same_row` divided by that of `separate`.
    time_ratio: f64,
    /// The same for the peak of memory.
    memory_ratio: f64,
}

fn org() -> OrgId {
    OrgId::from_uuid(Uuid::from_u128(1))
}

fn offering() -> OfferingId {
    OfferingId::from_uuid(Uuid::from_u128(1))
}

fn node() -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(1))
}

/// Lines of a program, `bytes` long, with random numbers, so that Postgres compresses them no better than
/// other programs.
fn program_text(rng: &mut ChaCha20Rng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 100);
    while text.len() < bytes {
        let (step, seed) = (rng.random_range(0..100_000_u32), rng.random::<u64>());
        text.push_str(&format!("    schedule.append(\"stage-{step}\", seed=0x{seed:016x})\n"));
    }
    text.truncate(bytes);
    text
}

/// The stored texts of one submission.
struct Submission {
    /// JSON of the whole submission.
    whole: String,
    /// JSON of the submission without its large parts; the names of the files stay.
    rest: String,
    script: String,
    /// JSON.
    env: String,
    /// JSON.
    files: String,
}

impl Submission {
    fn new(seed: u64, bytes: usize) -> serde_json::Result<Self> {
        let rng = &mut ChaCha20Rng::seed_from_u64(seed);
        let env: BTreeMap<String, String> =
            (0..8).map(|n| (format!("BERTH_OPTION_{n}"), program_text(rng, bytes / 128))).collect();
        let script = program_text(rng, bytes / 16);
        let config = program_text(rng, bytes / 4);
        let used = 8 * (bytes / 128) + bytes / 16 + bytes / 4;
        let files: BTreeMap<String, String> = [
            ("train.py".to_owned(), program_text(rng, bytes.saturating_sub(used))),
            ("config/model.yaml".to_owned(), config),
        ]
        .into();
        let names = files.keys().map(|path| (path.clone(), String::new())).collect();
        let rest = NewJob {
            name: "train".to_owned(),
            offering: SLUG.to_owned(),
            count: 1,
            nodes: 1,
            files: names,
            max_duration_s: 86_400,
            cpus: Some(16),
            memory_mib: Some(131_072),
            artifacts: vec!["out/**".to_owned()],
            labels: [("team".to_owned(), "vision".to_owned())].into(),
            ..NewJob::default()
        };
        let whole =
            NewJob { script: Some(script.clone()), env: env.clone(), files: files.clone(), ..rest.clone() };
        Ok(Self {
            whole: serde_json::to_string(&whole)?,
            rest: serde_json::to_string(&rest)?,
            script,
            env: serde_json::to_string(&env)?,
            files: serde_json::to_string(&files)?,
        })
    }
}

/// Inserts queued jobs with the numbers from $1 to below $2. An id has 26 digits, with the number at the end.
const INSERT_JOBS: &str = "WITH RECURSIVE numbers (n) AS (SELECT CAST($1 AS BIGINT) UNION ALL \
    SELECT n + 1 FROM numbers WHERE n + 1 < CAST($2 AS BIGINT)) \
    INSERT INTO jobs (id, org_id, name, offering_id, spec, state, attempt, generation, priority, \
    device_count, max_duration_s, price_version, nano_per_second, held_micros, cost_micros, posted_micros, \
    metered_ms, created_by, created_at, cpu_milli, memory_mib, board_milli, labels, device_milli) \
    SELECT 'job_0000000000000000' || CAST(1000000000 + n AS TEXT), $3, 'train-' || CAST(n AS TEXT), $4, \
    $5, 'queued', 0, 1, n % 3, 1, 86400, 1, 1000000, 0, 0, 0, 0, 'Ada', CAST($6 AS BIGINT) + n, 16000, \
    131072, 1000, '{\"team\":\"vision\"}', 1000 FROM numbers";

/// Inserts the large parts of the submissions of the same jobs.
const INSERT_INPUTS: &str = "WITH RECURSIVE numbers (n) AS (SELECT CAST($1 AS BIGINT) UNION ALL \
    SELECT n + 1 FROM numbers WHERE n + 1 < CAST($2 AS BIGINT)) \
    INSERT INTO job_inputs (job_id, script, env, files) \
    SELECT 'job_0000000000000000' || CAST(1000000000 + n AS TEXT), $3, $4, $5 FROM numbers";

/// Runs a statement on either engine.
macro_rules! execute {
    ($tx:expr, $sql:expr $(, $bind:expr)+ $(,)?) => {
        match $tx {
            Tx::Sqlite(c) => sqlx::query($sql)$(.bind($bind))+.execute(&mut **c).await.map(|_| ())?,
            Tx::Postgres(c) => sqlx::query($sql)$(.bind($bind))+.execute(&mut **c).await.map(|_| ())?,
        }
    };
}

async fn insert_jobs(
    tx: &mut Tx<'_>,
    layout: Layout,
    submission: &Submission,
    (from, to): (i64, i64),
    now: Timestamp,
) -> Result<(), StoreError> {
    let (org, offering) = (org().to_string(), offering().to_string());
    let spec = match layout {
        Layout::Separate => submission.rest.as_str(),
        Layout::SameRow => submission.whole.as_str(),
    };
    execute!(tx, INSERT_JOBS, from, to, org.as_str(), offering.as_str(), spec, now.micros());
    if layout == Layout::Separate {
        let Submission { script, env, files, .. } = submission;
        execute!(tx, INSERT_INPUTS, from, to, script.as_str(), env.as_str(), files.as_str());
    }
    Ok(())
}

fn board(index: i64) -> GpuReport {
    GpuReport {
        uuid: format!("GPU-{index}"),
        index,
        model: MODEL.to_owned(),
        memory_mib: 81_920,
        mig_enabled: false,
        nvlink_island: 1,
        foreign_instances: JsonColumn::default(),
    }
}

/// Inserts an organization, an offering of whole boards, and a node with boards.
async fn insert_catalogue(tx: &mut Tx<'_>, now: Timestamp) -> Result<(), StoreError> {
    let (name, slug) = ("Lab".to_owned(), "lab".to_owned());
    store::accounts::insert_org(tx, &Org { id: org(), name, slug, created_at: now }).await?;
    store::ledger::open_accounts(tx, org()).await?;
    let whole_boards = StoredOffering {
        id: offering(),
        slug: SLUG.to_owned(),
        gpu_model: MODEL.to_owned(),
        mig_profile: None,
        memory_mib: 81_920,
        cells: 8,
        board_cells: 8,
        simulated: true,
        price: None,
    };
    store::offerings::insert(tx, &whole_boards, now).await?;
    let report = NodeReport {
        simulated: true,
        unisolated: false,
        driver_version: "550".to_owned(),
        worker_version: "0.1".to_owned(),
        cpu_milli: 128_000,
        memory_mib: 2_097_152,
        address: "10.0.0.1".to_owned(),
        labels: JsonColumn([("rack".to_owned(), "r1".to_owned())].into()),
        isolation: JsonColumn::default(),
        images: true,
        gang_ports: None,
        rdma_ports: JsonColumn::default(),
        egress: true,
        host_network: true,
        host_mounts: JsonColumn::default(),
        checks_rdma_links: false,
        inference_port: 0,
        boards: (0..BOARDS).map(board).collect(),
    };
    store::nodes::insert(tx, node(), "alpha", now).await?;
    let terms = JoinTerms { approve: true, adopt_labels: true, ..JoinTerms::default() };
    store::approvals::set_terms(tx, node(), &terms).await?;
    store::approvals::approve(tx, node(), now).await?;
    store::nodes::record_report(tx, node(), &report, now).await
}

async fn fill(db: &Db, layout: Layout, args: &Args) -> Result<(), Failure> {
    let now = SystemClock.now();
    db.write(move |tx| async move { insert_catalogue(tx, now).await }.boxed()).await?;
    let fitting = i64::try_from(BATCH_BYTES / args.submission_bytes.max(1))?;
    let batch = fitting.clamp(1, BATCH_JOBS);
    let mut from = 0;
    while from < args.jobs {
        let to = args.jobs.min(from + batch);
        let submission = Arc::new(Submission::new(u64::try_from(from)?, args.submission_bytes)?);
        db.write(move |tx| {
            let submission = submission.clone();
            async move { insert_jobs(tx, layout, &submission, (from, to), now).await }.boxed()
        })
        .await?;
        from = to;
    }
    Ok(())
}

/// A figure of `/proc/self/status` in MB, such as `VmRSS`.
fn memory_mb(name: &str) -> Result<f64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|figure| figure.split_whitespace().next());
    let kib: f64 = kib.ok_or_else(|| format!("the kernel reports no {name}"))?.parse()?;
    Ok(kib * 1_024.0 / 1e6)
}

async fn read_ms(planner: &Planner) -> Result<f64, StoreError> {
    planner.read_all();
    let began = Instant::now();
    planner.refresh().await?;
    Ok(began.elapsed().as_secs_f64() * 1_000.0)
}

/// Runs the full read of a portal's planner on a filled database.
async fn measure(db: Db, jobs: i64) -> Result<Measurement, Failure> {
    let rng = ChaCha20Rng::seed_from_u64(1);
    let context = Context::new(db, Settings::default(), Arc::new(SystemClock), rng);
    let handovers = Arc::new(HandOvers::new(context.now()));
    let planner = Planner::new(context.clone(), VolumeUses::new(context.clone(), handovers));
    let _session = context.live.open_session(node());
    let before_mb = memory_mb("VmRSS")?;
    // Resets `VmHWM`. Where the kernel has no such file, the peak counts from the start of this process, and
    // the reads are its first large work.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let first_ms = read_ms(&planner).await?;
    let mut times_ms = Vec::new();
    for _ in 0..READS {
        times_ms.push(read_ms(&planner).await?);
    }
    let (growth_mb, peak_mb) = (memory_mb("VmRSS")? - before_mb, memory_mb("VmHWM")?);
    let waiting = planner.ask(|engine| engine.waiting()).await;
    if i64::try_from(waiting)? != jobs {
        return Err(format!("the engine has {waiting} of {jobs} jobs").into());
    }
    times_ms.sort_by(f64::total_cmp);
    let (Some(&best_ms), Some(&median_ms)) = (times_ms.first(), times_ms.get(READS / 2)) else {
        return Err("nothing was read".into());
    };
    Ok(Measurement { first_ms, best_ms, median_ms, growth_mb, peak_mb })
}

/// The URL of another database on the same Postgres server.
fn with_database(url: &str, name: &str) -> String {
    let (server, options) = url.split_once('?').unwrap_or((url, ""));
    let (scheme, rest) = server.split_once("://").unwrap_or(("postgres", server));
    let host = rest.split_once('/').map_or(rest, |(host, _)| host);
    let question = if options.is_empty() { "" } else { "?" };
    format!("{scheme}://{host}/{name}{question}{options}")
}

/// Opens a database: a file of SQLite, or a name on the Postgres server.
async fn open(args: &Args, name: &str) -> Result<Db, StoreError> {
    match &args.database {
        Some(url) => Db::postgres(&with_database(url, name)).await,
        None => Db::sqlite(Path::new(name)).await,
    }
}

/// Runs a statement outside of a transaction on the Postgres server.
async fn administer(url: &str, sql: String) -> Result<(), Failure> {
    let mut admin = sqlx::PgConnection::connect(url).await?;
    // The only variable part is a name of this program.
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await?;
    Ok(admin.close().await?)
}

/// Fills a database, and measures the reads in a new process. Returns the seconds of the filling, too.
async fn fill_and_measure(args: &Args, layout: Layout, name: &str) -> Result<(f64, Measurement), Failure> {
    let began = Instant::now();
    let db = open(args, name).await?;
    fill(&db, layout, args).await?;
    let fill_s = began.elapsed().as_secs_f64();
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["--measure", name, "--jobs", &args.jobs.to_string()]).stderr(Stdio::inherit());
    if let Some(url) = &args.database {
        // The URL may have a password, which would be visible as an argument.
        child.env("DATABASE_URL", url);
    }
    let output = child.output()?;
    // Open until here, because the close of the last connection checkpoints the SQLite file.
    drop(db);
    if !output.status.success() {
        return Err(format!("the process for {}: {}", layout.name(), output.status).into());
    }
    Ok((fill_s, serde_json::from_slice(&output.stdout)?))
}

/// Makes a fresh database for a layout, measures the reads, and removes the database.
async fn measure_layout(args: &Args, layout: Layout) -> Result<(f64, Measurement), Failure> {
    let Some(url) = &args.database else {
        let disk = args.disk.clone().unwrap_or_else(std::env::temp_dir);
        let dir = tempfile::Builder::new().prefix("planner-read-").tempdir_in(disk)?;
        let file = dir.path().join("planner.db").display().to_string();
        return fill_and_measure(args, layout, &file).await;
    };
    let name = format!("planner_read_{}_{}", std::process::id(), layout.name());
    administer(url, format!("CREATE DATABASE {name}")).await?;
    let measured = fill_and_measure(args, layout, &name).await;
    administer(url, format!("DROP DATABASE {name} WITH (FORCE)")).await?;
    measured
}

fn print_report(report: &Report) -> serde_json::Result<()> {
    println!("{}", serde_json::to_string(report)?);
    let Report { engine, jobs, submission_bytes, fill_s, time_ratio, memory_ratio, .. } = report;
    println!("{jobs} queued jobs of {submission_bytes} bytes, {engine}, filled in {fill_s:.1} s");
    println!("{:18}{:>12}{:>12}", "", "separate", "same row");
    let (separate, same_row) = (&report.separate, &report.same_row);
    for (name, ours, theirs) in [
        ("first read, ms", separate.first_ms, same_row.first_ms),
        ("best read, ms", separate.best_ms, same_row.best_ms),
        ("median read, ms", separate.median_ms, same_row.median_ms),
        ("VmRSS growth, MB", separate.growth_mb, same_row.growth_mb),
        ("VmHWM peak, MB", separate.peak_mb, same_row.peak_mb),
    ] {
        println!("{name:18}{ours:>12.1}{theirs:>12.1}");
    }
    println!("same row / separate: time {time_ratio:.2}, peak of memory {memory_ratio:.2}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    if let Some(name) = &args.measure {
        let measurement = measure(open(&args, name).await?, args.jobs).await?;
        println!("{}", serde_json::to_string(&measurement)?);
        return Ok(());
    }
    let (separate_s, separate) = measure_layout(&args, Layout::Separate).await?;
    let (same_row_s, same_row) = measure_layout(&args, Layout::SameRow).await?;
    let report = Report {
        engine: if args.database.is_some() { "postgres" } else { "sqlite" },
        jobs: args.jobs,
        submission_bytes: args.submission_bytes,
        fill_s: separate_s + same_row_s,
        separate,
        same_row,
        time_ratio: same_row.median_ms / separate.median_ms,
        memory_ratio: same_row.peak_mb / separate.peak_mb,
    };
    Ok(print_report(&report)?)
}
