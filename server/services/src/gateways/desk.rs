//! One exchange of credit with a gateway, in one transaction: reports first, so that asks find what they return.
//!
//! The lender decides. It is filled from the database for the organizations of the asks, and its budget of an
//! organization is the available money of the ledger, so jobs and other gateways count too.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use berth_autoscaling::GatewayId;
use berth_autoscaling::credit::{
    Account, Ask, BlockId, Content, KeyId, Lender, LenderTerms, Lent, Payer, Period, Report, ToGateway,
    ToPortal,
};
use berth_foundation::Context;
use berth_foundation::days::hour_of;
use berth_store::services::credit::{self, PayingKey, StoredBlock};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

use super::blocks::{NANOS, block_id, from_column, lend, settle, to_column};

/// The life of a block. The portal ends the wait for lost blocks itself.
const TERMS: LenderTerms = LenderTerms { life_s: 600, deadline_s: None };
/// Asks of one exchange. The gateway repeats the others.
const MAX_ASKS: usize = 100;
/// Open blocks of one gateway.
const MAX_OPEN: usize = 5_000;
/// The greatest size of a block in nano-units: a million units of the currency.
const MAX_SIZE: u64 = 1_000_000_000_000_000;
const DAY_MICROS: i64 = 86_400_000_000;

/// The messages of a gateway, all of one life.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub gateway: i64,
    /// Absent without a message.
    pub life: Option<i64>,
    /// The least number of a block that the gateway still has.
    pub oldest: i64,
    pub reports: Vec<Report>,
    pub asks: Vec<Ask>,
    /// The asks that have waited long enough for recalled blocks.
    pub late: HashSet<BlockId>,
}

/// The outcome of an exchange.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    pub answers: Vec<ToGateway>,
    /// Blocks of other gateways that must return.
    pub recalls: Vec<BlockId>,
    /// Asks without an answer that wait for them.
    pub waiting: Vec<BlockId>,
    pub charged: BTreeSet<OrgId>,
}

/// The state of an exchange.
struct Desk<'a> {
    context: &'a Context,
    now: Timestamp,
    messages: &'a Messages,
    /// The latest life of the gateway, and the least number of a block that it still has.
    marks: (i64, i64),
    lender: Lender,
    rows: BTreeMap<BlockId, StoredBlock>,
    keys: HashMap<u64, PayingKey>,
    /// The nano-units of closed blocks that the lender counts, by organization.
    closed: HashMap<OrgId, u64>,
    /// The blocks of the gateway that the answers recall.
    recalled: HashSet<BlockId>,
    out: Exchange,
}

/// Applies the messages of a gateway.
pub(super) async fn exchange(
    tx: &mut Tx<'_>,
    context: &Context,
    messages: &Messages,
    now: Timestamp,
) -> Result<Exchange, StoreError> {
    // The gateway may have been removed after its request was admitted.
    if !credit::is_present(tx, messages.gateway).await? {
        return Ok(Exchange::default());
    }
    let mut desk = Desk::open(tx, context, messages, now).await?;
    desk.apply_reports(tx).await?;
    for ask in messages.asks.iter().take(MAX_ASKS) {
        desk.apply_ask(tx, ask).await?;
    }
    let without_key = credit::list_without_key(tx, messages.gateway, now).await?;
    // The gateway has lost the blocks of its former lives.
    let present = desk.marks.0;
    for (life, number) in without_key.into_iter().filter(|(life, _)| *life == present) {
        desk.recall(own_block(messages, life, number));
    }
    Ok(desk.out)
}

/// The id of a block of the calling gateway.
fn own_block(messages: &Messages, life: i64, number: i64) -> BlockId {
    let gateway = GatewayId(from_column(messages.gateway));
    BlockId { gateway, life: from_column(life), number: from_column(number) }
}

impl<'a> Desk<'a> {
    /// Reads the open blocks of the gateway and of the organizations of its asks, and the budgets of their keys.
    async fn open(
        tx: &mut Tx<'_>,
        context: &'a Context,
        messages: &'a Messages,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let mut desk = Self {
            context,
            now,
            messages,
            marks: credit::find_marks(tx, messages.gateway).await?,
            lender: Lender::new(TERMS),
            rows: BTreeMap::new(),
            keys: HashMap::new(),
            closed: HashMap::new(),
            recalled: HashSet::new(),
            out: Exchange::default(),
        };
        desk.read_keys(tx).await?;
        let mut rows = credit::list_of_gateway(tx, messages.gateway).await?;
        let orgs: BTreeSet<OrgId> = desk.keys.values().map(|key| key.org_id).collect();
        if !orgs.is_empty() {
            rows.extend(credit::list_of_orgs(tx, orgs.iter().map(ToString::to_string).collect()).await?);
        }
        for row in rows {
            let payer = Payer { org: row.org_id, key: KeyId(from_column(row.key_number)) };
            let (size, spent) = (from_column(row.size_nanos), from_column(row.spent_nanos));
            let (at, until, ending, void) = (row.lent_at, row.until_at, row.ending, row.void);
            desk.lender.restore_block(block_id(&row), Lent { payer, size, spent, at, until, ending, void });
            desk.rows.insert(block_id(&row), row);
        }
        desk.set_marks(tx).await?;
        Ok(desk)
    }

    /// Reads the valid keys of the asks, with the spent part of their budgets.
    async fn read_keys(&mut self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let asked: BTreeSet<Payer> = self.messages.asks.iter().take(MAX_ASKS).map(|ask| ask.payer).collect();
        for payer in asked {
            let number = payer.key.0;
            let Some(key) = credit::find_key(tx, to_column(number), self.now).await? else { continue };
            if key.org_id != payer.org || self.keys.contains_key(&number) {
                continue;
            }
            let budgets = [
                (Period::Day, key.day_budget_micros),
                (Period::Month, key.month_budget_micros),
                (Period::InAll, key.total_budget_micros),
            ];
            for (period, micros) in budgets {
                let limit = micros.map(|micros| from_column(micros).saturating_mul(NANOS));
                self.lender.set_budget(Account::Key(payer.key), period, limit);
            }
            if budgets.iter().any(|(_, micros)| micros.is_some()) {
                self.restore_days(tx, payer, key.number).await?;
            }
            self.keys.insert(number, key);
        }
        Ok(())
    }

    async fn restore_days(&mut self, tx: &mut Tx<'_>, payer: Payer, number: i64) -> Result<(), StoreError> {
        for (day, nanos) in credit::list_days(tx, number).await? {
            let (at, nanos) = (Timestamp::from_micros(day.saturating_mul(DAY_MICROS)), from_column(nanos));
            self.lender.restore_spent(payer, at, nanos);
            let closed = self.closed.entry(payer.org).or_default();
            *closed = closed.saturating_add(nanos);
        }
        Ok(())
    }

    /// Raises the marks of the gateway.
    async fn set_marks(&mut self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let Some(life) = self.messages.life else { return Ok(()) };
        // A new life of the gateway comes after all numbers of the last one.
        let marks = self.marks.max((life, self.messages.oldest));
        if marks != self.marks {
            self.marks = marks;
            credit::set_marks(tx, self.messages.gateway, marks).await?;
        }
        Ok(())
    }

    /// True for a block that the gateway no longer has.
    fn is_past(&self, id: BlockId) -> bool {
        (to_column(id.life), to_column(id.number)) < self.marks
    }

    async fn apply_reports(&mut self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let messages = self.messages;
        for report in &messages.reports {
            if self.rows.contains_key(&report.block) {
                let message = ToPortal { content: Content::Report(*report), oldest: 0 };
                let answer = self.lender.receive(&message, self.now);
                self.out.answers.extend(answer.messages);
            } else {
                self.note_closed(tx, report).await?;
            }
        }
        // A block that the gateway forgot was never granted there: the answer to its ask was lost.
        let (life, oldest) = self.marks;
        let forgotten = self
            .rows
            .values()
            .filter(|row| row.gateway_number == messages.gateway && row.life == life && row.number < oldest);
        let forgotten: Vec<Report> = forgotten.map(forgotten_report).collect();
        for report in forgotten {
            let message = ToPortal { content: Content::Report(report), oldest: 0 };
            self.lender.receive(&message, self.now);
        }
        self.store_changes(tx).await
    }

    /// Answers a report of a block that is closed or unknown: the portal needs nothing more of it.
    async fn note_closed(&mut self, tx: &mut Tx<'_>, report: &Report) -> Result<(), StoreError> {
        let id = report.block;
        let place = (self.messages.gateway, to_column(id.life), to_column(id.number));
        if let Some(row) = credit::find(tx, place).await?.filter(|row| row.void) {
            let nanos = report.spent.saturating_sub(from_column(row.spent_nanos));
            if nanos > 0 {
                tracing::warn!(
                    gateway = row.gateway_number,
                    org = %row.org_id,
                    nanos,
                    "a charge came after the deadline of its block, and is forgiven"
                );
            }
        }
        self.out.answers.push(ToGateway::Noted(*report));
        Ok(())
    }

    /// Stores the blocks that reports have changed, with their money.
    async fn store_changes(&mut self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        for (id, lent) in self.lender.blocks() {
            let Some(row) = self.rows.get_mut(&id) else { continue };
            let stored = (from_column(row.size_nanos), from_column(row.spent_nanos), row.ending);
            if stored != (lent.size, lent.spent, lent.ending)
                && settle(tx, self.context, row, lent, self.now).await?
            {
                self.out.charged.insert(row.org_id);
            }
        }
        Ok(())
    }

    async fn apply_ask(&mut self, tx: &mut Tx<'_>, ask: &Ask) -> Result<(), StoreError> {
        let id = ask.block;
        if self.is_past(id) {
            return Ok(());
        }
        let place = (self.messages.gateway, to_column(id.life), to_column(id.number));
        if !self.rows.contains_key(&id)
            && let Some(row) = credit::find(tx, place).await?
        {
            // It is closed: its gateway has used it already.
            let size = from_column(row.size_nanos);
            self.out.answers.push(ToGateway::Grant { block: id, size, until: row.until_at });
            return Ok(());
        }
        let key = self.keys.get(&ask.payer.key.0).filter(|key| key.org_id == ask.payer.org).cloned();
        let Some(key) = key.filter(|_| ask.least <= MAX_SIZE) else {
            self.out.answers.push(ToGateway::Grant { block: id, size: 0, until: self.now });
            return Ok(());
        };
        let own = self.rows.keys().filter(|block| block.gateway == id.gateway).count();
        if own >= MAX_OPEN && !self.rows.contains_key(&id) {
            return Ok(());
        }
        let most = self.find_gateway_room(tx, key.org_id).await?;
        if most < ask.least && !self.rows.contains_key(&id) {
            if self.recall_unspent(ask, key.org_id) {
                return Ok(());
            }
            tracing::warn!(gateway = id.gateway.0, org = %key.org_id, "a gateway has used its credit of an hour in an organization");
            self.out.answers.push(ToGateway::Grant { block: id, size: 0, until: self.now });
            return Ok(());
        }
        let limit = self.find_room(tx, key.org_id).await?.saturating_add(self.counted(key.org_id));
        self.lender.set_budget(Account::Org(key.org_id), Period::InAll, Some(limit));
        let waits = ask.waits && !self.messages.late.contains(&id);
        // At most half of what is left, so that the other keys of the organization get blocks too.
        let ask = Ask { wish: ask.wish.min(MAX_SIZE).min((most / 2).max(ask.least)), waits, ..*ask };
        let answer = self.lender.receive(&ToPortal { content: Content::Ask(ask), oldest: 0 }, self.now);
        self.answer_ask(tx, id, &key, answer.messages).await
    }

    /// Recalls the other blocks that an organization has at the gateway for an ask beyond the amount of an hour. Returns
    /// false without one, or after the wait for them.
    fn recall_unspent(&mut self, ask: &Ask, org: OrgId) -> bool {
        if !ask.waits || self.messages.late.contains(&ask.block) {
            return false;
        }
        let gateway = self.messages.gateway;
        let of_gateway = |row: &&StoredBlock| row.gateway_number == gateway && row.org_id == org;
        let is_unspent = |row: &&StoredBlock| !row.ending && !row.closed && row.size_nanos > row.spent_nanos;
        let unspent: Vec<BlockId> =
            self.rows.values().filter(of_gateway).filter(is_unspent).map(block_id).collect();
        if unspent.is_empty() {
            return false;
        }
        for block in unspent {
            self.recall(block);
        }
        self.out.waiting.push(ask.block);
        true
    }

    /// Recalls a block of the gateway, once for all asks. So the answers fit what a gateway reads.
    fn recall(&mut self, block: BlockId) {
        if self.recalled.insert(block) {
            self.out.answers.push(ToGateway::Recall { block });
        }
    }

    /// Stores a granted block, and sorts the recalls by their gateway.
    async fn answer_ask(
        &mut self,
        tx: &mut Tx<'_>,
        id: BlockId,
        key: &PayingKey,
        messages: Vec<ToGateway>,
    ) -> Result<(), StoreError> {
        let mut waits = true;
        for message in messages {
            let block = message.block();
            match message {
                ToGateway::Recall { .. } if block.gateway != id.gateway => self.out.recalls.push(block),
                // The other asks that the lender has were answered or wait.
                ToGateway::Grant { .. } if block != id => {}
                ToGateway::Grant { size, .. } => {
                    waits = false;
                    if size > 0 && !self.rows.contains_key(&id) {
                        self.store_grant(tx, id, key).await?;
                    }
                    self.out.answers.push(message);
                }
                ToGateway::Recall { .. } => self.recall(block),
                ToGateway::Noted(_) => self.out.answers.push(message),
            }
        }
        if waits {
            self.out.waiting.push(id);
        }
        Ok(())
    }

    async fn store_grant(&mut self, tx: &mut Tx<'_>, id: BlockId, key: &PayingKey) -> Result<(), StoreError> {
        let lent = self.lender.blocks().find(|(block, _)| *block == id).map(|(_, lent)| *lent);
        if let Some(lent) = lent {
            let row = lend(tx, self.context, (id, &lent), key, self.now).await?;
            self.rows.insert(id, row);
        }
        Ok(())
    }

    /// The nano-units that an organization can lend now: its available money, and the rest of its refusing budgets.
    async fn find_room(&self, tx: &mut Tx<'_>, org: OrgId) -> Result<u64, StoreError> {
        let available = store::ledger::available(tx, org).await?;
        let budgets = berth_billing::budgets::find_room(tx, org, self.now).await?;
        let room = budgets.map_or(available, |room| room.min(available));
        Ok(from_column(room).saturating_mul(NANOS))
    }

    /// The nano-units that the gateway may still get from an organization in this hour, so that a stolen token spends a
    /// bounded amount. Open blocks and the charges of ended ones count.
    async fn find_gateway_room(&self, tx: &mut Tx<'_>, org: OrgId) -> Result<u64, StoreError> {
        let gateway = self.messages.gateway;
        let most = from_column(self.context.settings.gateway_credit_micros).saturating_mul(NANOS);
        let charged = credit::find_gateway_hour(tx, (gateway, org), hour_of(self.now)).await?;
        let own = |row: &&StoredBlock| row.gateway_number == gateway && row.org_id == org && !row.closed;
        let open = self.rows.values().filter(own).map(|row| from_column(row.size_nanos));
        let used = open.fold(from_column(charged), u64::saturating_add);
        Ok(most.saturating_sub(used))
    }

    /// The nano-units that the lender counts for an organization already.
    fn counted(&self, org: OrgId) -> u64 {
        let closed = self.closed.get(&org).copied().unwrap_or(0);
        let lent = self.lender.blocks().filter(|(_, lent)| lent.payer.org == org);
        lent.fold(closed, |sum, (_, lent)| sum.saturating_add(lent.size))
    }
}

/// The report of a block without any use.
fn forgotten_report(row: &StoredBlock) -> Report {
    let spent = from_column(row.spent_nanos);
    Report { block: block_id(row), size: spent, spent, ending: true }
}
