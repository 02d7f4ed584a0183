//! Cases from reports of users: a job waited beside a free board, or later jobs started before it. Each case
//! has the jobs that run at its end.

use crate::cases::{A30, H100, host};
use crate::world::{Case, Host, JOB, Job, Step};

const LOW: Job = Job { class: 0, preemptible: true, ..JOB };
const HIGH: Job = Job { class: 2, ..JOB };
/// A job of the first reservation.
const INSIDE: Job = Job { inside: Some(0), ..JOB };

pub struct Reported {
    pub name: String,
    pub case: Case,
    /// The jobs that run after all steps, by the order of their submission.
    pub run: Vec<usize>,
    /// The jobs that wait after all steps.
    pub wait: Vec<usize>,
}

fn submit(job: Job) -> Step {
    Step::Submit(job)
}

fn book(job: Job, from_s: i64) -> Step {
    Step::Book { job, from_s, maintenance: false }
}

pub fn reported() -> Vec<Reported> {
    let mut all = preempting();
    all.extend([
        shorter_run_before_a_reservation(),
        shorter_run_before_a_held_start(),
        held_start_behind_a_gang_that_cannot_start(),
        higher_class_first_inside(),
        held_start_inside(),
        too_long_for_the_rest_of_a_reservation(),
        reserved_board_without_mig_mode(),
        guaranteed_organization_first(),
        others_are_stopped_when_a_stopped_run_hangs(),
    ]);
    all
}

/// A job of several boards preempts, with a limit shorter or longer than the time until its held start.
fn preempting() -> Vec<Reported> {
    let mut all = Vec::new();
    for seconds in [200, 300, 600] {
        for nodes in [1, 2] {
            let hosts = vec![host(H100[0], 2 / nodes as usize); nodes as usize];
            let wide = Job { count: 2 / nodes, nodes, seconds, ..HIGH };
            let steps = vec![submit(LOW), submit(LOW), submit(wide), Step::Sleep(61)];
            all.push(Reported {
                name: format!("preempts on {nodes} nodes with a limit of {seconds} s"),
                case: Case { hosts, steps },
                run: vec![2],
                wait: vec![0, 1],
            });
        }
    }
    all
}

/// A job that ends before a reservation begins starts before a longer job that does not.
fn shorter_run_before_a_reservation() -> Reported {
    let job = |seconds| Job { models: A30, seconds, ..JOB };
    let steps = vec![
        book(Job { org: 1, ..job(1_000) }, 70_000),
        submit(job(86_400)),
        submit(job(66_000)),
        Step::Sleep(1),
        Step::Sleep(1),
        Step::Sleep(1),
    ];
    let case = Case { hosts: vec![Host { mig: false, ..host(A30[0], 1) }], steps };
    Reported { name: "shorter run before a reservation".into(), case, run: vec![1], wait: vec![0] }
}

/// The same before a held start of another job.
fn shorter_run_before_a_held_start() -> Reported {
    let job = |seconds| Job { seconds, ..JOB };
    let steps = vec![submit(job(100)), submit(Job { count: 2, ..JOB }), submit(job(120)), submit(job(90))];
    let case = Case { hosts: vec![host(H100[0], 2)], steps };
    Reported { name: "shorter run before a held start".into(), case, run: vec![0, 3], wait: vec![1, 2] }
}

/// A gang that waits for a cordoned node takes no held start from the next job.
fn held_start_behind_a_gang_that_cannot_start() -> Reported {
    let steps = vec![
        Step::Open { host: 1, open: false },
        submit(JOB),
        submit(Job { nodes: 2, ..JOB }),
        submit(Job { count: 2, ..JOB }),
        submit(Job { seconds: 600, ..JOB }),
        submit(Job { seconds: 100, ..JOB }),
    ];
    let hosts = vec![host(H100[0], 2), host(H100[0], 1)];
    let name = "held start behind a gang that cannot start".into();
    Reported { name, case: Case { hosts, steps }, run: vec![0, 4], wait: vec![1, 2, 3] }
}

fn higher_class_first_inside() -> Reported {
    let inside = |class| Job { class, ..INSIDE };
    let steps = vec![
        book(Job { seconds: 5_000, ..JOB }, 50),
        submit(inside(0)),
        submit(inside(1)),
        submit(inside(2)),
        submit(inside(2)),
        Step::Sleep(50),
    ];
    let case = Case { hosts: vec![host(H100[0], 1)], steps };
    Reported { name: "higher class first inside".into(), case, run: vec![2], wait: vec![0, 1, 3] }
}

/// Jobs of one board do not delay the held start of a larger job.
fn held_start_inside() -> Reported {
    let steps = vec![
        book(Job { count: 2, seconds: 5_000, ..JOB }, 0),
        submit(INSIDE),
        submit(Job { count: 2, ..INSIDE }),
        submit(Job { seconds: 600, ..INSIDE }),
        submit(Job { seconds: 600, ..INSIDE }),
        Step::Next,
    ];
    let case = Case { hosts: vec![host(H100[0], 2)], steps };
    Reported { name: "held start inside".into(), case, run: vec![1], wait: vec![2, 3] }
}

/// A job that is too long for the rest of a reservation does not block a shorter job.
fn too_long_for_the_rest_of_a_reservation() -> Reported {
    let steps = vec![
        book(Job { seconds: 1_000, ..JOB }, 0),
        Step::Sleep(100),
        submit(Job { seconds: 300, ..INSIDE }),
        submit(Job { seconds: 800, ..INSIDE }),
        submit(Job { seconds: 400, ..INSIDE }),
        Step::Next,
    ];
    let case = Case { hosts: vec![host(H100[0], 1)], steps };
    Reported { name: "too long for the rest of a reservation".into(), case, run: vec![2], wait: vec![1] }
}

fn reserved_board_without_mig_mode() -> Reported {
    let job = Job { models: A30, ..JOB };
    let steps = vec![
        book(Job { seconds: 1_000, ..job }, 50),
        submit(Job { inside: Some(0), ..job }),
        submit(Job { seconds: 600, ..job }),
        Step::Sleep(50),
        Step::Sleep(1),
        Step::Sleep(1),
    ];
    let case = Case { hosts: vec![Host { mig: false, ..host(A30[0], 1) }], steps };
    Reported { name: "reserved board without MIG mode".into(), case, run: vec![0], wait: vec![1] }
}

/// An organization below its guarantee comes first, although it used more.
fn guaranteed_organization_first() -> Reported {
    let steps = vec![
        submit(Job { org: 1, seconds: 100, ..JOB }),
        Step::Next,
        submit(Job { seconds: 60, ..JOB }),
        Step::Next,
        submit(Job { org: 2, ..JOB }),
        submit(JOB),
        submit(Job { org: 1, ..JOB }),
        Step::Guarantee { org: 1, boards: 1 },
        Step::Next,
    ];
    let case = Case { hosts: vec![host(H100[0], 1)], steps };
    Reported { name: "guaranteed organization first".into(), case, run: vec![4], wait: vec![3] }
}

/// A preempted run hangs for a minute and a half. So the job preempts the other run.
fn others_are_stopped_when_a_stopped_run_hangs() -> Reported {
    let mut steps =
        vec![submit(Job { grace_s: 12, ..LOW }), Step::Sleep(3), submit(Job { grace_s: 4, ..LOW })];
    steps.extend([Step::Late { job: 1, seconds: 90 }, submit(JOB), Step::Sleep(4)]);
    steps.extend([31, 12].map(Step::Sleep));
    Reported {
        name: "others are stopped when a stopped run hangs".to_owned(),
        case: Case { hosts: vec![Host { mig: false, ..host(H100[0], 2) }], steps },
        run: vec![1, 2],
        wait: vec![0],
    }
}
