//! Checks of services and revisions that need no database.

use std::collections::HashSet;
use std::net::IpAddr;

use berth_core::admission::{MAX_LABELS, check_job};
use berth_service_types::revisions::{NewRevision, ReplicaProtocol, RolloutRule};
use berth_service_types::scaling::Scaling;
use berth_service_types::services::{NewService, PatchService, ServiceModel, ServiceProtocol, TokenPrice};
use berth_serving::snapshot::{MAX_BODY_BYTES, MAX_CONCURRENCY, MAX_CONTEXT_TOKENS, is_host};
use berth_types::problems::FieldError;

use crate::rollouts::plan;
use crate::schedules;

/// Characters of the name of a service or a gateway.
const MAX_NAME_CHARS: usize = 40;
/// Hosts of a service.
const MAX_HOSTS: usize = 8;
/// Models of a service.
const MAX_MODELS: usize = 16;
/// Characters of the name of a model.
const MAX_MODEL_CHARS: usize = 100;
/// Replicas of a service.
const MAX_REPLICAS: u32 = 100;
/// Seconds before the number of replicas changes.
const MAX_DELAY_S: u32 = 3_600;
/// Seconds without a request before a service falls asleep: a week.
const MAX_IDLE_S: u32 = 604_800;
/// The greatest least number of requests of a step of a canary.
const MAX_STEP_REQUESTS: u64 = 1_000_000;
/// The longest least time of a step of a canary: a day.
const MAX_STEP_S: u32 = 86_400;
/// Characters of a readiness path.
const MAX_PATH_CHARS: usize = 200;
/// Characters of the name in a check of a gRPC server.
const MAX_GRPC_NAME_CHARS: usize = 100;
/// Seconds from the start of a replica to its readiness: a day.
const MAX_READY_S: u32 = 86_400;
/// Characters of the note of a revision.
const MAX_NOTE_CHARS: usize = 300;
/// Bytes of a specification as JSON. A service keeps a hundred of them.
const MAX_SPEC_BYTES: usize = 256 << 10;
/// Micro-units of the currency for a million tokens.
const MAX_TOKEN_PRICE: i64 = 1_000_000_000_000;
/// The label of the jobs of replicas.
pub const LABEL: &str = "berth-service";

/// True for a name in addresses: lower-case letters, digits and hyphens, with a letter first.
pub fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME_CHARS
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// True for the name of a model: 1 to 100 printable ASCII characters without spaces.
pub fn is_model_name(name: &str) -> bool {
    (1..=MAX_MODEL_CHARS).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
}

/// All faults of a new service that are visible without the database.
pub fn check_service(input: &NewService) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !is_name(&input.name) {
        let detail = "Use 1 to 40 lower-case letters, digits and hyphens, with a letter first.";
        errors.push(FieldError::new("/name", detail));
    }
    check_hosts(&input.hosts, &mut errors);
    check_models(input.protocol, &input.models, &mut errors);
    if !(1..=MAX_BODY_BYTES).contains(&input.max_body_bytes) {
        errors.push(FieldError::new("/max_body_bytes", "Enter 1 to 67108864 bytes (64 MiB)."));
    }
    check_scaling(&input.scaling, &mut errors);
    check_rollout(&input.rollout, &mut errors);
    errors.extend(check_revision("/revision", &input.revision));
    errors
}

/// All faults of a change of a service that are visible without the database.
pub fn check_patch(input: &PatchService) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_hosts(input.hosts.as_deref().unwrap_or_default(), &mut errors);
    if let Some(scaling) = &input.scaling {
        check_scaling(scaling, &mut errors);
    }
    if let Some(rollout) = &input.rollout {
        check_rollout(rollout, &mut errors);
    }
    errors
}

/// All faults of the models of a service with this protocol.
pub fn check_model_list(protocol: ServiceProtocol, models: &[ServiceModel]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_models(protocol, models, &mut errors);
    errors
}

fn check_hosts(hosts: &[String], errors: &mut Vec<FieldError>) {
    if hosts.len() > MAX_HOSTS {
        errors.push(FieldError::new("/hosts", "A service has at most 8 host names."));
        return;
    }
    let mut seen = HashSet::new();
    for (index, host) in hosts.iter().enumerate() {
        let mut refuse = |detail: &str| errors.push(FieldError::new(format!("/hosts/{index}"), detail));
        // An address is that of a gateway, and a name without a dot is one of a private network.
        if !is_host(host) || !host.contains('.') || host.parse::<IpAddr>().is_ok() {
            refuse("Enter a host name in lower case with a dot, such as models.example.org.");
        } else if !seen.insert(host) {
            refuse("This host name is in the list twice.");
        }
    }
}

fn check_models(protocol: ServiceProtocol, models: &[ServiceModel], errors: &mut Vec<FieldError>) {
    match protocol {
        ServiceProtocol::Http if !models.is_empty() => {
            errors.push(FieldError::new("/models", "Only a service with the protocol openai has models."));
            return;
        }
        ServiceProtocol::OpenAi if models.is_empty() || models.len() > MAX_MODELS => {
            let detail = "Enter 1 to 16 models for a service with the protocol openai.";
            errors.push(FieldError::new("/models", detail));
            return;
        }
        ServiceProtocol::Http | ServiceProtocol::OpenAi => {}
    }
    let mut seen = HashSet::new();
    for (index, model) in models.iter().enumerate() {
        let pointer = format!("/models/{index}");
        if !is_model_name(&model.name) {
            let detail = "Use 1 to 100 printable ASCII characters without spaces.";
            errors.push(FieldError::new(format!("{pointer}/name"), detail));
        } else if !seen.insert(&model.name) {
            errors.push(FieldError::new(format!("{pointer}/name"), "This model is in the list twice."));
        }
        if !(1..=MAX_CONTEXT_TOKENS).contains(&model.context_tokens) {
            let detail = "Enter 1 to 10000000 tokens.";
            errors.push(FieldError::new(format!("{pointer}/context_tokens"), detail));
        }
    }
}

fn check_scaling(scaling: &Scaling, errors: &mut Vec<FieldError>) {
    let mut refuse = |field: &str, detail: &str| {
        errors.push(FieldError::new(format!("/scaling/{field}"), detail));
    };
    if !(1..=MAX_REPLICAS).contains(&scaling.max_replicas) {
        refuse("max_replicas", "Enter 1 to 100 replicas.");
    }
    if scaling.min_replicas > scaling.max_replicas.min(MAX_REPLICAS) {
        refuse("min_replicas", "Enter 0 to 100 replicas, and at most max_replicas.");
    }
    if !(1..=MAX_CONCURRENCY).contains(&scaling.target_requests) {
        refuse("target_requests", "Enter 1 to 10000 requests.");
    }
    if scaling.up_delay_s > MAX_DELAY_S {
        refuse("up_delay_s", "Enter 0 to 3600 seconds.");
    }
    if scaling.down_delay_s > MAX_DELAY_S {
        refuse("down_delay_s", "Enter 0 to 3600 seconds.");
    }
    if scaling.idle_s > MAX_IDLE_S || scaling.idle_s < scaling.down_delay_s {
        refuse("idle_s", "Enter at least down_delay_s and at most 604800 seconds (a week).");
    }
    schedules::check(scaling, errors);
}

fn check_rollout(rule: &RolloutRule, errors: &mut Vec<FieldError>) {
    let mut refuse = |field: &str, detail: &str| {
        errors.push(FieldError::new(format!("/rollout/{field}"), detail));
    };
    if !(1..=MAX_STEP_REQUESTS).contains(&rule.min_requests) {
        refuse("min_requests", "Enter 1 to 1000000 requests.");
    }
    if !(1..=MAX_STEP_S).contains(&rule.min_seconds) {
        refuse("min_seconds", "Enter 1 to 86400 seconds (a day).");
    }
    if rule.error_percent > 100 {
        refuse("error_percent", "Enter 0 to 100 percent.");
    }
}

/// All faults of a revision that are visible without the database, with `base` before their pointers. The job has its
/// name already.
pub fn check_revision(base: &str, revision: &NewRevision) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut refuse =
        |field: &str, detail: &str| errors.push(FieldError::new(format!("{base}{field}"), detail));
    for fault in check_job(&revision.job) {
        refuse(&format!("/job{}", fault.pointer), &fault.detail);
    }
    check_replica_job(revision, &mut refuse);
    if revision.port == 0 {
        refuse("/port", "Enter 1 to 65535.");
    }
    if !is_readiness_path(&revision.readiness_path, revision.replica_protocol) {
        let detail = "Use at most 200 printable ASCII characters without spaces, with / first. With HTTP/2 also grpc: or grpc:NAME with a name of at most 100 characters.";
        refuse("/readiness_path", detail);
    }
    if !(1..=MAX_READY_S).contains(&revision.ready_within_s) {
        refuse("/ready_within_s", "Enter 1 to 86400 seconds (a day).");
    }
    if !(1..=MAX_CONCURRENCY).contains(&revision.concurrency) {
        refuse("/concurrency", "Enter 1 to 10000 requests.");
    }
    if plan(revision).is_err() {
        refuse("/canary_percent", "Enter at most 20 percentages that rise, each 0 to 99.");
    }
    let note = &revision.note;
    if note.chars().count() > MAX_NOTE_CHARS || note.chars().any(char::is_control) {
        refuse("/note", "Use at most 300 printable characters on one line.");
    }
    if serde_json::to_vec(revision).map_or(usize::MAX, |text| text.len()) > MAX_SPEC_BYTES {
        let detail = "A revision has at most 256 KiB as JSON. Put larger content into an image or a volume.";
        refuse("", detail);
    }
    errors
}

/// True for a path of HTTP, or for the check of the health of a gRPC server.
fn is_readiness_path(path: &str, protocol: ReplicaProtocol) -> bool {
    let grpc = path.strip_prefix("grpc:").filter(|_| protocol == ReplicaProtocol::Http2);
    let fits = grpc.map_or(path.starts_with('/'), |name| name.len() <= MAX_GRPC_NAME_CHARS);
    fits && path.len() <= MAX_PATH_CHARS && path.bytes().all(|b| b.is_ascii_graphic())
}

/// Checks what a job may not have as a replica.
fn check_replica_job(revision: &NewRevision, refuse: &mut impl FnMut(&str, &str)) {
    let job = &revision.job;
    if !job.depends_on.is_empty() {
        refuse("/job/depends_on", "A replica waits for no job. Omit the field.");
    }
    if job.reservation.is_some() {
        refuse("/job/reservation", "A replica runs outside of reservations. Omit the field.");
    }
    if !job.ports.is_empty() && !job.ports.contains(&u32::from(revision.port)) {
        refuse("/job/ports", "Add the port of the revision, or omit the field.");
    }
    if job.labels.contains_key(LABEL) {
        refuse("/job/labels", "The label berth-service has the name of the service. Omit it.");
    } else if job.labels.len() == MAX_LABELS {
        refuse("/job/labels", "A replica has at most 31 labels beside berth-service.");
    }
}

/// All faults of a price of tokens.
pub fn check_token_price(price: &TokenPrice) -> Vec<FieldError> {
    let fields = [
        ("/prompt_micros_per_million", price.prompt_micros_per_million),
        ("/completion_micros_per_million", price.completion_micros_per_million),
    ];
    // A token has whole nano-units.
    let bad = |(_, micros): &(&str, i64)| !(0..=MAX_TOKEN_PRICE).contains(micros) || micros % 1_000 != 0;
    let detail = "Enter 0 to 1000000000000 micro-units for a million tokens, a multiple of 1000.";
    fields.into_iter().filter(bad).map(|(pointer, _)| FieldError::new(pointer, detail)).collect()
}

#[cfg(test)]
mod tests;
