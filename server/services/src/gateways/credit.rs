//! The credit of gateways: asks, reports and recalls of blocks, and the end of the wait for lost blocks.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_autoscaling::credit::{Ask, BlockId, Content, KeyId, Lent, Payer, ToGateway, ToPortal};
use berth_foundation::{Change, Context};
use berth_store::services::credit::{self, StoredBlock};
use berth_store::services::gateways;
use berth_store::{StoreError, Tx};
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::GatewaySync;
use super::blocks::{NANOS, from_column, settle, to_column};
use super::callers::{Call, CallingGateway, LIFE_AHEAD, is_plausible_life};
use super::desk::{Exchange, Messages, exchange};

/// Messages of one request.
const MAX_MESSAGES: usize = 2_000;
/// Milliseconds for which an ask waits for recalled blocks.
const RECALL_MS: i64 = 5_000;
/// Milliseconds after which the portal forgets an ask that its gateway does not repeat.
const FORGET_MS: i64 = 60_000;
/// Seconds after the end of a block for which the portal waits for its gateway.
const DEADLINE_S: i64 = 86_400;
/// Recalls for the asks of other gateways in one answer. The others come with the next one.
const MAX_RECALLS: usize = 5_000;
/// Lost blocks of one transaction.
const MAX_LOST: i64 = 500;

/// The recalls that gateways have not got, and the asks that wait for them. After a restart of the portal the repeated
/// asks bring them again.
#[derive(Default)]
pub(super) struct PendingCredit {
    recalls: Mutex<HashMap<u64, BTreeSet<BlockId>>>,
    waiting: Mutex<HashMap<BlockId, Timestamp>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PendingCredit {
    /// Those of these asks that have waited long enough.
    fn find_late(&self, asks: &[Ask], now: Timestamp) -> HashSet<BlockId> {
        let mut waiting = lock(&self.waiting);
        waiting.retain(|_, since| now.millis_since(*since) < FORGET_MS);
        let is_late = |id: &BlockId| waiting.get(id).is_some_and(|at| now.millis_since(*at) >= RECALL_MS);
        asks.iter().map(|ask| ask.block).filter(is_late).collect()
    }

    /// Records the outcome of an exchange. Returns the recalls for its gateway.
    fn record(&self, gateway: u64, asks: &[Ask], done: &Exchange, now: Timestamp) -> BTreeSet<BlockId> {
        let mut waiting = lock(&self.waiting);
        for ask in asks.iter().filter(|ask| !done.waiting.contains(&ask.block)) {
            waiting.remove(&ask.block);
        }
        for block in &done.waiting {
            waiting.entry(*block).or_insert(now);
        }
        drop(waiting);
        let mut recalls = lock(&self.recalls);
        for block in &done.recalls {
            recalls.entry(block.gateway.0).or_default().insert(*block);
        }
        let mut due = recalls.remove(&gateway).unwrap_or_default();
        if let Some(next) = due.iter().nth(MAX_RECALLS).copied() {
            recalls.insert(gateway, due.split_off(&next));
        }
        due
    }

    /// Forgets the recalls for gateways that are removed or have another number.
    fn retain(&self, present: &[i64]) {
        lock(&self.recalls).retain(|number, _| present.contains(&to_column(*number)));
    }
}

/// Sorts the messages of a gateway.
///
/// # Errors
/// 422 if there are too many, or one is about a block of another gateway or life.
fn sorted(gateway: &CallingGateway, messages: &[ToPortal]) -> Result<Messages, Problem> {
    if messages.len() > MAX_MESSAGES {
        return Err(Problem::invalid_field("", "Send at most 2000 messages."));
    }
    let mut out = Messages { gateway: gateway.row.number, ..Messages::default() };
    for message in messages {
        let block = match &message.content {
            Content::Ask(ask) => ask.block,
            Content::Report(report) => report.block,
        };
        let numbers = (i64::try_from(block.life), i64::try_from(block.number), i64::try_from(message.oldest));
        let (Ok(life), Ok(_), Ok(oldest)) = numbers else {
            return Err(Problem::invalid_field("", "A number is beyond 2^63 - 1."));
        };
        if block.gateway.0 != gateway.number() || out.life.is_some_and(|known| known != life) {
            let detail = "Each message must be about a block of this gateway and of one life.";
            return Err(Problem::invalid_field("", detail));
        }
        out.life = Some(life);
        out.oldest = out.oldest.max(oldest);
        match message.content {
            Content::Ask(ask) => out.asks.push(ask),
            Content::Report(report) => out.reports.push(report),
        }
    }
    Ok(out)
}

/// Ends the wait for a block: its reported part is charged, and the rest is free again.
async fn write_off(
    tx: &mut Tx<'_>,
    context: &Context,
    mut row: StoredBlock,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let spent = from_column(row.spent_nanos);
    let lent = Lent {
        payer: Payer { org: row.org_id, key: KeyId(from_column(row.key_number)) },
        size: spent,
        spent,
        at: row.lent_at,
        until: row.until_at,
        ending: true,
        void: true,
    };
    settle(tx, context, &mut row, &lent, now).await
}

/// The ended blocks of a gateway.
#[derive(Debug, Default)]
pub(crate) struct EndedBlocks {
    pub blocks: usize,
    /// The money that is free again.
    pub freed_micros: i64,
    pub charged: BTreeSet<OrgId>,
}

/// Ends the first blocks of a gateway that was removed, or got another number, in this transaction. Nobody reports them
/// any more, so the wait for them has no use.
pub(crate) async fn end_blocks(
    tx: &mut Tx<'_>,
    context: &Context,
    gateway: i64,
    now: Timestamp,
) -> Result<EndedBlocks, StoreError> {
    let mut ended = EndedBlocks::default();
    for row in credit::list_open(tx, gateway, MAX_LOST).await? {
        let (org, held, spent) = (row.org_id, row.held_micros, row.spent_nanos);
        if write_off(tx, context, row, now).await? {
            ended.charged.insert(org);
        }
        ended.blocks += 1;
        let charged = to_column(from_column(spent) / NANOS);
        ended.freed_micros = ended.freed_micros.saturating_add(held.saturating_sub(charged));
    }
    Ok(ended)
}

impl GatewaySync {
    /// Applies the asks and reports of a gateway, and answers them.
    ///
    /// # Errors
    /// 422 for messages about blocks of another gateway or life, and for a life in the future. 429 if the gateway sends messages already.
    pub(super) async fn exchange_credit(
        &self,
        gateway: &CallingGateway,
        messages: Vec<ToPortal>,
    ) -> Result<Vec<ToGateway>, Problem> {
        let _place = self.callers.find_place(gateway, Call::Credit)?;
        let (mut messages, now) = (sorted(gateway, &messages)?, self.context.now());
        if messages.life.is_some_and(|life| !is_plausible_life(life, now)) {
            return Err(Problem::invalid_field("", LIFE_AHEAD));
        }
        messages.late = self.credit.find_late(&messages.asks, now);
        let messages = Arc::new(messages);
        let (context, work) = (self.context.clone(), messages.clone());
        let done = self.context.db.write(move |tx| {
            let (context, messages) = (context.clone(), work.clone());
            async move { exchange(tx, &context, &messages, now).await }.boxed()
        });
        let mut done = done.await?;
        self.publish_charges(std::mem::take(&mut done.charged));
        let recalls = self.credit.record(gateway.number(), &messages.asks, &done, now);
        done.answers.extend(recalls.into_iter().map(|block| ToGateway::Recall { block }));
        Ok(done.answers)
    }

    /// Ends the wait for the blocks of removed gateways and of replaced tokens, and for blocks a day after their end. Later charges of theirs
    /// are forgiven. Recalls for gateways that are not present are forgotten.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn end_lost_blocks(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let before = now.plus_seconds(-DEADLINE_S);
        {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            self.credit.retain(&gateways::list_numbers(&mut tx).await?);
            if credit::list_lost(&mut tx, before, 1).await?.is_empty() {
                return Ok(());
            }
        }
        let context = self.context.clone();
        let done = self.context.db.write(move |tx| {
            let context = context.clone();
            async move {
                let mut charged = BTreeSet::new();
                for row in credit::list_lost(tx, before, MAX_LOST).await? {
                    let org = row.org_id;
                    if write_off(tx, &context, row, now).await? {
                        charged.insert(org);
                    }
                }
                Ok(charged)
            }
            .boxed()
        });
        self.publish_charges(done.await?);
        Ok(())
    }

    fn publish_charges(&self, orgs: BTreeSet<OrgId>) {
        for org in orgs {
            self.context.publish(Change::Charged(org));
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_autoscaling::GatewayId;

    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_micros(s * 1_000_000)
    }

    #[test]
    fn recalls_of_gateways_that_are_not_present_are_forgotten() {
        let recalls = [1, 2].map(|gateway| BlockId { gateway: GatewayId(gateway), life: 1, number: 1 });
        let pending = PendingCredit::default();
        let done = Exchange { recalls: recalls.to_vec(), ..Exchange::default() };
        pending.record(3, &[], &done, at(0));
        pending.retain(&[2, 3]);
        let [removed, present] =
            [1, 2].map(|gateway| pending.record(gateway, &[], &Exchange::default(), at(1)));
        assert_eq!((removed, present), (BTreeSet::new(), BTreeSet::from([recalls[1]])));
    }

    #[test]
    fn recalls_go_to_their_gateway_once_and_asks_wait_for_them_for_five_seconds() {
        let block = |gateway: u64, number: u64| BlockId { gateway: GatewayId(gateway), life: 1, number };
        let org: OrgId = "org_00000000000000000000000001".parse().unwrap();
        let payer = Payer { org, key: KeyId(1) };
        let asks = [Ask { block: block(1, 7), payer, least: 1, wish: 1, waits: true }];
        let pending = PendingCredit::default();
        let waits = Exchange {
            recalls: vec![block(2, 1), block(2, 1), block(3, 4)],
            waiting: vec![block(1, 7)],
            ..Exchange::default()
        };
        for s in [0, 1] {
            assert!(pending.record(1, &asks, &waits, at(s)).is_empty());
        }
        let empty = Exchange::default();
        assert_eq!(pending.record(2, &[], &empty, at(1)), BTreeSet::from([block(2, 1)]));
        assert!(pending.record(2, &[], &empty, at(1)).is_empty());
        for (s, late) in [(4, false), (5, true), (59, true), (60, false)] {
            assert_eq!(!pending.find_late(&asks, at(s)).is_empty(), late, "{s}");
        }
        let many: Vec<BlockId> = (0..MAX_RECALLS as u64 + 3).map(|number| block(4, number)).collect();
        pending.record(1, &[], &Exchange { recalls: many.clone(), ..Exchange::default() }, at(2));
        let parts: Vec<BTreeSet<BlockId>> = (0..3).map(|_| pending.record(4, &[], &empty, at(3))).collect();
        assert_eq!(parts.iter().map(BTreeSet::len).collect::<Vec<usize>>(), [MAX_RECALLS, 3, 0]);
        assert!(parts.into_iter().flatten().eq(many));
        pending.record(1, &asks, &waits, at(70));
        pending.record(1, &asks, &empty, at(71));
        assert!(pending.find_late(&asks, at(76)).is_empty(), "an answered ask waits no more");
    }
}
