//! Tests of credit: prices, periods, returns and deadlines. `worlds` has the interleavings of messages.

mod worlds;

use super::*;
use proptest::prelude::*;

fn second(second: i64) -> Timestamp {
    // 2026-11-30, 00:00 UTC.
    Timestamp::from_micros(1_795_996_800_000_000).plus_seconds(second)
}

fn payer(key: u64) -> Payer {
    Payer { org: OrgId::from_uuid(uuid::Uuid::from_u128(1)), key: KeyId(key) }
}

fn lender(deadline_s: Option<u32>) -> Lender {
    Lender::new(LenderTerms { life_s: 60, deadline_s })
}

fn ask(gateway: u64, number: u64, key: u64, size: u64) -> ToPortal {
    let block = BlockId { gateway: GatewayId(gateway), life: 1, number };
    let ask = Ask { block, payer: payer(key), least: size, wish: size, waits: true };
    ToPortal { content: Content::Ask(ask), oldest: 0 }
}

fn report(gateway: u64, number: u64, size: u64, spent: u64) -> ToPortal {
    let block = BlockId { gateway: GatewayId(gateway), life: 1, number };
    ToPortal { content: Content::Report(Report { block, size, spent, ending: true }), oldest: 0 }
}

/// The granted size of an answer with one grant.
fn granted(answer: &Answer) -> Option<u64> {
    answer.messages.iter().find_map(|message| match message {
        ToGateway::Grant { size, .. } => Some(*size),
        _ => None,
    })
}

#[test]
fn a_price_has_time_and_tokens() {
    let price = Price { nano_per_second: 1_500, nano_per_prompt_token: 7, nano_per_completion_token: 20 };
    let usage =
        |replica_ms, prompt_tokens, completion_tokens| Usage { replica_ms, prompt_tokens, completion_tokens };
    for (usage, nanos) in [
        (usage(0, 0, 0), Some(0)),
        (usage(1_000, 0, 0), Some(1_500)),
        (usage(999, 3, 2), Some(1_498 + 21 + 40)),
        (usage(0, u64::MAX, 0), None),
    ] {
        assert_eq!(price.charge_nanos(&usage), nanos);
    }
}

proptest! {
    #[test]
    fn postings_sum_to_the_rounded_sum(charges in prop::collection::vec(0u64..5_000, 0..40)) {
        let (mut sum, mut posted) = (0, 0);
        for charge in charges {
            posted += posted_micros(sum, sum + charge);
            sum += charge;
        }
        prop_assert_eq!(posted, sum / 1_000);
    }

    #[test]
    fn a_charge_never_panics(rate: u64, ms: u64, tokens: u64) {
        let price = Price { nano_per_second: rate, nano_per_prompt_token: rate, nano_per_completion_token: rate };
        let _ = price.charge_nanos(&Usage { replica_ms: ms, prompt_tokens: tokens, completion_tokens: tokens });
    }
}

#[test]
fn budgets_begin_again_with_their_periods() {
    let mut lender = lender(None);
    let org = Account::Org(payer(1).org);
    lender.set_budget(Account::Key(KeyId(1)), Period::Day, Some(10));
    lender.set_budget(org, Period::Month, Some(25));
    lender.set_budget(org, Period::InAll, Some(32));
    // The last day of November, then two days of December.
    for (number, s, size, expected) in [
        (1, 0, 10, 10),
        (2, 86_399, 1, 0),
        (3, 86_400, 10, 10),
        (4, 86_401, 1, 0),
        (5, 2 * 86_400, 10, 10),
        (6, 3 * 86_400, 3, 0),
        (7, 3 * 86_400, 2, 2),
    ] {
        // All is spent at once, so nothing can be recalled.
        let answer = lender.receive(&ask(1, number, 1, size), second(s));
        assert_eq!(granted(&answer), Some(expected), "{number}");
        lender.receive(&report(1, number, size, size), second(s));
    }
    // Another key has no budget of its own, but its organization has.
    assert_eq!(granted(&lender.receive(&ask(1, 8, 2, 1), second(3 * 86_400))), Some(0));
    lender.set_budget(org, Period::InAll, None);
    assert_eq!(granted(&lender.receive(&ask(1, 9, 2, 3), second(3 * 86_400))), Some(3));
    assert_eq!(
        granted(&lender.receive(&ask(1, 10, 2, 1), second(3 * 86_400))),
        None,
        "the last block can be recalled"
    );
}

#[test]
fn a_refusal_ends_after_a_step_back_of_the_clock() {
    let terms = BorrowerTerms { requests_a_block: 1, low_requests: 0, most_requests_a_block: 0 };
    let mut borrower = Borrower::new(GatewayId(1), 1, terms);
    let late = second(3_600);
    assert_eq!(borrower.hold(1, payer(1), 5, late), HoldAnswer::Waits);
    let block = BlockId { gateway: GatewayId(1), life: 1, number: 0 };
    assert_eq!(borrower.payer(block), Some(payer(1)));
    assert_eq!(borrower.payer(BlockId { life: 2, ..block }), None, "another gateway has it");
    borrower.receive(&ToGateway::Grant { block, size: 0, until: late }, late);
    assert_eq!(borrower.payer(block), None, "a refused ask is forgotten");
    assert_eq!(borrower.hold(1, payer(1), 5, late), HoldAnswer::Exhausted);
    assert_eq!(borrower.hold(1, payer(1), 5, second(0)), HoldAnswer::Waits);
}

#[test]
fn a_block_ends_with_its_day() {
    let mut lender = lender(None);
    let answer = lender.receive(&ask(1, 1, 1, 5), second(86_390));
    let block = BlockId { gateway: GatewayId(1), life: 1, number: 1 };
    assert_eq!(answer.messages, [ToGateway::Grant { block, size: 5, until: second(86_400) }]);
}

#[test]
fn a_repeated_ask_has_one_block_and_a_returned_part_is_lent_again() {
    let mut lender = lender(None);
    lender.set_budget(Account::Key(KeyId(1)), Period::InAll, Some(10));
    for _ in 0..3 {
        assert_eq!(granted(&lender.receive(&ask(1, 1, 1, 10), second(0))), Some(10));
    }
    let waits = lender.receive(&ask(2, 1, 1, 4), second(1));
    let block = BlockId { gateway: GatewayId(1), life: 1, number: 1 };
    assert_eq!(waits.messages, [ToGateway::Recall { block }]);
    assert_eq!(lender.tick(second(2)), [ToGateway::Recall { block }]);
    let returned = lender.receive(&report(1, 1, 6, 6), second(3));
    let charge = Charge { payer: payer(1), block, nanos: 6, forgiven: false };
    assert_eq!((granted(&returned), returned.charge), (Some(4), Some(charge)));
    let late = lender.receive(&report(1, 1, 8, 2), second(4));
    assert_eq!((granted(&late), late.charge), (None, None), "an older report changes nothing");
}

#[test]
fn an_ask_is_refused_when_a_recalled_block_does_not_come() {
    let mut lender = lender(None);
    lender.set_budget(Account::Key(KeyId(1)), Period::InAll, Some(10));
    lender.receive(&ask(1, 1, 1, 10), second(0));
    assert_eq!(granted(&lender.receive(&ask(2, 1, 1, 4), second(1))), None);
    assert!(matches!(lender.tick(second(5))[..], [ToGateway::Recall { .. }]));
    assert!(matches!(lender.tick(second(6))[..], [ToGateway::Grant { size: 0, .. }]));
}

#[test]
fn the_operators_deadline_returns_a_lost_block_and_forgives_its_late_charges() {
    let mut lender = lender(Some(600));
    lender.set_budget(Account::Key(KeyId(1)), Period::InAll, Some(10));
    lender.receive(&ask(1, 1, 1, 10), second(0));
    lender.receive(&report(1, 1, 10, 3), second(1));
    lender.tick(second(659));
    assert_eq!(granted(&lender.receive(&ask(2, 1, 1, 7), second(659))), Some(0), "it counts as spent");
    lender.tick(second(660));
    assert_eq!(granted(&lender.receive(&ask(2, 2, 1, 7), second(660))), Some(7));
    let late = lender.receive(&report(1, 1, 10, 9), second(661));
    assert_eq!(late.charge.map(|charge| (charge.nanos, charge.forgiven)), Some((6, true)));
}

#[test]
fn a_gateway_that_lies_is_bounded_by_its_block() {
    let mut lender = lender(None);
    lender.set_budget(Account::Key(KeyId(1)), Period::InAll, Some(10));
    lender.receive(&ask(1, 1, 1, 4), second(0));
    let lie = lender.receive(&report(1, 1, u64::MAX, u64::MAX), second(1));
    assert_eq!(lie.charge.map(|charge| charge.nanos), Some(4));
    assert_eq!(granted(&lender.receive(&ask(2, 1, 1, 7), second(1))), Some(0));
    assert_eq!(granted(&lender.receive(&ask(2, 2, 1, 6), second(1))), Some(6));
    let unknown = lender.receive(&report(9, 9, 5, 5), second(1));
    assert_eq!((unknown.charge, unknown.messages), (None, vec![]));
}

#[test]
fn a_restarted_portal_has_the_same_room() {
    let mut old = lender(None);
    let budget = |lender: &mut Lender| lender.set_budget(Account::Key(KeyId(1)), Period::Day, Some(20));
    budget(&mut old);
    old.receive(&ask(1, 1, 1, 4), second(0));
    old.receive(&ask(1, 2, 1, 5), second(0));
    old.receive(&report(1, 1, 4, 4), second(1));
    // The gateway has forgotten its first block.
    old.receive(&ToPortal { oldest: 2, ..report(1, 2, 5, 1) }, second(1));
    assert_eq!(old.blocks().count(), 1);
    let mut new = lender(None);
    budget(&mut new);
    new.restore_spent(payer(1), second(0), 4);
    for (id, lent) in old.blocks() {
        new.restore_block(id, *lent);
        new.restore_block(id, *lent);
    }
    for lender in [&mut old, &mut new] {
        assert_eq!(
            granted(&lender.receive(&ask(2, 1, 1, 12), second(2))),
            Some(0),
            "11 are free, and none returns"
        );
        assert_eq!(granted(&lender.receive(&ask(2, 2, 1, 11), second(2))), Some(11));
    }
}

fn borrower(low_requests: u32) -> Borrower {
    let terms = BorrowerTerms { requests_a_block: 4, low_requests, most_requests_a_block: 4 };
    Borrower::new(GatewayId(1), 1, terms)
}

fn find_ask(borrower: &mut Borrower, now: Timestamp) -> Option<Ask> {
    borrower.messages(now).into_iter().find_map(|message| match message.content {
        Content::Ask(ask) => Some(ask),
        Content::Report(_) => None,
    })
}

/// The wishes of a payer that uses each block up in these milliseconds, with requests of a worst case of 10.
fn wishes(most_requests_a_block: u32, lasting_ms: &[i64]) -> Vec<u64> {
    let terms = BorrowerTerms { requests_a_block: 4, low_requests: 0, most_requests_a_block };
    let mut borrower = Borrower::new(GatewayId(1), 1, terms);
    let (mut now, mut request, mut wishes) = (second(0), 0, Vec::new());
    for ms in lasting_ms {
        while borrower.hold(request, payer(1), 10, now) == HoldAnswer::Held {
            borrower.settle(request, 10);
            request += 1;
        }
        let ask = find_ask(&mut borrower, now).unwrap();
        wishes.push(ask.wish);
        let until = now.plus_seconds(3_600);
        borrower.receive(&ToGateway::Grant { block: ask.block, size: ask.wish, until }, now);
        now = Timestamp::from_micros(now.micros() + ms * 1_000);
    }
    wishes
}

#[test]
fn blocks_grow_with_the_pace_of_their_payer() {
    for (most, lasting_ms, expected) in [
        (4, vec![0, 0, 0], vec![40, 40, 40]),
        (0, vec![0, 0, 0], vec![40, 40, 40]),
        (50, vec![0, 1, 999, 1_000, 0, 0], vec![40, 80, 160, 320, 500, 500]),
        // A block of two seconds has the right size; a longer one is followed by a smaller one.
        (50, vec![0, 0, 2_000, 2_000, 4_000, 8_000, 0], vec![40, 80, 160, 160, 160, 80, 40]),
        (50, vec![0, 0, 0, 3_600_000, 0], vec![40, 80, 160, 320, 40]),
    ] {
        assert_eq!(wishes(most, &lasting_ms), expected, "at most {most}, blocks of {lasting_ms:?} ms");
    }
}

#[test]
fn a_payer_with_large_blocks_asks_with_more_room_left() {
    let terms = BorrowerTerms { requests_a_block: 4, low_requests: 1, most_requests_a_block: 16 };
    let mut borrower = Borrower::new(GatewayId(1), 1, terms);
    let (mut request, mut granted) = (0, 0);
    for (room, wish) in [(0, 40), (0, 80), (1, 160), (3, 160), (3, 160)] {
        let ask = loop {
            // All requests stay open.
            let answer = borrower.hold(request, payer(1), 10, second(0));
            request += u64::from(answer == HoldAnswer::Held);
            if let Some(ask) = find_ask(&mut borrower, second(0)) {
                break ask;
            }
        };
        assert_eq!((granted - request * 10, ask.wish), (room * 10, wish));
        borrower.receive(&grant(ask.block.number, ask.wish, 60), second(0));
        granted += ask.wish;
    }
}

#[test]
fn refusals_and_other_worst_cases_make_no_larger_block() {
    let terms = BorrowerTerms { requests_a_block: 4, low_requests: 1, most_requests_a_block: 4_096 };
    let mut borrower = Borrower::new(GatewayId(1), 1, terms);
    for s in 0..20 {
        assert_eq!(borrower.hold(0, payer(1), 10, second(s)), HoldAnswer::Waits);
        let ask = find_ask(&mut borrower, second(s)).unwrap();
        assert_eq!(ask.wish, 40, "after {s} refusals");
        borrower.receive(&grant(ask.block.number, 0, 60), second(s));
    }
    // Many small requests, then a large one.
    let (mut request, mut last) = (1, 0);
    while last < 4_096 {
        let answer = borrower.hold(request, payer(2), 1, second(30));
        request += u64::from(answer == HoldAnswer::Held);
        if let Some(ask) = find_ask(&mut borrower, second(30)) {
            last = ask.wish;
            borrower.receive(&grant(ask.block.number, ask.wish, 60), second(30));
        }
    }
    let answer = borrower.hold(0, payer(2), 100_000, second(30));
    let wish = find_ask(&mut borrower, second(30)).unwrap().wish;
    assert_eq!((answer, wish), (HoldAnswer::Waits, 400_000));
}

#[test]
fn a_block_that_the_portal_cut_makes_no_larger_one() {
    let terms = BorrowerTerms { requests_a_block: 4, low_requests: 0, most_requests_a_block: 4_096 };
    let mut borrower = Borrower::new(GatewayId(1), 1, terms);
    let mut request = 0;
    for (wish, lent) in [(40, 40), (80, 10), (40, 40), (80, 80), (160, 10), (40, 10)] {
        while borrower.hold(request, payer(1), 10, second(0)) == HoldAnswer::Held {
            borrower.settle(request, 10);
            request += 1;
        }
        let ask = find_ask(&mut borrower, second(0)).unwrap();
        assert_eq!(ask.wish, wish);
        borrower.receive(&grant(ask.block.number, lent, 60), second(0));
    }
}

#[test]
fn a_slow_portal_does_not_keep_blocks_small() {
    // The asks come when a request waits, or in time.
    for low_requests in [0, 1, 2] {
        let terms = BorrowerTerms { requests_a_block: 4, low_requests, most_requests_a_block: 4_096 };
        let mut borrower = Borrower::new(GatewayId(1), 1, terms);
        let mut request = 0;
        for (round, wish) in [40, 80, 160, 320, 640].into_iter().enumerate() {
            let asked = second(3 * round as i64);
            while borrower.hold(request, payer(1), 10, asked) == HoldAnswer::Held {
                borrower.settle(request, 10);
                request += 1;
            }
            let ask = find_ask(&mut borrower, asked).unwrap();
            assert_eq!((ask.wish, ask.waits), (wish, low_requests == 0 || round == 0));
            // The answer comes three seconds later, and the block is used up at once.
            borrower.receive(&grant(ask.block.number, ask.wish, 600), second(3 * (round as i64 + 1)));
        }
    }
}

#[test]
fn the_unused_part_of_a_block_makes_the_next_one_no_larger() {
    let terms = BorrowerTerms { requests_a_block: 4, low_requests: 1, most_requests_a_block: 4_096 };
    let mut borrower = Borrower::new(GatewayId(1), 1, terms);
    let mut request = 0;
    let mut use_block = |borrower: &mut Borrower, used: u64, at: Timestamp, wish: u64| {
        assert_eq!(borrower.hold(request, payer(1), 10, at), HoldAnswer::Waits);
        let ask = find_ask(borrower, at).unwrap();
        assert_eq!(ask.wish, wish);
        borrower.receive(&grant(ask.block.number, ask.wish, 1_000), at);
        for _ in 0..used {
            assert_eq!(borrower.hold(request, payer(1), 10, at), HoldAnswer::Held);
            borrower.settle(request, 10);
            request += 1;
        }
        ask.block
    };
    // A recall each second after one request.
    for s in 0..10 {
        let block = use_block(&mut borrower, 1, second(s), 40);
        assert!(borrower.receive(&ToGateway::Recall { block }, second(s)));
        assert!(!borrower.receive(&ToGateway::Recall { block }, second(s)), "a repeated one ends nothing");
    }
    // A block that has ended before its grant arrives.
    for round in 0..10 {
        assert_eq!(borrower.hold(100, payer(1), 10, second(20)), HoldAnswer::Waits, "{round}");
        let ask = find_ask(&mut borrower, second(20)).unwrap();
        assert_eq!(ask.wish, 40, "{round}");
        borrower.receive(&grant(ask.block.number, ask.wish, 19), second(20));
    }
    // Most of a block is used before its end.
    let block = use_block(&mut borrower, 3, second(30), 40);
    borrower.receive(&ToGateway::Recall { block }, second(30));
    use_block(&mut borrower, 1, second(30), 60);
}

#[test]
fn a_recall_of_an_unknown_block_ends_nothing() {
    let mut borrower = borrower(0);
    borrower.hold(1, payer(1), 10, second(0));
    borrower.receive(&grant(0, 25, 60), second(0));
    for (gateway, life, number) in [(1, 1, 1), (1, 0, 0), (1, 2, 0), (2, 1, 0)] {
        let block = BlockId { gateway: GatewayId(gateway), life, number };
        assert!(!borrower.receive(&ToGateway::Recall { block }, second(0)), "{block:?}");
    }
    assert_eq!(borrower.hold(1, payer(1), 10, second(0)), HoldAnswer::Held);
    let block = BlockId { gateway: GatewayId(1), life: 1, number: 0 };
    assert!(borrower.receive(&ToGateway::Recall { block }, second(0)));
}

fn grant(number: u64, size: u64, until: i64) -> ToGateway {
    let block = BlockId { gateway: GatewayId(1), life: 1, number };
    ToGateway::Grant { block, size, until: second(until) }
}

#[test]
fn a_request_holds_its_worst_case_and_settles_once() {
    let mut borrower = borrower(0);
    assert_eq!(borrower.hold(1, payer(1), 10, second(0)), HoldAnswer::Waits);
    assert_eq!(borrower.messages(second(0)).len(), 1);
    borrower.receive(&grant(0, 25, 60), second(0));
    borrower.receive(&grant(0, 99, 60), second(0));
    for (request, answer) in
        [(1, HoldAnswer::Held), (1, HoldAnswer::Held), (2, HoldAnswer::Held), (3, HoldAnswer::Waits)]
    {
        assert_eq!(borrower.hold(request, payer(1), 10, second(1)), answer, "{request}");
    }
    assert_eq!(borrower.settle(1, 4), Some(Settled { nanos: 4, over: false }));
    assert_eq!(borrower.settle(1, 4), None);
    assert_eq!(borrower.settle(2, 11), Some(Settled { nanos: 10, over: true }), "the hold bounds the charge");
    // The freed part serves the next request.
    assert_eq!(borrower.hold(3, payer(1), 10, second(2)), HoldAnswer::Held);
    assert_eq!(borrower.hold(4, payer(2), 1, second(2)), HoldAnswer::Waits, "another key has no block");
    // A hold can have parts of several blocks.
    borrower.receive(&grant(1, 9, 60), second(3));
    assert_eq!(borrower.hold(5, payer(1), 10, second(3)), HoldAnswer::Held);
}

#[test]
fn a_block_gets_no_request_after_its_end_and_its_rest_returns() {
    let mut borrower = borrower(0);
    borrower.hold(1, payer(1), 10, second(0));
    borrower.receive(&grant(0, 40, 60), second(0));
    assert_eq!(borrower.hold(1, payer(1), 10, second(59)), HoldAnswer::Held);
    assert_eq!(borrower.hold(2, payer(1), 10, second(60)), HoldAnswer::Waits);
    let reports = |borrower: &mut Borrower| -> Vec<(u64, u64, bool)> {
        let messages = borrower.messages(second(60));
        let report = |message: &ToPortal| match message.content {
            Content::Report(report) => Some((report.size, report.spent, report.ending)),
            Content::Ask(_) => None,
        };
        messages.iter().filter_map(report).collect()
    };
    assert_eq!(reports(&mut borrower), [(10, 0, true)], "the hold stays");
    borrower.settle(1, 3);
    assert_eq!(reports(&mut borrower), [(3, 3, true)]);
    let block = BlockId { gateway: GatewayId(1), life: 1, number: 0 };
    borrower.receive(&ToGateway::Noted(Report { block, size: 10, spent: 0, ending: true }), second(61));
    assert_eq!(reports(&mut borrower), [(3, 3, true)], "the portal has an older report");
    borrower.receive(&ToGateway::Noted(Report { block, size: 3, spent: 3, ending: true }), second(61));
    assert!(reports(&mut borrower).is_empty());
}

#[test]
fn the_next_block_is_asked_for_in_time_and_its_refusal_fails_no_request() {
    let mut borrower = borrower(2);
    borrower.hold(1, payer(1), 10, second(0));
    borrower.receive(&grant(0, 40, 60), second(0));
    let asks = |borrower: &mut Borrower| {
        let messages = borrower.messages(second(1));
        messages.iter().filter(|message| matches!(message.content, Content::Ask(ask) if !ask.waits)).count()
    };
    for (request, early) in [(1, 0), (2, 0), (3, 1)] {
        assert_eq!(borrower.hold(request, payer(1), 10, second(1)), HoldAnswer::Held);
        assert_eq!(asks(&mut borrower), early, "{request}");
    }
    borrower.receive(&grant(1, 0, 60), second(1));
    assert_eq!(borrower.hold(4, payer(1), 10, second(1)), HoldAnswer::Held);
    borrower.receive(&grant(2, 0, 60), second(1));
    assert_eq!(borrower.hold(5, payer(1), 10, second(1)), HoldAnswer::Waits, "now a request waits");
    borrower.receive(&grant(3, 0, 60), second(1));
    assert_eq!(borrower.hold(5, payer(1), 10, second(1)), HoldAnswer::Exhausted);
    assert_eq!(borrower.hold(5, payer(1), 10, second(2)), HoldAnswer::Waits, "a refusal holds for a second");
}

#[test]
fn the_journal_of_an_earlier_version_has_its_charges() {
    let mut now = borrower(0);
    assert_eq!(now.hold(1, payer(1), 10, second(0)), HoldAnswer::Waits);
    now.receive(&grant(0, 40, 60), second(0));
    let begin = now.new_entries();
    assert_eq!(now.hold(1, payer(1), 10, second(0)), HoldAnswer::Held);
    now.settle(1, 4);
    assert_eq!(now.hold(2, payer(1), 10, second(0)), HoldAnswer::Held);
    let mut old = borrower(0);
    old.replay(begin);
    old.replay([
        Entry::Held { request: 1, parts: vec![(0, 10)] },
        Entry::Settled { request: 1, nanos: 4 },
        Entry::Held { request: 2, parts: vec![(0, 10)] },
    ]);
    now.restart();
    old.restart();
    let text = |borrower: &Borrower| serde_json::to_string(borrower).unwrap();
    assert_eq!(text(&old), text(&now));
}
