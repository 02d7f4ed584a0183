//! The judge: says by brute force whether decisions follow the documented order of the queue.
//!
//! It shares no code with the engine but the tables of boards. Slow and obvious on purpose.

mod places;
pub mod play;
mod reasons;
mod rules;
mod turns;

use std::cmp::Ordering;
use std::collections::BTreeSet;

use berth_core::calendar::Kind;
use berth_core::cluster::{BookingId, Part};
use berth_core::engine::{Blocker, Decision};
use berth_core::power::counted_watts;
use berth_mig::Instance;

use crate::world::{
    Host, Job, LATE_S, Promise, Run, SOON_S, State, Step, What, World, at, job_id, keeps_mig, milli, seconds,
    table,
};

use turns::before;

/// A run that is late for longer may hang.
const HANGS_S: i64 = 30;

const CLASS_STEP_S: i64 = 12 * 3_600;

/// A rule that was broken, by its letter, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub rule: &'static str,
    pub text: String,
}

fn fault<T>(rule: &'static str, text: String) -> Result<T, Fault> {
    Err(Fault { rule, text })
}

/// A job's turn: class, share, age.
#[derive(Debug, Clone, Copy)]
struct Turn {
    class: i64,
    share: f64,
    age: (i64, usize),
}

/// A question about places.
struct Query<'a> {
    job: usize,
    from: i64,
    until: i64,
    /// Attempts that are thought away.
    gone: &'a [usize],
    promises: &'a [Promise],
    powered: bool,
}

/// A start that was held for a job before a pass.
pub struct Kept {
    job: usize,
    /// Others were stopped for it.
    firm: bool,
    promise: Promise,
}

enum Told {
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
