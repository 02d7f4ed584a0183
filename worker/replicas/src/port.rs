//! The address of the listener.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use berth_system::files::{find_json, put_json};
use tokio::net::TcpListener;

/// The file with the chosen port in the data directory.
const FILE: &str = "inference-port.json";
/// The time between two tries to listen on a fixed port.
const BIND_AGAIN: Duration = Duration::from_secs(2);

/// The address of the listener, with its port. `None`: the fixed port is in use, perhaps by a job, which must not stop
/// the daemon.
pub(crate) type BoundAddress = (SocketAddr, Option<TcpListener>);

/// Listens on an address. In place of port 0 it uses the port of the last start, or else a free one.
pub(crate) async fn bind(address: SocketAddr, data: &Path) -> Result<BoundAddress, String> {
    let cannot = |error: std::io::Error| format!("gateways cannot be served at {address}: {error}");
    if address.port() != 0 {
        return match TcpListener::bind(address).await {
            Ok(listener) => Ok((address, Some(listener))),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                tracing::warn!(%address, "the address for gateways is in use; trying again");
                Ok((address, None))
            }
            Err(error) => Err(cannot(error)),
        };
    }
    let file = data.join(FILE);
    if let Some(port) = find_json::<u16>(&file).filter(|port| *port > 0)
        && let Ok(listener) = TcpListener::bind((address.ip(), port)).await
    {
        return Ok((SocketAddr::new(address.ip(), port), Some(listener)));
    }
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let bound = listener.local_addr().map_err(cannot)?;
    if let Err(error) = put_json(&file, &bound.port(), true) {
        tracing::warn!(%error, "the port for gateways cannot be recorded; the next start chooses another one");
    }
    Ok((bound, Some(listener)))
}

/// Listens on a fixed address as soon as it is free.
pub(crate) async fn bind_again(address: SocketAddr) -> TcpListener {
    loop {
        tokio::time::sleep(BIND_AGAIN).await;
        if let Ok(listener) = TcpListener::bind(address).await {
            tracing::info!(%address, "gateways are served");
            return listener;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_chosen_port_stays_over_a_restart_if_it_is_free() {
        let data = tempfile::tempdir().unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let (first, listener) = bind(any, data.path()).await.unwrap();
        assert_eq!(listener.as_ref().unwrap().local_addr().unwrap(), first);
        let (second, other) = bind(any, data.path()).await.unwrap();
        assert_ne!(first, second, "somebody else has it");
        drop((listener, other));
        for _ in 0..3 {
            assert_eq!(bind(any, data.path()).await.unwrap().0, second, "the last one is kept");
        }
        std::fs::write(data.path().join(FILE), "nonsense").unwrap();
        assert!(bind(any, data.path()).await.is_ok());
        std::fs::write(data.path().join(FILE), "0").unwrap();
        assert_ne!(bind(any, data.path()).await.unwrap().0.port(), 0);
    }

    #[tokio::test]
    async fn a_fixed_port_is_waited_for() {
        let data = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        assert!(matches!(bind(address, data.path()).await, Ok((known, None)) if known == address));
        let waiting = tokio::spawn(bind_again(address));
        drop(taken);
        assert_eq!(waiting.await.unwrap().local_addr().unwrap(), address);
        assert!(!data.path().join(FILE).exists(), "it is the operator's choice");
        // An address of documentation, which no host has.
        assert!(bind("192.0.2.1:0".parse().unwrap(), data.path()).await.is_err());
    }
}
