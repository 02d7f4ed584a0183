//! Connections that became ones of another protocol, such as WebSocket: both sides are copied until one of them ends.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::{sleep, timeout};

use crate::caller::{Caller, Phase};
use crate::clock::now_ms;
use crate::exchange::Exchange;
use crate::upstream::Connection;

/// Bytes of one part.
const PART_BYTES: usize = 16 << 10;
/// The longest change of the protocol.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The two sides of another protocol.
pub struct Upgrade {
    pub of_caller: OnUpgrade,
    pub of_replica: OnUpgrade,
    pub connection: Connection,
    pub exchange: Exchange,
    /// The longest silence of both sides.
    pub idle: Duration,
}

/// Copies both sides in a task of its own. The request is at its replica until the end.
pub fn connect(upgrade: Upgrade, mut caller: Caller) {
    tokio::spawn(async move {
        let Upgrade { of_caller, of_replica, mut connection, mut exchange, idle } = upgrade;
        connection.detach();
        let changed = timeout(CHANGE_TIMEOUT, async { tokio::try_join!(of_caller, of_replica) }).await;
        drop(connection);
        let Ok(Ok((of_caller, of_replica))) = changed else { return };
        tokio::select! {
            () = copy(of_caller, of_replica, idle) => exchange.end(),
            () = caller.reached(Phase::Cut) => {}
        }
    });
}

async fn copy(of_caller: Upgraded, of_replica: Upgraded, idle: Duration) {
    let last_ms = AtomicU64::new(now_ms());
    let (from_caller, to_caller) = split(TokioIo::new(of_caller));
    let (from_replica, to_replica) = split(TokioIo::new(of_replica));
    let both = async {
        // A side that ends lets the other one end by itself; a side that breaks ends both.
        tokio::try_join!(
            copy_one(from_caller, to_replica, &last_ms),
            copy_one(from_replica, to_caller, &last_ms)
        )
    };
    tokio::select! {
        ended = both => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection of another protocol broke");
            }
        }
        () = silence(&last_ms, idle) => {}
    }
}

async fn copy_one(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    last_ms: &AtomicU64,
) -> io::Result<()> {
    let mut part = vec![0; PART_BYTES];
    loop {
        let count = from.read(&mut part).await?;
        last_ms.store(now_ms(), Ordering::Relaxed);
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(part.get(..count).unwrap_or_default()).await?;
        to.flush().await?;
    }
}

/// Waits until both sides have been silent for a while.
async fn silence(last_ms: &AtomicU64, idle: Duration) {
    loop {
        let silent = Duration::from_millis(now_ms().saturating_sub(last_ms.load(Ordering::Relaxed)));
        let Some(left) = idle.checked_sub(silent).filter(|left| !left.is_zero()) else { return };
        sleep(left).await;
    }
}
