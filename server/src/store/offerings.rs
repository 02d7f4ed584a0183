//! Offerings and their price versions.

use berth_types::ids::OfferingId;
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
    /// The latest price, and its version; `None` before the operator set one.
    pub price: Option<StoredPrice>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredPrice {
    pub version: i64,
    pub nano_per_second: i64,
}

#[derive(sqlx::FromRow)]
struct OfferingRow {
    id: String,
    slug: String,
    gpu_model: String,
    mig_profile: Option<String>,
    memory_mib: i64,
    cells: i64,
    board_cells: i64,
    simulated: bool,
    version: Option<i64>,
    nano_per_second: Option<i64>,
}

impl OfferingRow {
    fn offering(self) -> Result<StoredOffering, StoreError> {
        Ok(StoredOffering {
            id: self.id.parse().map_err(|_| StoreError::Corrupt(self.id.clone()))?,
            slug: self.slug,
            gpu_model: self.gpu_model,
            mig_profile: self.mig_profile,
            memory_mib: self.memory_mib,
            cells: self.cells,
            board_cells: self.board_cells,
            simulated: self.simulated,
            price: self
                .version
                .zip(self.nano_per_second)
                .map(|(version, nano_per_second)| StoredPrice { version, nano_per_second }),
        })
    }
}

/// Adds an offering unless its slug exists; says whether it is new.
pub async fn insert(tx: &mut Tx<'_>, offering: &StoredOffering, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "INSERT INTO offerings (id, slug, gpu_model, mig_profile, memory_mib, cells, board_cells, simulated, \
               created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (slug) DO NOTHING";
    let new = exec!(
        tx,
        sql,
        offering.id.to_string(),
        &offering.slug,
        &offering.gpu_model,
        &offering.mig_profile,
        offering.memory_mib,
        offering.cells,
        offering.board_cells,
        offering.simulated,
        now.micros()
    )?;
    Ok(new > 0)
}

pub async fn list(tx: &mut Tx<'_>) -> Result<Vec<StoredOffering>, StoreError> {
    let sql = "SELECT o.id, o.slug, o.gpu_model, o.mig_profile, o.memory_mib, o.cells, o.board_cells, o.simulated, \
               p.version, p.nano_per_second FROM offerings o LEFT JOIN prices p ON p.offering_id = o.id \
               AND p.version = (SELECT MAX(version) FROM prices q WHERE q.offering_id = o.id) \
               ORDER BY o.gpu_model, o.cells DESC, o.slug";
    list!(tx, OfferingRow, sql)?.into_iter().map(OfferingRow::offering).collect()
}

pub async fn find(tx: &mut Tx<'_>, slug: &str) -> Result<Option<StoredOffering>, StoreError> {
    let sql = "SELECT o.id, o.slug, o.gpu_model, o.mig_profile, o.memory_mib, o.cells, o.board_cells, o.simulated, \
               p.version, p.nano_per_second FROM offerings o LEFT JOIN prices p ON p.offering_id = o.id \
               WHERE o.slug = $1 ORDER BY p.version DESC LIMIT 1";
    find!(tx, OfferingRow, sql, slug)?.map(OfferingRow::offering).transpose()
}

/// Adds the next price version; [`StoreError::Duplicate`] when another one took that number.
pub async fn insert_price(
    tx: &mut Tx<'_>,
    offering: OfferingId,
    price: StoredPrice,
    now: Timestamp,
    set_by: &str,
) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO prices (offering_id, version, nano_per_second, effective_from, set_by) VALUES ($1, $2, $3, $4, $5)",
        offering.to_string(),
        price.version,
        price.nano_per_second,
        now.micros(),
        set_by
    )
    .map(|_| ())
}
