//! Tests of the longest wait of a job beside an endless stream of smaller and later jobs. A job that needs
//! all boards of a host, or all hosts, starts within the documented time, for each kind of stream.

use crate::cases::{H100, host};
use crate::judge::play::pass;
use crate::world::{Case, GRACE_S, Host, JOB, Job, Step, World, job_id, seconds};

const CLASS_STEP_S: i64 = 12 * 3_600;
/// Above the highest class only age counts.
const OVERDUE: i64 = 3;
/// The runs of the target, and of the older job before it.
const WIDE_S: i64 = 5_000;
/// The first runs end at times whose differences are no multiple of any length of a stream. So without a held
/// start two boards are never free at once.
const FIRST_END_S: i64 = 1_230;
const BETWEEN_ENDS_S: i64 = 1_270;
/// Shorter than a step of classes, so such a run has ended when only age counts.
const LONG_S: i64 = 40_000;
/// The least length of the jobs for which the target may wait 36 hours. It limits the number of jobs.
const SHORT_S: i64 = 1_200;
const HOUR_S: i64 = 3_600;

/// The hosts, and the hosts that the target needs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    TheOnlyHost,
    TwoHostsOfOneBoard,
    TwoHostsOfTwoBoards,
    EitherOfTwoHosts,
}

/// The organizations of the stream; the target belongs to organization 0.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Orgs {
    Same,
    UnusedOther,
    TwoOthersInTurn,
    /// An organization below its guarantee, so its use always counts as zero.
    Guaranteed,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Length {
    Seconds(i64),
    UpToHeldStart,
}

/// The other jobs before the target.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Obstacle {
    ShortRuns,
    OneLongRun,
    /// Short runs, and an older job with the request of the target.
    OlderJob,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Stream {
    class: u8,
    orgs: Orgs,
    preemptible: bool,
    length: Length,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Scene {
    shape: Shape,
    class: u8,
    obstacle: Obstacle,
    stream: Stream,
}

impl Shape {
    fn hosts(self) -> Vec<Host> {
        match self {
            Self::TheOnlyHost => vec![host(H100[0], 2)],
            Self::TwoHostsOfOneBoard => vec![host(H100[0], 1); 2],
            Self::TwoHostsOfTwoBoards | Self::EitherOfTwoHosts => vec![host(H100[0], 2); 2],
        }
    }

    fn boards(self) -> usize {
        self.hosts().iter().map(|h| h.boards).sum()
    }

    fn wide(self) -> Job {
        let (count, nodes) = match self {
            Self::TheOnlyHost | Self::EitherOfTwoHosts => (2, 1),
            Self::TwoHostsOfOneBoard => (1, 2),
            Self::TwoHostsOfTwoBoards => (2, 2),
        };
        Job { count, nodes, seconds: WIDE_S, ..JOB }
    }
}

impl Scene {
    /// The lengths of the runs at the submission of the target, one for each board.
    fn first_runs(self) -> Vec<i64> {
        let boards = self.shape.boards();
        let mut ends: Vec<i64> = (0..boards as i64).map(|n| FIRST_END_S + n * BETWEEN_ENDS_S).collect();
        if self.obstacle == Obstacle::OneLongRun {
            ends[boards - 1] = LONG_S;
        }
        ends
    }

    /// True if the target is always before the jobs of the stream.
    fn is_always_first(self) -> bool {
        let Stream { class, orgs, .. } = self.stream;
        self.class > class || self.class == class && orgs == Orgs::Same
    }

    /// The latest time for the start of the target. Once the target is before the jobs of the stream, it
    /// waits for the older job and for the longest present run. One of these may wait for a preemption first.
    fn bound(self, world: &World, target: usize) -> i64 {
        let older = if self.obstacle == Obstacle::OlderJob { WIDE_S } else { 0 };
        let (first_at, longest) = if self.is_always_first() {
            (0, self.first_runs().into_iter().max())
        } else {
            let steps = OVERDUE - i64::from(self.class);
            (steps * CLASS_STEP_S, world.jobs[target + 1..].iter().map(|j| j.spec.seconds).max())
        };
        first_at + older + longest.unwrap_or(0) + GRACE_S
    }

    /// The next job of the stream.
    fn arriving(self, world: &World, target: usize) -> Job {
        let Stream { class, orgs, preemptible, length } = self.stream;
        let org = match orgs {
            Orgs::Same => 0,
            Orgs::UnusedOther | Orgs::Guaranteed => 1,
            Orgs::TwoOthersInTurn => 1 + (world.jobs.len() % 2) as u8,
        };
        let seconds = match length {
            Length::Seconds(seconds) => seconds,
            Length::UpToHeldStart => {
                let least = if self.is_always_first() { 1 } else { SHORT_S };
                until_held_start(world, target).filter(|left| *left >= least).unwrap_or(HOUR_S)
            }
        };
        Job { org, class, preemptible, seconds, ..JOB }
    }

    /// True if a scene differs from all others and has few jobs.
    fn is_useful(self) -> bool {
        let Stream { class, preemptible, length, .. } = self.stream;
        // Without a higher class of the target, `preemptible` makes no difference.
        let differs = !preemptible || self.class > class;
        let few = match length {
            Length::Seconds(s) if s < SHORT_S => {
                self.is_always_first() && self.obstacle == Obstacle::ShortRuns
            }
            Length::Seconds(SHORT_S) => self.obstacle == Obstacle::ShortRuns,
            _ => true,
        };
        differs && few
    }

    /// Plays until the start of the target, or until its latest time. Returns the time of the start.
    ///
    /// # Errors
    /// A text if the target starts too late.
    fn play(self) -> Result<i64, String> {
        let wrong = |text: String| format!("{self:?}: {text}");
        let mut world = World::new(&Case { hosts: self.shape.hosts(), steps: Vec::new() });
        if self.stream.orgs == Orgs::Guaranteed {
            world.step(&Step::Guarantee { org: 1, boards: 100 });
        }
        // The first runs have the class of the stream, so no job of the stream preempts them.
        let Stream { class, preemptible, .. } = self.stream;
        for seconds in self.first_runs() {
            submit(&mut world, Job { class, preemptible, seconds, ..JOB }).map_err(wrong)?;
        }
        if (0..world.jobs.len()).any(|n| world.waits(n)) {
            return Err(wrong("a board is free at the begin".into()));
        }
        let wide = Job { class: self.class, ..self.shape.wide() };
        if self.obstacle == Obstacle::OlderJob {
            submit(&mut world, wide).map_err(wrong)?;
        }
        let target = world.jobs.len();
        submit(&mut world, wide).map_err(wrong)?;
        self.arrive(&mut world, target).map_err(wrong)?;
        while world.waits(target) && world.now <= self.bound(&world, target) {
            let then = world.now;
            world.step(&Step::Next);
            settle(&mut world).map_err(wrong)?;
            if world.now == then {
                return Err(wrong(format!("nothing runs at {then} s and the target waits")));
            }
            self.arrive(&mut world, target).map_err(wrong)?;
        }
        let (now, bound) = (world.now, self.bound(&world, target));
        if world.waits(target) || now > bound {
            let does = if world.waits(target) { "still waits" } else { "starts" };
            return Err(wrong(format!("the target has to start within {bound} s and {does} at {now} s")));
        }
        Ok(now)
    }

    /// Submits jobs of the stream until the newest waits and as many wait as there are boards.
    fn arrive(self, world: &mut World, target: usize) -> Result<(), String> {
        loop {
            let newest = world.jobs.len();
            submit(world, self.arriving(world, target))?;
            let waiting = (target + 1..=newest).filter(|n| world.waits(*n)).count();
            if world.waits(newest) && waiting >= self.shape.boards() {
                return Ok(());
            }
        }
    }
}

fn until_held_start(world: &World, target: usize) -> Option<i64> {
    let (_, booking) = world.engine.held_starts().find(|(job, _)| *job == job_id(target))?;
    Some(seconds(booking.from) - world.now)
}

fn settle(world: &mut World) -> Result<(), String> {
    pass(world).map(|_| ()).map_err(|fault| format!("at {} s {fault:?}", world.now))
}

fn submit(world: &mut World, job: Job) -> Result<(), String> {
    world.step(&Step::Submit(job));
    settle(world)
}

fn streams() -> Vec<Stream> {
    let lengths = [60, SHORT_S, HOUR_S, 3 * HOUR_S].map(Length::Seconds);
    let mut out = Vec::new();
    for class in 0..3 {
        for orgs in [Orgs::Same, Orgs::UnusedOther, Orgs::TwoOthersInTurn, Orgs::Guaranteed] {
            for preemptible in [false, true] {
                let with = |length| Stream { class, orgs, preemptible, length };
                out.extend(lengths.into_iter().chain([Length::UpToHeldStart]).map(with));
            }
        }
    }
    out
}

fn scenes() -> Vec<Scene> {
    let mut out = Vec::new();
    for stream in streams() {
        for shape in [
            Shape::TheOnlyHost,
            Shape::TwoHostsOfOneBoard,
            Shape::TwoHostsOfTwoBoards,
            Shape::EitherOfTwoHosts,
        ] {
            for obstacle in [Obstacle::ShortRuns, Obstacle::OneLongRun, Obstacle::OlderJob] {
                out.extend((0..3).map(|class| Scene { shape, class, obstacle, stream }));
            }
        }
    }
    out.retain(|scene| scene.is_useful());
    out
}

#[test]
fn nobody_waits_longer_than_documented_behind_an_endless_stream() {
    let scenes = scenes();
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let results: Vec<Result<i64, String>> = std::thread::scope(|scope| {
        let scenes = &scenes;
        let play = |worker: usize| {
            scope.spawn(move || {
                scenes.iter().skip(worker).step_by(workers).map(|scene| scene.play()).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..workers).map(play).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a worker")).collect()
    });
    let (count, longest) = (results.len(), results.iter().filter_map(|l| l.as_ref().ok()).max().copied());
    let wrong: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    let shown: Vec<&str> = wrong.iter().take(8).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} of {count} worlds:\n{}", wrong.len(), shown.join("\n"));
    // The test is void if no stream delays the target until only age counts.
    assert!(longest >= Some(OVERDUE * CLASS_STEP_S), "the longest wait was {longest:?} s");
}
