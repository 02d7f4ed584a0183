//! A benchmark of durable submissions: concurrent clients, each with one request after the other on its own
//! connection. Prints `{"per_second": …, "solo_per_second": …}`. `solo` is the rate of single SQLite
//! transactions on the same disk, measured directly after.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use sqlx::{ConnectOptions, Connection};

#[derive(Parser)]
struct Args {
    /// The address of the portal, for example `http://127.0.0.1:8080`.
    #[arg(long)]
    portal: String,
    #[arg(long)]
    token: String,
    #[arg(long)]
    org: String,
    #[arg(long, default_value_t = 32)]
    clients: usize,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// A directory on the portal's disk.
    #[arg(long)]
    disk: PathBuf,
}

fn one_client(args: &Args, until: Instant, done: &AtomicU64) -> std::io::Result<()> {
    let address = args.portal.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let body = r#"{"name":"load","offering":"h100-80gb.1g.10gb","command":["true"],"max_duration_s":1}"#;
    let request = format!(
        "POST /api/v1/orgs/{}/jobs HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        args.org,
        args.token,
        body.len()
    );
    let mut line = String::new();
    let mut answer = Vec::new();
    while Instant::now() < until {
        stream.write_all(request.as_bytes())?;
        line.clear();
        answers.read_line(&mut line)?;
        if !line.contains(" 201 ") {
            return Err(std::io::Error::other(line));
        }
        let mut length = 0;
        loop {
            line.clear();
            answers.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
        }
        answer.resize(length, 0);
        answers.read_exact(&mut answer)?;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The rate of rows a second, each in a durable transaction of its own.
async fn solo(disk: &std::path::Path, seconds: u64) -> Result<f64, sqlx::Error> {
    let file = disk.join("solo.db");
    let mut conn = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .synchronous(sqlx::sqlite::SqliteSynchronous::Full)
        .connect()
        .await?;
    sqlx::query("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)").execute(&mut conn).await?;
    let began = Instant::now();
    let mut rows = 0u32;
    while began.elapsed() < Duration::from_secs(seconds) {
        sqlx::query("INSERT INTO t (v) VALUES ($1)").bind("x".repeat(600)).execute(&mut conn).await?;
        rows += 1;
    }
    let rate = f64::from(rows) / began.elapsed().as_secs_f64();
    conn.close().await?;
    for end in ["solo.db", "solo.db-wal", "solo.db-shm"] {
        // The close of the connection may have removed the last two.
        let _ = std::fs::remove_file(disk.join(end));
    }
    Ok(rate)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Arc::new(Args::parse());
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let until = began + Duration::from_secs(args.seconds);
    let clients: Vec<_> = (0..args.clients)
        .map(|_| {
            let (args, done) = (args.clone(), done.clone());
            std::thread::spawn(move || one_client(&args, until, &done))
        })
        .collect();
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    let rate = done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let solo = runtime.block_on(solo(&args.disk, 3))?;
    println!("{{\"per_second\": {rate:.0}, \"solo_per_second\": {solo:.0}}}");
    Ok(())
}
