//! The session with the driver: calls of NVML share it, and the reset of a board closes it.
//!
//! NVML holds the device nodes of all boards of the host, and the driver does not reset a held board.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use berth_system::sync::lock;

#[derive(Default)]
struct SessionState {
    uses: usize,
    /// A reset waits for the end of the last use, or runs.
    closed: bool,
}

/// The session of this process.
#[derive(Default)]
pub(super) struct NvmlSession {
    state: Mutex<SessionState>,
    changed: Condvar,
    /// Held for a whole reset, so that resets follow each other.
    pub turn: Mutex<()>,
}

/// A use of NVML. No reset begins before its end.
pub(super) struct SessionUse(Arc<NvmlSession>);

impl Drop for SessionUse {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.uses = state.uses.saturating_sub(1);
        drop(state);
        self.0.changed.notify_all();
    }
}

/// A session that is closed for a reset. It opens when this is dropped.
pub(super) struct ClosedSession(Arc<NvmlSession>);

impl Drop for ClosedSession {
    fn drop(&mut self) {
        lock(&self.0.state).closed = false;
        self.0.changed.notify_all();
    }
}

impl NvmlSession {
    /// Begins a use. `None`: the session is closed.
    pub fn enter(self: &Arc<Self>) -> Option<SessionUse> {
        let mut state = lock(&self.state);
        if state.closed {
            return None;
        }
        state.uses += 1;
        Some(SessionUse(self.clone()))
    }

    /// Begins a use after the end of a reset.
    pub fn enter_when_open(self: &Arc<Self>) -> SessionUse {
        let state = lock(&self.state);
        let waited = self.changed.wait_while(state, |state| state.closed);
        waited.unwrap_or_else(PoisonError::into_inner).uses += 1;
        SessionUse(self.clone())
    }

    pub fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    /// Begins a use, if necessary after the end of a reset. `None`: the session is still closed after the limit.
    pub fn enter_within(self: &Arc<Self>, limit: Duration) -> Option<SessionUse> {
        let waited = self.changed.wait_timeout_while(lock(&self.state), limit, |state| state.closed);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        state.uses += 1;
        Some(SessionUse(self.clone()))
    }

    /// Ends the session for a reset: no use begins any more, and all uses have ended. `None`: a use did not end within
    /// the limit, or the session is closed already.
    pub fn close(self: &Arc<Self>, limit: Duration) -> Option<ClosedSession> {
        let mut state = lock(&self.state);
        if state.closed {
            return None;
        }
        state.closed = true;
        let closed = ClosedSession(self.clone());
        let waited = self.changed.wait_timeout_while(state, limit, |state| state.uses > 0);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let has_ended = state.uses == 0;
        // The drop of a session that stays open needs the lock.
        drop(state);
        has_ended.then_some(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(30);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_reset_waits_for_the_calls_and_calls_wait_for_it() {
        let session = Arc::new(NvmlSession::default());
        let call = session.enter().unwrap();
        assert!(session.close(SHORT).is_none(), "a call runs");
        assert!(!session.is_closed() && session.enter().is_some(), "a refused reset closes nothing");
        let resetting = session.clone();
        let reset = std::thread::spawn(move || resetting.close(LONG));
        while !session.is_closed() {
            std::thread::yield_now();
        }
        assert!(session.enter().is_none(), "no call begins before the reset");
        drop(call);
        let closed = reset.join().unwrap().unwrap();
        assert!(session.close(SHORT).is_none(), "one reset at a time");
        assert!(session.enter_within(SHORT).is_none() && session.is_closed());
        let waiting = session.clone();
        let after = std::thread::spawn(move || drop(waiting.enter_when_open()));
        drop(closed);
        after.join().unwrap();
        let waited = session.enter_within(LONG);
        assert!(
            waited.is_some() && session.close(SHORT).is_none(),
            "the next reset waits for a use that waited"
        );
        drop(waited);
        assert!(session.close(SHORT).is_some());
    }
}
