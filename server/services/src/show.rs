//! The API's view of services, revisions and their use.

use std::collections::{BTreeMap, HashMap};

use berth_autoscaling::rollout::BOUNDS_MS;
use berth_service_types::revisions::{NewRevision, Revision};
use berth_service_types::services::{
    CanaryKey, RevisionSummary, Service, ServiceHour, ServiceReplica, ServiceUse, TokenPrice,
};
use berth_store::services::revisions::{StoredRevision, StoredSummary};
use berth_store::services::services::{StoredReplicaView, StoredService};
use berth_store::services::uses::{StoredCounts, StoredHour};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::{InferenceKeyId, JobId, ServiceId};
use berth_types::jobs::JobState;
use berth_types::time::Timestamp;

use crate::canary_keys;
use crate::hosts::owners::states;

const HOUR_S: i64 = 3_600;

/// The begin of the first of the last `hours` hours of UTC.
pub fn since_hours(now: Timestamp, hours: u32) -> Timestamp {
    let begun_s = now.micros().div_euclid(HOUR_S * 1_000_000) * HOUR_S;
    Timestamp::from_micros((begun_s - (i64::from(hours) - 1) * HOUR_S) * 1_000_000)
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn percent(number: i64) -> u8 {
    u8::try_from(number).unwrap_or(0)
}

/// The wire form of counts. Whole micro-units are charged, so the rest is cut.
pub fn service_use(counts: StoredCounts) -> ServiceUse {
    ServiceUse {
        requests: count(counts.requests),
        errors: count(counts.errors),
        prompt_tokens: count(counts.prompt_tokens),
        completion_tokens: count(counts.completion_tokens),
        token_micros: counts.token_nanos / 1_000,
    }
}

/// The parts of services by their ids.
struct Parts {
    revisions: HashMap<ServiceId, Vec<RevisionSummary>>,
    replicas: HashMap<ServiceId, Vec<ServiceReplica>>,
    last_day: HashMap<ServiceId, ServiceUse>,
}

impl Parts {
    async fn read(
        tx: &mut Tx<'_>,
        ids: &[ServiceId],
        with_keys: bool,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let rows = store::services::revisions::list_summaries(tx, ids).await?;
        let shown = rows.iter().filter(|_| with_keys);
        let keys: Vec<InferenceKeyId> = shown.flat_map(|row| row.canary_keys.iter().copied()).collect();
        let keys = canary_keys::named(tx, &keys, now).await?;
        let mut revisions: HashMap<ServiceId, Vec<RevisionSummary>> = HashMap::new();
        for row in rows {
            let service = row.service_id;
            revisions.entry(service).or_default().push(summary(row, &keys));
        }
        let mut nodes: HashMap<JobId, Vec<String>> = HashMap::new();
        for (job, node) in store::services::services::list_replica_nodes(tx, ids).await? {
            nodes.entry(job).or_default().push(node);
        }
        let mut replicas: HashMap<ServiceId, Vec<ServiceReplica>> = HashMap::new();
        for row in store::services::services::list_replicas(tx, ids).await? {
            let nodes = nodes.remove(&row.job_id).unwrap_or_default();
            replicas.entry(row.service_id).or_default().push(replica(row, nodes));
        }
        let day = store::services::uses::sum_by_service(tx, ids, since_hours(now, 24)).await?;
        let last_day = day.into_iter().map(|(id, counts)| (id, service_use(counts))).collect();
        Ok(Self { revisions, replicas, last_day })
    }
}

/// A key that is revoked, expired or not for the caller is left out.
fn summary(row: StoredSummary, keys: &HashMap<InferenceKeyId, CanaryKey>) -> RevisionSummary {
    RevisionSummary {
        id: row.id,
        number: row.number,
        state: row.state,
        weight_percent: percent(row.weight_percent),
        canary_keys: row.canary_keys.iter().filter_map(|id| keys.get(id).cloned()).collect(),
    }
}

/// The readiness counts for the present attempt only.
fn replica(row: StoredReplicaView, nodes: Vec<String>) -> ServiceReplica {
    let is_present = row.ready_attempt.is_some() && row.ready_attempt == row.attempt;
    ServiceReplica {
        job: row.job_id,
        revision: row.revision_id,
        revision_number: row.revision_number,
        state: row.state.unwrap_or(JobState::Queued),
        submitted: row.state.is_some(),
        ready_since: row.ready_since.filter(|_| is_present),
        draining_since: row.draining_since,
        nodes,
        created_at: row.created_at,
    }
}

/// The wire form of stored services. The keys of canaries are for callers who may run jobs, as the list of keys is.
pub async fn services(
    tx: &mut Tx<'_>,
    rows: Vec<StoredService>,
    with_keys: bool,
    now: Timestamp,
) -> Result<Vec<Service>, StoreError> {
    let ids: Vec<ServiceId> = rows.iter().map(|row| row.id).collect();
    let mut parts = Parts::read(tx, &ids, with_keys, now).await?;
    let mut hosts = states(tx, &rows).await?;
    let shown = |row: StoredService| {
        let host_states = hosts.remove(&row.id).unwrap_or_default();
        Service { host_states, ..service(row, &mut parts) }
    };
    Ok(rows.into_iter().map(shown).collect())
}

fn service(row: StoredService, parts: &mut Parts) -> Service {
    Service {
        id: row.id,
        org: row.org_id,
        state: row.state,
        detail: Some(row.detail).filter(|detail| !detail.is_empty()),
        protocol: row.protocol,
        access: row.access,
        hosts: row.hosts.0,
        host_states: Vec::new(),
        path: format!("/s/{}/{}", row.org_slug, row.name),
        name: row.name,
        models: row.models.0,
        token_price: TokenPrice {
            prompt_micros_per_million: row.nano_per_prompt_token.saturating_mul(1_000),
            completion_micros_per_million: row.nano_per_completion_token.saturating_mul(1_000),
        },
        max_body_bytes: count(row.max_body_bytes),
        scaling: row.scaling.0,
        rollout: row.rollout.0,
        decision: row.decision.0,
        stopped: row.stopped,
        revisions: parts.revisions.remove(&row.id).unwrap_or_default(),
        replicas: parts.replicas.remove(&row.id).unwrap_or_default(),
        created_at: row.created_at,
        created_by: row.created_by,
        last_day: parts.last_day.remove(&row.id).unwrap_or_default(),
    }
}

/// A specification without the texts of script, variables and files. The names of variables and files stay.
pub fn without_texts(mut spec: NewRevision) -> NewRevision {
    spec.job.script = None;
    spec.job.env.values_mut().for_each(String::clear);
    spec.job.files.values_mut().for_each(String::clear);
    spec
}

/// The wire form of a stored revision.
pub fn revision(row: StoredRevision) -> Revision {
    Revision {
        id: row.id,
        number: row.number,
        state: row.state,
        detail: Some(row.detail).filter(|detail| !detail.is_empty()),
        weight_percent: percent(row.weight_percent),
        spec: without_texts(row.spec.0),
        created_at: row.created_at,
        created_by: row.created_by,
    }
}

/// The upper bound of the bucket with a percentile; `None` without requests, and above all bounds.
fn percentile_ms(buckets: &[u64], percentile: u128) -> Option<u64> {
    let total: u128 = buckets.iter().map(|count| u128::from(*count)).sum();
    let mut sum = 0_u128;
    let bucket = buckets.iter().position(|count| {
        sum += u128::from(*count);
        sum > 0 && sum * 100 >= total * percentile
    });
    BOUNDS_MS.get(bucket?).map(|bound| u64::from(*bound))
}

/// The use of a service by hour, oldest first. An hour without requests is absent.
pub fn hours(rows: Vec<StoredHour>) -> Vec<ServiceHour> {
    let mut hours: BTreeMap<Timestamp, (StoredCounts, Vec<u64>)> = BTreeMap::new();
    for row in rows {
        let (counts, buckets) = hours
            .entry(row.hour_at)
            .or_insert_with(|| (StoredCounts::default(), vec![0; BOUNDS_MS.len() + 1]));
        counts.requests = counts.requests.saturating_add(row.requests);
        counts.errors = counts.errors.saturating_add(row.errors);
        counts.prompt_tokens = counts.prompt_tokens.saturating_add(row.prompt_tokens);
        counts.completion_tokens = counts.completion_tokens.saturating_add(row.completion_tokens);
        counts.token_nanos = counts.token_nanos.saturating_add(row.token_nanos);
        for (bucket, more) in buckets.iter_mut().zip(&row.first_byte.0) {
            *bucket = bucket.saturating_add(*more);
        }
    }
    let hour = |(at, (counts, buckets)): (Timestamp, (StoredCounts, Vec<u64>))| ServiceHour {
        at,
        used: service_use(counts),
        first_byte_p50_ms: percentile_ms(&buckets, 50),
        first_byte_p99_ms: percentile_ms(&buckets, 99),
    };
    hours.into_iter().map(hour).collect()
}

#[cfg(test)]
mod tests {
    use berth_store::types::JsonColumn;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_hours_begin_with_an_hour() {
        let since = |now: &str, hours| since_hours(now.parse().unwrap(), hours).to_string();
        let begin = |text: &str| text.parse::<Timestamp>().unwrap().to_string();
        assert_eq!(since("2026-11-27T02:59:59Z", 1), begin("2026-11-27T02:00:00Z"));
        assert_eq!(since("2026-11-27T02:00:00Z", 24), begin("2026-11-26T03:00:00Z"));
    }

    #[test]
    fn a_percentile_is_the_first_bucket_with_so_many_requests() {
        let mut buckets = vec![0; BOUNDS_MS.len() + 1];
        assert_eq!(percentile_ms(&buckets, 50), None);
        (buckets[2], buckets[5]) = (98, 2);
        assert_eq!((percentile_ms(&buckets, 50), percentile_ms(&buckets, 99)), (Some(3), Some(10)));
        buckets[5] = 0;
        assert_eq!(percentile_ms(&buckets, 99), Some(3));
        *buckets.last_mut().unwrap() = 100;
        assert_eq!((percentile_ms(&buckets, 40), percentile_ms(&buckets, 99)), (Some(3), None));
    }

    #[test]
    fn rows_of_an_hour_are_one_sum() {
        let row = |hour_s: i64, first_byte: Vec<u64>| StoredHour {
            hour_at: Timestamp::from_micros(hour_s * 1_000_000),
            requests: 2,
            errors: 1,
            prompt_tokens: 10,
            completion_tokens: 20,
            token_nanos: 1_500,
            first_byte: JsonColumn(first_byte),
        };
        let all = hours(vec![row(3_600, vec![1]), row(0, vec![0, 2]), row(3_600, vec![0, 3])]);
        assert_eq!(all.iter().map(|hour| hour.at.micros()).collect::<Vec<_>>(), [0, 3_600_000_000]);
        let used = |n: i64| ServiceUse {
            requests: 2 * count(n),
            errors: count(n),
            prompt_tokens: 10 * count(n),
            completion_tokens: 20 * count(n),
            token_micros: 1_500 * n / 1_000,
        };
        assert_eq!((all[0].used, all[1].used), (used(1), used(2)));
        assert_eq!(all[0].first_byte_p50_ms, Some(2));
        assert_eq!(all[1].first_byte_p50_ms, Some(2));
    }

    #[test]
    fn an_answer_has_names_and_no_texts() {
        let spec = json!({
            "job": {
                "name": "chat-r1", "offering": "h100-80gb", "script": "s3cret",
                "env": { "TOKEN": "s3cret" }, "files": { "a.py": "s3cret" },
            },
            "port": 80,
        });
        let shown = serde_json::to_value(without_texts(serde_json::from_value(spec).unwrap())).unwrap();
        assert!(!shown.to_string().contains("s3cret"), "{shown}");
        assert_eq!(shown["job"]["env"], json!({ "TOKEN": "" }));
        assert_eq!(shown["job"]["files"], json!({ "a.py": "" }));
    }
}
