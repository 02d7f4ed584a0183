//! The load for benchmarks of gateways, by HTTP/1.1 on connections that stay open.
//!
//! `requests` sends one request after the other on each connection, as fast as the answers come or at a given rate.
//! Prints `{"answers": …, "refused": …, "per_second": …, "p50_us": …, "p99_us": …}`.
//! `streams` opens streams of `upstream.rs` and measures the delay of each token. Prints `{"open": …}` once all are
//! open, and `{"tokens_per_second": …, "p50_us": …, "p99_us": …}` at the end.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use nix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Bytes of a line of a head or of a stream.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Bytes of a part of a body.
const MAX_PART_BYTES: usize = 16 << 20;
/// Streams that open at the same time.
const OPENING: usize = 64;
/// The longest time until all streams are open.
const OPEN_WITHIN: Duration = Duration::from_secs(120);
/// Answers of this time after the begin are not counted.
const WARM_UP: Duration = Duration::from_secs(1);
/// The begin of a token's time in an event of a stream.
const STAMP: &[u8] = br#""content":""#;
/// The phases of a run with streams.
const OPENING_PHASE: u8 = 0;
const COUNTING_PHASE: u8 = 1;
const LAST_PHASE: u8 = 2;

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Requests {
        #[command(flatten)]
        target: Target,
        #[arg(long, default_value_t = 32)]
        connections: u32,
        /// Requests a second on all connections together; as fast as possible without it.
        #[arg(long)]
        per_second: Option<u32>,
    },
    Streams {
        #[command(flatten)]
        target: Target,
        #[arg(long, default_value_t = 1_000)]
        streams: usize,
        /// `max_tokens` of each stream.
        #[arg(long, default_value_t = 10_000)]
        tokens: u32,
    },
}

#[derive(Args)]
struct Target {
    /// The address of the gateway or of the upstream, such as 127.0.0.1:9000.
    #[arg(long)]
    address: SocketAddr,
    #[arg(long, default_value = "stub")]
    model: String,
    /// The inference key; none without it.
    #[arg(long, env = "LOAD_KEY", hide_env_values = true)]
    key: Option<String>,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

impl Target {
    /// The bytes of a request.
    fn request(&self, max_tokens: u32, stream: bool) -> Vec<u8> {
        let more = if stream { r#","stream":true"# } else { "" };
        let body = format!(
            r#"{{"model":"{}","messages":[{{"role":"user","content":"Count as far as you can."}}],"max_tokens":{max_tokens}{more}}}"#,
            self.model
        );
        let key = self.key.as_ref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\n{key}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        [head.into_bytes(), body.into_bytes()].concat()
    }
}

/// Counts of times in microseconds, in buckets with a width of at most a 64th of their values.
struct Histogram {
    counts: Vec<u64>,
}

impl Histogram {
    fn new() -> Self {
        Self { counts: vec![0; Self::bucket(u64::MAX) + 1] }
    }

    const fn bucket(micros: u64) -> usize {
        let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(7);
        shift as usize * 64 + (micros >> shift) as usize
    }

    /// The greatest value of a bucket.
    const fn upper(bucket: usize) -> u64 {
        if bucket < 128 {
            return bucket as u64;
        }
        let shift = bucket / 64 - 1;
        (((bucket - shift * 64) as u64) << shift) | ((1 << shift) - 1)
    }

    fn record(&mut self, micros: u64) {
        if let Some(count) = self.counts.get_mut(Self::bucket(micros)) {
            *count += 1;
        }
    }

    fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The value that so many percent of all values do not exceed; 0 without values.
    fn percentile(&self, percent: u64) -> u64 {
        let wanted = (self.total() * percent).div_ceil(100);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map_or(0, Self::upper)
    }
}

struct Connection {
    stream: BufReader<TcpStream>,
    line: Vec<u8>,
    part: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), line: Vec::new(), part: Vec::new() })
    }

    async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(request).await
    }

    /// The next line without its end.
    async fn next_line(&mut self) -> io::Result<&str> {
        self.line.clear();
        let mut bounded = (&mut self.stream).take(MAX_LINE_BYTES as u64);
        bounded.read_until(b'\n', &mut self.line).await?;
        if self.line.last() != Some(&b'\n') {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "an answer ended too early"));
        }
        std::str::from_utf8(&self.line).map(str::trim_end).map_err(io::Error::other)
    }

    async fn next_part(&mut self, bytes: usize) -> io::Result<&[u8]> {
        if bytes > MAX_PART_BYTES {
            return Err(io::Error::other("a part of an answer is too large"));
        }
        self.part.resize(bytes, 0);
        self.stream.read_exact(&mut self.part).await?;
        Ok(&self.part)
    }

    /// Reads an answer and gives `part` the parts of its body, until that returns false. Returns the status.
    async fn answer(&mut self, mut part: impl FnMut(&[u8]) -> bool) -> io::Result<u16> {
        let first = self.next_line().await?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status: u16 = status.ok_or_else(|| io::Error::other("an answer is not HTTP"))?;
        let mut length = Some(0);
        loop {
            let line = self.next_line().await?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse().map_err(io::Error::other)?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                length = None;
            }
        }
        if let Some(bytes) = length {
            part(self.next_part(bytes).await?);
            return Ok(status);
        }
        loop {
            let size = self.next_line().await?.split(';').next().unwrap_or_default();
            let bytes = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
            let more = bytes == 0 || part(self.next_part(bytes).await?);
            if !more {
                return Ok(status);
            }
            self.next_line().await?;
            if bytes == 0 {
                return Ok(status);
            }
        }
    }
}

/// The result of one connection.
struct Tally {
    times: Histogram,
    refused: u64,
}

impl Tally {
    fn new() -> Self {
        Self { times: Histogram::new(), refused: 0 }
    }

    fn add(&mut self, other: &Self) {
        self.times.add(&other.times);
        self.refused += other.refused;
    }
}

/// One connection with one request after the other, the next one not before its turn.
async fn one_client(
    address: SocketAddr,
    request: Arc<Vec<u8>>,
    first: Instant,
    end: Instant,
    pause: Duration,
) -> io::Result<Tally> {
    let mut connection = Connection::open(address).await?;
    let mut tally = Tally::new();
    let counted_from = Instant::now() + WARM_UP;
    let mut turn = first;
    while turn < end && Instant::now() < end {
        let mut began = Instant::now();
        if began < turn {
            sleep_until(turn).await;
            // A late timer of this program is no delay of the server.
            began = Instant::now();
        } else if !pause.is_zero() {
            // The last answer was late, and so is this request.
            began = turn;
        }
        connection.send(&request).await?;
        let status = connection.answer(|_| true).await?;
        if status != 200 {
            tally.refused += 1;
        } else if began >= counted_from {
            tally.times.record(micros(began.elapsed()));
        }
        turn = if pause.is_zero() { began } else { turn + pause };
    }
    Ok(tally)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

async fn requests(target: Target, connections: u32, per_second: Option<u32>) -> Result<(), Box<dyn Error>> {
    let request = Arc::new(target.request(16, false));
    let pause = per_second.map_or(Duration::ZERO, |rate| Duration::from_secs(1) * connections / rate.max(1));
    let begin = Instant::now();
    let end = begin + WARM_UP + Duration::from_secs(target.seconds);
    let mut clients = JoinSet::new();
    for number in 0..connections {
        // The turns of the connections are spread over a pause.
        let first = begin + pause * number / connections;
        clients.spawn(one_client(target.address, request.clone(), first, end, pause));
    }
    let mut all = Tally::new();
    while let Some(one) = clients.join_next().await {
        all.add(&one??);
    }
    let (answers, times) = (all.times.total(), &all.times);
    let seconds = begin.elapsed().saturating_sub(WARM_UP).as_secs_f64();
    println!(
        r#"{{"answers": {answers}, "refused": {}, "per_second": {:.1}, "p50_us": {}, "p99_us": {}}}"#,
        all.refused,
        answers as f64 / seconds,
        times.percentile(50),
        times.percentile(99)
    );
    Ok(())
}

/// The state of a run that all streams share.
struct Run {
    phase: AtomicU8,
    open: AtomicUsize,
    streams: usize,
    all_open: Notify,
    opening: Semaphore,
}

/// The times in the events of one stream.
struct Stamps {
    /// The begin of an event that has not come as a whole.
    rest: Vec<u8>,
    tally: Tally,
    any: bool,
}

impl Stamps {
    fn feed(&mut self, run: &Run, part: &[u8]) -> bool {
        self.rest.extend_from_slice(part);
        let now = now_micros();
        let phase = run.phase.load(Ordering::Relaxed);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        for line in self.rest.drain(..whole).as_slice().split(|byte| *byte == b'\n') {
            let Some(due) = stamp(line) else { continue };
            self.any = true;
            if phase == COUNTING_PHASE {
                self.tally.times.record(now.saturating_sub(due));
            }
        }
        phase != LAST_PHASE && self.rest.len() <= MAX_LINE_BYTES
    }
}

/// The time in an event; `None` in other lines.
fn stamp(line: &[u8]) -> Option<u64> {
    let at = line.windows(STAMP.len()).position(|window| window == STAMP)?;
    let digits = line.get(at + STAMP.len()..)?.iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.fold(0_u64, |all, digit| all.saturating_mul(10) + u64::from(digit - b'0'));
    (number > 0).then_some(number)
}

/// Microseconds of the monotonic clock, which all processes of the host share.
fn now_micros() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| t.tv_sec() * 1_000_000 + t.tv_nsec() / 1_000);
    u64::try_from(now).unwrap_or_default()
}

async fn one_stream(address: SocketAddr, request: Arc<Vec<u8>>, run: Arc<Run>) -> io::Result<Tally> {
    let mut permit = Some(run.opening.acquire().await.map_err(io::Error::other)?);
    let mut connection = Connection::open(address).await?;
    connection.send(&request).await?;
    let mut stamps = Stamps { rest: Vec::new(), tally: Tally::new(), any: false };
    let status = connection.answer(|part| {
        let more = stamps.feed(&run, part);
        if stamps.any
            && permit.take().is_some()
            && run.open.fetch_add(1, Ordering::Relaxed) + 1 == run.streams
        {
            run.all_open.notify_one();
        }
        more
    });
    let status = status.await?;
    if status != 200 || run.phase.load(Ordering::Relaxed) != LAST_PHASE {
        return Err(io::Error::other(format!("a stream ended too early, with the status {status}")));
    }
    Ok(stamps.tally)
}

async fn streams(target: Target, streams: usize, tokens: u32) -> Result<(), Box<dyn Error>> {
    let request = Arc::new(target.request(tokens, true));
    let run = Arc::new(Run {
        phase: AtomicU8::new(OPENING_PHASE),
        open: AtomicUsize::new(0),
        streams,
        all_open: Notify::new(),
        opening: Semaphore::new(OPENING),
    });
    let mut tasks = JoinSet::new();
    for _ in 0..streams {
        tasks.spawn(one_stream(target.address, request.clone(), run.clone()));
    }
    tokio::select! {
        () = run.all_open.notified() => {}
        Some(ended) = tasks.join_next() => {
            ended??;
            return Err("a stream ended before all were open".into());
        }
        () = sleep(OPEN_WITHIN) => {
            return Err(format!("{} of {streams} streams are open", run.open.load(Ordering::Relaxed)).into());
        }
    }
    println!(r#"{{"open": {streams}}}"#);
    run.phase.store(COUNTING_PHASE, Ordering::Relaxed);
    let begin = Instant::now();
    sleep(Duration::from_secs(target.seconds)).await;
    run.phase.store(LAST_PHASE, Ordering::Relaxed);
    let seconds = begin.elapsed().as_secs_f64();
    let mut all = Tally::new();
    while let Some(one) = timeout(OPEN_WITHIN, tasks.join_next()).await? {
        all.add(&one??);
    }
    println!(
        r#"{{"tokens_per_second": {:.1}, "p50_us": {}, "p99_us": {}}}"#,
        all.times.total() as f64 / seconds,
        all.times.percentile(50),
        all.times.percentile(99)
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match Options::parse().what {
        What::Requests { target, connections, per_second } => {
            requests(target, connections.max(1), per_second).await
        }
        What::Streams { target, streams: count, tokens } => streams(target, count.max(1), tokens).await,
    }
}
