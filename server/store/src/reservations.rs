//! Quotes, reservations and maintenance.

use berth_types::ids::{JobId, NodeId, OfferingId, OrgId, QuoteId, ReservationId};
use berth_types::jobs::{JobState, Topology};
use berth_types::lists::ListOptions;
use berth_types::reservations::{Quote, ReservationState};
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// A device of a reservation as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredDevice {
    pub gpu_uuid: String,
    /// Absent: the whole board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_id: Option<u32>,
    #[serde(default)]
    pub start: u32,
    /// Memory slices.
    pub size: u32,
}

/// The devices of a reservation, by node.
pub type StoredPlaces = Vec<(NodeId, Vec<StoredDevice>)>;

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredReservation {
    pub id: ReservationId,
    pub org_id: Option<OrgId>,
    pub org_name: Option<String>,
    pub name: String,
    pub state: ReservationState,
    pub cause: String,
    pub quote_id: Option<QuoteId>,
    /// The id of the first reservation of its series; empty without a series.
    pub series: String,
    pub offering_id: Option<OfferingId>,
    pub slug: Option<String>,
    pub gpu_model: Option<String>,
    pub mig_profile: Option<String>,
    pub nodes: i64,
    pub gpus_per_node: i64,
    pub topology: Topology,
    /// Thousandths of whole boards.
    pub board_milli: i64,
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub nano_per_second: i64,
    pub price_version: i64,
    pub total_micros: i64,
    pub held_micros: i64,
    pub posted_micros: i64,
    pub credited_micros: i64,
    /// JSON of [`StoredPlaces`].
    pub places: String,
    /// JSON: the policy that was shown at the confirmation.
    pub policy: String,
    pub lost_milli: i64,
    pub lost_since: Option<Timestamp>,
    /// True if the warning of its end was sent.
    pub warned: bool,
    pub generation: i64,
    pub created_by: String,
    pub created_at: Timestamp,
}

impl StoredReservation {
    pub fn places(&self) -> Result<StoredPlaces, StoreError> {
        parse_places(self.id, &self.places)
    }
}

fn parse_places(id: ReservationId, places: &str) -> Result<StoredPlaces, StoreError> {
    serde_json::from_str(places).map_err(|error| StoreError::corrupt("reservations", id, "places", error))
}

macro_rules! select_reservations {
    ($rest:literal) => {
        concat!(
            "SELECT r.id, r.org_id, g.name AS org_name, r.name, r.state, r.cause, r.quote_id, r.series, r.offering_id, \
             o.slug, o.gpu_model, o.mig_profile, r.nodes, r.gpus_per_node, r.topology, r.board_milli, r.starts_at, \
             r.ends_at, r.ended_at, r.nano_per_second, r.price_version, r.total_micros, r.held_micros, r.posted_micros, \
             r.credited_micros, r.places, r.policy, r.lost_milli, r.lost_since, r.warned, r.generation, r.created_by, r.created_at \
             FROM reservations r LEFT JOIN offerings o ON o.id = r.offering_id LEFT JOIN orgs g ON g.id = r.org_id ",
            $rest
        )
    };
}

pub async fn insert_quote(
    tx: &mut Tx<'_>,
    org: OrgId,
    quote: &Quote,
    created_by: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO quotes (id, org_id, quote, created_by, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6)";
    exec!(tx, sql, quote.id, org, JsonColumn(quote), created_by, now, quote.expires_at).map(|_| ())
}

/// Counts the quotes of an organization that can be used at `now`.
pub async fn count_open_quotes(tx: &mut Tx<'_>, org: OrgId, now: Timestamp) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM quotes \
               WHERE org_id = $1 AND used_at IS NULL AND expires_at > $2";
    Ok(find!(tx, (i64,), sql, org, now)?.map_or(0, |(n,)| n))
}

/// Finds a quote of this organization, with the time of its use.
pub async fn find_quote(
    tx: &mut Tx<'_>,
    org: OrgId,
    id: QuoteId,
) -> Result<Option<(Quote, Option<Timestamp>)>, StoreError> {
    let sql = "SELECT quote, used_at, id AS row_id FROM quotes WHERE org_id = $1 AND id = $2";
    let row = find!(tx, (JsonColumn<Quote>, Option<Timestamp>), sql, org, id)?;
    Ok(row.map(|(quote, used_at)| (quote.0, used_at)))
}

/// Marks a quote as used. Returns true if it was unused.
pub async fn use_quote(tx: &mut Tx<'_>, id: QuoteId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE quotes SET used_at = $2 WHERE id = $1 AND used_at IS NULL";
    Ok(exec!(tx, sql, id, now)? == 1)
}

/// Deletes the unused quotes that expired before a time.
pub async fn forget_quotes(tx: &mut Tx<'_>, before: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM quotes WHERE expires_at < $1 AND used_at IS NULL";
    exec!(tx, sql, before).map(|_| ())
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredReservation) -> Result<(), StoreError> {
    let sql = "INSERT INTO reservations (id, org_id, name, state, cause, quote_id, series, offering_id, nodes, \
               gpus_per_node, topology, board_milli, starts_at, ends_at, nano_per_second, price_version, total_micros, \
               held_micros, posted_micros, credited_micros, places, policy, lost_milli, generation, created_by, created_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, \
               $22, $23, $24, $25, $26)";
    exec!(
        tx,
        sql,
        row.id,
        row.org_id,
        &row.name,
        row.state,
        &row.cause,
        row.quote_id,
        &row.series,
        row.offering_id,
        row.nodes,
        row.gpus_per_node,
        row.topology,
        row.board_milli,
        row.starts_at,
        row.ends_at,
        row.nano_per_second,
        row.price_version,
        row.total_micros,
        row.held_micros,
        row.posted_micros,
        row.credited_micros,
        &row.places,
        &row.policy,
        row.lost_milli,
        row.generation,
        &row.created_by,
        row.created_at
    )
    .map(|_| ())
}

/// Stores a changed reservation and raises its generation.
///
/// # Errors
/// [`StoreError::Stale`] if the stored generation is not that of `row`.
pub async fn update(tx: &mut Tx<'_>, row: &StoredReservation) -> Result<(), StoreError> {
    let sql = "UPDATE reservations SET generation = generation + 1, state = $3, cause = $4, ends_at = $5, ended_at = $6, \
               total_micros = $7, held_micros = $8, posted_micros = $9, credited_micros = $10, places = $11, \
               lost_milli = $12, lost_since = $13, warned = $14, starts_at = $15 WHERE id = $1 AND generation = $2";
    let changed = exec!(
        tx,
        sql,
        row.id,
        row.generation,
        row.state,
        &row.cause,
        row.ends_at,
        row.ended_at,
        row.total_micros,
        row.held_micros,
        row.posted_micros,
        row.credited_micros,
        &row.places,
        row.lost_milli,
        row.lost_since,
        row.warned,
        row.starts_at
    )?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Stale) }
}

/// Finds a reservation of any organization.
pub async fn find_any(tx: &mut Tx<'_>, id: ReservationId) -> Result<Option<StoredReservation>, StoreError> {
    find!(tx, StoredReservation, select_reservations!("WHERE r.id = $1"), id)
}

/// Lists the reservations with these ids, of any organization, by id.
pub async fn list_any(tx: &mut Tx<'_>, ids: &[ReservationId]) -> Result<Vec<StoredReservation>, StoreError> {
    let sqlite = select_reservations!("WHERE r.id IN (SELECT value FROM json_each($1)) ORDER BY r.id");
    let postgres = select_reservations!("WHERE r.id = ANY($1) ORDER BY r.id");
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    list_in!(tx, StoredReservation, sqlite, postgres, ids)
}

/// Finds a reservation of this organization.
pub async fn find(
    tx: &mut Tx<'_>,
    org: OrgId,
    id: ReservationId,
) -> Result<Option<StoredReservation>, StoreError> {
    let sql = select_reservations!("WHERE r.org_id = $1 AND r.id = $2");
    find!(tx, StoredReservation, sql, org, id)
}

/// Lists a page of the reservations of an organization (`None`: of all) by id, in `state` (`None`: in any).
pub async fn list(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    state: Option<ReservationState>,
    options: &ListOptions<ReservationId>,
) -> Result<Vec<StoredReservation>, StoreError> {
    let sql = org_page_sql!(
        org,
        options.sort,
        [select_reservations!("")],
        "r.org_id",
        " AND ($2 = '' OR r.state = $2)",
        "r.id",
        "$3",
        "$4"
    );
    let org = org.map_or_else(String::new, |org| org.to_string());
    let state = state.map_or("", ReservationState::name);
    list!(tx, StoredReservation, sql, org, state, options.cursor_text(), options.rows())
}

/// Lists the reservations that hold capacity.
pub async fn list_holding(tx: &mut Tx<'_>) -> Result<Vec<StoredReservation>, StoreError> {
    let sql = select_reservations!(
        "WHERE r.state IN ('pending', 'scheduled', 'active') ORDER BY r.starts_at, r.id"
    );
    list!(tx, StoredReservation, sql)
}

/// Lists the reservations that hold capacity at a time between `from` and `until`.
pub async fn list_between(
    tx: &mut Tx<'_>,
    from: Timestamp,
    until: Timestamp,
) -> Result<Vec<StoredReservation>, StoreError> {
    let sql = select_reservations!(
        "WHERE r.state IN ('pending', 'scheduled', 'active') AND r.starts_at < $2 AND r.ends_at > $1 ORDER BY r.starts_at, r.id"
    );
    list!(tx, StoredReservation, sql, from, until)
}

/// The window of a reservation or of maintenance with its devices.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct BookedWindow {
    pub id: ReservationId,
    /// Absent for maintenance.
    pub org_id: Option<OrgId>,
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    /// JSON of [`StoredPlaces`].
    pub places: String,
}

impl BookedWindow {
    pub fn places(&self) -> Result<StoredPlaces, StoreError> {
        parse_places(self.id, &self.places)
    }
}

/// Lists the windows that hold capacity at a time between `from` and `until`, without the other columns.
pub async fn list_windows_between(
    tx: &mut Tx<'_>,
    from: Timestamp,
    until: Timestamp,
) -> Result<Vec<BookedWindow>, StoreError> {
    let sql = "SELECT id, org_id, starts_at, ends_at, places FROM reservations \
               WHERE state IN ('pending', 'scheduled', 'active') AND starts_at < $2 AND ends_at > $1 \
               ORDER BY starts_at, id";
    list!(tx, BookedWindow, sql, from, until)
}

/// Lists the jobs of a reservation that have not ended: (id, state, generation).
pub async fn open_jobs(
    tx: &mut Tx<'_>,
    id: ReservationId,
) -> Result<Vec<(JobId, JobState, i64)>, StoreError> {
    let sql =
        "SELECT id, state, generation FROM jobs WHERE reservation_id = $1 AND ended_at IS NULL ORDER BY id";
    list!(tx, (JobId, JobState, i64), sql, id)
}

/// Lists reservations that are over and have jobs that neither ended nor are being stopped, at most 100.
pub async fn list_over_with_jobs(tx: &mut Tx<'_>) -> Result<Vec<ReservationId>, StoreError> {
    let sql = "SELECT DISTINCT j.reservation_id FROM jobs j JOIN reservations r ON r.id = j.reservation_id \
               WHERE j.ended_at IS NULL AND j.state <> 'stopping' AND r.state NOT IN ('pending', 'scheduled', 'active') \
               LIMIT 100";
    Ok(list!(tx, (ReservationId,), sql)?.into_iter().map(|(id,)| id).collect())
}

/// The use of a reservation by its jobs.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct JobUse {
    pub reservation_id: ReservationId,
    pub device_ms: i64,
    /// The most attempts of one of the jobs; 0: none was ever placed.
    pub attempts: i64,
}

/// Lists the use of these reservations by jobs. A reservation without jobs is absent.
pub async fn list_job_use(
    tx: &mut Tx<'_>,
    reservations: &[ReservationId],
) -> Result<Vec<JobUse>, StoreError> {
    macro_rules! select_use {
        ($condition:literal) => {
            concat!(
                "SELECT reservation_id, CAST(SUM(metered_ms * device_count * nodes) AS BIGINT) AS device_ms, \
                 CAST(MAX(attempt) AS BIGINT) AS attempts FROM jobs WHERE reservation_id ",
                $condition,
                " GROUP BY reservation_id"
            )
        };
    }
    let sqlite = select_use!("IN (SELECT value FROM json_each($1))");
    let reservations: Vec<String> = reservations.iter().map(ToString::to_string).collect();
    list_in!(tx, JobUse, sqlite, select_use!("= ANY($1)"), reservations)
}

/// Finds the time of the first placement of a job in a reservation.
pub async fn find_first_placement(
    tx: &mut Tx<'_>,
    id: ReservationId,
) -> Result<Option<Timestamp>, StoreError> {
    let sql =
        "SELECT MIN(a.created_at) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.reservation_id = $1";
    Ok(find!(tx, (Option<Timestamp>,), sql, id)?.and_then(|(at,)| at))
}

/// The metered time of a job over a border of a period.
#[derive(Debug, Clone, sqlx::FromRow)]
struct CrossingJob {
    reservation_id: ReservationId,
    created_at: Timestamp,
    started_at: Option<Timestamp>,
    /// The end, or the present time.
    until: Timestamp,
    metered_ms: i64,
    /// The part from earlier attempts.
    metered_before_ms: i64,
    devices: i64,
}

impl CrossingJob {
    /// The device-milliseconds within a period. Each part of the metered time counts by its share of the period: the last
    /// attempt from its start, and earlier ones from the submission.
    fn device_ms(&self, (since, until): (Timestamp, Timestamp)) -> i64 {
        let part = |ms: i64, begins: Timestamp, ends: Timestamp| {
            let whole = ends.micros().saturating_sub(begins.micros()).max(1);
            let within = ends.min(until).micros().saturating_sub(begins.max(since).micros()).clamp(0, whole);
            i64::try_from(i128::from(ms) * i128::from(within) / i128::from(whole)).unwrap_or(ms)
        };
        let (started, before_ms) = match self.started_at {
            Some(started) if self.metered_ms > self.metered_before_ms => (started, self.metered_before_ms),
            // The start of an ended job can be that of an earlier attempt.
            _ => (self.until, self.metered_ms),
        };
        let last_ms = self.metered_ms.saturating_sub(before_ms);
        let ms = part(before_ms, self.created_at, started) + part(last_ms, started, self.until);
        ms.saturating_mul(self.devices)
    }
}

/// Sums the device-milliseconds without a job in an organization's reservations, within a period that ends at `now` at
/// the latest.
pub async fn idle_device_ms(
    tx: &mut Tx<'_>,
    org: OrgId,
    (since, until): (Timestamp, Timestamp),
    now: Timestamp,
) -> Result<i64, StoreError> {
    let sql = "SELECT r.id, r.starts_at, r.ends_at, COALESCE(r.ended_at, r.ends_at), r.nodes * r.gpus_per_node, \
               (SELECT CAST(COALESCE(SUM(j.metered_ms * j.device_count * j.nodes), 0) AS BIGINT) FROM jobs j \
                WHERE j.reservation_id = r.id AND j.created_at >= $2 AND COALESCE(j.ended_at, $4) <= $3) \
               FROM reservations r WHERE r.org_id = $1 AND r.starts_at < $3 AND r.ends_at > $2 \
               AND r.state IN ('active', 'ended')";
    type Row = (ReservationId, Timestamp, Timestamp, Timestamp, i64, i64);
    let rows = list!(tx, Row, sql, org, since, until, now)?;
    let sql = "SELECT j.reservation_id, j.created_at, j.started_at, COALESCE(j.ended_at, $4) AS until, j.metered_ms, \
               j.metered_before_ms, j.device_count * j.nodes AS devices FROM jobs j \
               JOIN reservations r ON r.id = j.reservation_id WHERE r.org_id = $1 AND r.starts_at < $3 AND r.ends_at > $2 \
               AND r.state IN ('active', 'ended') AND j.metered_ms > 0 AND j.created_at < $3 AND COALESCE(j.ended_at, $4) > $2 \
               AND (j.created_at < $2 OR COALESCE(j.ended_at, $4) > $3)";
    let crossing = list!(tx, CrossingJob, sql, org, since, until, now)?;
    let mut idle = 0i64;
    for (id, starts_at, ends_at, ended_at, devices, used) in rows {
        let elapsed_ms = ended_at.min(ends_at).min(until).millis_since(starts_at.max(since)).max(0);
        let own = crossing.iter().filter(|job| job.reservation_id == id);
        let used = own.fold(used, |used, job| used.saturating_add(job.device_ms((since, until))));
        idle = idle.saturating_add((elapsed_ms.saturating_mul(devices) - used).max(0));
    }
    Ok(idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_over_a_border_counts_by_the_time_within_the_period() {
        let at = |second: i64| Timestamp::from_micros(second * 1_000_000);
        let job = |started_s: Option<i64>, metered_s: i64, before_s: i64| CrossingJob {
            reservation_id: "res_00000000000000000000000000".parse().unwrap(),
            created_at: at(100),
            started_at: started_s.map(at),
            until: at(500),
            metered_ms: metered_s * 1_000,
            metered_before_ms: before_s * 1_000,
            devices: 2,
        };
        let one = job(Some(200), 300, 0);
        for ((since, until), expected_s) in [
            ((0, 600), 300),
            ((0, 200), 0),
            ((0, 201), 1),
            ((0, 350), 150),
            ((350, 600), 150),
            ((499, 500), 1),
            ((500, 600), 0),
            ((250, 260), 10),
        ] {
            assert_eq!(one.device_ms((at(since), at(until))), 2_000 * expected_s, "{since} to {until}");
        }
        let again = job(Some(300), 250, 50);
        assert_eq!(again.device_ms((at(0), at(300))), 2 * 50_000);
        assert_eq!(again.device_ms((at(0), at(200))), 2 * 25_000);
        assert_eq!(again.device_ms((at(200), at(400))), 2 * 125_000);
        // Without a metered time of the last attempt, its start does not count.
        for waits in [job(None, 50, 50), job(Some(150), 50, 50)] {
            assert_eq!(waits.device_ms((at(0), at(300))), 2 * 25_000);
        }
        let mut short = job(Some(500), 7, 0);
        short.created_at = at(500);
        assert_eq!(short.device_ms((at(0), at(600))), 0, "a job without a length");
    }
}
