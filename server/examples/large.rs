//! A complete portal with many boards and jobs, for measurements of the pages.
//!
//! The line `fill ORG OTHER` on standard input writes nodes, boards and jobs of the first organization, and jobs of
//! another one on most boards. It opens a session of each node, without a worker, and gives each board a new reading
//! once a second. The answer is `filled`, or `failed: ` with the reason. The program ends with its standard input.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_foundation::Settings;
use berth_foundation::clock::{Clock, SystemClock};
use berth_foundation::live::{BoardReading, Live, SessionGuard};
use berth_server::portal::Portal;
use berth_server::serve::{STACK_BYTES, serve};
use berth_server::web::Assets;
use berth_store::attempts::StoredAllocation;
use berth_store::nodes::{GpuReport, NodeReport};
use berth_store::types::JsonColumn;
use berth_store::{self as store, Db, StoreError, Tx};
use berth_types::ids::{JobId, NodeId, OfferingId, OrgId};
use berth_types::jobs::NewJob;
use berth_types::nodes::JoinTerms;
use clap::Parser;
use futures::FutureExt;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use uuid::Uuid;

const MODEL: &str = "H100-80GB";
const SLUG: &str = "h100-80gb";
/// The profile `1g.10gb` of the model.
const SMALL_PROFILE: i64 = 19;
const BOARDS_A_NODE: i64 = 8;
const NODES_A_RACK: i64 = 8;
/// Jobs in one transaction.
const BATCH: i64 = 5_000;

#[derive(Parser)]
struct Args {
    /// The data directory of the portal; it exists already.
    #[arg(long)]
    data: PathBuf,
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    worker_listen: SocketAddr,
    /// The built pages; none when absent.
    #[arg(long)]
    web: Option<PathBuf>,
    /// Nodes of eight boards each.
    #[arg(long, default_value_t = 125)]
    nodes: i64,
    /// Ended jobs of the organization.
    #[arg(long, default_value_t = 100_000)]
    jobs: i64,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Inserts jobs with the numbers from $1 to below $2 in the state $5. An id has 26 digits, with the number at the
/// end. $6 is the time of the first job, $7 that of the end of each.
const INSERT_JOBS: &str = "WITH RECURSIVE numbers (n) AS (SELECT CAST($1 AS BIGINT) UNION ALL \
    SELECT n + 1 FROM numbers WHERE n + 1 < CAST($2 AS BIGINT)) \
    INSERT INTO jobs (id, org_id, name, offering_id, spec, state, attempt, generation, priority, \
    device_count, max_duration_s, price_version, nano_per_second, held_micros, cost_micros, posted_micros, \
    metered_ms, created_by, created_at, started_at, ended_at, cpu_milli, memory_mib, board_milli, labels, \
    device_milli) \
    SELECT 'job_0000000000000000' || CAST(1000000000 + n AS TEXT), $3, 'train-' || CAST(n AS TEXT), $4, \
    $8, $5, 1, 1, 1, 1, 86400, 1, 1000000, 0, 0, 0, 0, 'Ada', CAST($6 AS BIGINT) + n, CAST($6 AS BIGINT) + n, \
    CAST($7 AS BIGINT), 1000, 1024, 1000, '{}', 1000 FROM numbers";

/// The jobs of one insertion.
#[derive(Clone)]
struct JobRows {
    /// The first number, and the number after the last.
    numbers: (i64, i64),
    org: OrgId,
    offering: OfferingId,
    state: &'static str,
    /// In microseconds.
    created_at: i64,
    /// In microseconds.
    ended_at: Option<i64>,
}

async fn insert_jobs(tx: &mut Tx<'_>, jobs: &JobRows) -> Result<(), StoreError> {
    let spec = NewJob { name: "train".to_owned(), offering: SLUG.to_owned(), ..NewJob::default() };
    let spec = serde_json::to_string(&spec).unwrap_or_default();
    let (org, offering) = (jobs.org.to_string(), jobs.offering.to_string());
    macro_rules! execute {
        ($c:expr) => {
            sqlx::query(INSERT_JOBS)
                .bind(jobs.numbers.0)
                .bind(jobs.numbers.1)
                .bind(org)
                .bind(offering)
                .bind(jobs.state)
                .bind(jobs.created_at)
                .bind(jobs.ended_at)
                .bind(spec)
                .execute(&mut **$c)
                .await
                .map(|_| ())?
        };
    }
    match tx {
        Tx::Sqlite(c) => execute!(c),
        Tx::Postgres(c) => execute!(c),
    }
    Ok(())
}

fn node_id(node: i64) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(u128::from(node.unsigned_abs()) + 1))
}

/// The UUID of a board, as long as one of the driver.
fn board_uuid(board: i64) -> String {
    format!("GPU-{board:08x}-9dad-11d1-80b4-00c04fd430c8")
}

fn report(node: i64) -> NodeReport {
    let board = |index: i64| GpuReport {
        uuid: board_uuid(node * BOARDS_A_NODE + index),
        index,
        model: MODEL.to_owned(),
        memory_mib: 81_920,
        mig_enabled: false,
        nvlink_island: 1,
        foreign_instances: JsonColumn::default(),
    };
    NodeReport {
        simulated: true,
        unisolated: false,
        driver_version: "550".to_owned(),
        worker_version: "0.1".to_owned(),
        cpu_milli: 128_000,
        memory_mib: 2_097_152,
        address: "10.0.0.1".to_owned(),
        labels: JsonColumn([("rack".to_owned(), format!("r{:02}", node / NODES_A_RACK))].into()),
        isolation: JsonColumn::default(),
        images: true,
        gang_ports: None,
        rdma_ports: JsonColumn::default(),
        egress: true,
        host_network: true,
        host_mounts: JsonColumn::default(),
        checks_rdma_links: false,
        inference_port: 0,
        boards: (0..BOARDS_A_NODE).map(board).collect(),
    }
}

/// The devices on a board: none, three slices, or the whole board, each as (profile, first slice, slices).
fn devices(board: i64) -> Vec<(Option<i64>, i64, i64)> {
    match board % 10 {
        0 => Vec::new(),
        1 => (0..3).map(|start| (Some(SMALL_PROFILE), start, 1)).collect(),
        _ => vec![(None, 0, 8)],
    }
}

/// Inserts one running job for each device of the boards. The numbers of the jobs begin at `first`.
async fn insert_running(
    tx: &mut Tx<'_>,
    boards: i64,
    first: i64,
    jobs: &JobRows,
    other: OrgId,
) -> Result<(), StoreError> {
    let mut number = first;
    for board in 0..boards {
        for (profile_id, start, size) in devices(board) {
            let org = if board % 10 == 1 || board % 25 == 2 { jobs.org } else { other };
            let one = JobRows { numbers: (number, number + 1), org, ..jobs.clone() };
            insert_jobs(tx, &one).await?;
            let id = format!("job_0000000000000000{}", 1_000_000_000 + number);
            let corrupt = |error| StoreError::corrupt("jobs", &id, "id", error);
            let job_id = id.parse::<JobId>().map_err(corrupt)?;
            let allocation = StoredAllocation {
                job_id,
                attempt: 1,
                idx: 0,
                org_id: org,
                node_id: node_id(board / BOARDS_A_NODE),
                gpu_uuid: board_uuid(board),
                profile_id,
                start,
                size,
                share_milli: None,
                mig_uuid: None,
                unclean: None,
            };
            store::attempts::insert_allocation(tx, &allocation).await?;
            number += 1;
        }
    }
    Ok(())
}

/// Writes nodes, boards and jobs, and opens the sessions of the nodes.
async fn fill(
    portal: &Portal,
    args: (i64, i64),
    org: OrgId,
    other: OrgId,
) -> Result<Vec<SessionGuard>, Failure> {
    let (nodes, ended) = args;
    let (context, now) = (&portal.context, SystemClock.now());
    let mut sessions = Vec::new();
    for node in 0..nodes {
        let joined = context.db.write(move |tx| {
            async move {
                let id = node_id(node);
                store::nodes::insert(tx, id, &format!("pier-{node:03}"), now).await?;
                let terms = JoinTerms { approve: true, adopt_labels: true, ..JoinTerms::default() };
                store::approvals::set_terms(tx, id, &terms).await?;
                store::approvals::approve(tx, id, now).await
            }
            .boxed()
        });
        joined.await?;
        portal.nodes.report_node(node_id(node), report(node)).await?;
        sessions.push(context.live.open_session(node_id(node)));
    }
    let mut conn = context.db.read().await?;
    let found = store::offerings::find(&mut conn.tx(), SLUG, now).await?;
    drop(conn);
    let offering = found.ok_or("the portal has no offering of the boards")?.id;
    // The ended jobs are older than the running jobs.
    let created_at = now.plus_seconds(-86_400).micros();
    let jobs = JobRows {
        numbers: (0, ended),
        org,
        offering,
        state: "succeeded",
        created_at,
        ended_at: Some(created_at + 3_600_000_000),
    };
    let mut from = 0;
    while from < ended {
        let to = ended.min(from + BATCH);
        let batch = Arc::new(JobRows { numbers: (from, to), ..jobs.clone() });
        let inserted = context.db.write(move |tx| {
            let batch = batch.clone();
            async move { insert_jobs(tx, &batch).await }.boxed()
        });
        inserted.await?;
        from = to;
    }
    let running = Arc::new(JobRows { state: "running", created_at: now.micros(), ended_at: None, ..jobs });
    let boards = nodes * BOARDS_A_NODE;
    let inserted = context.db.write(move |tx| {
        let running = running.clone();
        async move { insert_running(tx, boards, ended, &running, other).await }.boxed()
    });
    inserted.await?;
    Ok(sessions)
}

/// Gives each board a new reading once a second, until the end of the program.
async fn stream_readings(live: Arc<Live>, boards: i64) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    let mut step = 0_i64;
    loop {
        seconds.tick().await;
        step = (step + 13) % 101;
        for board in 0..boards {
            // Between 0 and 100.
            let percent = f64::from(i8::try_from((board * 7 + step) % 101).unwrap_or_default());
            let reading = BoardReading {
                power_watts: Some(100.0 + 6.0 * percent),
                temperature_celsius: Some(30.0 + percent / 2.0),
                utilization_percent: Some(percent),
            };
            live.put_reading(board_uuid(board), reading);
        }
    }
}

/// Prints a line. A failure means that the measurement is about to end this program.
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

fn parse(line: &str) -> Option<(OrgId, OrgId)> {
    let (org, other) = line.trim().strip_prefix("fill ")?.split_once(' ')?;
    Some((org.parse().ok()?, other.parse().ok()?))
}

/// Runs the commands of all lines. The sessions stay open until the end.
async fn run_commands(portal: Portal, args: (i64, i64), mut lines: UnboundedReceiver<String>) {
    let mut sessions = Vec::new();
    while let Some(line) = lines.recv().await {
        let Some((org, other)) = parse(&line) else {
            print_line("failed: a line is `fill ORG OTHER`");
            continue;
        };
        match fill(&portal, args, org, other).await {
            Ok(opened) => {
                sessions.extend(opened);
                tokio::spawn(stream_readings(portal.context.live.clone(), args.0 * BOARDS_A_NODE));
                print_line("filled");
            }
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
        public_url: format!("http://{}", args.listen),
        ..Settings::default()
    };
    let portal = Portal::new(db, settings, Arc::new(SystemClock), ChaCha20Rng::from_os_rng())?;
    let commands = run_commands(portal.clone(), (args.nodes, args.jobs), lines());
    serve(portal, assets, listener, worker_listener, commands).await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_env_filter("warn").with_writer(std::io::stderr).init();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().thread_stack_size(STACK_BYTES).enable_all().build()?;
    runtime.block_on(run(Args::parse()))?;
    Ok(())
}
