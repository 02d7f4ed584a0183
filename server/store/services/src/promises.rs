//! Promises: the classes that operators offer, the choices of services, and the judged windows.

use berth_service_types::promises::{PromiseEvidence, PromiseTerms};
use berth_types::ids::{OrgId, PromiseId, ServiceId, TransferId};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// A class of promises that is offered.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredPromise {
    pub id: PromiseId,
    pub name: String,
    pub terms: JsonColumn<PromiseTerms>,
    pub created_at: Timestamp,
    pub created_by: String,
    /// The number of services that have the class now.
    pub services: i64,
}

macro_rules! select_promises {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, terms, created_at, created_by, (SELECT CAST(COUNT(*) AS BIGINT) FROM service_promises c \
             WHERE c.promise_id = promises.id AND c.until_at IS NULL) AS services \
             FROM promises WHERE retired_at IS NULL ",
            $rest
        )
    };
}

/// Adds a class.
///
/// # Errors
/// [`StoreError::Duplicate`] if an offered class has this name.
pub async fn insert(tx: &mut Tx<'_>, row: &StoredPromise) -> Result<(), StoreError> {
    let sql = "INSERT INTO promises (id, name, terms, created_at, created_by) VALUES ($1, $2, $3, $4, $5)";
    exec!(tx, sql, row.id, &row.name, &row.terms, row.created_at, &row.created_by).map(|_| ())
}

/// Changes the name and the terms of an offered class.
pub async fn update(tx: &mut Tx<'_>, row: &StoredPromise) -> Result<(), StoreError> {
    let sql = "UPDATE promises SET name = $2, terms = $3 WHERE id = $1 AND retired_at IS NULL";
    exec!(tx, sql, row.id, &row.name, &row.terms).map(|_| ())
}

/// Lists the services that have a class now, with their names, by organization.
pub async fn list_choosing(
    tx: &mut Tx<'_>,
    id: PromiseId,
) -> Result<Vec<(OrgId, ServiceId, String)>, StoreError> {
    let sql = "SELECT c.org_id, c.service_id, s.name FROM service_promises c JOIN services s ON s.id = c.service_id \
               WHERE c.promise_id = $1 AND c.until_at IS NULL ORDER BY c.org_id, s.name, c.service_id";
    list!(tx, (OrgId, ServiceId, String), sql, id)
}

/// Ends the offer of a class, and its choices. Their whole windows are still judged.
pub async fn retire(tx: &mut Tx<'_>, id: PromiseId, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE promises SET retired_at = $2 WHERE id = $1 AND retired_at IS NULL";
    exec!(tx, sql, id, now)?;
    let sql = "UPDATE service_promises SET until_at = $2 WHERE promise_id = $1 AND until_at IS NULL";
    exec!(tx, sql, id, now).map(|_| ())
}

/// Finds an offered class.
pub async fn find(tx: &mut Tx<'_>, id: PromiseId) -> Result<Option<StoredPromise>, StoreError> {
    find!(tx, StoredPromise, select_promises!("AND id = $1"), id)
}

/// Finds an offered class by its name.
pub async fn find_by_name(tx: &mut Tx<'_>, name: &str) -> Result<Option<StoredPromise>, StoreError> {
    find!(tx, StoredPromise, select_promises!("AND name = $1"), name)
}

/// Counts the offered classes.
pub async fn count(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM promises WHERE retired_at IS NULL";
    Ok(find!(tx, (i64,), sql)?.map_or(0, |(count,)| count))
}

/// Lists a page of the offered classes by id.
pub async fn list_page(
    tx: &mut Tx<'_>,
    options: &ListOptions<PromiseId>,
) -> Result<Vec<StoredPromise>, StoreError> {
    let sql = page_sql!(options.sort, [select_promises!("")], "id", "$1", "$2");
    list!(tx, StoredPromise, sql, options.cursor_text(), options.rows())
}

/// The choice of a service, with the terms of the class at the choice.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredChoice {
    pub service_id: ServiceId,
    /// The number of the choice, from 1.
    pub number: i64,
    pub org_id: OrgId,
    pub promise_id: PromiseId,
    pub name: String,
    pub terms: JsonColumn<PromiseTerms>,
    pub chosen_at: Timestamp,
    /// The end of the choice; absent for the present one.
    pub until_at: Option<Timestamp>,
    /// The number of the next window to judge, from 1970.
    pub next_window: i64,
    /// The time of its judgement.
    pub due_at: Timestamp,
    /// Credits for lost time beyond the charges of the windows before, in micro-units.
    pub carry_micros: i64,
}

macro_rules! select_choices {
    ($rest:literal) => {
        concat!(
            "SELECT service_id, number, org_id, promise_id, name, terms, chosen_at, until_at, next_window, due_at, \
             carry_micros FROM service_promises WHERE ",
            $rest
        )
    };
}

/// Adds the choice of a service with the next number. It gets what former choices carried at their end.
pub async fn choose(tx: &mut Tx<'_>, row: &StoredChoice) -> Result<(), StoreError> {
    let sql = "INSERT INTO service_promises (service_id, number, org_id, promise_id, name, terms, chosen_at, \
               until_at, next_window, due_at, carry_micros) VALUES ($1, \
               (SELECT CAST(COALESCE(MAX(number), 0) + 1 AS BIGINT) FROM service_promises WHERE service_id = $1), \
               $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    exec!(
        tx,
        sql,
        row.service_id,
        row.org_id,
        row.promise_id,
        &row.name,
        &row.terms,
        row.chosen_at,
        row.until_at,
        row.next_window,
        row.due_at,
        row.carry_micros
    )?;
    let sql = "UPDATE service_promises SET carry_micros = carry_micros + \
               (SELECT s.promise_carry_micros FROM services s WHERE s.id = $1) \
               WHERE service_id = $1 AND until_at IS NULL";
    exec!(tx, sql, row.service_id)?;
    let sql = "UPDATE services SET promise_carry_micros = 0 WHERE id = $1 AND promise_carry_micros <> 0";
    exec!(tx, sql, row.service_id).map(|_| ())
}

/// Finds the present choice of a service.
pub async fn find_present(tx: &mut Tx<'_>, service: ServiceId) -> Result<Option<StoredChoice>, StoreError> {
    find!(tx, StoredChoice, select_choices!("service_id = $1 AND until_at IS NULL"), service)
}

/// Ends the present choice of a service. Its whole windows are still judged.
pub async fn end(tx: &mut Tx<'_>, service: ServiceId, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE service_promises SET until_at = $2 WHERE service_id = $1 AND until_at IS NULL";
    exec!(tx, sql, service, now).map(|_| ())
}

/// Deletes a choice without further windows. The present choice of the service gets what it carries, and without one the
/// next choice.
pub async fn delete(tx: &mut Tx<'_>, service: ServiceId, number: i64) -> Result<(), StoreError> {
    let sql = "UPDATE service_promises SET carry_micros = carry_micros + COALESCE((SELECT p.carry_micros \
               FROM service_promises p WHERE p.service_id = $1 AND p.number = $2), 0) \
               WHERE service_id = $1 AND number <> $2 AND until_at IS NULL";
    if exec!(tx, sql, service, number)? == 0 {
        let sql = "UPDATE services SET promise_carry_micros = promise_carry_micros + COALESCE((SELECT p.carry_micros \
                   FROM service_promises p WHERE p.service_id = $1 AND p.number = $2), 0) WHERE id = $1";
        exec!(tx, sql, service, number)?;
    }
    exec!(tx, "DELETE FROM service_promises WHERE service_id = $1 AND number = $2", service, number)
        .map(|_| ())
}

/// Lists the choices with a window to judge, the longest due first. A choice that cannot be read is left out.
pub async fn list_due(tx: &mut Tx<'_>, now: Timestamp, most: i64) -> Result<Vec<StoredChoice>, StoreError> {
    let sql = select_choices!("due_at <= $1 ORDER BY due_at, service_id, number LIMIT $2");
    list_readable!(tx, StoredChoice, sql, now, most)
}

/// Moves a choice to the window after `row.next_window`. Returns false if that window is judged already.
pub async fn advance(
    tx: &mut Tx<'_>,
    row: &StoredChoice,
    (due_at, carry_micros): (Timestamp, i64),
) -> Result<bool, StoreError> {
    // A former choice may have left an amount here since the row was read.
    let sql = "UPDATE service_promises SET next_window = next_window + 1, due_at = $4, \
               carry_micros = carry_micros - $5 + $6 WHERE service_id = $1 AND number = $2 AND next_window = $3";
    let done =
        exec!(tx, sql, row.service_id, row.number, row.next_window, due_at, row.carry_micros, carry_micros)?;
    Ok(done == 1)
}

/// Puts off the judgement of a window.
pub async fn put_off(tx: &mut Tx<'_>, row: &StoredChoice, due_at: Timestamp) -> Result<(), StoreError> {
    let sql =
        "UPDATE service_promises SET due_at = $4 WHERE service_id = $1 AND number = $2 AND next_window = $3";
    exec!(tx, sql, row.service_id, row.number, row.next_window, due_at).map(|_| ())
}

/// A judged window.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredWindow {
    pub service_id: ServiceId,
    pub begin_at: Timestamp,
    pub end_at: Timestamp,
    /// The name of the promise.
    pub name: String,
    pub evidence: JsonColumn<PromiseEvidence>,
    /// The missed parts as sentences.
    pub misses: JsonColumn<Vec<String>>,
    pub credit_micros: i64,
    pub transfer_id: Option<TransferId>,
}

/// Adds a judged window.
///
/// # Errors
/// [`StoreError::Duplicate`] if the window is judged already.
pub async fn insert_window(tx: &mut Tx<'_>, row: &StoredWindow) -> Result<(), StoreError> {
    let sql = "INSERT INTO service_promise_windows (service_id, begin_at, end_at, name, evidence, misses, \
               credit_micros, transfer_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    exec!(
        tx,
        sql,
        row.service_id,
        row.begin_at,
        row.end_at,
        &row.name,
        &row.evidence,
        &row.misses,
        row.credit_micros,
        row.transfer_id
    )
    .map(|_| ())
}

/// Lists a page of the judged windows of a service by their begin, whose microseconds since 1970 are the key.
pub async fn list_windows(
    tx: &mut Tx<'_>,
    service: ServiceId,
    options: &ListOptions<i64>,
) -> Result<Vec<StoredWindow>, StoreError> {
    let sql = page_sql!(
        options.sort,
        ["SELECT service_id, begin_at, end_at, name, evidence, misses, credit_micros, transfer_id \
          FROM service_promise_windows WHERE service_id = $1"],
        "begin_at",
        number "$2",
        "$3"
    );
    let (cursor, rows) = (options.cursor.unwrap_or(0), options.rows());
    list!(tx, StoredWindow, sql, service, cursor, rows)
}

/// Deletes the judged windows that began before a time.
pub async fn forget_windows(tx: &mut Tx<'_>, before: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM service_promise_windows WHERE begin_at < $1", before).map(|_| ())
}
