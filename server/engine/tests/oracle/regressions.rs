//! Regressions: random cases that broke a rule once, in their smallest form.

use crate::cases::{A30, A100, H100, host};
use crate::world::{Case, DeviceKind, Host, JOB, Job, Step};

const LOW: Job = Job { class: 0, preemptible: true, ..JOB };
const HIGH: Job = Job { class: 2, ..JOB };

/// A host in this rack.
fn in_rack(rack: u8, host: Host) -> Host {
    Host { rack, ..host }
}

/// A host with boards outside MIG mode.
fn plain(host: Host) -> Host {
    Host { mig: false, ..host }
}

fn submit(job: Job) -> Step {
    Step::Submit(job)
}

pub fn regressions() -> Vec<Case> {
    vec![
        limited_job_is_not_ahead(),
        limited_first_gives_its_held_start_to_the_next(),
        limit_reached_in_a_pass_gives_it_too(),
        held_start_for_power_gives_way_in_another_pool(),
        room_that_comes_by_itself_gives_way(),
        room_comes_when_a_booking_ends(),
        nobody_is_stopped_where_another_node_is_open(),
        begun_reservation_draws_for_its_neighbours(),
        cancelled_reservation_frees_a_board_beside_a_held_start(),
        lower_budget_drops_held_starts(),
        higher_class_behind_a_gang_starts_on_held_room(),
        other_rack_begins_to_draw(),
        held_starts_keep_their_boards(),
        job_that_was_stopped_comes_before_a_later_one_outside_the_line(),
        held_start_comes_sooner_when_turns_change(),
        longer_grace_elsewhere_is_room_for_more(),
        longer_grace_in_the_same_pass_too(),
        longer_grace_of_a_lower_class_beside_one_of_a_higher(),
        end_within_the_grace_of_a_lower_class(),
        held_start_stays_due_while_a_run_is_late(),
        held_start_stays_due_while_a_stopped_run_is_late(),
        room_stays_its_jobs_while_a_stopped_run_is_late(),
        room_inside_stays_its_jobs_while_a_stopped_run_is_late(),
        room_for_power_stays_its_jobs_while_a_stopped_run_is_late(),
        room_stays_its_jobs_beside_another_late_run(),
        room_inside_stays_its_jobs_beside_another_late_run(),
        room_stays_its_jobs_over_a_restart(),
        room_inside_stays_its_jobs_over_a_restart(),
        start_beside_a_stopped_run_is_not_foreseen(),
        room_that_another_run_took_is_asked_for_anew(),
        room_stays_its_jobs_when_the_stopped_run_is_cancelled(),
        start_beside_a_drained_run_is_not_foreseen(),
        drained_run_of_a_higher_class_may_have_the_room(),
        held_start_is_sooner_when_room_before_it_is(),
    ]
}

/// A job has room from preemptions, but the limit of its organization blocks it. It is not ahead of other
/// jobs.
fn limited_job_is_not_ahead() -> Case {
    let hosts = vec![in_rack(1, plain(host(H100[0], 2))), host(H100[0], 3)];
    let limited = Job { org: 1, ..JOB };
    let steps = vec![
        Step::Quota { org: 1, boards: Some(1) },
        submit(Job { count: 2, ..LOW }),
        submit(Job { device: DeviceKind::Slice(0), nodes: 2, ..limited }),
        submit(Job { count: 3, ..JOB }),
        submit(limited),
    ];
    Case { hosts, steps }
}

/// The held start of the first job goes to the next job once a limit blocks the first.
fn limited_first_gives_its_held_start_to_the_next() -> Case {
    let steps = vec![
        submit(Job { org: 2, preemptible: true, count: 2, ..JOB }),
        submit(Job { seconds: 200, ..HIGH }),
        submit(Job { org: 2, ..JOB }),
        submit(Job { seconds: 511, ..HIGH }),
        Step::Quota { org: 2, boards: Some(2) },
        submit(JOB),
        Step::Next,
        Step::Next,
    ];
    Case { hosts: vec![host(H100[0], 2)], steps }
}

/// The same if a start in the same pass uses up the limit.
fn limit_reached_in_a_pass_gives_it_too() -> Case {
    let slices = |index, count| Job { org: 1, device: DeviceKind::Slice(index), count, ..JOB };
    let steps = vec![
        submit(JOB),
        submit(Job { class: 0, nodes: 2, ..JOB }),
        submit(Job { class: 0, nodes: 2, ..slices(3, 2) }),
        Step::Quota { org: 1, boards: Some(1) },
        submit(slices(0, 1)),
    ];
    Case { hosts: vec![host(H100[0], 1), plain(host(H100[0], 1))], steps }
}

/// A held start for the power of a rack does not block a job with an earlier turn on other boards of the
/// rack.
fn held_start_for_power_gives_way_in_another_pool() -> Case {
    let hosts = vec![in_rack(1, host(H100[0], 1)), plain(host(A100[0], 1)), host(H100[0], 2)];
    let steps = vec![
        submit(Job { count: 2, seconds: 100, ..JOB }),
        submit(JOB),
        submit(Job { nodes: 2, ..HIGH }),
        Step::Budget(Some(700)),
        submit(Job { models: A100, seconds: 60, ..JOB }),
        submit(Job { org: 2, seconds: 100, ..JOB }),
    ];
    Case { hosts, steps }
}

/// A board that is free within the grace goes to the job with the earlier turn. The later job preempts.
fn room_that_comes_by_itself_gives_way() -> Case {
    let steps =
        vec![submit(Job { count: 2, ..LOW }), submit(Job { seconds: 60, ..JOB }), submit(JOB), submit(HIGH)];
    Case { hosts: vec![plain(host(H100[0], 3))], steps }
}

/// A reservation that ends within the grace does not block a preemption.
fn room_comes_when_a_booking_ends() -> Case {
    let steps = vec![
        submit(Job { preemptible: true, seconds: 1_000, ..JOB }),
        Step::Book { job: Job { org: 2, count: 2, seconds: 301, ..JOB }, from_s: 0, maintenance: false },
        submit(Job { count: 2, nodes: 2, ..HIGH }),
        submit(JOB),
        Step::Next,
    ];
    Case { hosts: vec![host(H100[0], 2), host(H100[0], 2)], steps }
}

/// The preemption of one run on two nodes makes enough room beside a free node.
fn nobody_is_stopped_where_another_node_is_open() -> Case {
    let hosts = vec![host(H100[0], 1); 4];
    let steps = vec![
        submit(Job { preemptible: true, nodes: 2, ..JOB }),
        submit(Job { preemptible: true, ..JOB }),
        submit(Job { nodes: 3, ..HIGH }),
    ];
    Case { hosts, steps }
}

/// A reservation uses power from its begin. Other parts of its boards use no additional power.
fn begun_reservation_draws_for_its_neighbours() -> Case {
    let hosts =
        vec![in_rack(1, plain(host(A30[0], 1))), in_rack(1, host(H100[0], 2)), plain(host(H100[0], 3))];
    let slices = Job { device: DeviceKind::Slice(2), count: 2, seconds: 301, ..JOB };
    let steps = vec![
        submit(Job { count: 2, nodes: 2, seconds: 5_000, ..JOB }),
        submit(Job { models: A30, ..JOB }),
        Step::Next,
        Step::Book { job: slices, from_s: 300, maintenance: false },
        Step::Budget(Some(1_400)),
        submit(Job { device: DeviceKind::Slice(0), ..JOB }),
        Step::Next,
    ];
    Case { hosts, steps }
}

/// A job without a placement because of a reservation is tried again after the cancellation of the
/// reservation.
fn cancelled_reservation_frees_a_board_beside_a_held_start() -> Case {
    let slices = Job { org: 2, device: DeviceKind::Slice(0), count: 2, seconds: 200, cpus: 4_000, ..JOB };
    let steps = vec![
        submit(Job { count: 2, ..JOB }),
        Step::Book { job: slices, from_s: 300, maintenance: false },
        submit(Job { count: 2, ..JOB }),
        submit(Job { models: A100, ..LOW }),
        submit(Job { seconds: 1_000, ..JOB }),
        Step::Unbook(0),
    ];
    let hosts = vec![in_rack(1, plain(host(A100[0], 1))), Host { cpus: 24_000, ..host(H100[0], 3) }];
    Case { hosts, steps }
}

/// Two held starts on one board do not rely on each other's power after a reduction of the rack's budget.
fn lower_budget_drops_held_starts() -> Case {
    let slice = Job { device: DeviceKind::Slice(0), ..JOB };
    let steps = vec![
        submit(Job { org: 1, count: 2, ..LOW }),
        submit(Job { org: 1, ..slice }),
        submit(slice),
        Step::Budget(Some(330)),
    ];
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// A job of a higher class that fits at once takes the room of preemptions for a lower class, although the
/// first job of its pool does not fit.
fn higher_class_behind_a_gang_starts_on_held_room() -> Case {
    let steps = vec![
        submit(JOB),
        submit(Job { count: 2, nodes: 2, after: Some(0), ..JOB }),
        submit(Job { count: 3, seconds: 512, ..LOW }),
        Step::Next,
        submit(Job { nodes: 3, ..HIGH }),
        submit(Job { seconds: 66_000, ..HIGH }),
    ];
    Case { hosts: vec![host(H100[0], 1), plain(host(H100[0], 3)), host(H100[0], 2)], steps }
}

/// The begin of a held start in one rack does not start a check of the power in another rack.
fn other_rack_begins_to_draw() -> Case {
    let hosts = vec![plain(host(H100[0], 1)), plain(host(H100[0], 3)), in_rack(1, host(H100[0], 1))];
    let slice = |index| Job { device: DeviceKind::Slice(index), ..JOB };
    let steps = vec![
        submit(Job { count: 3, ..JOB }),
        submit(Job { class: 0, preemptible: true, nodes: 2, seconds: 700, ..slice(5) }),
        Step::Budget(Some(1_400)),
        submit(Job { nodes: 2, seconds: 299, ..slice(0) }),
        submit(JOB),
        submit(slice(5)),
    ];
    Case { hosts, steps }
}

/// Held starts of other jobs stay on their boards during a preemption.
fn held_starts_keep_their_boards() -> Case {
    let steps = vec![
        submit(JOB),
        submit(Job { preemptible: true, count: 3, ..JOB }),
        submit(Job { count: 2, ..LOW }),
        submit(Job { count: 2, ..JOB }),
        submit(Job { preemptible: true, ..JOB }),
        submit(Job { nodes: 2, ..HIGH }),
    ];
    Case { hosts: vec![host(H100[0], 3), plain(host(H100[0], 1)), host(H100[0], 3)], steps }
}

/// A start in a pass also changes the turns of the jobs outside the line.
fn job_that_was_stopped_comes_before_a_later_one_outside_the_line() -> Case {
    let hosts =
        vec![in_rack(1, host(H100[0], 2)), in_rack(1, host(H100[0], 3)), host(A100[0], 1), host(H100[0], 2)];
    let steps = vec![
        submit(Job { count: 2, seconds: 60, ..JOB }),
        submit(JOB),
        submit(Job { preemptible: true, ..JOB }),
        submit(JOB),
        submit(LOW),
        submit(Job { nodes: 3, ..HIGH }),
        submit(JOB),
    ];
    Case { hosts, steps }
}

/// A start of another organization in a pass moves a held start before the held start that blocked it.
fn held_start_comes_sooner_when_turns_change() -> Case {
    let hosts = vec![plain(host(A30[0], 1)), plain(host(H100[0], 1)), plain(host(H100[0], 2))];
    let wide = Job { nodes: 2, ..HIGH };
    let steps = vec![
        submit(Job { org: 1, models: A30, ..JOB }),
        submit(Job { preemptible: true, device: DeviceKind::Slice(0), seconds: 60, ..JOB }),
        submit(Job { org: 1, ..wide }),
        submit(wide),
        submit(JOB),
    ];
    Case { hosts, steps }
}

/// A run that ends within the grace blocks nothing, and a run of another model has the longest grace.
fn longer_grace_elsewhere_is_room_for_more() -> Case {
    let hosts = vec![plain(host(A30[0], 1)), plain(host(H100[0], 3))];
    let steps = vec![
        submit(JOB),
        submit(Job { seconds: 66_000, ..LOW }),
        submit(Job { count: 3, ..JOB }),
        submit(Job { models: A30, grace_s: 600, ..LOW }),
    ];
    Case { hosts, steps }
}

/// The run with the longest grace starts in a pass after the job was tried.
fn longer_grace_in_the_same_pass_too() -> Case {
    let hosts = vec![plain(host(A30[0], 1)), plain(host(H100[0], 3)), plain(host(H100[0], 1))];
    let steps = vec![
        Step::Open { host: 1, open: false },
        submit(Job { seconds: 1_000, ..JOB }),
        Step::Open { host: 1, open: true },
        submit(Job { count: 2, ..JOB }),
        submit(Job { seconds: 66_000, ..LOW }),
        submit(Job { count: 3, ..JOB }),
        submit(Job { models: A30, grace_s: 600, seconds: 66_000, after: Some(0), ..LOW }),
        submit(Job { class: 0, seconds: 500, ..JOB }),
        Step::End { job: 0, succeeded: true },
    ];
    Case { hosts, steps }
}

/// Runs of the job's own class have an even longer grace, and the job may not preempt them.
fn graces_of_two_classes() -> (Vec<Host>, Vec<Step>) {
    let hosts = vec![plain(host(A30[0], 2)), plain(host(H100[0], 3))];
    let steps = vec![
        submit(Job { models: A30, preemptible: true, grace_s: 600, seconds: 66_000, ..JOB }),
        submit(JOB),
        submit(Job { seconds: 66_000, ..LOW }),
        submit(Job { count: 3, ..JOB }),
    ];
    (hosts, steps)
}

fn longer_grace_of_a_lower_class_beside_one_of_a_higher() -> Case {
    let (hosts, mut steps) = graces_of_two_classes();
    steps.push(submit(Job { models: A30, grace_s: 400, seconds: 66_000, ..LOW }));
    Case { hosts, steps }
}

fn end_within_the_grace_of_a_lower_class() -> Case {
    let (hosts, mut steps) = graces_of_two_classes();
    steps.push(Step::Sleep(260));
    Case { hosts, steps }
}

/// One of two runs at their limit is late. No other job takes the board of the other run, not even a short
/// job.
fn held_start_stays_due_while_a_run_is_late() -> Case {
    let mut steps = vec![submit(Job { seconds: 60, ..JOB }), submit(Job { seconds: 60, ..JOB })];
    steps.extend([Step::Late { job: 1, seconds: 25 }, submit(Job { count: 2, seconds: 12, ..HIGH })]);
    steps.extend([submit(Job { class: 0, seconds: 12, ..JOB }); 3]);
    steps.extend([Step::Sleep(60), Step::Sleep(10), Step::Sleep(20)]);
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// The same with preempted runs.
fn held_start_stays_due_while_a_stopped_run_is_late() -> Case {
    let mut steps = vec![submit(LOW), submit(LOW), Step::Late { job: 0, seconds: 12 }];
    steps.extend([submit(Job { count: 2, seconds: 100, ..HIGH }), submit(Job { seconds: 10, ..JOB })]);
    steps.extend([Step::Sleep(60), Step::Sleep(5), Step::Sleep(20)]);
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// Two jobs of one class preempt one run each. The run with the shorter grace is late by a second.
fn stopped_run_is_late(inside: Option<usize>) -> Vec<Step> {
    let low = |grace_s| Job { inside, grace_s, seconds: 200, ..LOW };
    let high = Job { inside, seconds: 50, ..HIGH };
    vec![
        submit(low(4)),
        Step::Sleep(2),
        submit(low(12)),
        Step::Sleep(2),
        Step::Late { job: 0, seconds: 1 },
        submit(high),
        Step::Sleep(1),
        submit(high),
        Step::Sleep(4),
        Step::Sleep(1),
        Step::Sleep(20),
    ]
}

fn room_stays_its_jobs_while_a_stopped_run_is_late() -> Case {
    Case { hosts: vec![plain(host(H100[0], 2))], steps: stopped_run_is_late(None) }
}

fn room_inside_stays_its_jobs_while_a_stopped_run_is_late() -> Case {
    let mut steps = vec![Step::Book { job: Job { count: 2, ..JOB }, from_s: 0, maintenance: false }];
    steps.extend(stopped_run_is_late(Some(0)));
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// The preempted, late run uses power of the rack, and the board is free all the time.
fn room_for_power_stays_its_jobs_while_a_stopped_run_is_late() -> Case {
    let spare = Host { cpus: 24_000, ..plain(host(A30[0], 2)) };
    let hosts = vec![spare, in_rack(1, host(H100[0], 1)), in_rack(1, plain(host(A30[0], 1)))];
    let mut steps = vec![submit(Job { models: A30, ..LOW }), Step::Late { job: 0, seconds: 1 }];
    steps.extend([Step::Budget(Some(700)), submit(JOB), submit(Job { org: 1, ..JOB })]);
    Case { hosts, steps }
}

/// A run at its limit is also late, so the held start may be on either board.
fn room_stays_its_jobs_beside_another_late_run() -> Case {
    let mut steps = vec![submit(Job { seconds: 45, ..JOB }), submit(Job { grace_s: 30, ..LOW })];
    steps.extend([(0, 60), (1, 19)].map(|(job, seconds)| Step::Late { job, seconds }));
    steps.extend([submit(JOB), Step::Sleep(46), submit(Job { org: 1, ..JOB }), Step::Sleep(3)]);
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// The same inside a reservation, with a new job of a higher class.
fn room_inside_stays_its_jobs_beside_another_late_run() -> Case {
    let job = |seconds, class| Job { inside: Some(0), seconds, class, ..JOB };
    let low = Job { inside: Some(0), grace_s: 30, ..LOW };
    let mut steps = vec![Step::Book { job: Job { count: 2, ..JOB }, from_s: 0, maintenance: false }];
    steps.extend([submit(job(45, 1)), submit(Job { seconds: 200, ..low })]);
    steps.extend([(0, 60), (1, 19)].map(|(job, seconds)| Step::Late { job, seconds }));
    steps.extend([submit(job(100, 1)), Step::Sleep(46), submit(job(100, 2)), Step::Sleep(3)]);
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// The engine is built again while two jobs preempt two runs, and another job of the class comes.
fn restarted(inside: Option<usize>) -> Vec<Step> {
    let mut steps = stopped_run_is_late(inside);
    let comes = submit(Job { inside, seconds: 10, ..HIGH });
    steps.splice(8..8, [comes, Step::Restart]);
    steps
}

fn room_stays_its_jobs_over_a_restart() -> Case {
    Case { hosts: vec![plain(host(H100[0], 2))], steps: restarted(None) }
}

fn room_inside_stays_its_jobs_over_a_restart() -> Case {
    let mut steps = vec![Step::Book { job: Job { count: 2, ..JOB }, from_s: 0, maintenance: false }];
    steps.extend(restarted(Some(0)));
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// A preempted job starts again before a waiting job of its own class.
fn start_beside_a_stopped_run_is_not_foreseen() -> Case {
    let steps = vec![
        submit(Job { preemptible: true, ..JOB }),
        submit(Job { seconds: 100, ..JOB }),
        submit(Job { seconds: 100, ..JOB }),
        submit(Job { seconds: 500, ..HIGH }),
    ];
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// The preempted run is cancelled in its grace, and then the engine is built again.
fn room_stays_its_jobs_when_the_stopped_run_is_cancelled() -> Case {
    let mut steps = stopped_run_is_late(None);
    let comes = submit(Job { seconds: 10, ..HIGH });
    steps.splice(8..8, [comes, Step::Cancel(0), Step::Cancel(1), Step::Restart]);
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// A drained job starts again before later jobs of its class.
fn start_beside_a_drained_run_is_not_foreseen() -> Case {
    let steps =
        vec![submit(JOB), submit(Job { seconds: 100, ..JOB }), submit(JOB), submit(JOB), Step::Drain(0)];
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// During a lower budget another run took the place beside the preempted run.
fn room_that_another_run_took_is_asked_for_anew() -> Case {
    let hosts =
        vec![in_rack(1, host(H100[0], 2)), in_rack(1, plain(host(H100[0], 1))), in_rack(1, host(H100[0], 1))];
    let slice = |profile| Job { device: DeviceKind::Slice(profile), ..LOW };
    let steps = vec![
        submit(slice(1)),
        Step::Open { host: 0, open: false },
        submit(Job { nodes: 2, ..JOB }),
        submit(slice(0)),
        Step::Budget(Some(330)),
        Step::Budget(Some(1_400)),
    ];
    Case { hosts, steps }
}

/// A run is stopped for a job, and a run of a higher class that is drained returns first.
fn drained_run_of_a_higher_class_may_have_the_room() -> Case {
    let share = Job { org: 1, device: DeviceKind::Share(300), ..JOB };
    let steps = vec![
        submit(Job { preemptible: true, ..share }),
        submit(Job { class: 2, ..share }),
        submit(LOW),
        Step::Drain(1),
        submit(JOB),
        submit(HIGH),
    ];
    Case { hosts: vec![plain(host(H100[0], 2))], steps }
}

/// A lower budget moves room that is held for a later job to an earlier time, so the first job is held sooner too.
fn held_start_is_sooner_when_room_before_it_is() -> Case {
    let hosts = vec![
        in_rack(1, plain(host(H100[0], 2))),
        plain(host(H100[0], 1)),
        host(H100[0], 2),
        in_rack(1, host(H100[0], 2)),
    ];
    let steps = vec![
        submit(Job { count: 2, nodes: 3, ..JOB }),
        submit(Job { count: 2, ..JOB }),
        submit(Job { nodes: 3, ..JOB }),
        submit(Job { seconds: 299, ..JOB }),
        Step::Next,
        submit(LOW),
        Step::Budget(Some(1_400)),
    ];
    Case { hosts, steps }
}
