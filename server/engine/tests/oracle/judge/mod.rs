//! The judge: checks by brute force that decisions follow the documented order of the queue.
//!
//! The judge shares only the tables of boards with the engine. Its code is slow and simple on purpose.

mod places;
pub mod play;
mod reasons;
mod reserve;
mod rules;
mod turns;

use std::cmp::Ordering;
use std::collections::BTreeSet;

use berth_engine::{Basis, Blocker, Decision};
use berth_mig::Instance;
use berth_placement::calendar::BookingKind;
use berth_placement::cluster::{BookingId, Part};
use berth_placement::power::counted_watts;

use crate::world::{
    DeviceKind, Host, Job, LATE_S, Promise, Run, SOON_S, State, Step, World, at, job_id, keeps_mig, milli,
    seconds, table,
};

use turns::before;

/// A run that is late by more seconds may hang.
const HANGS_S: i64 = 30;

const CLASS_STEP_S: i64 = 12 * 3_600;

/// A broken rule, by its letter, with a description.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub rule: &'static str,
    pub text: String,
}

fn fault<T>(rule: &'static str, text: String) -> Result<T, Fault> {
    Err(Fault { rule, text })
}

/// True if runs are stopped for a job: their devices are reserved for it alone.
fn is_firm(world: &World, job: usize) -> bool {
    world.engine.basis(job_id(job)) == Some(Basis::Stopped)
}

/// True if a job has left its line and waits for its held start.
fn is_aside(world: &World, job: usize) -> bool {
    world.engine.basis(job_id(job)).is_some_and(|basis| basis != Basis::First)
}

/// The position of a job in the order of the queue: class, replicas first, share, age.
#[derive(Debug, Clone, Copy)]
struct Turn {
    class: i64,
    /// True for a job that is no replica, below the highest age.
    behind_replicas: bool,
    share: f64,
    age: (i64, usize),
}

/// The conditions of a search for placements.
struct Query<'a> {
    job: usize,
    from: i64,
    until: i64,
    /// Jobs whose runs are ignored.
    gone: &'a [usize],
    promises: &'a [Promise],
    powered: bool,
}

/// A held start of a job before a pass.
pub struct HeldStart {
    job: usize,
    /// True if others were preempted for the job.
    firm: bool,
    promise: Promise,
}

/// The start that the engine forecasts for a waiting job.
enum StartForecast {
    StartsNow,
    Earliest(Option<i64>),
}

type Parts = Vec<(usize, Part)>;

pub struct Judge<'a> {
    pub world: &'a World,
}

impl Judge<'_> {
    fn job(&self, n: usize) -> &Job {
        &self.world.jobs[n].spec
    }
}
