//! Carries bytes between a person's socket and the tunnel to their shell.
//!
//! What is under way is bounded at both ends by what each has said that it took, so neither a page that
//! stands still nor a job that does not read fills anything.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use berth_proto::Closed;
use berth_types::terminals::{TerminalNews, TerminalSaid, WINDOW_BYTES};
use tokio::time::{Instant, MissedTickBehavior};

use crate::portal::Portal;
use berth_access::terminals::{Entry, Parting};
use berth_access::tunnels::{Heard, Shut, Tunnel, full};

/// A socket is asked for a sign of life this often, and taken for dead after so long without one.
const BEAT: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(40);

/// How it ended, and the last word for whoever still listens.
type End = (Parting, Option<TerminalNews>);

fn news(closed: Closed) -> TerminalNews {
    TerminalNews::Closed { exit_code: closed.exit_code, cause: closed.cause, detail: closed.detail }
}

fn last(cause: &str, detail: &str) -> TerminalNews {
    TerminalNews::Closed { exit_code: None, cause: cause.to_owned(), detail: detail.to_owned() }
}

/// The person's end. Whoever does not take what is sent is gone.
struct Page(WebSocket);

impl Page {
    async fn send(&mut self, message: Message) -> Result<(), ()> {
        match tokio::time::timeout(SILENCE, self.0.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(()),
        }
    }

    async fn say(&mut self, news: &TerminalNews) -> Result<(), ()> {
        let text = serde_json::to_string(news).map_err(|_| ())?;
        self.send(Message::text(text)).await
    }
}

/// Connects a socket with its shell, for as long as both are there.
pub async fn talk(
    portal: Portal,
    socket: WebSocket,
    entry: Entry,
    from: Option<u64>,
    size: (u32, u32),
    ended: impl Future<Output = ()>,
) {
    let mut page = Page(socket);
    let (parting, word) = match portal.terminals.reach_terminal(&entry, from, size).await {
        Ok((tunnel, begins)) => match page.say(&TerminalNews::Open { begins }).await {
            Ok(()) => carry(&mut page, tunnel, ended).await,
            Err(()) => (Parting::Left, None),
        },
        Err(Shut::Closed(closed)) => (Parting::of(&closed), Some(news(closed))),
        // It may be there again in a moment: the page tries.
        Err(Shut::Away(problem)) => (Parting::Left, Some(last("away", &problem.detail))),
        // The same, and somebody may be at it: nothing of it is recorded.
        Err(Shut::Full) => (Parting::TakenOver, Some(last("away", &full()))),
    };
    if let Err(error) = portal.terminals.part_from_terminal(entry, parting).await {
        tracing::warn!(%error, "the end of a terminal is not recorded");
    }
    if let Some(word) = word {
        // Whoever has gone does not hear it.
        let _ = page.say(&word).await;
        let _ = page.send(Message::Close(None)).await;
    }
}

/// What a person has typed, and how much of what was shown they have taken.
struct Typist {
    typed: VecDeque<u8>,
    shown: u64,
    heard_at: Instant,
}

/// Sends what was typed, as far as there is room, and what the worker must know.
async fn pass_on(tunnel: &mut Tunnel, typist: &mut Typist) -> Result<(), ()> {
    while !typist.typed.is_empty() && tunnel.room() > 0 {
        let length = tunnel.room().min(typist.typed.len());
        let piece: Vec<u8> = typist.typed.drain(..length).collect();
        tunnel.send(piece).await?;
    }
    tunnel.tell().await
}

/// Takes in one message of a person.
async fn hear(message: Message, tunnel: &mut Tunnel, typist: &mut Typist) -> Result<(), End> {
    let gone = |()| -> End { (Parting::Left, None) };
    let refuse = |detail: &str| {
        // The shell stays: the page may come back and do better.
        (Parting::Left, Some(last("refused", detail)))
    };
    typist.heard_at = Instant::now();
    match message {
        Message::Binary(data) => {
            if (typist.typed.len() + data.len()) as u64 > WINDOW_BYTES {
                return Err(refuse("More was typed than the job has taken; wait for it."));
            }
            typist.typed.extend(data.iter());
        }
        Message::Text(text) => match serde_json::from_str(text.as_str()) {
            Ok(TerminalSaid::Size { cols, rows }) => tunnel.resize(cols, rows).await.map_err(gone)?,
            Ok(TerminalSaid::Taken { bytes }) => {
                tunnel.note_taken(bytes.saturating_sub(typist.shown));
                typist.shown = typist.shown.max(bytes);
            }
            // The worker says how it ended.
            Ok(TerminalSaid::End) => tunnel.hang_up().await,
            Err(_) => return Err(refuse("This is no word of a terminal's socket.")),
        },
        Message::Ping(_) | Message::Pong(_) => {}
        Message::Close(_) => return Err((Parting::Left, None)),
    }
    Ok(())
}

/// Passes on what the shell says.
async fn tell(heard: Heard, page: &mut Page) -> Result<(), End> {
    let gone = |()| -> End { (Parting::Left, None) };
    match heard {
        Heard::Data(data) => page.send(Message::binary(data)).await.map_err(gone),
        Heard::Taken(bytes) => page.say(&TerminalNews::Taken { bytes }).await.map_err(gone),
        Heard::Begins(_) => Ok(()),
        Heard::Closed(closed) => Err((Parting::of(&closed), Some(news(closed)))),
        // The page opens it again.
        Heard::Gone => Err((Parting::Left, None)),
    }
}

async fn carry(page: &mut Page, mut tunnel: Tunnel, ended: impl Future<Output = ()>) -> End {
    let mut ended = pin!(ended);
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut typist = Typist { typed: VecDeque::new(), shown: 0, heard_at: Instant::now() };
    loop {
        if pass_on(&mut tunnel, &mut typist).await.is_err() {
            return (Parting::Left, None);
        }
        let went = tokio::select! {
            heard = tunnel.next() => tell(heard, page).await,
            message = page.0.recv() => match message {
                Some(Ok(message)) => hear(message, &mut tunnel, &mut typist).await,
                Some(Err(_)) | None => Err((Parting::Left, None)),
            },
            () = &mut ended => {
                tunnel.hang_up().await;
                let cause = "revoked";
                let parting = Parting::Closed { exit_code: None, cause: cause.to_owned() };
                Err((parting, Some(last(cause, "Your rights in this organization have changed."))))
            }
            _ = beat.tick() => {
                if typist.heard_at.elapsed() > SILENCE {
                    Err((Parting::Left, None))
                } else {
                    page.send(Message::Ping(bytes::Bytes::new())).await.map_err(|()| (Parting::Left, None))
                }
            }
        };
        if let Err(end) = went {
            return end;
        }
    }
}
