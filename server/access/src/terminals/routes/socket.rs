//! The WebSocket of a terminal: it relays bytes between a browser and the tunnel to the shell.
//!
//! Each end acknowledges the bytes that it has processed, and the other end sends at most a window beyond
//! them. A browser or a job that reads nothing therefore fills no buffer.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use berth_types::terminals::{TerminalNews, TerminalSaid, WINDOW_BYTES};
use tokio::time::{Instant, MissedTickBehavior};

use crate::Terminals;
use crate::terminals::{Entry, TerminalEnd};
use crate::tunnels::{Closed, Tunnel, TunnelError, TunnelEvent, limit_text};

/// The interval of pings to a browser, and the time after which a browser without a message counts as gone.
const PING_EVERY: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(40);

/// The recorded end of a connection, and the last message to the browser, if any.
type End = (TerminalEnd, Option<TerminalNews>);

fn closed_message(closed: Closed) -> TerminalNews {
    TerminalNews::Closed { exit_code: closed.exit_code, cause: closed.cause, detail: closed.detail }
}

fn closed_for(cause: &str, detail: &str) -> TerminalNews {
    TerminalNews::Closed { exit_code: None, cause: cause.to_owned(), detail: detail.to_owned() }
}

/// The socket of a browser.
struct Browser(WebSocket);

impl Browser {
    /// Sends a frame.
    ///
    /// # Errors
    /// The browser has disconnected or reads nothing.
    async fn send(&mut self, message: Message) -> Result<(), ()> {
        match tokio::time::timeout(SILENCE, self.0.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(()),
        }
    }

    async fn send_message(&mut self, message: &TerminalNews) -> Result<(), ()> {
        let text = serde_json::to_string(message).map_err(|_| ())?;
        self.send(Message::text(text)).await
    }
}

/// Connects a socket with its shell until one of them ends.
pub async fn run(
    terminals: Terminals,
    socket: WebSocket,
    entry: Entry,
    from: Option<u64>,
    size: (u32, u32),
    ended: impl Future<Output = ()>,
) {
    let mut browser = Browser(socket);
    let (end, message) = match terminals.connect_terminal(&entry, from, size).await {
        Ok((tunnel, begins)) => match browser.send_message(&TerminalNews::Open { begins }).await {
            Ok(()) => relay(&mut browser, tunnel, ended).await,
            Err(()) => (TerminalEnd::Left, None),
        },
        Err(TunnelError::Closed(closed)) => (TerminalEnd::from_closed(&closed), Some(closed_message(closed))),
        // The node may return soon: the page tries again.
        Err(TunnelError::Unreachable(problem)) => {
            (TerminalEnd::Left, Some(closed_for("away", &problem.detail)))
        }
        // The page tries again too. Another connection may use the terminal, so nothing is recorded.
        Err(TunnelError::Full) => (TerminalEnd::TakenOver, Some(closed_for("away", &limit_text()))),
    };
    if let Err(error) = terminals.record_terminal_end(entry, end).await {
        tracing::warn!(%error, "the end of a terminal cannot be recorded");
    }
    if let Some(message) = message {
        // The browser may have disconnected.
        let _ = browser.send_message(&message).await;
        let _ = browser.send(Message::Close(None)).await;
    }
}

/// The input of a browser that waits for the worker, and the output that the browser has acknowledged.
struct InputWindow {
    pending: VecDeque<u8>,
    acknowledged_bytes: u64,
    last_message_at: Instant,
}

/// Sends pending input as far as the worker accepts it, and acknowledges output to the worker.
async fn send_input(tunnel: &mut Tunnel, input: &mut InputWindow) -> Result<(), ()> {
    while !input.pending.is_empty() && tunnel.send_capacity() > 0 {
        let length = tunnel.send_capacity().min(input.pending.len());
        let data: Vec<u8> = input.pending.drain(..length).collect();
        tunnel.send(data).await?;
    }
    tunnel.send_ack().await
}

/// Processes a message of the browser.
async fn on_browser_message(
    message: Message,
    tunnel: &mut Tunnel,
    input: &mut InputWindow,
) -> Result<(), End> {
    let gone = |()| -> End { (TerminalEnd::Left, None) };
    let refuse = |detail: &str| {
        // The shell stays: the browser may connect again.
        (TerminalEnd::Left, Some(closed_for("refused", detail)))
    };
    input.last_message_at = Instant::now();
    match message {
        Message::Binary(data) => {
            if (input.pending.len() + data.len()) as u64 > WINDOW_BYTES {
                return Err(refuse(
                    "The input exceeds the window of the connection. Wait for the acknowledgement.",
                ));
            }
            input.pending.extend(data.iter());
        }
        Message::Text(text) => match serde_json::from_str(text.as_str()) {
            Ok(TerminalSaid::Size { cols, rows }) => tunnel.resize(cols, rows).await.map_err(gone)?,
            Ok(TerminalSaid::Taken { bytes }) => {
                tunnel.note_taken(bytes.saturating_sub(input.acknowledged_bytes));
                input.acknowledged_bytes = input.acknowledged_bytes.max(bytes);
            }
            // The worker answers with the end of the shell.
            Ok(TerminalSaid::End) => tunnel.hang_up().await,
            Err(_) => return Err(refuse("This message is not part of the protocol of the terminal.")),
        },
        Message::Ping(_) | Message::Pong(_) => {}
        Message::Close(_) => return Err((TerminalEnd::Left, None)),
    }
    Ok(())
}

/// Sends an event of the tunnel to the browser.
async fn on_tunnel_event(event: TunnelEvent, browser: &mut Browser) -> Result<(), End> {
    let gone = |()| -> End { (TerminalEnd::Left, None) };
    match event {
        TunnelEvent::Data(data) => browser.send(Message::binary(data)).await.map_err(gone),
        TunnelEvent::Taken(bytes) => browser.send_message(&TerminalNews::Taken { bytes }).await.map_err(gone),
        TunnelEvent::Begins(_) => Ok(()),
        TunnelEvent::Closed(closed) => Err((TerminalEnd::from_closed(&closed), Some(closed_message(closed)))),
        // The page opens it again.
        TunnelEvent::Gone => Err((TerminalEnd::Left, None)),
    }
}

async fn relay(browser: &mut Browser, mut tunnel: Tunnel, ended: impl Future<Output = ()>) -> End {
    let mut ended = pin!(ended);
    let mut ping = tokio::time::interval(PING_EVERY);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut input =
        InputWindow { pending: VecDeque::new(), acknowledged_bytes: 0, last_message_at: Instant::now() };
    loop {
        if send_input(&mut tunnel, &mut input).await.is_err() {
            return (TerminalEnd::Left, None);
        }
        let result = tokio::select! {
            event = tunnel.next() => on_tunnel_event(event, browser).await,
            message = browser.0.recv() => match message {
                Some(Ok(message)) => on_browser_message(message, &mut tunnel, &mut input).await,
                Some(Err(_)) | None => Err((TerminalEnd::Left, None)),
            },
            () = &mut ended => {
                tunnel.hang_up().await;
                let cause = "revoked";
                let end = TerminalEnd::Closed { exit_code: None, cause: cause.to_owned() };
                Err((end, Some(closed_for(cause, "You no longer have access to this terminal."))))
            }
            _ = ping.tick() => {
                if input.last_message_at.elapsed() > SILENCE {
                    Err((TerminalEnd::Left, None))
                } else {
                    browser.send(Message::Ping(axum::body::Bytes::new())).await.map_err(|()| (TerminalEnd::Left, None))
                }
            }
        };
        if let Err(end) = result {
            return end;
        }
    }
}
