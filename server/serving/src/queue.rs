//! The queue of a service: requests that wait for a waking or full service.
//!
//! Requests of one key wait in the order of their arrival, and the keys of a class take turns. A key holds at
//! most as many places and bytes as are free beside it, so one key alone never fills the queue (a dynamic
//! threshold, as for buffers of switches).

mod wake_times;

use std::collections::{HashMap, VecDeque};

use berth_types::ids::InferenceKeyId;

pub use wake_times::WakeTimes;

/// The bounds of a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueLimits {
    pub requests: usize,
    /// Bytes of the bodies that wait.
    pub bytes: u64,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { requests: 1_024, bytes: 64 << 20 }
    }
}

/// The class of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// It had a replica, which did not begin it. It goes first.
    Retried,
    New,
}

/// The name of a waiting request in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A request at its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewRequest {
    /// `None` for all requests without a key, which share one place in the turns.
    pub key: Option<InferenceKeyId>,
    pub class: Class,
    pub bytes: u64,
    /// At this time it no longer waits.
    pub deadline_ms: u64,
}

/// A request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    pub ticket: Ticket,
    pub since_ms: u64,
    pub request: NewRequest,
}

/// The queue has no place for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPlace;

type Turn = Option<InferenceKeyId>;

/// The requests of one class, by key.
#[derive(Debug, Default)]
struct Line {
    turns: VecDeque<Turn>,
    waiting: HashMap<Turn, VecDeque<Waiting>>,
}

impl Line {
    fn push(&mut self, waiting: Waiting) {
        let of_key = self.waiting.entry(waiting.request.key).or_default();
        if of_key.is_empty() {
            self.turns.push_back(waiting.request.key);
        }
        of_key.push_back(waiting);
    }

    /// Removes the requests of all keys for which `leaves` is true. The turns of the other keys stay.
    fn remove(&mut self, leaves: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut out = Vec::new();
        for turn in &self.turns {
            let Some(of_key) = self.waiting.get_mut(turn) else { continue };
            out.extend(of_key.iter().filter(|waiting| leaves(waiting)));
            of_key.retain(|waiting| !leaves(waiting));
        }
        self.waiting.retain(|_, of_key| !of_key.is_empty());
        self.turns.retain(|turn| self.waiting.contains_key(turn));
        out
    }

    /// Removes the first request of the first key in turn that can start. The key goes to the end of the turns.
    fn next(&mut self, can_start: &mut impl FnMut(&Waiting) -> bool) -> Option<Waiting> {
        let (at, turn) = self.turns.iter().enumerate().find_map(|(at, turn)| {
            let head = self.waiting.get(turn)?.front()?;
            can_start(head).then_some((at, *turn))
        })?;
        self.turns.remove(at);
        let of_key = self.waiting.get_mut(&turn)?;
        let next = of_key.pop_front();
        if of_key.is_empty() {
            self.waiting.remove(&turn);
        } else {
            self.turns.push_back(turn);
        }
        next
    }
}

/// The waiting requests of one service.
#[derive(Debug, Default)]
pub struct Queue {
    limits: QueueLimits,
    retried: Line,
    new: Line,
    /// The waiting requests and bytes of each key, and of all.
    of_keys: HashMap<Turn, (usize, u64)>,
    all: (usize, u64),
    tickets: u64,
}

impl Queue {
    pub fn new(limits: QueueLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub const fn len(&self) -> usize {
        self.all.0
    }

    pub const fn is_empty(&self) -> bool {
        self.all.0 == 0
    }

    /// Adds a request.
    ///
    /// # Errors
    /// The queue, or the part of it that the request's key can have, is full.
    pub fn push(&mut self, request: NewRequest, now_ms: u64) -> Result<Ticket, NoPlace> {
        let (count, bytes) = self.of_keys.get(&request.key).copied().unwrap_or_default();
        let free_places = self.limits.requests.saturating_sub(self.all.0);
        let free_bytes = self.limits.bytes.saturating_sub(self.all.1);
        if count >= free_places || bytes.saturating_add(request.bytes) > free_bytes {
            return Err(NoPlace);
        }
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let line = if request.class == Class::Retried { &mut self.retried } else { &mut self.new };
        line.push(Waiting { ticket, since_ms: now_ms, request });
        self.of_keys.insert(request.key, (count + 1, bytes + request.bytes));
        self.all = (self.all.0 + 1, self.all.1 + request.bytes);
        Ok(ticket)
    }

    /// Removes the next request. `can_start` says whether a replica has room for it; where the head of one
    /// key cannot start, as for a full pinned revision, the next key has its turn.
    pub fn next(&mut self, mut can_start: impl FnMut(&Waiting) -> bool) -> Option<Waiting> {
        let retried = self.retried.next(&mut can_start);
        let next = retried.or_else(|| self.new.next(&mut can_start))?;
        self.forget(&next);
        Some(next)
    }

    /// Removes the requests whose deadline has come.
    pub fn expire(&mut self, now_ms: u64) -> Vec<Waiting> {
        self.remove(|waiting| waiting.request.deadline_ms <= now_ms)
    }

    /// Removes a request whose caller left. Returns false if it waits no longer.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        !self.remove(|waiting| waiting.ticket == ticket).is_empty()
    }

    /// The time at which [`Self::expire`] has something to do.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let lines = [&self.retried, &self.new].into_iter();
        let all = lines.flat_map(|line| line.waiting.values().flatten());
        all.map(|waiting| waiting.request.deadline_ms).min()
    }

    fn remove(&mut self, leaves: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut out = self.retried.remove(&leaves);
        out.extend(self.new.remove(&leaves));
        for waiting in &out {
            self.forget(waiting);
        }
        out
    }

    fn forget(&mut self, waiting: &Waiting) {
        let request = waiting.request;
        self.all = (self.all.0.saturating_sub(1), self.all.1.saturating_sub(request.bytes));
        if let Some((count, bytes)) = self.of_keys.get_mut(&request.key) {
            *count = count.saturating_sub(1);
            *bytes = bytes.saturating_sub(request.bytes);
            if *count == 0 {
                self.of_keys.remove(&request.key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
