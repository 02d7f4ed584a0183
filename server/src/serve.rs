//! The portal as it runs: both listeners and every loop, until it is told to stop.
//!
//! Must not read settings or signals: whoever starts it brings a portal, bound listeners and the end.

use std::future::IntoFuture;
use std::io::Write;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use berth_access::ports;

use crate::portal::Portal;
use crate::web::{self, Assets};
use crate::{rest, workers};

/// A line for whoever started the portal; one who has stopped reading does not stop it.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Serves browsers and scripts on `listener` and workers on `worker_listener` until `stopped` resolves.
/// Says on standard output where it listens, and the setup token while nobody has set it up.
pub async fn serve(
    portal: Portal,
    assets: Option<Assets>,
    listener: TcpListener,
    worker_listener: TcpListener,
    stopped: impl Future<Output = ()>,
) -> Result<(), String> {
    if assets.is_none() {
        tracing::warn!("there are no built pages; --web names their directory");
    }
    portal.secrets.open_secrets().await?;
    let at = listener.local_addr().map_err(|e| e.to_string())?;
    let worker_at = worker_listener.local_addr().map_err(|e| e.to_string())?;
    say(&format!("Berth listens on http://{at}"));
    say(&format!("Workers connect to https://{worker_at}"));
    if let Some(token) = portal.accounts.open_setup().await.map_err(|e| e.to_string())? {
        say(&format!(
            "No operator exists yet. Setup token, valid until used or until the next start: {token}"
        ));
    }
    crate::loops::start(&portal);
    portal.terminals.resume_terminals().await.map_err(|e| e.to_string())?;
    portal.webhooks.hear_webhooks().await.map_err(|e| e.to_string())?;
    let (stop, stopping) = tokio::sync::watch::channel(());
    let stopped_too = |mut stopping: tokio::sync::watch::Receiver<()>| async move {
        // The sender is dropped when it is time.
        let _ = stopping.changed().await;
    };
    let router = web::router(rest::router(portal.clone()), assets.as_ref(), portal.context.settings.https);
    let router = ports::in_front(router, portal.ports.clone());
    let pages = axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(stopped_too(stopping.clone()))
        .into_future();
    let loops = portal.loops.clone();
    let workers = workers::serve(portal, worker_listener, stopped_too(stopping));
    tokio::select! {
        result = pages => result.map_err(|e| e.to_string()),
        result = workers => result,
        name = loops.panicked() => Err(format!("the loop {name} panicked")),
        () = stopped => {
            drop(stop);
            Ok(())
        }
    }
}
