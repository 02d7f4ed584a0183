//! The catalogue: what the inventory allows to order, and at what price.

use berth_core::plan::{Shape, availability};
use berth_mig::Board;
use berth_types::money::{nano_per_second, per_hour_micros};
use berth_types::offerings::{NewPrice, Offering, Price};
use berth_types::problems::Problem;
use futures::FutureExt;

use super::{Caller, cluster};
use crate::portal::Portal;
use crate::store::offerings::{StoredOffering, StoredPrice};
use crate::store::{self, StoreError};

/// The highest price: a million units of the currency for an hour.
const MAX_PER_HOUR_MICROS: i64 = 1_000_000_000_000;

impl Portal {
    /// Adds the offerings that a board allows: the whole board and each of its MIG profiles. Those
    /// that exist stay as they are.
    pub async fn offer_board(&self, board: &'static Board, simulated: bool) -> Result<(), StoreError> {
        let now = self.now();
        let slug = board.model.to_lowercase();
        let whole = StoredOffering {
            id: self.new_id(now),
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
            id: self.new_id(now),
            slug: format!("{slug}.{}", profile.name),
            mig_profile: Some(profile.name.clone()),
            memory_mib: i64::try_from(profile.memory_mib).unwrap_or(i64::MAX),
            cells: i64::from(profile.size),
            ..whole.clone()
        });
        let all: Vec<StoredOffering> = std::iter::once(whole.clone()).chain(slices).collect();
        self.db
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

    /// Everything that can be ordered, and how much of it is free.
    pub async fn list_offerings(&self) -> Result<Vec<Offering>, Problem> {
        let mut conn = self.db.read().await?;
        let mut tx = conn.tx();
        let stored = store::offerings::list(&mut tx).await?;
        let boards = cluster::boards(&mut tx, &self.live.connected()).await?;
        let with_room = |stored: StoredOffering| {
            let shape =
                Shape { model: stored.gpu_model.clone(), profile: stored.mig_profile.clone(), count: 1 };
            let (available, capacity) = availability(&boards, &shape);
            Offering { available, capacity, ..self.offering(stored) }
        };
        Ok(stored.into_iter().map(with_room).collect())
    }

    fn offering(&self, stored: StoredOffering) -> Offering {
        let price = stored.price.unwrap_or(StoredPrice { version: 0, nano_per_second: 0 });
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
                currency: self.settings.currency.clone(),
                version: price.version,
            },
        }
    }

    /// Sets a price as the next version. What runs or waits keeps the version it was submitted at.
    pub async fn set_price(&self, caller: &Caller, input: NewPrice) -> Result<Offering, Problem> {
        self.authorise_operator(caller)?;
        let rate = Some(input.per_hour_micros)
            .filter(|p| (0..=MAX_PER_HOUR_MICROS).contains(p))
            .and_then(nano_per_second)
            .ok_or_else(|| {
                Problem::invalid_field("/per_hour_micros", "Choose between 0 and 1,000,000 an hour.")
            })?;
        let (now, set_by) = (self.now(), caller.user.email.clone());
        let found = self
            .db
            .write(move |tx| {
                let (slug, set_by) = (input.offering.clone(), set_by.clone());
                async move {
                    let Some(mut offering) = store::offerings::find(tx, &slug).await? else {
                        return Ok(None);
                    };
                    let version = offering.price.map_or(0, |p| p.version) + 1;
                    let price = StoredPrice { version, nano_per_second: rate };
                    store::offerings::insert_price(tx, offering.id, price, now, &set_by).await?;
                    offering.price = Some(price);
                    Ok(Some(offering))
                }
                .boxed()
            })
            .await?;
        found
            .map(|o| self.offering(o))
            .ok_or_else(|| Problem::invalid_field("/offering", "There is no such offering."))
    }
}
