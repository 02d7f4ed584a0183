//! Tests of the longest wait of a job that needs a whole while a stream of jobs uses parts of it: the
//! processors of a host, the only large host, a shared or sliced board. `liveness` tests the same with whole
//! boards and nodes.
//!
//! The bound is the documented one. A job that is first at once waits for the present runs. Any other job
//! waits until only age counts, and then for older jobs and one longest run.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cases::host;
use crate::judge::play::pass;
use crate::world::{Case, DeviceKind, Host, JOB, Job, State, Step, World, job_id, seconds, table};

const MODEL: &str = "H100-80GB";
const CLASS_STEP_S: i64 = 12 * 3_600;
/// The class above the highest, in which only age counts.
const OVERDUE: i64 = 3;
/// Number of jobs of the stream that wait at any time.
const WAITING: usize = 4;
const HOUR: i64 = 3_600;

/// The whole that the large job needs and the stream uses in parts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Need {
    AllCpus,
    LargeHost,
    SharedBoard,
    SlicedBoard,
}

/// The organization of the stream, in relation to that of the large job.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sender {
    Same,
    UsedLess,
    UsedMore,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Length {
    Seconds(i64),
    Mixed,
    /// In turn: the time until the held start of the large job, and a second more.
    Fitting,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    need: Need,
    /// The class of the large job.
    large_class: u8,
    /// The class of the stream's jobs.
    class: u8,
    preemptible: bool,
    length: Length,
    sender: Sender,
    /// True if two jobs of the stream wait before the large job.
    older: bool,
}

/// Number of streams. The number of a stream encodes all of its fields.
const STREAMS: u64 = 4 * 3 * 3 * 2 * 5 * 3 * 2;

fn stream(number: u64) -> Stream {
    let mut rest = number;
    let mut digit = |base: u64| {
        let digit = rest % base;
        rest /= base;
        digit as usize
    };
    let needs = [Need::AllCpus, Need::LargeHost, Need::SharedBoard, Need::SlicedBoard];
    let lengths = [
        Length::Seconds(300),
        Length::Seconds(1_200),
        Length::Seconds(3 * HOUR),
        Length::Mixed,
        Length::Fitting,
    ];
    let senders = [Sender::Same, Sender::UsedLess, Sender::UsedMore];
    Stream {
        need: needs[digit(4)],
        large_class: digit(3) as u8,
        class: digit(3) as u8,
        preemptible: digit(2) == 1,
        length: lengths[digit(5)],
        sender: senders[digit(3)],
        older: digit(2) == 1,
    }
}

impl Stream {
    fn hosts(&self) -> Vec<Host> {
        match self.need {
            Need::AllCpus => vec![host(MODEL, 2)],
            Need::LargeHost => vec![host(MODEL, 1), Host { cpus: 16_000, ..host(MODEL, 1) }],
            Need::SharedBoard | Need::SlicedBoard => vec![host(MODEL, 1)],
        }
    }

    /// The large job.
    fn large(&self) -> Job {
        let job = Job { class: self.large_class, seconds: 2 * HOUR, ..JOB };
        match self.need {
            Need::AllCpus => Job { cpus: 64_000, ..job },
            Need::LargeHost => Job { cpus: 40_000, ..job },
            Need::SharedBoard | Need::SlicedBoard => job,
        }
    }

    /// A job of the stream. Two of them leave no room for the large job, nor for a third.
    fn small(&self, seconds: i64) -> Job {
        let half = || table(MODEL).and_then(|b| b.profiles.iter().position(|p| p.name == "3g.40gb"));
        let device = match self.need {
            Need::SharedBoard => DeviceKind::Share(500),
            Need::SlicedBoard => DeviceKind::Slice(half().expect("a profile")),
            _ => DeviceKind::Board,
        };
        let cpus = match self.need {
            Need::AllCpus => 20_000,
            Need::LargeHost => 4_000,
            _ => 0,
        };
        let org = u8::from(self.sender != Sender::Same);
        Job { org, class: self.class, preemptible: self.preemptible, device, cpus, seconds, ..JOB }
    }

    /// The runs at the submission of the large job: two jobs of the stream with different lengths.
    fn first(&self) -> [Job; 2] {
        let long = match self.length {
            Length::Seconds(seconds) => seconds,
            Length::Mixed | Length::Fitting => HOUR,
        };
        [long, long / 2 + 30].map(|seconds| {
            let job = self.small(seconds);
            // An organization that used less has no use at all.
            let org = if self.sender == Sender::UsedLess { 0 } else { job.org };
            Job { org, ..job }
        })
    }

    /// The length of the next job of the stream, in seconds.
    fn next_length(&self, world: &World, large: usize, arrived: usize) -> i64 {
        match self.length {
            Length::Seconds(seconds) => seconds,
            Length::Mixed => [60, 3 * HOUR, 700, HOUR][arrived % 4],
            Length::Fitting => {
                let held = world.engine.held_starts().find(|(job, _)| *job == job_id(large));
                let left = held.map_or(HOUR, |(_, booking)| seconds(booking.from) - world.now);
                left.clamp(60, 3 * HOUR) + (arrived % 2) as i64
            }
        }
    }

    /// True if no job has an earlier turn than the large job, during its whole wait.
    fn is_always_first(&self) -> bool {
        let before_equals = match self.sender {
            Sender::Same => !self.older,
            Sender::UsedLess => false,
            Sender::UsedMore => true,
        };
        self.large_class > self.class || self.large_class == self.class && before_equals
    }
}

fn settle(world: &mut World) -> Result<(), String> {
    pass(world).map(|_| ()).map_err(|fault| format!("{fault:?}"))
}

fn submit(world: &mut World, job: Job) -> Result<(), String> {
    world.step(&Step::Submit(job));
    settle(world)
}

fn waiting(world: &World, from: usize) -> Vec<usize> {
    (from..world.jobs.len()).filter(|n| world.waits(*n)).collect()
}

/// Submits jobs of the stream until enough of them wait.
fn arrive(stream: &Stream, world: &mut World, large: usize, arrived: &mut usize) -> Result<(), String> {
    let old = waiting(world, large + 1);
    if stream.length == Length::Fitting && old.len() >= WAITING {
        // A job that no longer fits is cancelled, and replaced by one that fits.
        world.step(&Step::Cancel(old[0]));
    }
    for _ in 0..2 * WAITING {
        if waiting(world, large + 1).len() >= WAITING {
            break;
        }
        let length = stream.next_length(world, large, *arrived);
        submit(world, stream.small(length))?;
        *arrived += 1;
    }
    Ok(())
}

/// The world at the submission of the large job: the first runs, and the older waiting jobs.
fn begin(stream: &Stream) -> Result<World, String> {
    let mut world = World::new(&Case { hosts: stream.hosts(), steps: Vec::new() });
    for job in stream.first() {
        submit(&mut world, job)?;
    }
    if !waiting(&world, 0).is_empty() {
        return Err("what is to run first waits".to_owned());
    }
    world.step(&Step::Sleep(30));
    if stream.older {
        for _ in 0..2 {
            submit(&mut world, stream.small(stream.first()[0].seconds))?;
        }
    }
    Ok(world)
}

/// The seconds that the large job waits beside a stream.
///
/// # Errors
/// A text if the wait is too long.
fn wait_s(stream: &Stream) -> Result<i64, String> {
    let mut world = begin(stream)?;
    let (since, large) = (world.now, world.jobs.len());
    let ends = world.jobs.iter().filter_map(|j| match &j.state {
        State::Running(run) => run.ends,
        _ => None,
    });
    let all_ended = ends.max().unwrap_or(since);
    // A preempted job waits again, and is older.
    let before = world.jobs.iter().filter(|j| {
        let stoppable = j.spec.preemptible && j.spec.class < stream.class;
        matches!(j.state, State::Waiting) || stoppable
    });
    let older: i64 = before.map(|j| j.left).sum();
    let overdue = since + (OVERDUE - i64::from(stream.large_class)) * CLASS_STEP_S;
    let mut arrived = 0;
    submit(&mut world, stream.large())?;
    loop {
        let others = world.jobs.iter().enumerate().filter(|(n, _)| *n != large);
        let longest = others.map(|(_, j)| j.spec.seconds).max().unwrap_or(0);
        let latest = if stream.is_always_first() { all_ended } else { overdue + older + longest };
        let (waited, most) = (world.now - since, latest - since);
        if waited > most {
            let does = if world.waits(large) { "still waits" } else { "starts" };
            return Err(format!("it has to start within {most} s and {does} at {waited} s"));
        }
        if !world.waits(large) {
            return Ok(waited);
        }
        arrive(stream, &mut world, large, &mut arrived)?;
        if !world.waits(large) {
            continue;
        }
        let now = world.now;
        world.step(&Step::Next);
        if world.now == now {
            return Err(format!("nothing happens any more after {waited} s"));
        }
        settle(&mut world)?;
    }
}

#[test]
fn nobody_waits_longer_than_documented_for_what_a_stream_takes_piece_by_piece() {
    // The stride has no common factor with the number of streams, so all values of each field occur.
    let (tried, stride) = (127, 17);
    let (soon, half_days) = (AtomicU64::new(0), AtomicU64::new(0));
    let (short, long) = (&soon, &half_days);
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            scope.spawn(move || {
                for number in (worker..tried).step_by(workers as usize) {
                    let stream = stream(number * stride % STREAMS);
                    let waited = wait_s(&stream).unwrap_or_else(|text| panic!("{text}\n{stream:?}"));
                    let count = if waited >= CLASS_STEP_S { long } else { short };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    // Enough jobs really waited until only their age counted.
    let (soon, half_days) = (soon.into_inner(), half_days.into_inner());
    assert!(soon >= tried / 4 && half_days >= tried / 8, "{soon} {half_days}");
}
