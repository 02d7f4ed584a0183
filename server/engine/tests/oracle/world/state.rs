//! The state of jobs, of promises and of use in a small world.

use berth_placement::calendar::BookingKind;
use berth_placement::cluster::{BookingId, Part};

use super::Job;

#[derive(Debug, Clone)]
pub struct Run {
    pub ranks: Vec<(usize, Vec<(usize, Part)>)>,
    pub since: i64,
    pub ends: Option<i64>,
    /// The run ends so many seconds after `ends`.
    pub late_s: i64,
    pub preemptible: bool,
    /// The job for which the run is preempted.
    pub stopped_for: Option<usize>,
    /// The run is being stopped, and its job is queued again afterwards.
    pub requeues: bool,
    /// The run is being stopped.
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
    pub kind: BookingKind,
    pub org: u8,
    pub from: i64,
    pub until: i64,
    pub cpus: i64,
    pub parts: Vec<(usize, usize, Part)>,
}

/// The use of an organization by one run: thousandths of boards, from a time until a time.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    pub org: u8,
    pub job: usize,
    pub milli: i64,
    pub from: i64,
    pub until: Option<i64>,
}
