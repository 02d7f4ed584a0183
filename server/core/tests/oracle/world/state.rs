//! The state of jobs, promises and use in a small world.

use berth_core::calendar::Kind;
use berth_core::cluster::{BookingId, Part};

use super::Job;

#[derive(Debug, Clone)]
pub struct Run {
    pub ranks: Vec<(usize, Vec<(usize, Part)>)>,
    pub since: i64,
    pub ends: Option<i64>,
    /// It ends so many seconds later.
    pub late_s: i64,
    pub preemptible: bool,
    /// The job for which it was told to make room.
    pub told_for: Option<usize>,
    /// It was told to stop, and is queued again then.
    pub requeues: bool,
    /// It was told to stop.
    pub stops: bool,
}

impl Run {
    pub fn truly_ends(&self) -> Option<i64> {
        Some(self.ends? + self.late_s)
    }
}

#[derive(Debug, Clone)]
pub enum State {
    Waiting,
    Running(Run),
    Over { succeeded: bool },
}

#[derive(Debug, Clone)]
pub struct JobState {
    pub spec: Job,
    pub queued_at: i64,
    pub left: i64,
    pub state: State,
    pub generation: i64,
    pub attempt: u32,
}

#[derive(Debug, Clone)]
pub struct Promise {
    pub id: BookingId,
    pub kind: Kind,
    pub org: u8,
    pub from: i64,
    pub until: i64,
    pub cpus: i64,
    pub parts: Vec<(usize, usize, Part)>,
}

/// Thousandths of boards that an organization had for a job, from when until when.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    pub org: u8,
    pub job: usize,
    pub milli: i64,
    pub from: i64,
    pub until: Option<i64>,
}
