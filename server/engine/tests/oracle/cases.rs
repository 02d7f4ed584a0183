//! The cases: enumerated, random, and reduced to the smallest form of a fault.

use crate::judge::Fault;
use crate::judge::play::{try_case, try_future, try_rebuilt};
use crate::world::{Case, DeviceKind, Host, JOB, Job, Step, World, table};
use berth_types::node_pools::NodePool;

/// A generator of pseudo-random numbers (SplitMix64), equal on all machines.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

pub const H100: &[&str] = &["H100-80GB"];
pub const A30: &[&str] = &["A30-24GB"];
pub const A100: &[&str] = &["A100-40GB"];
const EITHER: &[&str] = &["H100-80GB", "A30-24GB"];

/// All checks of one case.
///
/// # Errors
/// The first broken rule.
pub fn check(case: &Case) -> Result<(), Fault> {
    let world = try_case(&case.steps, World::new(case))?;
    try_rebuilt(&world)?;
    try_future(world, 24)
}

/// The smallest case that still breaks the same rule.
pub fn shrink(case: &Case, rule: &str) -> Case {
    let fails = |case: &Case| check(case).is_err_and(|f| f.rule == rule);
    let mut case = case.clone();
    loop {
        let smaller = smaller(&case);
        match smaller.into_iter().find(|c| fails(c)) {
            Some(next) => case = next,
            None => return case,
        }
    }
}

/// All cases that are one change smaller or simpler.
fn smaller(case: &Case) -> Vec<Case> {
    let mut out = Vec::new();
    for index in (0..case.steps.len()).rev() {
        let mut other = case.clone();
        other.steps.remove(index);
        out.push(other);
    }
    if case.hosts.len() > 1 {
        out.push(Case { hosts: case.hosts[..case.hosts.len() - 1].to_vec(), ..case.clone() });
    }
    for index in 0..case.hosts.len() {
        let mut other = case.clone();
        other.hosts[index].boards = other.hosts[index].boards.saturating_sub(1).max(1);
        out.push(other);
    }
    for index in 0..case.steps.len() {
        let Step::Submit(job) = case.steps[index] else { continue };
        for plain in [
            Job { org: 0, ..job },
            Job { class: 1, ..job },
            Job { preemptible: false, ..job },
            Job { replica: false, ..job },
            Job { cpus: 0, ..job },
            Job { near: false, ..job },
            Job { after: None, ..job },
            Job { device: DeviceKind::Board, ..job },
            Job { count: 1, ..job },
            Job { nodes: 1, ..job },
            Job { seconds: 300, ..job },
            Job { grace_s: JOB.grace_s, ..job },
        ] {
            let mut other = case.clone();
            other.steps[index] = Step::Submit(plain);
            out.push(other);
        }
    }
    out.retain(|c| c != case);
    out
}

pub fn host(model: &'static str, boards: usize) -> Host {
    Host { model, boards, mig: true, rack: 0, cpus: 64_000 }
}

/// Number of enumerated cases: all combinations of a first, a second and a third job on one or two hosts,
/// with further facts. The number of a case encodes all of its parts.
pub const ENUMERATED: u64 = 2 * 3 * 6 * 6 * 6 * 5 * 4 * 4;

pub fn enumerated(number: u64) -> Case {
    let mut rest = number;
    let mut digit = |base: u64| {
        let digit = rest % base;
        rest /= base;
        digit
    };
    let hosts = match digit(2) {
        0 => vec![host("H100-80GB", 2)],
        _ => vec![host("H100-80GB", 1), host("H100-80GB", 1)],
    };
    let wide = |job: Job| match hosts.len() {
        1 => Job { count: 2, ..job },
        _ => Job { nodes: 2, ..job },
    };
    // The first run uses one board, one board with a preemptible job, or both boards.
    let first = match digit(3) {
        0 => JOB,
        1 => Job { class: 0, preemptible: true, ..JOB },
        _ => wide(Job { class: 0, preemptible: true, ..JOB }),
    };
    let mut steps = vec![Step::Submit(first)];
    match digit(6) {
        0 => {}
        1 => steps.push(Step::Book { job: JOB, from_s: 400, maintenance: false }),
        2 => steps.push(Step::Book { job: wide(JOB), from_s: 400, maintenance: false }),
        3 => steps.push(Step::Quota { org: 1, boards: Some(1) }),
        4 => steps.push(Step::Budget(Some(700))),
        _ => steps.push(Step::Open { host: 0, open: false }),
    }
    for _ in 0..2 {
        let job = match digit(6) {
            0 => JOB,
            1 => wide(JOB),
            2 => Job { class: 2, ..JOB },
            3 => wide(Job { class: 2, ..JOB }),
            4 => Job { class: 0, preemptible: true, ..JOB },
            _ => Job { org: 1, ..JOB },
        };
        steps.push(Step::Submit(job));
    }
    // Lengths shorter than, equal to and longer than the time until the next reservation or end.
    let seconds = [200, 300, 400, 700, 66_000][digit(5) as usize];
    if let Some(Step::Submit(job)) = steps.last_mut() {
        job.seconds = seconds;
    }
    steps.push(Step::Submit(Job { seconds: [60, 100, 290, 500][digit(4) as usize], ..JOB }));
    match digit(4) {
        0 => steps.extend([Step::Next, Step::Next]),
        1 => steps.extend([Step::End { job: 0, succeeded: true }, Step::Next]),
        2 => steps.extend([Step::Extend { job: 0, seconds: 200 }, Step::Next, Step::Cancel(2)]),
        _ => steps.extend([Step::Sleep(GRACE_AND_MORE), Step::Open { host: 0, open: true }, Step::Next]),
    }
    Case { hosts, steps }
}

/// The usual grace and a second more.
const GRACE_AND_MORE: i64 = 61;

/// Number of enumerated cases inside a reservation of two boards that has begun.
pub const ENUMERATED_INSIDE: u64 = 6 * 6 * 6 * 4 * 3;

pub fn enumerated_inside(number: u64) -> Case {
    let mut rest = number;
    let mut digit = |base: u64| {
        let digit = rest % base;
        rest /= base;
        digit
    };
    let hosts = vec![host("H100-80GB", 2)];
    let window = Job { count: 2, seconds: 1_000, ..JOB };
    let mut steps = vec![Step::Book { job: window, from_s: 0, maintenance: false }];
    let inside = Job { inside: Some(0), ..JOB };
    for _ in 0..3 {
        steps.push(Step::Submit(match digit(6) {
            0 => inside,
            1 => Job { count: 2, ..inside },
            2 => Job { class: 2, ..inside },
            3 => Job { class: 2, count: 2, ..inside },
            4 => Job { class: 0, preemptible: true, ..inside },
            _ => Job { seconds: 900, ..inside },
        }));
    }
    steps.push(Step::Submit(Job { seconds: [100, 300, 700, 1_001][digit(4) as usize], ..inside }));
    match digit(3) {
        0 => steps.extend([Step::Next, Step::Next]),
        1 => {
            steps.extend([Step::Sleep(150), Step::Submit(Job { count: 2, ..inside }), Step::Next, Step::Next])
        }
        _ => steps.extend([Step::End { job: 0, succeeded: true }, Step::Submit(inside), Step::Next]),
    }
    Case { hosts, steps }
}

/// Number of enumerated cases with two organizations and two hosts, each dedicated to one of them or to none, and
/// with both settings of the organizations.
pub const ENUMERATED_DEDICATED: u64 = 3 * 3 * 2 * 2 * 5 * 5 * 5 * 4;

pub fn enumerated_dedicated(number: u64) -> Case {
    let mut rest = number;
    let mut digit = |base: u64| {
        let digit = rest % base;
        rest /= base;
        digit
    };
    let mut steps = Vec::new();
    for host in 0..2 {
        let org = [None, Some(0), Some(1)][digit(3) as usize];
        steps.push(Step::Dedicate { host, org });
    }
    for org in 0..2 {
        steps.push(Step::OwnOnly { org, own_only: digit(2) == 1 });
    }
    for _ in 0..3 {
        steps.push(Step::Submit(match digit(5) {
            0 => JOB,
            1 => Job { org: 1, ..JOB },
            2 => Job { nodes: 2, seconds: 200, ..JOB },
            3 => Job { org: 1, class: 2, ..JOB },
            _ => Job { class: 0, preemptible: true, seconds: 400, ..JOB },
        }));
    }
    match digit(4) {
        0 => steps.extend([Step::Next, Step::Next]),
        1 => steps.extend([Step::End { job: 0, succeeded: true }, Step::Restart, Step::Next]),
        2 => {
            let job = Job { org: 1, seconds: 500, ..JOB };
            steps.extend([
                Step::Book { job, from_s: 400, maintenance: false },
                Step::Submit(JOB),
                Step::Next,
            ]);
        }
        _ => steps.extend([Step::Dedicate { host: 0, org: None }, Step::OwnOnly { org: 0, own_only: false }]),
    }
    Case { hosts: vec![host("H100-80GB", 1), host("H100-80GB", 1)], steps }
}

/// Number of enumerated cases with two hosts in all pools.
pub const ENUMERATED_POOLS: u64 = 3 * 3 * 7 * 7 * 7 * 5;

pub fn enumerated_pools(number: u64) -> Case {
    let mut rest = number;
    let mut digit = |base: u64| {
        let digit = rest % base;
        rest /= base;
        digit
    };
    let mut steps = Vec::new();
    for host in 0..2 {
        steps.push(Step::Pool { host, pool: NodePool::ALL[digit(3) as usize] });
    }
    let replica = Job { replica: true, seconds: 5_000, ..JOB };
    for _ in 0..3 {
        steps.push(Step::Submit(match digit(7) {
            0 => JOB,
            1 => Job { class: 0, preemptible: true, seconds: 400, ..JOB },
            2 => Job { class: 2, preemptible: true, seconds: 700, ..JOB },
            3 => Job { org: 1, nodes: 2, preemptible: true, seconds: 600, ..JOB },
            4 => replica,
            5 => Job { org: 1, class: 0, preemptible: true, ..replica },
            _ => Job { nodes: 2, ..replica },
        }));
    }
    match digit(5) {
        0 => steps.extend([Step::Next, Step::Next]),
        1 => steps.extend([Step::End { job: 0, succeeded: true }, Step::Restart, Step::Next]),
        2 => steps.extend([
            Step::Sleep(GRACE_AND_MORE),
            Step::Submit(Job { class: 0, ..replica }),
            Step::Next,
            Step::Next,
        ]),
        3 => steps.extend([
            Step::Pool { host: 0, pool: NodePool::Both },
            Step::Next,
            Step::Pool { host: 1, pool: NodePool::Inference },
            Step::Next,
        ]),
        _ => steps.extend([
            Step::Pool { host: 0, pool: NodePool::Inference },
            Step::Submit(replica),
            Step::Restart,
            Step::Next,
        ]),
    }
    Case { hosts: vec![host("H100-80GB", 1), host("H100-80GB", 1)], steps }
}

/// Number of enumerated cases with a reserve for bursts on two hosts, one of them for inference.
pub const ENUMERATED_RESERVE: u64 = 3 * 3 * 7 * 7 * 7 * 7;

pub fn enumerated_reserve(number: u64) -> Case {
    let mut rest = number;
    let mut digit = |base: u64| {
        let digit = rest % base;
        rest /= base;
        digit
    };
    let mut steps = vec![
        Step::Pool { host: 0, pool: NodePool::Inference },
        Step::Pool { host: 1, pool: NodePool::ALL[digit(3) as usize] },
        Step::Reserve(1 + digit(3) as u32),
    ];
    let borrower = Job { preemptible: true, ..JOB };
    let replica = Job { replica: true, seconds: 5_000, ..JOB };
    for _ in 0..3 {
        steps.push(Step::Submit(match digit(7) {
            0 => Job { class: 0, seconds: 400, ..borrower },
            1 => Job { seconds: 700, ..borrower },
            2 => Job { org: 1, nodes: 2, seconds: 600, ..borrower },
            3 => Job { class: 0, count: 2, seconds: 500, ..borrower },
            4 => JOB,
            5 => Job { count: 2, ..replica },
            _ => replica,
        }));
    }
    match digit(7) {
        0 => steps.extend([Step::Next, Step::Next]),
        1 => steps.extend([Step::Submit(replica), Step::Next, Step::Next, Step::Next]),
        2 => steps.extend([Step::Submit(replica), Step::Submit(replica), Step::Restart, Step::Next]),
        3 => steps.extend([
            Step::Sleep(GRACE_AND_MORE),
            Step::Submit(Job { class: 2, ..replica }),
            Step::Next,
            Step::Next,
        ]),
        4 => steps.extend([Step::Reserve(0), Step::Next, Step::Reserve(2), Step::Next]),
        5 => steps.extend([
            Step::Book { job: Job { seconds: 300, ..JOB }, from_s: 450, maintenance: true },
            Step::Submit(borrower),
            Step::Next,
            Step::Next,
        ]),
        _ => steps.extend([
            Step::End { job: 0, succeeded: true },
            Step::Next,
            Step::Pool { host: 1, pool: NodePool::Inference },
            Step::Next,
        ]),
    }
    Case { hosts: vec![host("H100-80GB", 2), host("H100-80GB", 1)], steps }
}

/// All models, in both MIG modes, as whole boards, as shares and with each profile, without and with a
/// reservation.
pub fn models() -> Vec<Case> {
    let mut out = Vec::new();
    for board in berth_mig::boards() {
        let model: &'static str = board.model.as_str();
        let models: &'static [&'static str] = Box::leak(Box::new([model]));
        let devices = (0..board.profiles.len())
            .map(DeviceKind::Slice)
            .chain([DeviceKind::Board, DeviceKind::Share(300)]);
        for (device, mig) in devices.flat_map(|device| [(device, true), (device, false)]) {
            let job = Job { models, device, ..JOB };
            let hosts = vec![Host { mig, ..host(model, 1) }];
            let book = |from_s| Step::Book { job: Job { seconds: 1_000, ..job }, from_s, maintenance: false };
            let inside = Step::Submit(Job { inside: Some(0), ..job });
            let open = vec![Step::Submit(job), Step::Submit(job), Step::Next];
            out.push(Case { hosts: hosts.clone(), steps: open });
            if matches!(device, DeviceKind::Share(_)) {
                // Shares cannot be reserved.
                continue;
            }
            let reserved = vec![book(0), inside, Step::Submit(Job { seconds: 2_000, ..job }), Step::Next];
            let later = vec![book(400), inside, Step::Submit(job), Step::Next, Step::Next, Step::Next];
            for steps in [reserved, later] {
                out.push(Case { hosts: hosts.clone(), steps });
            }
        }
    }
    out
}

fn random_job(random: &mut Random, submitted: usize, booked: usize, several: bool) -> Job {
    let models = random.pick(&[H100, H100, H100, A30, A100, if several { EITHER } else { H100 }]);
    let profiles = table(models[0]).map_or(0, |b| b.profiles.len() as u64);
    let device = match random.below(10) {
        0 if models.len() == 1 => DeviceKind::Slice(random.below(profiles) as usize),
        1 if models.len() == 1 => DeviceKind::Slice(0),
        2 => DeviceKind::Share(random.pick(&[300, 500, 700])),
        _ => DeviceKind::Board,
    };
    let single = matches!(device, DeviceKind::Share(_));
    let preemptible = random.below(2) == 0;
    Job {
        org: random.below(3) as u8,
        class: random.pick(&[0, 0, 1, 1, 2]),
        preemptible,
        replica: false,
        models,
        device,
        count: if single { 1 } else { random.pick(&[1, 1, 1, 2, 2, 3]) },
        nodes: if single { 1 } else { random.pick(&[1, 1, 1, 1, 2, 2, 3]) },
        grace_s: JOB.grace_s,
        seconds: random.pick(&[20, 60, 100, 200, 299, 300, 301, 500, 511, 512, 700, 1_000, 5_000, 66_000]),
        inside: (booked > 0 && random.below(4) == 0).then(|| random.below(booked as u64) as usize),
        near: random.below(8) == 0,
        cpus: random.pick(&[0, 0, 0, 4_000, 20_000]),
        after: (submitted > 0 && random.below(10) == 0).then(|| random.below(submitted as u64) as usize),
    }
}

/// A random case. If `several`, some jobs accept either of two models; no offering of the portal does that.
pub fn random(seed: u64, several: bool) -> Case {
    let mut random = Random(seed);
    let models = ["H100-80GB", "H100-80GB", "A30-24GB", "A100-40GB"];
    let hosts: Vec<Host> = (0..1 + random.below(4))
        .map(|_| Host {
            model: random.pick(&models),
            boards: 1 + random.below(3) as usize,
            mig: random.below(3) > 0,
            rack: random.below(2) as u8,
            cpus: random.pick(&[24_000, 64_000]),
        })
        .collect();
    let count = hosts.len() as u64;
    let (mut submitted, mut booked, mut steps) = (0usize, 0usize, Vec::new());
    for _ in 0..6 + random.below(14) {
        let job = random.below(submitted.max(1) as u64) as usize;
        let host = random.below(count) as usize;
        steps.push(match random.below(25) {
            0..=9 if submitted < 12 => {
                let job = random_job(&mut random, submitted, booked, several);
                submitted += 1;
                Step::Submit(job)
            }
            10 if booked < 3 => {
                booked += 1;
                let from_s = random.pick(&[0, 0, 50, 300, 400, 1_000]);
                let job = random_job(&mut random, 0, 0, several);
                let device =
                    if matches!(job.device, DeviceKind::Share(_)) { DeviceKind::Board } else { job.device };
                Step::Book { job: Job { device, ..job }, from_s, maintenance: random.below(6) == 0 }
            }
            11 => Step::Unbook(random.below(3) as usize),
            12 => Step::Sleep(random.pick(&[1, 29, 61, 200, 43_200])),
            13 => Step::End { job, succeeded: random.below(3) > 0 },
            14 => Step::Cancel(job),
            15 => Step::Extend { job, seconds: random.pick(&[10, 100, 1_000]) },
            16 if random.below(3) == 0 => Step::Unclean(job),
            17 => Step::Open { host, open: random.below(3) > 0 },
            18 => Step::Healthy { host, healthy: random.below(2) > 0 },
            19 => Step::Quota { org: random.below(3) as u8, boards: random.pick(&[None, Some(1), Some(2)]) },
            20 if random.below(3) == 0 => Step::Guarantee { org: random.below(3) as u8, boards: 1 },
            21 if random.below(2) == 0 => {
                Step::Budget(random.pick(&[None, Some(700), Some(1_400), Some(330)]))
            }
            22 => Step::Drain(job),
            _ => Step::Next,
        });
    }
    // In one case of four, runs end after their limits.
    if seed % 4 == 1 {
        for _ in 0..1 + random.below(3) {
            let place = random.below(steps.len() as u64 + 1) as usize;
            let job = random.below(submitted.max(1) as u64) as usize;
            steps.insert(place, Step::Late { job, seconds: random.pick(&[1, 5, 12, 25, 45, 90]) });
        }
    }
    // In one case of four, the engine is built again.
    if seed % 4 == 2 {
        for _ in 0..1 + random.below(2) {
            steps.insert(random.below(steps.len() as u64 + 1) as usize, Step::Restart);
        }
    }
    // In one case of four, jobs have different graces.
    if seed % 4 == 3 {
        for step in &mut steps {
            if let Step::Submit(job) = step {
                job.grace_s = random.pick(&[10, 60, 600]);
            }
        }
    }
    Case { hosts, steps }
}
