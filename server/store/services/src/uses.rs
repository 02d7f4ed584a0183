//! The use of services by hours of UTC.

use berth_types::ids::{InferenceKeyId, ServiceId};
use berth_types::time::Timestamp;

use super::services::texts;
use super::{JsonColumn, StoreError, Tx};

/// Requests, errors, tokens of prompts, tokens of completions, and nano-units for tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredCounts {
    pub requests: i64,
    pub errors: i64,
    pub prompt_tokens: i64,
    pub completion_tokens: i64,
    pub token_nanos: i64,
}

/// A row of the use of a service in an hour.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredHour {
    pub hour_at: Timestamp,
    pub requests: i64,
    pub errors: i64,
    pub prompt_tokens: i64,
    pub completion_tokens: i64,
    pub token_nanos: i64,
    /// The counts of the times to the first byte, by bucket.
    pub first_byte: JsonColumn<Vec<u64>>,
}

type Sums = (i64, i64, i64, i64, i64);

const fn counts((requests, errors, prompt_tokens, completion_tokens, token_nanos): Sums) -> StoredCounts {
    StoredCounts { requests, errors, prompt_tokens, completion_tokens, token_nanos }
}

macro_rules! sum_use {
    ($id:literal, $condition:literal) => {
        concat!(
            "SELECT ",
            $id,
            ", CAST(SUM(requests) AS BIGINT), CAST(SUM(errors) AS BIGINT), CAST(SUM(prompt_tokens) AS BIGINT), \
             CAST(SUM(completion_tokens) AS BIGINT), CAST(SUM(token_nanos) AS BIGINT) FROM service_use \
             WHERE hour_at >= $2 AND ",
            $id,
            $condition,
            " GROUP BY ",
            $id
        )
    };
}

/// Sums the use of services since an hour.
pub async fn sum_by_service(
    tx: &mut Tx<'_>,
    services: &[ServiceId],
    since: Timestamp,
) -> Result<Vec<(ServiceId, StoredCounts)>, StoreError> {
    let rows = list_in!(
        tx,
        (ServiceId, i64, i64, i64, i64, i64),
        sum_use!("service_id", " IN (SELECT value FROM json_each($1))"),
        sum_use!("service_id", " = ANY($1)"),
        texts(services),
        since
    )?;
    Ok(rows.into_iter().map(|(id, a, b, c, d, e)| (id, counts((a, b, c, d, e)))).collect())
}

/// Sums the use by keys since an hour.
pub async fn sum_by_key(
    tx: &mut Tx<'_>,
    keys: &[InferenceKeyId],
    since: Timestamp,
) -> Result<Vec<(InferenceKeyId, StoredCounts)>, StoreError> {
    let rows = list_in!(
        tx,
        (InferenceKeyId, i64, i64, i64, i64, i64),
        sum_use!("key_id", " IN (SELECT value FROM json_each($1))"),
        sum_use!("key_id", " = ANY($1)"),
        texts(keys),
        since
    )?;
    Ok(rows.into_iter().map(|(id, a, b, c, d, e)| (id, counts((a, b, c, d, e)))).collect())
}

/// Lists the use of a service since an hour, a row for each revision, key and hour.
pub async fn list_hours(
    tx: &mut Tx<'_>,
    service: ServiceId,
    since: Timestamp,
) -> Result<Vec<StoredHour>, StoreError> {
    let sql = "SELECT hour_at, requests, errors, prompt_tokens, completion_tokens, token_nanos, first_byte, \
               service_id AS row_id FROM service_use WHERE service_id = $1 AND hour_at >= $2 ORDER BY hour_at";
    list!(tx, StoredHour, sql, service, since)
}
