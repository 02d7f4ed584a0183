//! A portal in a test: snapshots by long poll, reports, and a lender of credit.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_autoscaling::credit::{Content, Lender, LenderTerms, ToGateway, ToPortal};
use berth_serving::reports::{GatewayReport, ReportAnswer, ServiceFaults, Use};
use berth_serving::snapshot::Snapshot;
use berth_types::time::Timestamp;
use http::{Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub const TOKEN: &str = "bgw_test-token";

/// The portal.
pub struct Portal {
    pub at: SocketAddr,
    snapshot: watch::Sender<Option<Snapshot>>,
    pub reports: Mutex<Vec<GatewayReport>>,
    pub lender: Mutex<Lender>,
    /// The sum of posted charges in nano-units.
    pub posted: AtomicU64,
    /// The portal answers with errors alone.
    pub is_away: AtomicBool,
    /// The portal answers nothing.
    pub is_silent: AtomicBool,
}

impl Portal {
    pub async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let portal = Arc::new(Self {
            at: listener.local_addr().unwrap(),
            snapshot: watch::Sender::new(None),
            reports: Mutex::default(),
            lender: Mutex::new(Lender::new(LenderTerms { life_s: 600, deadline_s: None })),
            posted: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
        });
        let serving = portal.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let portal = serving.clone();
                let service = service_fn(move |request| {
                    let portal = portal.clone();
                    async move { Ok::<_, Infallible>(portal.answer(request).await) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        portal
    }

    /// Publishes a snapshot under the next number.
    pub fn publish(&self, mut snapshot: Snapshot) {
        self.snapshot.send_modify(|last| {
            snapshot.number = last.as_ref().map_or(1, |last| last.number + 1);
            *last = Some(snapshot);
        });
    }

    /// The number of the present snapshot.
    pub fn number(&self) -> u64 {
        self.snapshot.borrow().as_ref().map_or(0, |snapshot| snapshot.number)
    }

    /// All rows of faults, each report once.
    pub fn faults(&self) -> Vec<ServiceFaults> {
        let reports = self.reports.lock().unwrap();
        reports.iter().flat_map(|report| report.faults.clone()).collect()
    }

    /// All rows of use, each report once.
    pub fn uses(&self) -> Vec<Use> {
        let reports = self.reports.lock().unwrap();
        reports.iter().flat_map(|report| report.uses.clone()).collect()
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<String> {
        let plain = |status: StatusCode| {
            let mut answer = Response::new(String::new());
            *answer.status_mut() = status;
            answer
        };
        if self.is_silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.is_away.load(Ordering::Relaxed) {
            return plain(StatusCode::BAD_GATEWAY);
        }
        let expected = format!("Bearer {TOKEN}");
        if request.headers().get("authorization").is_none_or(|value| value.as_bytes() != expected.as_bytes())
        {
            return plain(StatusCode::UNAUTHORIZED);
        }
        let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or("").to_owned());
        let body = read(request.into_body()).await;
        match path.as_str() {
            "/api/v1/gateway/snapshot" => {
                let after: u64 = query.strip_prefix("after=").unwrap().parse().unwrap();
                self.next_snapshot(after).await.map_or_else(|| plain(StatusCode::NO_CONTENT), Response::new)
            }
            "/api/v1/gateway/reports" => {
                let report: GatewayReport = serde_json::from_slice(&body).unwrap();
                Response::new(serde_json::to_string(&self.count(report)).unwrap())
            }
            "/api/v1/gateway/credit" => {
                let messages: Vec<ToPortal> = serde_json::from_slice(&body).unwrap();
                let number = self.snapshot.borrow().as_ref().map(|snapshot| snapshot.gateway_number);
                if messages.iter().any(|message| Some(gateway(message)) != number) {
                    return plain(StatusCode::UNPROCESSABLE_ENTITY);
                }
                Response::new(serde_json::to_string(&self.lend(&messages)).unwrap())
            }
            _ => plain(StatusCode::NOT_FOUND),
        }
    }

    async fn next_snapshot(&self, after: u64) -> Option<String> {
        let mut snapshots = self.snapshot.subscribe();
        let newer = snapshots.wait_for(|now| now.as_ref().is_some_and(|now| now.number > after));
        let newer = tokio::time::timeout(Duration::from_secs(20), newer).await.ok()?.ok()?;
        newer.as_ref().map(|snapshot| serde_json::to_string(snapshot).unwrap())
    }

    /// Counts each report once, as the last one of its life.
    fn count(&self, report: GatewayReport) -> ReportAnswer {
        let mut reports = self.reports.lock().unwrap();
        let counted_through = report.number;
        let last = reports.last().map_or((0, 0), |last| (last.life, last.number));
        if (report.life, report.number) > last {
            reports.push(report);
        }
        ReportAnswer { counted_through }
    }

    fn lend(&self, messages: &[ToPortal]) -> Vec<ToGateway> {
        let now = Timestamp::from_micros(1);
        let mut lender = self.lender.lock().unwrap();
        let mut out = Vec::new();
        for message in messages {
            let answer = lender.receive(message, now);
            let nanos = answer.charge.map_or(0, |charge| charge.nanos);
            self.posted.fetch_add(nanos, Ordering::Relaxed);
            // The blocks of this portal last until the year 2100.
            let until = Timestamp::from_micros(4_102_444_800_000_000);
            out.extend(answer.messages.into_iter().map(|message| match message {
                ToGateway::Grant { block, size, .. } => ToGateway::Grant { block, size, until },
                other => other,
            }));
        }
        out
    }
}

/// The number of the gateway in a message.
const fn gateway(message: &ToPortal) -> u64 {
    match &message.content {
        Content::Ask(ask) => ask.block.gateway.0,
        Content::Report(report) => report.block.gateway.0,
    }
}

async fn read(mut body: Incoming) -> Vec<u8> {
    let mut text = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        text.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    text
}
