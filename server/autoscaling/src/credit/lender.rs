//! The portal's side: budgets of organizations and keys, and the blocks that they lend.

use std::collections::BTreeMap;

use berth_types::days::iso_day;
use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

use super::{Ask, BlockId, Content, KeyId, Payer, Report, ToGateway, ToPortal};
use crate::GatewayId;

/// The most blocks of a gateway, and the most asks that wait. An ask beyond is not answered; the gateway repeats it.
const MAX_BLOCKS: usize = 10_000;
/// The time for which an ask waits for recalled blocks, in seconds.
const RECALL_S: i64 = 5;
const DAY_MICROS: i64 = 86_400_000_000;

/// An account with budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Account {
    Org(OrgId),
    Key(KeyId),
}

/// The period of a budget, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Period {
    Day,
    Month,
    InAll,
}

const PERIODS: [Period; 3] = [Period::Day, Period::Month, Period::InAll];

impl Period {
    /// The name of the period around a time: `2026-11-21`, `2026-11`, or nothing. Later periods have greater names.
    fn name(self, at: Timestamp) -> String {
        let length = match self {
            Self::Day => 10,
            Self::Month => 7,
            Self::InAll => 0,
        };
        iso_day(at).chars().take(length).collect()
    }
}

/// A budget and its use in the present period.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Book {
    limit: Option<u64>,
    period: String,
    /// The sizes of all blocks that were lent in the period.
    used: u64,
}

/// The rules of lending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LenderTerms {
    /// The life of a block in seconds. No block outlives its day, so its charges belong to one period.
    pub life_s: u32,
    /// The time after the end of a block at which the operator stops the wait for its gateway. Then the part without
    /// a report returns to the budget, and later charges of the block are not posted. `None`: never.
    pub deadline_s: Option<u32>,
}

/// A lent block. The portal stores it with each answer, in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lent {
    pub payer: Payer,
    pub size: u64,
    pub spent: u64,
    pub at: Timestamp,
    pub until: Timestamp,
    pub ending: bool,
    /// The operator's deadline passed.
    pub void: bool,
}

/// Newly reported charges of a payer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    pub payer: Payer,
    pub block: BlockId,
    pub nanos: u64,
    /// The charge came after the operator's deadline, so it is recorded and not posted.
    pub forgiven: bool,
}

/// The effects of a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    pub messages: Vec<ToGateway>,
    pub charge: Option<Charge>,
}

/// All budgets and blocks of the portal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lender {
    terms: LenderTerms,
    books: BTreeMap<(Account, Period), Book>,
    blocks: BTreeMap<BlockId, Lent>,
    /// Asks that wait for recalled blocks, each with its time, in the order of their arrival.
    asks: Vec<(Timestamp, Ask)>,
    /// The latest life of each gateway.
    lives: BTreeMap<GatewayId, u64>,
    /// The least number of a block that each life of a gateway still has.
    oldest: BTreeMap<(GatewayId, u64), u64>,
}

impl Lender {
    /// A lender without budgets: what has no budget has no limit.
    pub const fn new(terms: LenderTerms) -> Self {
        Self {
            terms,
            books: BTreeMap::new(),
            blocks: BTreeMap::new(),
            asks: Vec::new(),
            lives: BTreeMap::new(),
            oldest: BTreeMap::new(),
        }
    }

    /// Sets a budget in nano-units, or removes it. Blocks that are lent already stay.
    pub fn set_budget(&mut self, account: Account, period: Period, limit: Option<u64>) {
        self.books.entry((account, period)).or_default().limit = limit;
    }

    /// Adds a stored block after a restart of the portal.
    pub fn restore_block(&mut self, id: BlockId, lent: Lent) {
        let life = self.lives.entry(id.gateway).or_insert(id.life);
        *life = id.life.max(*life);
        if self.blocks.insert(id, lent).is_none() {
            self.claim(lent.payer, lent.at, lent.size);
        }
    }

    /// Adds the charges at a time that belong to no stored block, after a restart of the portal.
    pub fn restore_spent(&mut self, payer: Payer, at: Timestamp, nanos: u64) {
        self.claim(payer, at, nanos);
    }

    /// The lent blocks that are not forgotten.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, &Lent)> {
        self.blocks.iter().map(|(id, lent)| (*id, lent))
    }

    const fn accounts(payer: Payer) -> [Account; 2] {
        [Account::Org(payer.org), Account::Key(payer.key)]
    }

    /// Adds a size to all books of a payer, in the periods of a time.
    fn claim(&mut self, payer: Payer, at: Timestamp, nanos: u64) {
        for account in Self::accounts(payer) {
            for period in PERIODS {
                let name = period.name(at);
                let book = self.books.entry((account, period)).or_default();
                if book.period < name {
                    (book.period, book.used) = (name, nanos);
                } else if book.period == name {
                    book.used = book.used.saturating_add(nanos);
                }
            }
        }
    }

    /// Returns a part of a size to all books of a payer whose period is still that of the time.
    fn release(&mut self, payer: Payer, at: Timestamp, nanos: u64) {
        for account in Self::accounts(payer) {
            for period in PERIODS {
                if let Some(book) =
                    self.books.get_mut(&(account, period)).filter(|b| b.period == period.name(at))
                {
                    book.used = book.used.saturating_sub(nanos);
                }
            }
        }
    }

    /// The part of an account's budgets that is not lent; `None` without a budget.
    fn free(&self, account: Account, now: Timestamp) -> Option<u64> {
        let part = |period: Period| {
            let book = self.books.get(&(account, period))?;
            let used = if book.period < period.name(now) { 0 } else { book.used };
            Some(book.limit?.saturating_sub(used))
        };
        PERIODS.into_iter().filter_map(part).min()
    }

    /// Lends a block of at least the least size: at most half of what is free, so that other gateways get blocks too.
    fn lend(&mut self, ask: &Ask, now: Timestamp) -> Option<u64> {
        let free = Self::accounts(ask.payer).into_iter().filter_map(|account| self.free(account, now)).min();
        let least = ask.least.max(1);
        let size = match free {
            None => ask.wish.max(least),
            Some(free) if free < least => return None,
            Some(free) => ask.wish.min(free / 2).max(least),
        };
        self.insert(ask, size, now);
        Some(size)
    }

    /// Records the block of an ask; one of size 0 is a refusal.
    fn insert(&mut self, ask: &Ask, size: u64, now: Timestamp) {
        let midnight = (now.micros().div_euclid(DAY_MICROS) + 1).saturating_mul(DAY_MICROS);
        let until = now.plus_seconds(self.terms.life_s.into()).min(Timestamp::from_micros(midnight));
        let (payer, ending) = (ask.payer, size == 0);
        self.blocks.insert(ask.block, Lent { payer, size, spent: 0, at: now, until, ending, void: false });
        self.claim(payer, now, size);
    }

    fn grant(&self, block: BlockId) -> Option<ToGateway> {
        self.blocks.get(&block).map(|lent| ToGateway::Grant { block, size: lent.size, until: lent.until })
    }

    /// The blocks whose return could help an ask.
    fn recallable(&self, ask: &Ask, now: Timestamp) -> Vec<BlockId> {
        let lacks = |account: &Account| self.free(*account, now).is_some_and(|free| free < ask.least.max(1));
        let lacking: Vec<Account> = Self::accounts(ask.payer).into_iter().filter(lacks).collect();
        let helps = |lent: &Lent| Self::accounts(lent.payer).iter().any(|account| lacking.contains(account));
        let open = self.blocks().filter(|(_, lent)| !lent.ending && lent.size > lent.spent && helps(lent));
        open.map(|(id, _)| id).collect()
    }

    /// Applies a message of a gateway.
    pub fn receive(&mut self, message: &ToPortal, now: Timestamp) -> Answer {
        let mut answer = Answer::default();
        let id = match &message.content {
            Content::Ask(ask) => ask.block,
            Content::Report(report) => report.block,
        };
        let life = self.lives.entry(id.gateway).or_insert(id.life);
        *life = id.life.max(*life);
        match &message.content {
            Content::Ask(ask) => self.ask(ask, now, &mut answer),
            Content::Report(report) => self.report(report, now, &mut answer),
        }
        self.forget(id, message.oldest);
        answer
    }

    fn ask(&mut self, ask: &Ask, now: Timestamp, answer: &mut Answer) {
        let id = ask.block;
        if let Some(grant) = self.grant(id) {
            answer.messages.push(grant);
            return;
        }
        let past = self.oldest.get(&(id.gateway, id.life)).is_some_and(|oldest| id.number < *oldest);
        let dead = self.lives.get(&id.gateway).is_some_and(|life| id.life < *life);
        let waits = self.asks.iter().any(|(_, waiting)| waiting.block == id);
        let from = BlockId { number: 0, ..id };
        let own = self.blocks.range(from..BlockId { number: u64::MAX, ..id }).count();
        if past || dead || waits || own >= MAX_BLOCKS || self.asks.len() >= MAX_BLOCKS {
            return;
        }
        self.asks.push((now, *ask));
        self.settle_asks(now, answer);
        answer.messages.extend(self.recalls(ask, now));
    }

    /// The recalls for an ask that still waits.
    fn recalls(&self, ask: &Ask, now: Timestamp) -> Vec<ToGateway> {
        let waits = self.asks.iter().any(|(_, waiting)| waiting.block == ask.block);
        let blocks = if waits { self.recallable(ask, now) } else { Vec::new() };
        blocks.into_iter().map(|block| ToGateway::Recall { block }).collect()
    }

    /// Grants or refuses the waiting asks, in the order of their arrival. An ask waits while a block can be recalled.
    fn settle_asks(&mut self, now: Timestamp, answer: &mut Answer) {
        for (since, ask) in std::mem::take(&mut self.asks) {
            if self.lend(&ask, now).is_none() {
                let in_time = now < since.plus_seconds(RECALL_S);
                if ask.waits && in_time && !self.recallable(&ask, now).is_empty() {
                    self.asks.push((since, ask));
                    continue;
                }
                self.insert(&ask, 0, now);
            }
            answer.messages.extend(self.grant(ask.block));
        }
    }

    fn report(&mut self, report: &Report, now: Timestamp, answer: &mut Answer) {
        let id = report.block;
        let Some(lent) = self.blocks.get_mut(&id) else {
            // A forgotten block was noted before.
            if self.oldest.get(&(id.gateway, id.life)).is_some_and(|oldest| id.number < *oldest) {
                answer.messages.push(ToGateway::Noted(*report));
            }
            return;
        };
        let old = *lent;
        // A block that was never as large is a fault of its gateway, and is no charge.
        lent.spent = old.spent.max(if old.void { report.spent } else { report.spent.min(old.size) });
        lent.size = if old.void { lent.spent } else { report.size.min(old.size).max(lent.spent) };
        lent.ending |= report.ending;
        let new = *lent;
        if new.spent > old.spent {
            let nanos = new.spent.saturating_sub(old.spent);
            answer.charge = Some(Charge { payer: new.payer, block: id, nanos, forgiven: old.void });
        }
        if !old.void {
            self.release(old.payer, old.at, old.size.saturating_sub(new.size));
        }
        answer.messages.push(ToGateway::Noted(*report));
        self.settle_asks(now, answer);
    }

    /// Forgets the ended blocks that a gateway no longer has, and the asks of its former lives.
    fn forget(&mut self, id: BlockId, oldest: u64) {
        let mark = self.oldest.entry((id.gateway, id.life)).or_default();
        *mark = oldest.max(*mark);
        let (mark, from) = (*mark, BlockId { number: 0, ..id });
        let past: Vec<BlockId> = self
            .blocks
            .range(from..BlockId { number: mark, ..id })
            .filter(|(_, lent)| lent.ending && lent.size == lent.spent)
            .map(|(id, _)| *id)
            .collect();
        for id in past {
            self.blocks.remove(&id);
        }
        let lives = &self.lives;
        self.asks.retain(|(_, ask)| lives.get(&ask.block.gateway).is_none_or(|life| ask.block.life >= *life));
    }

    /// Applies the operator's deadline, ends the wait of old asks, and repeats the recalls that are still open.
    pub fn tick(&mut self, now: Timestamp) -> Vec<ToGateway> {
        if let Some(deadline_s) = self.terms.deadline_s {
            let over = |lent: &Lent| !lent.void && now >= lent.until.plus_seconds(deadline_s.into());
            let lost: Vec<BlockId> = self.blocks().filter(|(_, lent)| over(lent)).map(|(id, _)| id).collect();
            for id in lost {
                self.write_off(id);
            }
        }
        let mut answer = Answer::default();
        self.settle_asks(now, &mut answer);
        for (_, ask) in &self.asks {
            answer.messages.extend(self.recalls(ask, now));
        }
        answer.messages
    }

    fn write_off(&mut self, id: BlockId) {
        let Some(lent) = self.blocks.get_mut(&id) else { return };
        let old = *lent;
        (lent.void, lent.ending, lent.size) = (true, true, old.spent);
        self.release(old.payer, old.at, old.size.saturating_sub(old.spent));
    }
}
