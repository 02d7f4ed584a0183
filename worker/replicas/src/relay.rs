//! The bytes between a gateway and a replica.

use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::sync::watch;
use tokio::time::timeout;

/// The bytes of a buffer, which are those of a record of TLS.
const BUFFER: usize = 16 << 10;
/// The time for the last bytes of a replica after its end.
const LAST_BYTES_WITHIN: Duration = Duration::from_secs(2);

/// Waits for the end of a replica.
pub(crate) async fn wait_until_ended(alive: &mut watch::Receiver<()>) {
    while alive.changed().await.is_ok() {}
}

/// Carries bytes both ways until both ends have closed, one fails, or the replica ends. Each direction closes for
/// itself.
pub(crate) async fn relay(
    mut gateway: impl AsyncRead + AsyncWrite + Unpin,
    mut replica: impl AsyncRead + AsyncWrite + Unpin,
    mut alive: watch::Receiver<()>,
) {
    let mut copying = pin!(copy_bidirectional_with_sizes(&mut gateway, &mut replica, BUFFER, BUFFER));
    tokio::select! {
        // The ends need no more than the close.
        _ = &mut copying => return,
        () = wait_until_ended(&mut alive) => {}
    }
    let _ = timeout(LAST_BYTES_WITHIN, copying).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn each_direction_closes_for_itself() {
        let ((mut gateway, ours), (theirs, mut replica)) = (duplex(64), duplex(64));
        let (running, alive) = watch::channel(());
        let relaying = tokio::spawn(relay(ours, theirs, alive));
        gateway.write_all(b"request").await.unwrap();
        gateway.shutdown().await.unwrap();
        let mut request = String::new();
        replica.read_to_string(&mut request).await.unwrap();
        assert_eq!(request, "request", "the replica sees the end");
        // More than all buffers, after the end of the other direction.
        let answer = vec![b'a'; 1 << 20];
        let (sent, mut received) = (answer.clone(), Vec::new());
        let sending = tokio::spawn(async move {
            replica.write_all(&sent).await.unwrap();
        });
        gateway.read_to_end(&mut received).await.unwrap();
        sending.await.unwrap();
        assert!(received == answer, "{} bytes", received.len());
        relaying.await.unwrap();
        drop(running);
    }

    #[tokio::test]
    async fn a_connection_ends_with_its_replica_after_the_last_bytes() {
        let ((mut gateway, ours), (theirs, mut replica)) = (duplex(64), duplex(64));
        let (running, alive) = watch::channel(());
        let relaying = tokio::spawn(relay(ours, theirs, alive));
        replica.write_all(b"last").await.unwrap();
        drop(running);
        let mut word = [0; 4];
        gateway.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"last");
        // The replica leaves its end open.
        relaying.await.unwrap();
        assert_eq!(gateway.read(&mut word).await.unwrap(), 0);
        assert!(replica.write_all(b"more").await.is_err());
    }
}
