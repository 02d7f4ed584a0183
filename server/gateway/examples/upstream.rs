//! An upstream for benchmarks of gateways: a server with the HTTP interface of OpenAI and fixed answers. A request with
//! `"stream": true` gets `max_tokens` events at a fixed rate. The content of an event is the time at which it was due,
//! in microseconds of the monotonic clock of the host.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use clap::Parser;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::{Instant, Interval, interval};

/// Bytes of the body of a request.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Tokens of a stream.
const MAX_TOKENS: u64 = 1_000_000;
/// Tokens of a request without `max_tokens`, and the most of an answer that is not a stream.
const USUAL_TOKENS: u64 = 16;
const PROMPT_TOKENS: u64 = 8;
/// The longest time without a request on a connection.
const IDLE: Duration = Duration::from_secs(300);

#[derive(Parser)]
struct Args {
    /// The address of the server, such as 127.0.0.1:9000.
    #[arg(long)]
    listen: SocketAddr,
    /// Tokens a second of each stream.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tokens_per_s: u32,
}

/// The body of an answer.
enum Answer {
    Whole(Option<Bytes>),
    Stream(Tokens),
}

/// The events of a stream.
struct Tokens {
    due: Interval,
    sent: u64,
    total: u64,
    with_usage: bool,
    ended: bool,
}

impl Tokens {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.sent < self.total {
            let due = ready!(self.due.poll_tick(cx));
            self.sent += 1;
            return Poll::Ready(Some(token(due)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        self.ended = true;
        Poll::Ready(Some(last_events(self.with_usage.then_some(self.total))))
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.get_mut() {
            Self::Whole(text) => text.take(),
            Self::Stream(tokens) => ready!(tokens.poll_next(cx)),
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// Microseconds of the monotonic clock, which all processes of the host share.
fn now_micros() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| t.tv_sec() * 1_000_000 + t.tv_nsec() / 1_000)
}

/// The event of a token that was due at a time, which is not later than now.
fn token(due: Instant) -> Bytes {
    let late = Instant::now().saturating_duration_since(due);
    let at = now_micros().saturating_sub(i64::try_from(late.as_micros()).unwrap_or(i64::MAX));
    let choice = format!(r#"{{"index":0,"delta":{{"content":"{at}"}},"finish_reason":null}}"#);
    Bytes::from(event(&format!("[{choice}]"), ""))
}

fn last_events(completion_tokens: Option<u64>) -> Bytes {
    let mut text = event(r#"[{"index":0,"delta":{},"finish_reason":"length"}]"#, "");
    if let Some(tokens) = completion_tokens {
        text.push_str(&event("[]", &format!(",{}", usage(tokens))));
    }
    text.push_str("data: [DONE]\n\n");
    Bytes::from(text)
}

fn event(choices: &str, more: &str) -> String {
    let head = r#""id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"stub""#;
    format!("data: {{{head},\"choices\":{choices}{more}}}\n\n")
}

fn usage(completion_tokens: u64) -> String {
    let total = PROMPT_TOKENS + completion_tokens;
    format!(
        r#""usage":{{"prompt_tokens":{PROMPT_TOKENS},"completion_tokens":{completion_tokens},"total_tokens":{total}}}"#
    )
}

/// The body of a request; `None` for one that is too large or breaks.
async fn read(mut body: Incoming) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        if out.len() + data.len() > MAX_BODY_BYTES {
            return None;
        }
        out.extend_from_slice(&data);
    }
    Some(out)
}

fn response(status: StatusCode, kind: &'static str, body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json(status: StatusCode, text: impl Into<Bytes>) -> Response<Answer> {
    response(status, "application/json", Answer::Whole(Some(text.into())))
}

async fn answer(request: Request<Incoming>, period: Duration) -> Result<Response<Answer>, Infallible> {
    if request.method() == Method::GET {
        return Ok(json(StatusCode::OK, r#"{"object":"list","data":[{"id":"stub","object":"model"}]}"#));
    }
    let Some(body) = read(request.into_body()).await else {
        return Ok(json(StatusCode::PAYLOAD_TOO_LARGE, r#"{"error":{"message":"The body is too large."}}"#));
    };
    let Ok(asked) = serde_json::from_slice::<Value>(&body) else {
        return Ok(json(StatusCode::BAD_REQUEST, r#"{"error":{"message":"The body is not JSON."}}"#));
    };
    let total = asked.get("max_tokens").and_then(Value::as_u64).unwrap_or(USUAL_TOKENS).min(MAX_TOKENS);
    if asked.get("stream").and_then(Value::as_bool) == Some(true) {
        let with_usage =
            asked.pointer("/stream_options/include_usage").and_then(Value::as_bool) == Some(true);
        let tokens = Tokens { due: interval(period), sent: 0, total, with_usage, ended: false };
        return Ok(response(StatusCode::OK, "text/event-stream", Answer::Stream(tokens)));
    }
    let message =
        r#"{"role":"assistant","content":"An answer of a fixed length for benchmarks of gateways."}"#;
    let choices = format!(r#"[{{"index":0,"message":{message},"finish_reason":"stop"}}]"#);
    let head = r#""id":"chatcmpl-1","object":"chat.completion","created":0,"model":"stub""#;
    let text = format!("{{{head},\"choices\":{choices},{}}}", usage(total.min(USUAL_TOKENS)));
    Ok(json(StatusCode::OK, text))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let period = Duration::from_secs(1) / args.tokens_per_s;
    let listener = TcpListener::bind(args.listen).await?;
    loop {
        // A caller can be gone before its connection is accepted.
        let Ok((socket, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        // Without it small answers wait for the acknowledgement of the last one.
        socket.set_nodelay(true)?;
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, period));
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(IDLE);
            // A broken connection concerns its caller only.
            let _ = builder.serve_connection(TokioIo::new(socket), service).await;
        });
    }
}
