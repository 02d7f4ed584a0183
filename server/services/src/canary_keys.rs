//! The inference keys whose requests all go to a canary: their check, and their names.

use std::collections::{BTreeSet, HashMap};

use berth_service_types::revisions::PutTraffic;
use berth_service_types::services::{CanaryKey, ServiceProtocol};
use berth_store::services::keys::StoredKey;
use berth_store::services::services::StoredService;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::ids::InferenceKeyId;
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;

/// Keys of a canary.
const MAX_KEYS: usize = 20;

/// True if gateways let a key use a service or one of its models.
fn may_use(key: &StoredKey, service: &StoredService) -> bool {
    let names = &key.models.0;
    names.is_empty()
        || match service.protocol {
            ServiceProtocol::OpenAi => service.models.iter().any(|model| names.contains(&model.name)),
            ServiceProtocol::Http => names.contains(&service.name),
        }
}

fn is_present(key: &StoredKey, now: Timestamp) -> bool {
    key.expires_at.is_none_or(|at| at > now)
}

/// Checks the keys of a canary of a service. Returns them in order, each once.
///
/// # Errors
/// There are too many, or any with the whole traffic, or one is no present key of the organization that may use the
/// service.
pub async fn check(
    tx: &mut Tx<'_>,
    service: &StoredService,
    traffic: &PutTraffic,
    now: Timestamp,
) -> Result<Vec<InferenceKeyId>, WriteError> {
    let keys = traffic.canary_keys.as_slice();
    if keys.len() > MAX_KEYS {
        let detail = "A canary has at most 20 inference keys of its own.";
        return Err(Problem::invalid_field("/canary_keys", detail).into());
    }
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    if traffic.percent == 100 {
        let detail = "With 100 % the revision becomes live and has no keys of its own. Send none.";
        return Err(Problem::invalid_field("/canary_keys", detail).into());
    }
    let rows = store::services::keys::list_of_ids(tx, keys).await?;
    let known: HashMap<InferenceKeyId, StoredKey> = rows.into_iter().map(|key| (key.id, key)).collect();
    let mut errors = Vec::new();
    for (index, id) in keys.iter().enumerate() {
        let detail = match known.get(id) {
            Some(key) if key.org_id == service.org_id && is_present(key, now) => {
                if may_use(key, service) {
                    continue;
                }
                "The key is not for this service or its models. Choose another one."
            }
            _ => "The organization has no inference key with this id. Choose a present one.",
        };
        errors.push(FieldError::new(format!("/canary_keys/{index}"), detail));
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors).into());
    }
    let distinct: BTreeSet<InferenceKeyId> = keys.iter().copied().collect();
    Ok(distinct.into_iter().collect())
}

/// The present ones of these keys with their names, by id.
pub async fn named(
    tx: &mut Tx<'_>,
    ids: &[InferenceKeyId],
    now: Timestamp,
) -> Result<HashMap<InferenceKeyId, CanaryKey>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = store::services::keys::list_of_ids(tx, ids).await?;
    let present = rows.into_iter().filter(|key| is_present(key, now));
    Ok(present.map(|key| (key.id, CanaryKey { id: key.id, name: key.name })).collect())
}
