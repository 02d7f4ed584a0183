//! The time of quotes with a full calendar: 1,000 boards, 10,000 bookings.

use std::time::Instant;

use berth_engine::{Engine, Fact, Refusal, Window};
use berth_placement::calendar::{Booking, BookingKind};
use berth_placement::cluster::{BookingId, NodeFacts};
use berth_placement::networks::NetworkNeed;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::OrgId;
use berth_types::time::Timestamp;
use uuid::Uuid;

use crate::percentile;
use crate::trace::{Random, node};

const NODES: u32 = 125;
const BOOKINGS: u128 = 10_000;
const MODEL: &str = "H100-80GB";

fn request(random: &mut Random) -> Request {
    let mut request = Request {
        device: DeviceRequest::Board,
        count: random.pick(&[1, 1, 2, 4, 8]),
        nodes: if random.below(20) == 0 { 4 } else { 1 },
        models: vec![MODEL.into()],
        cpu_milli: 0,
        memory_mib: 0,
        topology: Nearness::Any,
        offering: None,
        nano_per_second: 0,
        nvlink: false,
        images: false,
        rdma: false,
        network: NetworkNeed::Any,
        storage: Vec::new(),
        work: berth_placement::pools::Work::Training,
    };
    if random.below(4) == 0 {
        (request.count, request.nodes) = (1, 1);
        request.device = DeviceRequest::Slice(random.pick(&["1g.10gb", "3g.40gb"]).into());
    }
    request
}

/// A random window of whole hours within the next `days` days.
fn window(random: &mut Random, now: Timestamp, days: usize) -> Window {
    let from = now.plus_seconds(3_600 * (1 + random.below(days * 24) as i64));
    Window { from, until: from.plus_seconds(3_600 * (1 + random.below(48) as i64)) }
}

pub fn run() {
    let mut random = Random(11);
    let mut engine = Engine::default();
    let now = Timestamp::from_micros(1_800_000_000_000_000);
    let org = OrgId::from_uuid(Uuid::from_u128(1));
    for n in 0..NODES {
        let facts = NodeFacts { cpu_milli: 128_000, ..node(n, MODEL, 8, true) };
        engine.apply(Fact::Node { version: 1, facts }, now);
    }
    let (mut booked, mut days) = (0, 30);
    while booked < BOOKINGS {
        let (request, when) = (request(&mut random), window(&mut random, now, days));
        match engine.quote(&request, org, when, now) {
            Ok((ask, places, moved)) => {
                booked += 1;
                let id = BookingId(Uuid::from_u128(booked));
                let Window { from, until } = when;
                engine.book(
                    Booking { id, kind: BookingKind::Reservation, org, ask: Some(ask), from, until, places },
                    moved,
                );
            }
            // The calendar is full in these days, so the range grows by a day.
            Err(_) => days += 1,
        }
    }
    let (mut all, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..2_000 {
        let (request, when) = (request(&mut random), window(&mut random, now, 40));
        let began = Instant::now();
        let answer = std::hint::black_box(engine.quote(&request, org, when, now));
        let ms = began.elapsed().as_secs_f64() * 1e3;
        all.push(ms);
        if matches!(answer, Err(Refusal::Taken { .. })) {
            refused.push(ms);
        }
    }
    all.sort_by(f64::total_cmp);
    refused.sort_by(f64::total_cmp);
    println!(
        "{{\"boards\": {}, \"bookings\": {booked}, \"refused\": {}, \"p50_ms\": {:.3}, \"p99_ms\": {:.3}, \
         \"refused_p50_ms\": {:.3}, \"refused_p99_ms\": {:.3}}}",
        NODES * 8,
        refused.len(),
        percentile(&all, 0.5),
        percentile(&all, 0.99),
        percentile(&refused, 0.5),
        percentile(&refused, 0.99),
    );
}
