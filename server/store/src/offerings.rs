//! Offerings and their price versions.

use berth_core::suggestions::Offered;
use berth_types::ids::OfferingId;
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// An offering as stored, without price and availability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOffering {
    pub id: OfferingId,
    pub slug: String,
    pub gpu_model: String,
    pub mig_profile: Option<String>,
    pub memory_mib: i64,
    pub cells: i64,
    pub board_cells: i64,
    pub simulated: bool,
    /// The price in effect, with its version; `None` without one.
    pub price: Option<StoredPrice>,
}

impl StoredOffering {
    /// The part of the offering on which suggested changes depend.
    pub fn offered(&self) -> Offered<'_> {
        Offered {
            slug: &self.slug,
            model: &self.gpu_model,
            profile: self.mig_profile.as_deref(),
            memory_mib: self.memory_mib,
            simulated: self.simulated,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, sqlx::FromRow)]
pub struct StoredPrice {
    pub version: i64,
    pub nano_per_second: i64,
    /// Absent: the rate on demand applies, also for the next field.
    pub reserved_nano_per_second: Option<i64>,
    pub preemptible_nano_per_second: Option<i64>,
}

impl StoredPrice {
    pub fn reserved(&self) -> i64 {
        self.reserved_nano_per_second.unwrap_or(self.nano_per_second)
    }

    pub fn preemptible(&self) -> i64 {
        self.preemptible_nano_per_second.unwrap_or(self.nano_per_second)
    }
}

#[derive(sqlx::FromRow)]
struct OfferingRow {
    id: OfferingId,
    slug: String,
    gpu_model: String,
    mig_profile: Option<String>,
    memory_mib: i64,
    cells: i64,
    board_cells: i64,
    simulated: bool,
    version: Option<i64>,
    nano_per_second: Option<i64>,
    reserved_nano_per_second: Option<i64>,
    preemptible_nano_per_second: Option<i64>,
}

impl OfferingRow {
    fn offering(self) -> StoredOffering {
        StoredOffering {
            id: self.id,
            slug: self.slug,
            gpu_model: self.gpu_model,
            mig_profile: self.mig_profile,
            memory_mib: self.memory_mib,
            cells: self.cells,
            board_cells: self.board_cells,
            simulated: self.simulated,
            price: self.version.zip(self.nano_per_second).map(|(version, nano_per_second)| StoredPrice {
                version,
                nano_per_second,
                reserved_nano_per_second: self.reserved_nano_per_second,
                preemptible_nano_per_second: self.preemptible_nano_per_second,
            }),
        }
    }
}

/// Adds an offering, unless its slug exists. Returns true if it is new.
pub async fn insert(tx: &mut Tx<'_>, offering: &StoredOffering, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "INSERT INTO offerings (id, slug, gpu_model, mig_profile, memory_mib, cells, board_cells, simulated, \
               created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (slug) DO NOTHING";
    let new = exec!(
        tx,
        sql,
        offering.id,
        &offering.slug,
        &offering.gpu_model,
        &offering.mig_profile,
        offering.memory_mib,
        offering.cells,
        offering.board_cells,
        offering.simulated,
        now
    )?;
    Ok(new > 0)
}

/// Lists the offerings, each with its price in effect at `now`.
pub async fn list(tx: &mut Tx<'_>, now: Timestamp) -> Result<Vec<StoredOffering>, StoreError> {
    let sql = "SELECT o.id, o.slug, o.gpu_model, o.mig_profile, o.memory_mib, o.cells, o.board_cells, o.simulated, \
               p.version, p.nano_per_second, p.reserved_nano_per_second, p.preemptible_nano_per_second \
               FROM offerings o LEFT JOIN prices p ON p.offering_id = o.id \
               AND p.version = (SELECT q.version FROM prices q WHERE q.offering_id = o.id AND q.effective_from <= $1 \
               AND NOT EXISTS (SELECT 1 FROM price_withdrawals w WHERE w.offering_id = q.offering_id AND w.version = q.version) \
               ORDER BY q.effective_from DESC, q.version DESC LIMIT 1) \
               ORDER BY o.gpu_model, o.cells DESC, o.slug";
    let rows = list!(tx, OfferingRow, sql, now)?;
    Ok(rows.into_iter().map(OfferingRow::offering).collect())
}

/// Finds an offering, with its price in effect at `now`.
pub async fn find(tx: &mut Tx<'_>, slug: &str, now: Timestamp) -> Result<Option<StoredOffering>, StoreError> {
    let sql = "SELECT o.id, o.slug, o.gpu_model, o.mig_profile, o.memory_mib, o.cells, o.board_cells, o.simulated, \
               p.version, p.nano_per_second, p.reserved_nano_per_second, p.preemptible_nano_per_second \
               FROM offerings o LEFT JOIN prices p ON p.offering_id = o.id AND p.effective_from <= $2 \
               AND NOT EXISTS (SELECT 1 FROM price_withdrawals w WHERE w.offering_id = p.offering_id AND w.version = p.version) \
               WHERE o.slug = $1 ORDER BY p.effective_from DESC, p.version DESC LIMIT 1";
    Ok(find!(tx, OfferingRow, sql, slug, now)?.map(OfferingRow::offering))
}

/// Returns the greatest price version of an offering; 0 without a price.
pub async fn last_version(tx: &mut Tx<'_>, offering: OfferingId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(MAX(version), 0) AS BIGINT) FROM prices WHERE offering_id = $1";
    Ok(find!(tx, (i64,), sql, offering)?.map_or(0, |(n,)| n))
}

/// A price version with its author and its withdrawal.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct PriceRow {
    #[sqlx(flatten)]
    pub price: StoredPrice,
    pub effective_from: Timestamp,
    pub set_by: String,
    /// Absent without a withdrawal, like the next field.
    pub withdrawn_at: Option<Timestamp>,
    pub withdrawn_by: Option<String>,
}

macro_rules! select_prices {
    ($rest:literal) => {
        concat!(
            "SELECT p.version, p.nano_per_second, p.reserved_nano_per_second, p.preemptible_nano_per_second, \
             p.effective_from, p.set_by, w.withdrawn_at, w.withdrawn_by, p.offering_id AS row_id FROM prices p \
             LEFT JOIN price_withdrawals w ON w.offering_id = p.offering_id AND w.version = p.version \
             WHERE p.offering_id = $1 ",
            $rest
        )
    };
}

/// Finds a price version, also a withdrawn one.
pub async fn find_price(
    tx: &mut Tx<'_>,
    offering: OfferingId,
    version: i64,
) -> Result<Option<PriceRow>, StoreError> {
    find!(tx, PriceRow, select_prices!("AND p.version = $2"), offering, version)
}

/// Lists every price version, newest first.
pub async fn list_prices(tx: &mut Tx<'_>, offering: OfferingId) -> Result<Vec<PriceRow>, StoreError> {
    list!(tx, PriceRow, select_prices!("ORDER BY p.version DESC"), offering)
}

/// Lists a page of the price versions by number.
pub async fn list_prices_page(
    tx: &mut Tx<'_>,
    offering: OfferingId,
    options: &ListOptions<i64>,
) -> Result<Vec<PriceRow>, StoreError> {
    let sql = page_sql!(options.sort, [select_prices!("")], "p.version", number "$2", "$3");
    let (cursor, rows) = (options.cursor.unwrap_or(0), options.rows());
    list!(tx, PriceRow, sql, offering, cursor, rows)
}

/// A price that has not begun, with the slug of its offering.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct PlannedPrice {
    pub slug: String,
    #[sqlx(flatten)]
    pub row: PriceRow,
}

/// Lists the prices that begin after `now`, by offering and begin. Withdrawn prices, and those that a later version with
/// the same begin replaces, never begin and are absent.
pub async fn list_planned_prices(tx: &mut Tx<'_>, now: Timestamp) -> Result<Vec<PlannedPrice>, StoreError> {
    let sql = "SELECT o.slug, p.version, p.nano_per_second, p.reserved_nano_per_second, p.preemptible_nano_per_second, \
               p.effective_from, p.set_by, w.withdrawn_at, w.withdrawn_by FROM prices p \
               JOIN offerings o ON o.id = p.offering_id \
               LEFT JOIN price_withdrawals w ON w.offering_id = p.offering_id AND w.version = p.version \
               WHERE p.effective_from > $1 AND w.version IS NULL \
               AND NOT EXISTS (SELECT 1 FROM prices q WHERE q.offering_id = p.offering_id \
               AND q.effective_from = p.effective_from AND q.version > p.version \
               AND NOT EXISTS (SELECT 1 FROM price_withdrawals v WHERE v.offering_id = q.offering_id AND v.version = q.version)) \
               ORDER BY o.slug, p.effective_from";
    list!(tx, PlannedPrice, sql, now)
}

/// Withdraws a price version for good: it is never in effect.
pub async fn withdraw_price(
    tx: &mut Tx<'_>,
    offering: OfferingId,
    version: i64,
    at: Timestamp,
    by: &str,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO price_withdrawals (offering_id, version, withdrawn_at, withdrawn_by) \
               VALUES ($1, $2, $3, $4) ON CONFLICT (offering_id, version) DO NOTHING";
    exec!(tx, sql, offering, version, at, by).map(|_| ())
}

/// Sums the charges for jobs of an offering that ended since a time, without jobs in reservations: (version,
/// preemptible, jobs, micros).
pub async fn charged_since(
    tx: &mut Tx<'_>,
    offering: OfferingId,
    since: Timestamp,
) -> Result<Vec<(i64, bool, i64, i64)>, StoreError> {
    let sql = "SELECT price_version, preemptible, CAST(COUNT(*) AS BIGINT), CAST(COALESCE(SUM(cost_micros), 0) AS BIGINT) \
               FROM jobs WHERE offering_id = $1 AND ended_at >= $2 AND reservation_id IS NULL AND metered_ms > 0 \
               GROUP BY price_version, preemptible ORDER BY price_version, preemptible";
    list!(tx, (i64, bool, i64, i64), sql, offering, since)
}

/// Adds the next price version.
///
/// # Errors
/// [`StoreError::Duplicate`] if the version exists.
pub async fn insert_price(
    tx: &mut Tx<'_>,
    offering: OfferingId,
    price: StoredPrice,
    effective_from: Timestamp,
    set_by: &str,
) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO prices (offering_id, version, nano_per_second, effective_from, set_by, reserved_nano_per_second, \
         preemptible_nano_per_second) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        offering,
        price.version,
        price.nano_per_second,
        effective_from,
        set_by,
        price.reserved_nano_per_second,
        price.preemptible_nano_per_second
    )
    .map(|_| ())
}
