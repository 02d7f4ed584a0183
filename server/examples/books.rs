//! A benchmark of the ledger on a database of its own: durable postings a second, and the time of the sums
//! for the usage page. Prints one line of JSON for each figure.
//!
//! `--database postgres://…` measures that engine; without it SQLite in `--disk`.

#![expect(clippy::print_stdout, reason = "the figures are the purpose of this program")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use berth_store::ledger::Posting;
use berth_store::{self as store, Db, StoreError, Tx};
use berth_types::accounts::Org;
use berth_types::ids::{OrgId, TransferId};
use berth_types::ledger::TransferKind;
use berth_types::time::Timestamp;
use clap::Parser;
use futures::FutureExt;
use uuid::Uuid;

#[derive(Parser)]
struct Args {
    /// `postings` or `usage`.
    what: String,
    #[arg(long)]
    database: Option<String>,
    /// An empty directory on the disk that is measured.
    #[arg(long)]
    disk: PathBuf,
    #[arg(long, default_value_t = 32)]
    clients: u64,
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Rows of use, spread over a hundred organizations and a year.
    #[arg(long, default_value_t = 10_000_000)]
    rows: i64,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Postings in one transaction, and the number of organizations with postings.
const BATCH: u64 = 8_000;
const ORGS: u64 = 100;
const DAY_0: i64 = 20_000;

fn at() -> Timestamp {
    Timestamp::from_micros(1_795_000_000_000_000)
}

fn org(n: u64) -> OrgId {
    OrgId::from_uuid(Uuid::from_u128(u128::from(n) + 1))
}

fn posting(n: u64, org: OrgId) -> Posting {
    // The ids are in the order of time, as the portal's are. A multiplication by an odd number repeats none.
    let rest = n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let mut bytes = [0; 10];
    bytes.iter_mut().zip(rest).for_each(|(byte, random)| *byte = random);
    let millis = u64::try_from(at().micros()).unwrap_or(0) / 1_000 + n / 1_000;
    let id = TransferId::from_uuid(uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid());
    Posting {
        id,
        org,
        kind: TransferKind::Credit,
        amount_micros: 1,
        pending: None,
        source: "grant",
        source_id: id.to_string(),
        seq: 1,
        memo: String::new(),
        at: at(),
    }
}

async fn with_orgs(db: &Db, count: u64) -> Result<(), StoreError> {
    db.write(move |tx| {
        async move {
            for n in 0..count {
                store::accounts::insert_org(
                    tx,
                    &Org { id: org(n), name: format!("org {n}"), slug: format!("org-{n}"), created_at: at() },
                )
                .await?;
                store::ledger::open_accounts(tx, org(n)).await?;
            }
            Ok(())
        }
        .boxed()
    })
    .await
}

/// Runs `work(number)` in `clients` tasks for the time of `args`, and returns the runs a second.
async fn rate<F, W>(args: &Args, clients: u64, work: W) -> Result<f64, Failure>
where
    W: Fn(u64) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), StoreError>> + Send,
{
    let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let began = Instant::now();
    let until = began + Duration::from_secs(args.seconds);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let (shared, work) = (shared.clone(), work.clone());
        tasks.spawn(async move {
            let (next, done) = &*shared;
            while Instant::now() < until {
                work(next.fetch_add(1, Ordering::Relaxed)).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), StoreError>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(shared.1.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}

async fn postings(db: &Db, args: &Args) -> Result<(), Failure> {
    with_orgs(db, ORGS).await?;
    let batches = db.clone();
    let batched = rate(args, 2, move |n| {
        let db = batches.clone();
        async move {
            let rows: Arc<[Posting]> = (0..BATCH).map(|i| posting(n * BATCH + i, org(i % ORGS))).collect();
            db.write_alone(move |tx| {
                let rows = rows.clone();
                async move { store::ledger::post_credits(tx, &rows).await }.boxed()
            })
            .await
        }
    });
    println!("{{\"name\": \"batched\", \"per_second\": {:.0}}}", batched.await? * BATCH as f64);
    let singles = db.clone();
    let single = rate(args, args.clients, move |n| {
        let db = singles.clone();
        async move {
            // Spread over the organizations, with numbers beyond those of the batches.
            let one = Arc::new(posting(u64::MAX / 2 + n, org(n % ORGS)));
            db.write(move |tx| {
                let one = one.clone();
                async move { store::ledger::post(tx, &one).await }.boxed()
            })
            .await
        }
    });
    println!("{{\"name\": \"single\", \"per_second\": {:.0}}}", single.await?);
    let mut conn = db.read().await?;
    let wrong = store::ledger::mismatches(&mut conn.tx()).await?;
    if !wrong.is_empty() {
        return Err(format!("the books do not add up: {wrong:?}").into());
    }
    Ok(())
}

/// Inserts a year of usage of one organization, with $3 rows a day.
const FILL: &str = "WITH RECURSIVE days (day) AS (SELECT CAST($2 AS BIGINT) UNION ALL \
    SELECT day + 1 FROM days WHERE day + 1 < CAST($2 AS BIGINT) + 366), \
    numbers (n) AS (SELECT CAST(0 AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < CAST($3 AS BIGINT)) \
    INSERT INTO usage_days (org_id, day, offering_id, mode, member, device_milli_ms, cost_micros) \
    SELECT $1, day, 'offering-' || CAST(n % 6 AS TEXT), \
    CASE n / 6 % 3 WHEN 0 THEN 'on_demand' WHEN 1 THEN 'reserved' ELSE 'preemptible' END, \
    'member-' || CAST(n / 18 AS TEXT), 3600000, 1000000 + n FROM days, numbers";

async fn fill(tx: &mut Tx<'_>, org: &str, keys: i64) -> Result<u64, StoreError> {
    Ok(match tx {
        Tx::Sqlite(c) => {
            sqlx::query(FILL).bind(org).bind(DAY_0).bind(keys).execute(&mut **c).await?.rows_affected()
        }
        Tx::Postgres(c) => {
            sqlx::query(FILL).bind(org).bind(DAY_0).bind(keys).execute(&mut **c).await?.rows_affected()
        }
    })
}

async fn usage(db: &Db, args: &Args) -> Result<(), Failure> {
    with_orgs(db, 100).await?;
    let orgs: Vec<String> = (0..100).map(|n| org(n).to_string()).collect();
    let keys = (args.rows / 100 / 366).max(1);
    let mut rows = 0;
    for name in orgs {
        let filled = db.write(move |tx| {
            let name = name.clone();
            async move { fill(tx, &name, keys).await }.boxed()
        });
        rows += filled.await?;
    }
    let mut conn = db.read().await?;
    let mut took_ms = Vec::new();
    for n in 0..20u64 {
        for key in ["offering", "mode", "member", ""] {
            let began = Instant::now();
            let sums = store::usage::by_day(&mut conn.tx(), org(n * 5), (DAY_0, DAY_0 + 365), key).await?;
            took_ms.push(began.elapsed().as_secs_f64() * 1_000.0);
            if sums.len() < 366 {
                return Err("days are missing".into());
            }
        }
    }
    took_ms.sort_by(f64::total_cmp);
    let [.., last] = took_ms.as_slice() else { return Err("nothing was asked".into()) };
    println!("{{\"name\": \"usage\", \"rows\": {rows}, \"slowest_ms\": {last:.1}}}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let db = match &args.database {
        Some(url) => Db::postgres(url).await?,
        None => Db::sqlite(&args.disk.join("books.db")).await?,
    };
    match args.what.as_str() {
        "postings" => postings(&db, &args).await,
        "usage" => usage(&db, &args).await,
        other => Err(format!("there is no figure {other}").into()),
    }
}
