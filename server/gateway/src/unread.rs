//! The time limit of an answer that its caller does not read.
//!
//! A caller of HTTP/2 can read its connection and never one of its streams. Nobody asks for the next part of such an
//! answer, so a task beside it ends the request at the replica.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Bytes, Frame, SizeHint};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::bodies::BodyError;
use crate::passed::PassedAnswer;

struct State {
    /// Absent after the time limit.
    answer: Option<Box<PassedAnswer>>,
    /// The time since which the caller has a part and asks for no other one.
    unread_since: Option<Instant>,
}

/// An answer on its way to a caller of HTTP/2.
pub struct WatchedAnswer {
    state: Arc<Mutex<State>>,
    watch: AbortHandle,
}

impl WatchedAnswer {
    /// `idle` is the longest time for a caller that does not read.
    pub fn new(answer: Box<PassedAnswer>, idle: Duration, deadline: Option<Instant>) -> Self {
        let state = State { answer: Some(answer), unread_since: Some(Instant::now()) };
        let state = Arc::new(Mutex::new(state));
        let watch = tokio::spawn(watch(Arc::downgrade(&state), idle, deadline)).abort_handle();
        Self { state, watch }
    }

    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = lock(&self.state);
        let Some(answer) = &mut state.answer else {
            return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())));
        };
        let polled = answer.poll_next(cx);
        state.unread_since = polled.is_ready().then(Instant::now);
        polled
    }

    pub fn is_end_stream(&self) -> bool {
        lock(&self.state).answer.as_ref().is_some_and(|answer| answer.is_ended())
    }

    pub fn size_hint(&self) -> SizeHint {
        lock(&self.state).answer.as_ref().map(|answer| answer.size_hint()).unwrap_or_default()
    }
}

impl Drop for WatchedAnswer {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch(state: Weak<Mutex<State>>, idle: Duration, deadline: Option<Instant>) {
    loop {
        let Some(next) = check(&state, idle, deadline) else { return };
        sleep_until(next).await;
    }
}

/// Ends an answer that is unread for too long. Returns the time of the next check; `None` after the end.
fn check(state: &Weak<Mutex<State>>, idle: Duration, deadline: Option<Instant>) -> Option<Instant> {
    let state = state.upgrade()?;
    let mut state = lock(&state);
    let now = Instant::now();
    // The wait for the replica has its own limits.
    let Some(since) = state.unread_since else { return Some(now + idle) };
    let end = deadline.map_or(since + idle, |deadline| deadline.min(since + idle));
    if now < end {
        return Some(end);
    }
    let unread = state.answer.take();
    drop(state);
    // Its drop says nothing about the replica.
    drop(unread);
    tracing::debug!("a caller did not read its answer");
    None
}
