//! The gateway's side: holds of requests from lent blocks, and settlement by their real use.
//!
//! Each change of a block is an entry of a journal. A gateway that stores the entries before it acts comes back after a
//! crash with the same blocks ([`Borrower::restart`]). Holds are in memory alone: their requests end with the gateway.
//! One without its journal begins a new life; its old blocks stay counted at the portal.

use std::collections::BTreeMap;

use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::blocks::{Blocks, Own, Parts, spent_parts};
use super::{Ask, BlockId, Content, Payer, Report, ToGateway, ToPortal};
use crate::GatewayId;

/// The most open holds of a gateway.
const MAX_HOLDS: usize = 100_000;
/// The most blocks of a gateway, with its asks.
const MAX_BLOCKS: usize = 5_000;
/// The time for which a refusal of the portal holds, in seconds.
const REFUSAL_S: i64 = 1;

/// The time that a block of a payer with many requests should last, in microseconds. Each ask is a write at the portal,
/// and a longer time keeps more money away from other gateways.
const BLOCK_TIME: i64 = 2_000_000;
/// The most payers with a known pace.
const MAX_PACES: usize = 10_000;
/// The time after which a pace is forgotten, in microseconds. The blocks of that time have ended.
const PACE_TIME: u64 = 600_000_000;

/// The rules of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BorrowerTerms {
    /// The least preferred size of a block, as a multiple of the worst case of the request that needs it.
    pub requests_a_block: u32,
    /// With room for fewer such requests the gateway asks for the next block in time. 0: only when a request waits. It
    /// grows with the blocks.
    pub low_requests: u32,
    /// The greatest preferred size of a block, as the same multiple. Blocks grow while they last less than [`BLOCK_TIME`].
    #[serde(default)]
    pub most_requests_a_block: u32,
}

/// The last ask of a payer, and the size of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pace {
    asked_at: Timestamp,
    size: u64,
    /// A request waits for the block: the others are used up, so the time until the answer is no use.
    is_awaited: bool,
}

impl BorrowerTerms {
    /// The wish for the next block of requests with this worst case: the last block had `pace`, and lasted until `now`.
    /// It doubles at most.
    fn next_wish(self, pace: Option<Pace>, worst: u64, now: Timestamp) -> u64 {
        let least = worst.saturating_mul(self.requests_a_block.max(1).into());
        let Some(pace) = pace else { return least };
        let most = worst.saturating_mul(self.most_requests_a_block.into()).max(least);
        let lasted = now.micros().saturating_sub(pace.asked_at.micros()).max(BLOCK_TIME / 2);
        let wish = i128::from(pace.size) * i128::from(BLOCK_TIME) / i128::from(lasted);
        u64::try_from(wish).unwrap_or(u64::MAX).clamp(least, most)
    }
}

/// The answer to a request that needs a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HoldAnswer {
    /// The worst case is held.
    Held,
    /// A block is asked for. After a message about a block the gateway tries the waiting requests of its payer again, before
    /// it reads the next message.
    Waits,
    /// The budget has no room.
    Exhausted,
    /// The gateway has too many holds or blocks.
    Full,
}

/// The settlement of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    pub nanos: u64,
    /// The use was more than the worst case, which bounds the charge.
    pub over: bool,
}

/// An entry of the journal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Entry {
    Asked(Ask),
    Granted {
        number: u64,
        size: u64,
        until: Timestamp,
    },
    /// A hold. Only journals of earlier versions have it.
    Held {
        request: u64,
        parts: Parts,
    },
    /// The charge of a hold. Only journals of earlier versions have it.
    Settled {
        request: u64,
        nanos: u64,
    },
    /// A charge.
    Spent {
        parts: Parts,
    },
    /// The block gets no new hold, and its unused part returns.
    Ending {
        number: u64,
    },
    /// The portal has all of an ended block, or refused its ask.
    Forgotten {
        number: u64,
    },
}

/// The blocks and holds of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Borrower {
    gateway: GatewayId,
    life: u64,
    terms: BorrowerTerms,
    next: u64,
    blocks: Blocks,
    holds: BTreeMap<u64, Parts>,
    /// The last report of each block that the portal has. After a crash they are sent again.
    #[serde(skip)]
    noted: BTreeMap<u64, Report>,
    /// The refusals of the portal: the time of their end and the least refused size.
    #[serde(skip)]
    refusals: BTreeMap<Payer, (Timestamp, u64)>,
    #[serde(skip)]
    paces: BTreeMap<Payer, Pace>,
    #[serde(skip)]
    unsaved: Vec<Entry>,
}

impl Borrower {
    /// A gateway at the begin of a life. `life` is higher than all lives before.
    pub const fn new(gateway: GatewayId, life: u64, terms: BorrowerTerms) -> Self {
        Self {
            gateway,
            life,
            terms,
            next: 0,
            blocks: Blocks(BTreeMap::new()),
            holds: BTreeMap::new(),
            noted: BTreeMap::new(),
            refusals: BTreeMap::new(),
            paces: BTreeMap::new(),
            unsaved: Vec::new(),
        }
    }

    /// Sets the rules of this version; a stored borrower has those of its last version.
    pub const fn set_terms(&mut self, terms: BorrowerTerms) {
        self.terms = terms;
    }

    pub const fn gateway(&self) -> GatewayId {
        self.gateway
    }

    /// Applies the stored entries since the borrower was new or stored as a whole.
    pub fn replay(&mut self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            self.apply(&entry);
        }
    }

    /// Returns the entries since the last call. They are stored before their effect: before a request is forwarded, or a
    /// message is sent.
    pub fn new_entries(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.unsaved)
    }

    /// True with a block that the portal may recall, or an ask.
    pub fn has_blocks(&self) -> bool {
        !self.blocks.0.is_empty()
    }

    /// The payer of a block or an ask; `None` for one that the gateway does not have.
    pub fn payer(&self, block: BlockId) -> Option<Payer> {
        let is_own = (block.gateway, block.life) == (self.gateway, self.life);
        self.blocks.0.get(&block.number).filter(|_| is_own).map(|own| own.ask.payer)
    }

    /// Begins after the replay of a journal: the requests of the last start ended with it, so their holds are free.
    pub fn restart(&mut self) {
        self.holds.clear();
        self.blocks.free_all();
    }

    fn insert_hold(&mut self, request: u64, parts: Parts) {
        self.blocks.hold(&parts);
        self.holds.insert(request, parts);
    }

    fn record(&mut self, entry: Entry) {
        self.apply(&entry);
        self.unsaved.push(entry);
    }

    /// Changes the state by an entry. An entry about an unknown block or request changes nothing.
    fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Asked(ask) => {
                let own = Own { ask: *ask, until: None, size: 0, spent: 0, held: 0, ending: false };
                self.blocks.0.insert(ask.block.number, own);
                self.next = self.next.max(ask.block.number.saturating_add(1));
            }
            Entry::Granted { number, size, until } => {
                if let Some(own) = self.blocks.0.get_mut(number) {
                    (own.size, own.until) = (*size, Some(*until));
                }
            }
            Entry::Held { request, parts } => self.insert_hold(*request, parts.clone()),
            Entry::Settled { request, nanos } => {
                let held = self.holds.remove(request).unwrap_or_default();
                self.blocks.spend(&spent_parts(&held, *nanos));
                self.blocks.free_held(&held);
            }
            Entry::Spent { parts } => self.blocks.spend(parts),
            Entry::Ending { number } => {
                if let Some(own) = self.blocks.0.get_mut(number) {
                    // The unused part makes the next block no larger.
                    if let Some(pace) = self.paces.get_mut(&own.ask.payer) {
                        pace.size = pace.size.saturating_sub(own.free());
                    }
                    own.ending = true;
                    own.size = own.spent.saturating_add(own.held);
                }
            }
            Entry::Forgotten { number } => {
                self.blocks.0.remove(number);
                self.noted.remove(number);
            }
        }
    }

    /// Holds the worst case of a request in nano-units. A request has one hold, also if it is repeated.
    pub fn hold(&mut self, request: u64, payer: Payer, worst: u64, now: Timestamp) -> HoldAnswer {
        if self.holds.contains_key(&request) {
            return HoldAnswer::Held;
        }
        if self.holds.len() >= MAX_HOLDS {
            return HoldAnswer::Full;
        }
        self.end_blocks(now);
        match self.blocks.parts(payer, worst, now) {
            Some(parts) => {
                self.insert_hold(request, parts);
                self.ask_in_time(payer, worst, now);
                HoldAnswer::Held
            }
            None => self.ask_for(payer, worst, now),
        }
    }

    fn is_refused(&self, payer: Payer, nanos: u64, now: Timestamp) -> bool {
        let Some((until, least)) = self.refusals.get(&payer) else { return false };
        // After a step back of the clock the end is far away.
        now < *until && *until <= now.plus_seconds(REFUSAL_S) && nanos >= *least
    }

    /// Asks for a block on behalf of a request that waits.
    fn ask_for(&mut self, payer: Payer, worst: u64, now: Timestamp) -> HoldAnswer {
        if self.blocks.asks(payer) {
            if let Some(pace) = self.paces.get_mut(&payer) {
                pace.is_awaited = true;
            }
            return HoldAnswer::Waits;
        }
        if self.is_refused(payer, worst, now) {
            return HoldAnswer::Exhausted;
        }
        if self.blocks.0.len() >= MAX_BLOCKS {
            return HoldAnswer::Full;
        }
        self.ask(payer, worst, true, now);
        HoldAnswer::Waits
    }

    fn ask(&mut self, payer: Payer, worst: u64, waits: bool, now: Timestamp) {
        let block = BlockId { gateway: self.gateway, life: self.life, number: self.next };
        let wish = self.terms.next_wish(self.paces.get(&payer).copied(), worst, now);
        self.note_pace(payer, Pace { asked_at: now, size: wish, is_awaited: waits });
        self.record(Entry::Asked(Ask { block, payer, least: worst, wish, waits }));
    }

    fn note_pace(&mut self, payer: Payer, pace: Pace) {
        let least = self.terms.requests_a_block.max(1);
        if self.terms.most_requests_a_block <= least {
            return;
        }
        if self.paces.len() >= MAX_PACES && !self.paces.contains_key(&payer) {
            let now = pace.asked_at.micros();
            self.paces.retain(|_, old| now.abs_diff(old.asked_at.micros()) < PACE_TIME);
        }
        if self.paces.len() < MAX_PACES || self.paces.contains_key(&payer) {
            self.paces.insert(payer, pace);
        }
    }

    /// Asks for the next block before the present ones are used up.
    fn ask_in_time(&mut self, payer: Payer, worst: u64, now: Timestamp) {
        let free = self.blocks.usable(payer, now).fold(0_u64, |sum, (_, own)| sum.saturating_add(own.free()));
        let lent = self.paces.get(&payer).map_or(0, |pace| pace.size);
        let part = lent / u64::from(self.terms.requests_a_block.max(1));
        let low = worst.max(part).saturating_mul(self.terms.low_requests.into());
        let room = self.blocks.0.len() < MAX_BLOCKS;
        if free < low && room && !self.blocks.asks(payer) && !self.is_refused(payer, worst, now) {
            self.ask(payer, worst, false, now);
        }
    }

    /// Settles a request by the charge of its real use, at most by its hold. `None` if it has no hold: it is settled
    /// already.
    pub fn settle(&mut self, request: u64, charge: u64) -> Option<Settled> {
        let held = self.holds.remove(&request)?;
        let worst = held.iter().fold(0_u64, |sum, (_, part)| sum.saturating_add(*part));
        let nanos = charge.min(worst);
        // A hold without a charge is free after a crash too.
        if nanos > 0 {
            self.record(Entry::Spent { parts: spent_parts(&held, nanos) });
        }
        self.blocks.free_held(&held);
        Some(Settled { nanos, over: charge > worst })
    }

    /// Ends the blocks whose time is over.
    fn end_blocks(&mut self, now: Timestamp) {
        let over = |own: &Own| !own.ending && own.until.is_some_and(|until| now >= until);
        let over: Vec<u64> =
            self.blocks.0.iter().filter(|(_, own)| over(own)).map(|(number, _)| *number).collect();
        for number in over {
            self.record(Entry::Ending { number });
        }
    }

    /// Applies a message of the portal. One for another life of the gateway, or a repeated one, changes nothing. Returns
    /// true if it ends a block, which is news for the portal.
    pub fn receive(&mut self, message: &ToGateway, now: Timestamp) -> bool {
        let id = message.block();
        if (id.gateway, id.life) != (self.gateway, self.life) {
            return false;
        }
        let number = id.number;
        let Some(own) = self.blocks.0.get(&number) else { return false };
        match message {
            ToGateway::Grant { size: 0, .. } => self.refused(number, now),
            ToGateway::Grant { size, until, .. } if own.until.is_none() => {
                let ask = own.ask;
                // The next block follows the lent amount.
                if let Some(pace) = self.paces.get_mut(&ask.payer) {
                    pace.size = *size;
                    pace.asked_at = if pace.is_awaited { now } else { pace.asked_at };
                }
                self.record(Entry::Granted { number, size: *size, until: *until });
            }
            ToGateway::Recall { .. } if own.until.is_some() && !own.ending => {
                self.record(Entry::Ending { number });
                return true;
            }
            ToGateway::Noted(report) => self.note(number, report),
            ToGateway::Grant { .. } | ToGateway::Recall { .. } => {}
        }
        false
    }

    /// Forgets a refused ask. Requests of this size fail for a moment, if one of them waited for it.
    fn refused(&mut self, number: u64, now: Timestamp) {
        let Some(own) = self.blocks.0.get(&number).filter(|own| own.until.is_none()) else { return };
        let ask = own.ask;
        self.record(Entry::Forgotten { number });
        self.paces.remove(&ask.payer);
        if ask.waits {
            self.refusals.retain(|_, (until, _)| now < *until);
            self.refusals.insert(ask.payer, (now.plus_seconds(REFUSAL_S), ask.least));
        }
    }

    fn note(&mut self, number: u64, report: &Report) {
        let Some(own) = self.blocks.0.get(&number).filter(|own| own.report() == *report) else { return };
        if own.ending && own.held == 0 {
            self.record(Entry::Forgotten { number });
        } else {
            self.noted.insert(number, *report);
        }
    }

    /// The messages that the portal has not answered: asks, and the changes of blocks. The gateway sends them after
    /// each change and again after a while.
    pub fn messages(&mut self, now: Timestamp) -> Vec<ToPortal> {
        self.end_blocks(now);
        let oldest = self.blocks.0.keys().next().copied().unwrap_or(self.next);
        let content = |(number, own): (&u64, &Own)| match own.until {
            None => Some(Content::Ask(own.ask)),
            // A new block needs no report.
            Some(_) if own.spent == 0 && !own.ending => None,
            Some(_) => Some(own.report())
                .filter(|report| self.noted.get(number) != Some(report))
                .map(Content::Report),
        };
        self.blocks.0.iter().filter_map(content).map(|content| ToPortal { content, oldest }).collect()
    }
}
