//! The caller of a connection, and the phase of the gateway around it.

use std::convert::Infallible;
use std::net::IpAddr;

use tokio::sync::{mpsc, watch};

/// The phase of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Open,
    /// Open requests end; there are no new ones.
    Draining,
    /// All connections end.
    Cut,
}

/// The other end of a connection, and the life of the gateway around it.
#[derive(Clone)]
pub struct Caller {
    pub address: IpAddr,
    phase: watch::Receiver<Phase>,
    /// Held as long as the connection, or the one that it became.
    _alive: mpsc::Sender<Infallible>,
}

impl Caller {
    pub const fn new(
        address: IpAddr,
        phase: watch::Receiver<Phase>,
        alive: mpsc::Sender<Infallible>,
    ) -> Self {
        Self { address, phase, _alive: alive }
    }

    /// Waits until the gateway has a phase.
    pub async fn reached(&mut self, phase: Phase) {
        // Without a sender the gateway is gone.
        let _ = self.phase.wait_for(|now| *now == phase || *now == Phase::Cut).await;
    }
}
