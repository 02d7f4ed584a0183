//! The catalogue: offerings with their available devices, and the versions of prices.

pub mod routes;
mod withdrawal;

use std::collections::BTreeMap;

use berth_core::admission::MAX_SLUG_BYTES;
use berth_mig::{Board, board_by_name};
use berth_placement::assignment::{OfferingShape, availability};
use berth_types::Page;
use berth_types::change_requests::{ChangeAction, Outcome};
use berth_types::ids::{ChangeRequestId, NodeId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::money::{money_text, nano_per_second, per_hour_micros};
use berth_types::offerings::{NewPrice, Offering, Price, PricePreview, PriceVersion};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::json;

use crate::cluster;
use berth_foundation::{Caller, Right, idempotency};
use berth_foundation::{Context, Gate, OperatorAct};
use berth_store::offerings::{PriceRow, StoredOffering, StoredPrice};
use berth_store::{self as store, StoreError};

/// The highest price of an hour: a million units of the currency.
const MAX_PER_HOUR_MICROS: i64 = 1_000_000_000_000;

/// Offerings and their prices.
#[derive(Clone)]
pub struct Offerings {
    context: Context,
}

impl Offerings {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// Adds the offerings of a node's present boards with an approval.
    pub(crate) async fn offer_boards_of(&self, node: NodeId) -> Result<(), StoreError> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let known = store::approvals::find(&mut tx, node).await?;
        let boards = store::approvals::list_boards(&mut tx, node).await?;
        drop(conn);
        let simulated = known.is_some_and(|known| known.simulated);
        let offered = boards.iter().filter(|board| board.present && !board.awaits_approval);
        // A model without a table has the memory of its smallest board.
        let mut models: BTreeMap<&str, i64> = BTreeMap::new();
        for board in offered {
            let memory_mib = models.entry(board.model.as_str()).or_insert(board.memory_mib);
            *memory_mib = board.memory_mib.min(*memory_mib);
        }
        for (model, memory_mib) in models {
            match board_by_name(model) {
                Some(board) => self.offer_board(board, simulated).await?,
                None => self.offer_whole(model, memory_mib, simulated).await?,
            }
        }
        Ok(())
    }

    /// Adds the offering of whole boards of a model without a MIG table. An existing one stays unchanged.
    async fn offer_whole(&self, model: &str, memory_mib: i64, simulated: bool) -> Result<(), StoreError> {
        let now = self.context.now();
        let slug = model.to_lowercase();
        if slug.len() > MAX_SLUG_BYTES {
            tracing::warn!(model, "the name of a board model is too long for an offering");
            return Ok(());
        }
        let whole = StoredOffering {
            id: self.context.new_id(now),
            slug,
            gpu_model: model.to_owned(),
            mig_profile: None,
            memory_mib,
            cells: 1,
            board_cells: 1,
            simulated,
            price: None,
        };
        self.add(vec![whole], now).await
    }

    /// Adds the offerings of a board: the whole board and each of its MIG profiles. Existing offerings stay
    /// unchanged.
    pub async fn offer_board(&self, board: &'static Board, simulated: bool) -> Result<(), StoreError> {
        let now = self.context.now();
        let slug = board.model.to_lowercase();
        let whole = StoredOffering {
            id: self.context.new_id(now),
            slug: slug.clone(),
            gpu_model: board.model.clone(),
            mig_profile: None,
            memory_mib: i64::try_from(board.total_memory_mib).unwrap_or(i64::MAX),
            cells: i64::from(board.memory_slices),
            board_cells: i64::from(board.memory_slices),
            simulated,
            price: None,
        };
        let slices = board.profiles.iter().map(|profile| StoredOffering {
            id: self.context.new_id(now),
            slug: format!("{slug}.{}", profile.name),
            mig_profile: Some(profile.name.clone()),
            memory_mib: i64::try_from(profile.memory_mib).unwrap_or(i64::MAX),
            cells: i64::from(profile.size),
            ..whole.clone()
        });
        let all: Vec<StoredOffering> = std::iter::once(whole.clone()).chain(slices).collect();
        self.add(all, now).await
    }

    async fn add(&self, all: Vec<StoredOffering>, now: Timestamp) -> Result<(), StoreError> {
        self.context
            .db
            .write(move |tx| {
                let all = all.clone();
                async move {
                    for offering in &all {
                        store::offerings::insert(tx, offering, now).await?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }

    /// All offerings, each with its numbers of available and of all devices on the nodes of all organizations.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn list_offerings(&self) -> Result<Vec<Offering>, Problem> {
        self.list_counted(None).await
    }

    /// All offerings, each with its numbers of available and of all devices on the nodes that an organization may
    /// use.
    ///
    /// # Errors
    /// 404 for callers who are no members.
    pub async fn list_org_offerings(&self, caller: &Caller, org: OrgId) -> Result<Vec<Offering>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        self.list_counted(Some(org)).await
    }

    /// All offerings with the devices of the nodes that an organization may use; `None`: of the nodes that are
    /// dedicated to none.
    async fn list_counted(&self, org: Option<OrgId>) -> Result<Vec<Offering>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let stored = store::offerings::list(&mut tx, self.context.now()).await?;
        let mut boards = cluster::boards(&mut tx, &self.context.live.connected()).await?;
        cluster::occupy_reserved(&mut tx, &mut boards, self.context.now()).await?;
        match org {
            Some(org) => {
                let usable = cluster::usable_nodes(&mut tx, org).await?;
                boards.retain(|board| usable.has(board.dedicated_to));
            }
            None => boards.retain(|board| board.dedicated_to.is_none()),
        }
        let with_availability = |stored: StoredOffering| {
            let shape = OfferingShape {
                model: stored.gpu_model.clone(),
                profile: stored.mig_profile.clone(),
                count: 1,
            };
            let (available, capacity) = availability(&boards, &shape);
            Offering { available, capacity, ..self.offering(stored) }
        };
        Ok(stored.into_iter().map(with_availability).collect())
    }

    fn offering(&self, stored: StoredOffering) -> Offering {
        let price = stored.price.unwrap_or_default();
        let hour = |nano: i64| per_hour_micros(nano).unwrap_or(i64::MAX);
        let cells = |n: i64| u32::try_from(n).unwrap_or(0);
        Offering {
            id: stored.id,
            slug: stored.slug,
            gpu_model: stored.gpu_model,
            mig_profile: stored.mig_profile,
            memory_mib: stored.memory_mib,
            cells: cells(stored.cells),
            board_cells: cells(stored.board_cells),
            simulated: stored.simulated,
            available: 0,
            capacity: 0,
            price: Price {
                nano_per_second: price.nano_per_second,
                per_hour_micros: per_hour_micros(price.nano_per_second).unwrap_or(i64::MAX),
                currency: self.context.settings.currency.clone(),
                version: price.version,
                reserved_per_hour_micros: price.reserved_nano_per_second.map(hour),
                preemptible_per_hour_micros: price.preemptible_nano_per_second.map(hour),
            },
        }
    }

    /// Sets the next version of a price. Earlier jobs and reservations keep their version. `approved` is the change
    /// request that the caller approves.
    ///
    /// # Errors
    /// The begin is in the past or more than a year ahead.
    pub async fn set_price(
        &self,
        caller: &Caller,
        input: NewPrice,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Offering>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        let now = self.context.now();
        if caller.already_created().is_some() {
            if let Some(request) = Gate::find_requested(&self.context, caller).await? {
                return Ok(Outcome::Requested(request));
            }
            let mut conn = self.context.db.read().await?;
            let found = store::offerings::find(&mut conn.tx(), &input.offering, now).await?;
            return found.map(|o| Outcome::Done(self.offering(o))).ok_or_else(no_offering);
        }
        let gate = Gate::new(&self.context, caller, approved, &input)?;
        let from = input.effective_from.unwrap_or(now);
        let mut price = parse_price(&input)?;
        if from < now.plus_seconds(-60) || from > now.plus_seconds(366 * 86_400) {
            let detail = "Choose a time from now to one year ahead. Earlier prices are final.";
            return Err(Problem::invalid_field("/effective_from", detail));
        }
        let from = from.max(now);
        let currency = self.context.settings.currency.clone();
        let set_by = caller.user.email.clone();
        let event = self.context.audit_event(
            caller,
            "price.set",
            input.offering.clone(),
            format!(
                "{} an hour from {}",
                money_text(input.per_hour_micros, &self.context.settings.currency),
                from.minute()
            ),
        );
        let key = caller.idempotency_key.clone();
        let found = self
            .context
            .db
            .try_write(move |tx| {
                let (input, set_by, event) = (input.clone(), set_by.clone(), event.clone());
                let (key, gate, currency) = (key.clone(), gate.clone(), currency.clone());
                async move {
                    let slug = &input.offering;
                    let Some(offering) = store::offerings::find(tx, slug, now).await? else {
                        return Ok(Outcome::Done(None));
                    };
                    let act = price_act(&input, offering.price, &currency);
                    if let Some(request) = gate.pass(tx, &act).await? {
                        return Ok(Outcome::Requested(request));
                    }
                    idempotency::claim(tx, key.as_ref(), "", now).await?;
                    price.version = store::offerings::last_version(tx, offering.id).await? + 1;
                    store::offerings::insert_price(tx, offering.id, price, from, &set_by).await?;
                    let before = offering.price.map(|price| price_state(price, None));
                    let event = event.with_change(before, Some(price_state(price, Some(from))));
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(Outcome::Done(store::offerings::find(tx, slug, now).await?))
                }
                .boxed()
            })
            .await?;
        match found {
            Outcome::Requested(request) => Ok(Outcome::Requested(request)),
            Outcome::Done(found) => found.map(|o| Outcome::Done(self.offering(o))).ok_or_else(no_offering),
        }
    }

    /// The charges of the last thirty days, and the same use at a new price.
    pub async fn preview_price(&self, caller: &Caller, input: NewPrice) -> Result<PricePreview, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let new = parse_price(&input)?;
        let now = self.context.now();
        let since = now.plus_seconds(-30 * 86_400);
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let offering =
            store::offerings::find(&mut tx, &input.offering, now).await?.ok_or_else(no_offering)?;
        let versions = store::offerings::list_prices(&mut tx, offering.id).await?;
        let (mut jobs, mut charged, mut at_new_price) = (0, 0i64, 0i128);
        for (version, preemptible, count, micros) in
            store::offerings::charged_since(&mut tx, offering.id, since).await?
        {
            let rate = |p: &StoredPrice| if preemptible { p.preemptible() } else { p.nano_per_second };
            let old =
                versions.iter().find(|row| row.price.version == version).map_or(0, |row| rate(&row.price));
            jobs += count;
            charged += micros;
            // Use at a price of zero has no charge, so its amount is unknown and stays out of the sum.
            at_new_price += i128::from(micros) * i128::from(rate(&new)) / i128::from(old.max(1));
        }
        Ok(PricePreview {
            offering: offering.slug,
            since,
            jobs,
            charged_micros: charged,
            would_micros: i64::try_from(at_new_price).unwrap_or(i64::MAX),
            currency: self.context.settings.currency.clone(),
        })
    }

    /// A page of the versions of an offering's price.
    pub async fn list_prices(
        &self,
        caller: &Caller,
        slug: &str,
        options: &ListOptions<i64>,
    ) -> Result<Page<PriceVersion>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        if slug.len() > MAX_SLUG_BYTES {
            return Err(no_offering());
        }
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let offering =
            store::offerings::find(&mut tx, slug, self.context.now()).await?.ok_or_else(no_offering)?;
        let rows = store::offerings::list_prices_page(&mut tx, offering.id, options).await?;
        let page = options.page(rows, |row| row.price.version);
        Ok(page.map(|row| self.version(offering.slug.clone(), row)))
    }

    /// The prices of all offerings that have not begun, by offering and begin.
    pub async fn list_planned_prices(&self, caller: &Caller) -> Result<Vec<PriceVersion>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let planned = store::offerings::list_planned_prices(&mut conn.tx(), self.context.now()).await?;
        Ok(planned.into_iter().map(|price| self.version(price.slug, price.row)).collect())
    }

    fn version(&self, offering: String, row: PriceRow) -> PriceVersion {
        let hour = |nano: i64| per_hour_micros(nano).unwrap_or(i64::MAX);
        let PriceRow { price, effective_from, set_by, withdrawn_at, withdrawn_by } = row;
        PriceVersion {
            offering,
            version: price.version,
            nano_per_second: price.nano_per_second,
            per_hour_micros: hour(price.nano_per_second),
            currency: self.context.settings.currency.clone(),
            reserved_per_hour_micros: price.reserved_nano_per_second.map(hour),
            preemptible_per_hour_micros: price.preemptible_nano_per_second.map(hour),
            effective_from,
            set_by,
            withdrawn_at,
            withdrawn_by,
        }
    }
}

fn no_offering() -> Problem {
    Problem::invalid_field("/offering", "This offering does not exist.")
}

/// The text about the rates on demand, of reserved devices and of preemptible jobs.
fn price_text(on_demand: i64, [reserved, preemptible]: [Option<i64>; 2], currency: &str) -> String {
    let text = |micros: i64| format!("{} an hour", money_text(micros, currency));
    let other = |micros: Option<i64>| micros.map_or_else(|| "as on demand".to_owned(), text);
    format!("{}, reserved {}, preemptible {}", text(on_demand), other(reserved), other(preemptible))
}

fn stored_price_text(price: StoredPrice, currency: &str) -> String {
    let hour = |nano: i64| per_hour_micros(nano).unwrap_or(i64::MAX);
    let others = [price.reserved_nano_per_second, price.preemptible_nano_per_second];
    price_text(hour(price.nano_per_second), others.map(|nano| nano.map(hour)), currency)
}

/// A new price as an act of an operator.
fn price_act(input: &NewPrice, present: Option<StoredPrice>, currency: &str) -> OperatorAct {
    let before = present.map_or_else(|| "no price".to_owned(), |price| stored_price_text(price, currency));
    let others = [input.reserved_per_hour_micros, input.preemptible_per_hour_micros];
    let after = price_text(input.per_hour_micros, others, currency);
    let begin = input.effective_from.map_or_else(|| "the approval".to_owned(), Timestamp::minute);
    OperatorAct {
        action: ChangeAction::SetPrice,
        org: None,
        target: input.offering.clone(),
        amount_micros: Some(input.per_hour_micros),
        reason: String::new(),
        detail: format!("from {before}; to {after}; effective from {begin}"),
    }
}

/// A price in audit events: the one in effect, or another one with the time from which it applies.
fn price_state(price: StoredPrice, from: Option<Timestamp>) -> String {
    let StoredPrice { version, nano_per_second, reserved_nano_per_second, preemptible_nano_per_second } =
        price;
    let state = json!({
        "version": version,
        "nano_per_second": nano_per_second,
        "reserved_nano_per_second": reserved_nano_per_second,
        "preemptible_nano_per_second": preemptible_nano_per_second,
        "effective_from": from,
    });
    state.to_string()
}

/// The stored form of a price, without its version.
fn parse_price(input: &NewPrice) -> Result<StoredPrice, Problem> {
    if input.offering.len() > MAX_SLUG_BYTES {
        return Err(no_offering());
    }
    let rate = |pointer: &str, per_hour: i64| {
        Some(per_hour)
            .filter(|p| (0..=MAX_PER_HOUR_MICROS).contains(p))
            .and_then(nano_per_second)
            .ok_or_else(|| Problem::invalid_field(pointer, "Enter 0 to 1,000,000 an hour."))
    };
    let optional_rate = |pointer: &str, per_hour: Option<i64>| per_hour.map(|p| rate(pointer, p)).transpose();
    Ok(StoredPrice {
        version: 0,
        nano_per_second: rate("/per_hour_micros", input.per_hour_micros)?,
        reserved_nano_per_second: optional_rate("/reserved_per_hour_micros", input.reserved_per_hour_micros)?,
        preemptible_nano_per_second: optional_rate(
            "/preemptible_per_hour_micros",
            input.preemptible_per_hour_micros,
        )?,
    })
}
