use berth_autoscaling::credit::{Account, Answer, Content, KeyId, Lender, LenderTerms, Period};
use berth_types::ids::{OrgId, RevisionId};
use uuid::Uuid;

use super::*;

const PAYER: Payer = Payer { org: OrgId::from_uuid(Uuid::from_u128(1)), key: KeyId(7) };

fn used(nanos: u64) -> Used {
    Used {
        service: ServiceId::from_uuid(Uuid::from_u128(1)),
        revision: RevisionId::from_uuid(Uuid::from_u128(1)),
        key: None,
        is_error: false,
        prompt_tokens: 0,
        completion_tokens: 0,
        token_nanos: nanos,
        bucket: Some(0),
    }
}

/// A portal with a budget for the key. Returns the charges that it posts.
fn exchange(ledger: &Ledger, lender: &mut Lender) -> u64 {
    let mut posted = 0;
    loop {
        let messages = ledger.messages();
        if messages.is_empty() {
            return posted;
        }
        for message in messages {
            let Answer { messages, charge } = lender.receive(&message, wall());
            posted += charge.map_or(0, |charge| charge.nanos);
            ledger.receive(&messages);
        }
    }
}

fn lender(budget: u64) -> Lender {
    let mut lender = Lender::new(LenderTerms { life_s: 60, deadline_s: None });
    lender.set_budget(Account::Key(PAYER.key), Period::InAll, Some(budget));
    lender
}

#[tokio::test]
async fn a_charge_is_posted_once_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut lender = lender(1_000);
    let mut posted = 0;
    for _ in 0..3 {
        let ledger = Ledger::open(dir.path()).unwrap();
        ledger.open_credit(3).unwrap();
        let (hold, waits) = ledger.begin(PAYER, 10).unwrap();
        posted += exchange(&ledger, &mut lender);
        if let Some(waits) = waits {
            assert_eq!(waits.await, Ok(Ok(())));
        }
        ledger.settle(Some(hold), used(7));
        let (lost, _) = ledger.begin(PAYER, 10).unwrap();
        // The gateway is killed with an open request: nothing of it runs any more.
        std::mem::forget(lost);
    }
    let ledger = Ledger::open(dir.path()).unwrap();
    ledger.open_credit(3).unwrap();
    posted += exchange(&ledger, &mut lender);
    assert_eq!(posted, 21);
    let report = ledger.report().unwrap();
    assert_eq!((report.number, report.uses[0].requests, report.uses[0].token_nanos), (1, 3, 21));
    assert_eq!(ledger.report().unwrap(), report, "until it is counted");
    ledger.counted();
    assert!(ledger.report().unwrap().uses.is_empty());
}

#[tokio::test]
async fn a_request_waits_for_a_portal_that_is_away_for_a_moment_only() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    ledger.open_credit(3).unwrap();
    assert_eq!(ledger.credit_wait(), CREDIT_WAIT);
    ledger.set_reached(false);
    assert!(!ledger.credit_wait().is_zero(), "a restart of the portal is waited for");
    let long_ago = Instant::now().checked_sub(CREDIT_WAIT).unwrap();
    ledger.lock().absent_since = Some(long_ago);
    ledger.set_reached(false);
    assert_eq!(ledger.credit_wait(), Duration::ZERO, "the first failure counts");
    assert_eq!(ledger.hold(PAYER, 10).await.err(), Some(no_credit()));
    assert!(!ledger.is_awaited());
    ledger.set_reached(true);
    assert_eq!(ledger.credit_wait(), CREDIT_WAIT);
}

#[tokio::test]
async fn a_request_that_waits_under_a_former_number_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut lender = lender(10);
    let ledger = Ledger::open(dir.path()).unwrap();
    ledger.open_credit(3).unwrap();
    let (hold, waits) = ledger.begin(PAYER, 10).unwrap();
    ledger.open_credit(3).unwrap();
    assert!(ledger.is_awaited(), "the same number changes nothing");
    ledger.open_credit(4).unwrap();
    assert!(waits.unwrap().await.is_err(), "nobody answers it any more");
    assert!(!ledger.is_awaited());
    drop(hold);
    let (hold, waits) = ledger.begin(PAYER, 10).unwrap();
    exchange(&ledger, &mut lender);
    assert_eq!(waits.unwrap().await, Ok(Ok(())), "the new number has credit");
    drop(hold);
}

#[tokio::test]
async fn each_payer_is_answered_by_the_messages_about_its_own_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let mut lender = lender(1_000);
    let other = Payer { key: KeyId(8), ..PAYER };
    lender.set_budget(Account::Key(other.key), Period::InAll, Some(1_000));
    let ledger = Ledger::open(dir.path()).unwrap();
    ledger.open_credit(3).unwrap();
    let (held, waits) = ledger.begin(PAYER, 10).unwrap();
    let (of_other, waits_of_other) = ledger.begin(other, 10).unwrap();
    let [first, second]: [_; 2] = ledger.messages().try_into().unwrap();
    ledger.receive(&lender.receive(&first, wall()).messages);
    assert_eq!(waits.unwrap().await, Ok(Ok(())));
    assert!(ledger.is_awaited(), "the other payer has no answer yet");
    ledger.receive(&lender.receive(&second, wall()).messages);
    assert_eq!(waits_of_other.unwrap().await, Ok(Ok(())));
    assert!(!ledger.is_awaited());
    drop((held, of_other));
}

#[tokio::test]
async fn a_budget_without_room_refuses_and_a_hold_that_is_dropped_returns() {
    let dir = tempfile::tempdir().unwrap();
    let mut lender = lender(10);
    let ledger = Ledger::open(dir.path()).unwrap();
    assert_eq!(ledger.hold(PAYER, 10).await.err(), Some(no_credit()), "no snapshot has come");
    ledger.open_credit(3).unwrap();
    let (hold, waits) = ledger.begin(PAYER, 10).unwrap();
    exchange(&ledger, &mut lender);
    assert_eq!(waits.unwrap().await, Ok(Ok(())));
    let (other, waits) = ledger.begin(PAYER, 10).unwrap();
    let Content::Ask(_) = ledger.messages()[0].content else { panic!("an ask") };
    drop(hold);
    exchange(&ledger, &mut lender);
    assert_eq!(waits.unwrap().await, Ok(Ok(())), "the returned part serves the next request");
    let (third, waits) = ledger.begin(PAYER, 10).unwrap();
    exchange(&ledger, &mut lender);
    assert_eq!(waits.unwrap().await, Ok(Err(Refusal::OverBudget)), "nothing can be recalled");
    drop(third);
    assert!(!ledger.is_awaited());
    drop(other);
}

#[tokio::test]
async fn a_large_ask_of_waiting_requests_is_due_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut lender = lender(1_000_000);
    let ledger = Ledger::open(dir.path()).unwrap();
    ledger.open_credit(3).unwrap();
    let held: Vec<_> = (0..40).map(|_| ledger.begin(PAYER, 10).unwrap()).collect();
    let is_due = async || tokio::time::timeout(Duration::from_millis(50), ledger.asked()).await.is_ok();
    assert!(!is_due().await, "the caller of a hold says so itself");
    let grant = |lender: &mut Lender| {
        let message = ledger.messages().remove(0);
        lender.receive(&message, wall()).messages
    };
    assert!(!ledger.receive(&grant(&mut lender)), "a grant ends no block");
    assert!(is_due().await, "16 requests begin, and 24 wait for a block of 32");
    assert!(ledger.is_awaited());
    ledger.receive(&grant(&mut lender));
    assert!(!ledger.is_awaited());
    drop(held);
}

#[tokio::test]
async fn the_portal_gets_nothing_that_the_journal_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let ledger = Ledger::open(&data).unwrap();
    ledger.open_credit(3).unwrap();
    ledger.settle(None, used(0));
    std::fs::remove_dir_all(&data).unwrap();
    assert!(ledger.open_credit(4).is_err());
    assert!(ledger.begin(PAYER, 10).is_err());
    for _ in 0..2 {
        assert!(ledger.report().is_err());
        assert!(ledger.messages().is_empty());
    }
    std::fs::create_dir(&data).unwrap();
    ledger.lock().repair_at_ms = 0;
    assert_eq!(ledger.messages().len(), 1);
    assert_eq!(ledger.report().unwrap().uses.len(), 1);
}
