//! The gateway of services: it takes the requests of callers and passes them to replicas.
//!
//! The decisions are in `server/serving` (data plane) and `server/autoscaling` (credit). This crate has the
//! connections, the tasks between gateway and portal, and the journal.

mod answers;
mod bodies;
mod books;
mod caller;
mod clock;
mod control;
mod delivery;
mod exchange;
mod grpc;
mod headers;
mod journal;
mod ledger;
mod listener;
mod metrics;
mod passed;
mod places;
mod portal;
mod proxy;
mod service;
pub mod settings;
mod shared;
mod shares;
pub mod tls;
mod trust;
mod unread;
mod upgrade;
mod upstream;
mod view;

use std::convert::Infallible;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::caller::Phase;
use crate::portal::Portal;
use crate::settings::Settings;
use crate::shared::Shared;

/// The longest end of connections that are cut off.
const CUT_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves callers until `stopped` resolves, then ends open requests and sends the last reports.
///
/// # Errors
/// The data directory or a setting is not usable, or a task of the gateway panicked.
pub async fn run(
    settings: Settings,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    stopped: impl Future<Output = ()>,
) -> Result<(), String> {
    let portal = Portal::new(&settings)?;
    let drain = settings.limits.drain;
    let shared = Shared::open(settings)?;
    let mut tasks = control::start(&shared, &portal);
    let (phase, of_connections) = watch::channel(Phase::Open);
    let (alive, mut ended) = mpsc::channel::<Infallible>(1);
    let serving = listener::serve(shared.clone(), listener, tls, (of_connections, alive));
    tokio::select! {
        () = serving => return Err("the listener has ended".to_owned()),
        error = panicked(&mut tasks) => return Err(error),
        () = stopped => {}
    }
    // The select has dropped the listener: there are no new connections.
    phase.send_replace(Phase::Draining);
    let in_time = tokio::select! {
        last = timeout(drain, ended.recv()) => last.is_ok(),
        error = panicked(&mut tasks) => return Err(error),
    };
    if !in_time {
        tracing::warn!(drain_s = drain.as_secs(), "open requests are cut off");
        phase.send_replace(Phase::Cut);
        let _ = timeout(CUT_TIMEOUT, ended.recv()).await;
    }
    tasks.shutdown().await;
    control::report_last(&shared, &portal).await;
    Ok(())
}

/// Waits for a task that ends, which none does by itself.
async fn panicked(tasks: &mut JoinSet<()>) -> String {
    match tasks.join_next().await {
        Some(Err(error)) => format!("a task of the gateway panicked: {error}"),
        Some(Ok(())) | None => "a task of the gateway has ended".to_owned(),
    }
}
