//! The inference keys of organizations. The portal has their hashes only.

use std::collections::{HashMap, HashSet};

use berth_core::admission::check_name;
use berth_foundation::credentials::new_opaque;
use berth_foundation::days::month_start_day;
use berth_foundation::{Caller, Change, Context, Right, idempotency};
use berth_service_types::keys::{InferenceKey, InferenceKeySpec, NewInferenceKey};
use berth_service_types::services::ServiceUse;
use berth_serving::snapshot::{KeyHash, MAX_ALLOWED, MAX_KEYS};
use berth_store::services::keys::StoredKey;
use berth_store::types::JsonColumn;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::Page;
use berth_types::ids::{InferenceKeyId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::checks::is_model_name;
use crate::show::service_use;

/// Keys of an organization.
const MAX_ORG_KEYS: i64 = 500;
/// Bytes of the names in a key: each gateway gets all keys.
const MAX_NAMES_BYTES: usize = 2_048;
/// Requests a minute at a gateway.
const MAX_REQUESTS: u64 = 1_000_000;
/// Tokens a minute at a gateway.
const MAX_TOKENS: u64 = 1_000_000_000;
/// Micro-units of the currency in a budget.
const MAX_BUDGET_MICROS: i64 = 1_000_000_000_000_000;
/// The begin of each secret.
const PREFIX: &str = "sk-berth-";
/// The characters of a secret in its hint.
const HINT_CHARS: usize = 4;
const DAY_US: i64 = 86_400_000_000;

/// The inference keys of organizations.
#[derive(Clone)]
pub struct InferenceKeys {
    context: Context,
}

/// All faults of a new key.
fn check(input: &NewInferenceKey, now: Timestamp) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_name("/name", &input.name, &mut errors);
    let names_bytes: usize = input.models.iter().map(String::len).sum();
    if names_bytes > MAX_NAMES_BYTES {
        errors.push(FieldError::new("/models", "The names of the models have more than 2,048 bytes in all."));
    }
    if input.models.len() > MAX_ALLOWED {
        errors.push(FieldError::new("/models", "A key names at most 100 models and services."));
    } else {
        let bad = input.models.iter().enumerate().filter(|(_, name)| !is_model_name(name));
        errors.extend(bad.map(|(index, _)| {
            let detail = "Use 1 to 100 printable ASCII characters without spaces.";
            FieldError::new(format!("/models/{index}"), detail)
        }));
        let mut known = HashSet::new();
        let again = input.models.iter().enumerate().filter(|(_, name)| !known.insert(name.as_str()));
        errors.extend(again.map(|(index, _)| {
            FieldError::new(format!("/models/{index}"), "Name each model and service once.")
        }));
    }
    let mut refuse = |pointer: &str, detail: &str| errors.push(FieldError::new(pointer, detail));
    if input.requests_per_minute.is_some_and(|rate| !(1..=MAX_REQUESTS).contains(&rate)) {
        refuse("/requests_per_minute", "Enter 1 to 1000000 requests, or omit the field.");
    }
    if input.tokens_per_minute.is_some_and(|rate| !(1..=MAX_TOKENS).contains(&rate)) {
        refuse("/tokens_per_minute", "Enter 1 to 1000000000 tokens, or omit the field.");
    }
    for (pointer, budget) in [
        ("/day_budget_micros", input.day_budget_micros),
        ("/month_budget_micros", input.month_budget_micros),
        ("/total_budget_micros", input.total_budget_micros),
    ] {
        if budget.is_some_and(|micros| !(1..=MAX_BUDGET_MICROS).contains(&micros)) {
            refuse(pointer, "Enter 1 to 10^15 micro-units of the currency, or omit the field.");
        }
    }
    if input.expires_at.is_some_and(|at| at <= now) {
        refuse("/expires_at", "Choose a time in the future, or omit the field.");
    }
    errors
}

fn wire_key(row: StoredKey, this_month: ServiceUse, secret: Option<String>) -> InferenceKey {
    let rate = |rate: Option<i64>| rate.and_then(|rate| u64::try_from(rate).ok());
    InferenceKey {
        id: row.id,
        spec: InferenceKeySpec {
            name: row.name,
            models: row.models.0,
            requests_per_minute: rate(row.requests_per_minute),
            tokens_per_minute: rate(row.tokens_per_minute),
            day_budget_micros: row.day_budget_micros,
            month_budget_micros: row.month_budget_micros,
            total_budget_micros: row.total_budget_micros,
            expires_at: row.expires_at,
        },
        hint: row.hint,
        created_at: row.created_at,
        created_by: row.created_by,
        last_used_at: row.last_used_at,
        this_month,
        secret,
    }
}

/// Refuses a key beyond the limits of its organization and of the portal.
async fn check_limits(tx: &mut Tx<'_>, org: OrgId) -> Result<(), WriteError> {
    let limit = |detail: &str| Problem::conflict("inference_key.limit", "Too many keys", detail);
    if store::services::keys::count(tx, Some(org)).await? >= MAX_ORG_KEYS {
        return Err(limit("An organization has at most 500 inference keys. Revoke an unused one.").into());
    }
    let most = i64::try_from(MAX_KEYS).unwrap_or(i64::MAX);
    if store::services::keys::count(tx, None).await? >= most {
        let detail = "The portal has 100000 inference keys. Nothing was created. Ask the operator.";
        return Err(limit(detail).into());
    }
    Ok(())
}

impl InferenceKeys {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    fn new_row(&self, caller: &Caller, org: OrgId, input: NewInferenceKey, secret: &str) -> StoredKey {
        let now = self.context.now();
        let rate = |rate: Option<u64>| rate.and_then(|rate| i64::try_from(rate).ok());
        StoredKey {
            id: self.context.new_id(now),
            // The write has the number.
            number: 0,
            org_id: org,
            name: input.name.trim().to_owned(),
            hint: secret.chars().skip(secret.len().saturating_sub(HINT_CHARS)).collect(),
            models: JsonColumn(input.models),
            requests_per_minute: rate(input.requests_per_minute),
            tokens_per_minute: rate(input.tokens_per_minute),
            day_budget_micros: input.day_budget_micros,
            month_budget_micros: input.month_budget_micros,
            total_budget_micros: input.total_budget_micros,
            expires_at: input.expires_at,
            last_used_at: None,
            created_at: now,
            created_by: caller.user.name.clone(),
        }
    }

    /// Creates a key. Only this answer has its secret.
    ///
    /// # Errors
    /// The key is invalid, or the organization has too many.
    pub async fn create_key(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewInferenceKey,
    ) -> Result<InferenceKey, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        self.context.check_proof(caller)?;
        if caller.already_created().is_some() {
            return Err(idempotency::shown_once());
        }
        let errors = check(&input, self.context.now());
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let secret = format!("{PREFIX}{}", self.context.random(new_opaque));
        let hash = String::from(KeyHash::new(&secret));
        let row = self.new_row(caller, org, input, &secret);
        let (now, subject) = (row.created_at, row.id.to_string());
        let event = self.context.audit_event(caller, "inference_key.created", subject, row.name.clone());
        let (new, key) = (row.clone(), caller.idempotency_key.clone());
        let done = self.context.db.try_write(move |tx| {
            let (mut row, hash) = (new.clone(), hash.clone());
            let (event, key) = (event.clone(), key.clone());
            async move {
                check_limits(tx, org).await?;
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                row.number = store::services::keys::last_number(tx).await? + 1;
                store::services::keys::insert(tx, &row, &hash).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::InferenceKeys(org));
        Ok(wire_key(row, ServiceUse::default(), Some(secret)))
    }

    /// A page of the keys of an organization, without their secrets. Budgets and spending are not for viewers.
    pub async fn list_keys(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<InferenceKeyId>,
    ) -> Result<Page<InferenceKey>, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let month = Timestamp::from_micros(month_start_day(self.context.now()).saturating_mul(DAY_US));
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let page = options.page(store::services::keys::list_page(&mut tx, org, options).await?, |row| row.id);
        let ids: Vec<InferenceKeyId> = page.items.iter().map(|row| row.id).collect();
        let used = store::services::uses::sum_by_key(&mut tx, &ids, month).await?;
        let used: HashMap<InferenceKeyId, ServiceUse> =
            used.into_iter().map(|(id, counts)| (id, service_use(counts))).collect();
        Ok(page.map(|row| {
            let this_month = used.get(&row.id).copied().unwrap_or_default();
            wire_key(row, this_month, None)
        }))
    }

    /// Revokes a key. Gateways refuse it from their next snapshot on.
    pub async fn revoke_key(&self, caller: &Caller, org: OrgId, id: InferenceKeyId) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let now = self.context.now();
        let event = self.context.audit_event(caller, "inference_key.revoked", id.to_string(), String::new());
        let known = self.context.db.write(move |tx| {
            let mut event = event.clone();
            async move {
                let Some(name) = store::services::keys::revoke(tx, org, id, now).await? else {
                    return Ok(false);
                };
                event.detail = name;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok::<bool, StoreError>(true)
            }
            .boxed()
        });
        if !known.await? {
            return Err(Problem::not_found());
        }
        self.context.publish(Change::InferenceKeys(org));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pointers(change: Value) -> Vec<String> {
        let now = Timestamp::from_micros(1_000_000);
        let mut body = json!({ "name": "batch" });
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let input = serde_json::from_value(body).unwrap();
        check(&input, now).into_iter().map(|fault| fault.pointer).collect()
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("m{number}")).collect()
    }

    #[test]
    fn each_fault_of_a_key_is_named() {
        assert_eq!(pointers(json!({})), Vec::<String>::new());
        let most = json!({
            "models": names(100), "requests_per_minute": MAX_REQUESTS, "tokens_per_minute": MAX_TOKENS,
            "total_budget_micros": MAX_BUDGET_MICROS, "expires_at": "1970-01-01T00:00:02Z",
        });
        assert_eq!(pointers(most), Vec::<String>::new());
        for (change, pointer) in [
            (json!({ "name": " " }), "/name"),
            (json!({ "models": names(101) }), "/models"),
            (json!({ "models": ["m", "n", "m"] }), "/models/2"),
            (json!({ "models": ["m", "a b"] }), "/models/1"),
            (json!({ "requests_per_minute": 0 }), "/requests_per_minute"),
            (json!({ "requests_per_minute": MAX_REQUESTS + 1 }), "/requests_per_minute"),
            (json!({ "tokens_per_minute": 0 }), "/tokens_per_minute"),
            (json!({ "tokens_per_minute": MAX_TOKENS + 1 }), "/tokens_per_minute"),
            (json!({ "day_budget_micros": 0 }), "/day_budget_micros"),
            (json!({ "month_budget_micros": -1 }), "/month_budget_micros"),
            (json!({ "total_budget_micros": MAX_BUDGET_MICROS + 1 }), "/total_budget_micros"),
            (json!({ "expires_at": "1970-01-01T00:00:01Z" }), "/expires_at"),
        ] {
            assert_eq!(pointers(change), [pointer]);
        }
    }
}
