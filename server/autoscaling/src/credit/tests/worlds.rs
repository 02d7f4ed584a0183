//! The portal and some gateways with all interleavings of their steps and messages.

use std::collections::BTreeSet;

use super::*;

/// The worst case and the full charge of a request.
const WORST: u64 = 10;
/// The most worlds of one search. The order is breadth first, so all short histories are among them.
const WORLDS: usize = 6_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Arrive(usize),
    Settle(usize, u64, u64),
    Up(ToPortal),
    Down(ToGateway),
    /// The gateway loses its journal and begins a new life.
    Crash(usize),
    /// All unanswered messages are sent again.
    Resend,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Gateway {
    borrower: Borrower,
    life: u64,
    /// The requests that have not arrived.
    left: u64,
    waiting: BTreeSet<u64>,
    held: BTreeSet<u64>,
    passed: u64,
    settled: u64,
    /// Its journal, if the world records them. Worlds with different journals are different.
    journal: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    lender: Lender,
    gateways: Vec<Gateway>,
    up: BTreeSet<ToPortal>,
    down: BTreeSet<ToGateway>,
    budget: u64,
    /// The charges that the portal posted.
    posted: u64,
    crashes: u32,
    /// Each message can arrive again, late, or never. Otherwise it arrives once, in any order.
    lossy: bool,
    records: bool,
}

fn new_borrower(gateway: usize, life: u64) -> Borrower {
    let terms = BorrowerTerms { requests_a_block: 2, low_requests: 1, most_requests_a_block: 4 };
    Borrower::new(GatewayId(u64::try_from(gateway).unwrap()), life, terms)
}

impl World {
    /// Each gateway has a key of its own, and the organization has the budget.
    fn new(requests: &[u64], budget_requests: u64, lossy: bool, crashes: u32) -> Self {
        let mut lender = lender(None);
        let budget = budget_requests * WORST;
        lender.set_budget(Account::Org(payer(0).org), Period::InAll, Some(budget));
        let gateway = |(place, left): (usize, &u64)| Gateway {
            borrower: new_borrower(place, 0),
            life: 0,
            left: *left,
            waiting: BTreeSet::new(),
            held: BTreeSet::new(),
            passed: 0,
            settled: 0,
            journal: Vec::new(),
        };
        let gateways = requests.iter().enumerate().map(gateway).collect();
        let (up, down) = (BTreeSet::new(), BTreeSet::new());
        Self { lender, gateways, up, down, budget, posted: 0, crashes, lossy, records: false }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (place, gateway) in self.gateways.iter().enumerate() {
            if gateway.left > 0 {
                steps.push(Step::Arrive(place));
            }
            for request in &gateway.held {
                steps.push(Step::Settle(place, *request, WORST));
                if self.lossy {
                    steps.push(Step::Settle(place, *request, 3));
                }
            }
            if self.crashes > 0 {
                steps.push(Step::Crash(place));
            }
        }
        steps.extend(self.up.iter().map(|message| Step::Up(*message)));
        steps.extend(self.down.iter().map(|message| Step::Down(*message)));
        let waits = self.gateways.iter().any(|gateway| !gateway.waiting.is_empty());
        if steps.is_empty() && waits {
            steps.push(Step::Resend);
        }
        steps
    }

    /// Tries the waiting requests of a gateway again.
    fn try_waiting(&mut self, place: usize) {
        let gateway = &mut self.gateways[place];
        let key = payer(u64::try_from(place).unwrap());
        for request in gateway.waiting.clone() {
            match gateway.borrower.hold(request, key, WORST, second(0)) {
                HoldAnswer::Waits => continue,
                HoldAnswer::Held => {
                    gateway.held.insert(request);
                    gateway.passed += 1;
                }
                HoldAnswer::Exhausted => {}
                HoldAnswer::Full => panic!("so few requests never fill a gateway"),
            }
            gateway.waiting.remove(&request);
        }
    }

    fn send(&mut self, place: usize) {
        let gateway = &mut self.gateways[place];
        let entries = gateway.borrower.new_entries();
        if self.records {
            gateway.journal.extend(entries);
        }
        self.up.extend(gateway.borrower.messages(second(0)));
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Arrive(place) => {
                let gateway = &mut self.gateways[place];
                gateway.left -= 1;
                gateway.waiting.insert(gateway.left);
                self.try_waiting(place);
                self.send(place);
            }
            Step::Settle(place, request, charge) => {
                let gateway = &mut self.gateways[place];
                let settled = gateway.borrower.settle(request, charge).unwrap();
                assert_eq!(gateway.borrower.settle(request, charge), None, "a request settles once");
                gateway.settled += settled.nanos;
                gateway.held.remove(&request);
                self.try_waiting(place);
                self.send(place);
            }
            Step::Up(message) => {
                if !self.lossy {
                    self.up.remove(&message);
                }
                let answer = self.lender.receive(&message, second(0));
                self.down.extend(answer.messages);
                self.posted += answer.charge.map_or(0, |charge| charge.nanos);
            }
            Step::Down(message) => {
                if !self.lossy {
                    self.down.remove(&message);
                }
                let place = usize::try_from(message.block().gateway.0).unwrap();
                self.gateways[place].borrower.receive(&message, second(0));
                self.try_waiting(place);
                self.send(place);
            }
            Step::Crash(place) => {
                self.crashes -= 1;
                let gateway = &mut self.gateways[place];
                gateway.life += 1;
                gateway.borrower = new_borrower(place, gateway.life);
                gateway.waiting.clear();
                gateway.held.clear();
            }
            Step::Resend => {
                (0..self.gateways.len()).for_each(|place| self.send(place));
                self.down.extend(self.lender.tick(second(0)));
                assert!(!self.up.is_empty() || !self.down.is_empty(), "a request waits for ever: {self:?}");
            }
        }
        self.check();
    }

    fn settled(&self) -> u64 {
        self.gateways.iter().map(|gateway| gateway.settled).sum()
    }

    fn passed(&self) -> u64 {
        self.gateways.iter().map(|gateway| gateway.passed).sum()
    }

    fn check(&self) {
        let held: usize = self.gateways.iter().map(|gateway| gateway.held.len()).sum();
        let worst = self.settled() + u64::try_from(held).unwrap() * WORST;
        assert!(worst <= self.budget, "the holds and charges exceed the budget: {self:?}");
        assert!(self.posted <= self.settled(), "the portal posted more than was settled: {self:?}");
        let lent: u64 = self.lender.blocks().map(|(_, lent)| lent.size).sum();
        assert!(lent <= self.budget, "{self:?}");
    }

    /// Delivers all messages once, in their order, until nothing changes.
    fn heal(&mut self) {
        self.lossy = false;
        for _ in 0..1_000 {
            let old = self.clone();
            (0..self.gateways.len()).for_each(|place| self.send(place));
            self.down.extend(self.lender.tick(second(0)));
            while let Some(message) = self.up.first().copied() {
                self.apply(Step::Up(message));
            }
            while let Some(message) = self.down.first().copied() {
                self.apply(Step::Down(message));
            }
            let held: Vec<_> =
                self.steps().into_iter().filter(|step| matches!(step, Step::Settle(..))).collect();
            held.into_iter().for_each(|step| self.apply(step));
            if *self == old {
                return;
            }
        }
        panic!("the messages never end: {self:?}");
    }
}

/// Visits worlds breadth first, and returns those without a further step.
fn search(start: World) -> Vec<World> {
    let mut seen = BTreeSet::from([start.clone()]);
    let mut open = std::collections::VecDeque::from([start]);
    let mut ends = Vec::new();
    while let Some(world) = open.pop_front() {
        let steps = world.steps();
        if steps.is_empty() {
            ends.push(world);
            continue;
        }
        for step in steps {
            let mut next = world.clone();
            next.apply(step);
            if seen.len() < WORLDS && seen.insert(next.clone()) {
                open.push_back(next);
            }
        }
    }
    ends
}

#[test]
fn no_interleaving_of_two_gateways_exceeds_the_budget() {
    search(World::new(&[2, 2], 3, true, 0));
    search(World::new(&[3, 1], 2, true, 1));
}

#[test]
fn no_interleaving_of_three_gateways_exceeds_the_budget() {
    search(World::new(&[2, 2, 2], 4, true, 1));
}

#[test]
fn exactly_as_many_requests_pass_as_the_budget_has_room_for() {
    let mut ends = 0;
    for (requests, budget) in
        [(vec![1, 1], 1), (vec![2, 1], 2), (vec![1, 1, 1], 2), (vec![2, 2], 3), (vec![2, 2], 5)]
    {
        let all = requests.iter().sum::<u64>().min(budget);
        for end in search(World::new(&requests, budget, false, 0)) {
            assert_eq!((end.passed(), end.settled(), end.posted), (all, all * WORST, all * WORST), "{end:?}");
            ends += 1;
        }
    }
    assert!(ends > 0, "no history came to its end");
}

/// A fixed sequence of numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

#[test]
fn long_histories_with_bad_networks_account_for_each_request_once() {
    for seed in 0..600 {
        let mut numbers = Numbers(seed);
        let crashes = u32::from(seed % 3 == 0) * 2;
        let mut world = World::new(&[2, 2, 2], 1 + seed % 6, true, crashes);
        for _ in 0..60 {
            let steps = world.steps();
            let Some(step) = steps.get(numbers.below(steps.len().max(1))) else { break };
            world.apply(*step);
        }
        let crashed = world.crashes < crashes;
        world.heal();
        let arrived: u64 = world.gateways.iter().map(|gateway| 2 - gateway.left).sum();
        let open = world.gateways.iter().any(|gateway| !gateway.held.is_empty());
        assert!(!open && world.passed() <= arrived, "{seed}");
        let lost = world.settled() - world.posted;
        assert!(crashed || lost == 0, "{seed}: {lost} nano-units were settled and not posted");
    }
}

#[test]
fn a_gateway_with_its_journal_comes_back_as_it_was() {
    for seed in 0..60 {
        let mut numbers = Numbers(seed);
        let mut world = World { records: true, ..World::new(&[4, 2], 4, true, 0) };
        for _ in 0..40 {
            let steps = world.steps();
            let Some(step) = steps.get(numbers.below(steps.len().max(1))).copied() else { break };
            world.apply(step);
            let gateway = &world.gateways[0];
            // The journal has the form of its file.
            let lines = gateway.journal.iter().map(|entry| serde_json::to_string(entry).unwrap());
            let mut restored = new_borrower(0, 0);
            restored.replay(lines.map(|line| serde_json::from_str(&line).unwrap()));
            restored.restart();
            // Without the journal: the requests of the living gateway end without a charge.
            let mut expected = gateway.borrower.clone();
            for request in gateway.held.iter().copied() {
                expected.settle(request, 0);
            }
            let text = |borrower: &Borrower| serde_json::to_string(borrower).unwrap();
            assert_eq!(text(&restored), text(&expected), "{seed} {step:?}");
            let whole: Borrower = serde_json::from_str(&text(&restored)).unwrap();
            assert_eq!(text(&whole), text(&restored), "it is stored as a whole too");
        }
    }
}

#[test]
fn a_thousand_calls_on_a_budget_for_ten_pass_ten_times() {
    let mut world = World::new(&[334, 333, 333], 10, false, 0);
    // The gateways get their first blocks, and then the portal is away.
    for place in 0..3 {
        world.apply(Step::Arrive(place));
        while let Some(message) = world.up.first().copied() {
            world.apply(Step::Up(message));
        }
        while let Some(message) = world.down.first().copied() {
            world.apply(Step::Down(message));
        }
    }
    for turn in 0..600 {
        if world.gateways[turn % 3].left > 1 {
            world.apply(Step::Arrive(turn % 3));
        }
    }
    assert!((3..=10).contains(&world.passed()), "{}", world.passed());
    // It comes back, and all others call.
    world.heal();
    for place in 0..3 {
        while world.gateways[place].left > 0 {
            world.apply(Step::Arrive(place));
        }
        world.heal();
    }
    assert_eq!((world.passed(), world.settled(), world.posted), (10, 10 * WORST, 10 * WORST));
}
