//! The bytes between a tunnel and a connection to a port.

use std::collections::VecDeque;

use berth_contract::TUNNEL_CHUNK;
use berth_contract::window::{Incoming, Outgoing};
use berth_proto::{Closed, frame};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::tunnel::{Tunnel, attempt_ended, closed};

/// An event of a tunnel or of its connection.
enum RelayEvent {
    JobEnded,
    Frame(Option<frame::Body>),
    Room,
    Readable,
    Writable,
}

/// Carries bytes between a tunnel and a connection until one of them ends.
pub(super) async fn relay(mut tunnel: Tunnel, stream: &TcpStream, mut alive: watch::Receiver<()>) {
    let (mut out, mut inn) = (Outgoing::default(), Incoming::default());
    let mut pending: VecDeque<u8> = VecDeque::new();
    let mut unacknowledged: Option<u64> = None;
    let mut buffer = [0u8; TUNNEL_CHUNK];
    // The queue is still empty.
    let _ = tunnel.outgoing.try_send(frame::Body::StartOffset(0).into());
    loop {
        if let Some(taken) = unacknowledged
            && tunnel.outgoing.try_send(frame::Body::AcknowledgedBytes(taken).into()).is_ok()
        {
            unacknowledged = None;
        }
        let most = usize::try_from(out.room()).unwrap_or(0).min(TUNNEL_CHUNK);
        let outgoing = tunnel.outgoing.clone();
        let full = outgoing.capacity() == 0;
        let event = tokio::select! {
            () = attempt_ended(&mut alive) => RelayEvent::JobEnded,
            frame = tunnel.next() => RelayEvent::Frame(frame),
            _ = outgoing.reserve(), if full => RelayEvent::Room,
            _ = stream.readable(), if most > 0 && !full => RelayEvent::Readable,
            _ = stream.writable(), if !pending.is_empty() => RelayEvent::Writable,
        };
        let over = match event {
            RelayEvent::JobEnded => Some(closed("job_ended", "The job has ended.")),
            RelayEvent::Room => None,
            RelayEvent::Frame(Some(frame::Body::Data(data))) => {
                let fits = inn.note_came(data.len() as u64);
                pending.extend(data);
                (!fits).then(|| closed("refused", "The data exceeds the window of the connection."))
            }
            RelayEvent::Frame(Some(frame::Body::AcknowledgedBytes(taken))) => {
                out.note_taken(taken);
                None
            }
            RelayEvent::Frame(Some(frame::Body::CloseTunnel(_))) => {
                Some(closed("ended", "The connection was closed."))
            }
            RelayEvent::Frame(Some(_)) => None,
            // The portal's end is gone.
            RelayEvent::Frame(None) => return,
            RelayEvent::Readable => match stream.try_read(buffer.get_mut(..most).unwrap_or_default()) {
                Ok(0) => Some(closed("ended", "The job closed the connection.")),
                Ok(length) => {
                    let data = buffer.get(..length).unwrap_or_default().to_vec();
                    // The queue has space: this task is its only sender.
                    let _ = tunnel.outgoing.try_send(frame::Body::Data(data).into());
                    out.note_sent(length as u64);
                    None
                }
                Err(error) => closed_after_error(&error),
            },
            RelayEvent::Writable => match stream.try_write(pending.as_slices().0) {
                Ok(length) => {
                    pending.drain(..length.min(pending.len()));
                    inn.note_taken(length as u64);
                    unacknowledged = inn.due().or(unacknowledged);
                    None
                }
                Err(error) => closed_after_error(&error),
            },
        };
        if let Some(last) = over {
            tunnel.close(last);
            return;
        }
    }
}

/// The last frame after an error of the connection. `None`: the connection was not ready.
fn closed_after_error(error: &std::io::Error) -> Option<Closed> {
    let waits = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted);
    (!waits).then(|| closed("ended", format!("The connection failed: {error}.")))
}
