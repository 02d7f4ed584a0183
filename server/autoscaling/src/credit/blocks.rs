//! The blocks of a gateway, with what their requests hold and have spent.

use std::collections::BTreeMap;

use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Ask, Payer, Report};

/// Parts of an amount: block and nano-units.
pub type Parts = Vec<(u64, u64)>;

/// A block of this gateway, or an ask for one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Own {
    pub ask: Ask,
    /// The end of a granted block; `None` for an ask.
    pub until: Option<Timestamp>,
    pub size: u64,
    pub spent: u64,
    pub held: u64,
    pub ending: bool,
}

impl Own {
    pub const fn free(&self) -> u64 {
        self.size.saturating_sub(self.spent).saturating_sub(self.held)
    }

    pub fn is_usable(&self, now: Timestamp) -> bool {
        !self.ending && self.until.is_some_and(|until| now < until)
    }

    /// Without room the block ends.
    const fn spend(&mut self, nanos: u64) {
        self.spent = self.spent.saturating_add(nanos);
        // In a replay an ended block lacks the amounts that its requests held.
        if self.size < self.spent {
            self.size = self.spent;
        }
        self.ending |= self.size == self.spent;
    }

    /// Frees a part of a hold. That of an ended block returns.
    const fn free_held(&mut self, nanos: u64) {
        self.held = self.held.saturating_sub(nanos);
        if self.ending {
            self.size = self.spent.saturating_add(self.held);
        }
    }

    pub const fn report(&self) -> Report {
        Report { block: self.ask.block, size: self.size, spent: self.spent, ending: self.ending }
    }
}

/// The blocks and asks by their numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Blocks(pub BTreeMap<u64, Own>);

impl Blocks {
    pub fn hold(&mut self, parts: &[(u64, u64)]) {
        for (number, nanos) in parts {
            if let Some(own) = self.0.get_mut(number) {
                own.held = own.held.saturating_add(*nanos);
            }
        }
    }

    pub fn spend(&mut self, parts: &[(u64, u64)]) {
        for (number, nanos) in parts {
            if let Some(own) = self.0.get_mut(number) {
                own.spend(*nanos);
            }
        }
    }

    pub fn free_held(&mut self, parts: &[(u64, u64)]) {
        for (number, nanos) in parts {
            if let Some(own) = self.0.get_mut(number) {
                own.free_held(*nanos);
            }
        }
    }

    /// Frees what all blocks hold.
    pub fn free_all(&mut self) {
        for own in self.0.values_mut() {
            own.free_held(own.held);
        }
    }

    /// Distributes an amount over the usable blocks of a payer, the oldest first; `None` if they have less.
    pub fn parts(&self, payer: Payer, nanos: u64, now: Timestamp) -> Option<Parts> {
        let mut left = nanos;
        let mut parts = Vec::new();
        for (number, own) in self.usable(payer, now) {
            let part = own.free().min(left);
            if part > 0 {
                parts.push((number, part));
                left -= part;
            }
        }
        (left == 0).then_some(parts)
    }

    pub fn usable(&self, payer: Payer, now: Timestamp) -> impl Iterator<Item = (u64, &Own)> {
        let own = self.0.iter().filter(move |(_, own)| own.ask.payer == payer && own.is_usable(now));
        own.map(|(number, own)| (*number, own))
    }

    pub fn asks(&self, payer: Payer) -> bool {
        self.0.values().any(|own| own.until.is_none() && own.ask.payer == payer)
    }
}

/// The first parts of a hold, up to an amount.
pub fn spent_parts(held: &[(u64, u64)], nanos: u64) -> Parts {
    let mut left = nanos;
    let spend = |(number, part): &(u64, u64)| {
        let spent = left.min(*part);
        left -= spent;
        (spent > 0).then_some((*number, spent))
    };
    held.iter().filter_map(spend).collect()
}
