//! Examples of services, inference keys and gateways.

use berth_service_types::gateways::NewGateway;
use berth_service_types::hosts::{CheckHost, ConfirmHost};
use berth_service_types::keys::NewInferenceKey;
use berth_service_types::promises::{
    NewPromise, PatchPromise, PromiseTerms, PromiseWindow, PromisedShare, PromisedTime, PutServicePromise,
};
use berth_service_types::revisions::{NewRevision, PutTraffic, ReplicaProtocol, RolloutRule};
use berth_service_types::scaling::Scaling;
use berth_service_types::services::{
    NewService, PatchService, ServiceAccess, ServiceModel, ServiceProtocol, TokenPrice,
};
use berth_types::jobs::NewJob;

use serde_json::Value;

use super::{EXPIRY, OFFERING, value};

const MODEL: &str = "llama-3.1-8b";
const HOST: &str = "chat.example.org";

pub fn by_schema() -> Vec<(&'static str, Vec<Value>)> {
    vec![
        ("NewService", vec![value(new_service())]),
        ("PatchService", vec![value(patch_service())]),
        ("NewRevision", vec![value(new_revision())]),
        ("PutTraffic", vec![value(put_traffic())]),
        ("TokenPrice", vec![value(token_price())]),
        ("NewInferenceKey", vec![value(new_inference_key())]),
        ("NewPromise", vec![value(new_promise())]),
        ("PatchPromise", vec![value(PatchPromise { name: Some("gold".to_owned()), terms: None })]),
        ("PutServicePromise", vec![value(PutServicePromise::default())]),
        ("NewGateway", vec![value(new_gateway())]),
        ("CheckHost", vec![value(CheckHost { host: HOST.to_owned() })]),
        ("ConfirmHost", vec![value(ConfirmHost { host: HOST.to_owned(), confirmed: true })]),
    ]
}

fn new_service() -> NewService {
    NewService {
        name: "chat".to_owned(),
        protocol: ServiceProtocol::OpenAi,
        access: ServiceAccess::Organization,
        hosts: vec!["chat.example.org".to_owned()],
        models: vec![ServiceModel { name: MODEL.to_owned(), context_tokens: 8_192 }],
        max_body_bytes: 1 << 20,
        scaling: Scaling { min_replicas: 0, max_replicas: 4, ..Scaling::default() },
        rollout: RolloutRule::default(),
        revision: NewRevision { canary_percent: Vec::new(), note: String::new(), ..new_revision() },
    }
}

fn patch_service() -> PatchService {
    PatchService { stopped: Some(true), ..PatchService::default() }
}

fn new_revision() -> NewRevision {
    let command = ["python3", "-m", "server", "--port", "8000"];
    NewRevision {
        job: NewJob {
            name: "chat".to_owned(),
            offering: OFFERING.to_owned(),
            count: 1,
            nodes: 1,
            command: Some(command.map(str::to_owned).to_vec()),
            max_duration_s: 86_400,
            ..NewJob::default()
        },
        port: 8_000,
        replica_protocol: ReplicaProtocol::Http1,
        readiness_path: "/health".to_owned(),
        ready_within_s: 600,
        concurrency: 16,
        canary_percent: vec![5, 25, 50],
        note: "A newer version of the server".to_owned(),
    }
}

fn put_traffic() -> PutTraffic {
    PutTraffic { revision: 2, percent: 25, canary_keys: Vec::new() }
}

fn token_price() -> TokenPrice {
    TokenPrice { prompt_micros_per_million: 150_000, completion_micros_per_million: 600_000 }
}

fn new_inference_key() -> NewInferenceKey {
    NewInferenceKey {
        name: "Batch translation".to_owned(),
        models: vec![MODEL.to_owned()],
        requests_per_minute: Some(600),
        tokens_per_minute: Some(1_000_000),
        day_budget_micros: None,
        month_budget_micros: Some(50_000_000),
        total_budget_micros: None,
        expires_at: Some(EXPIRY),
    }
}

fn new_promise() -> NewPromise {
    let (good_ppm, credit_basis_points) = (995_000, 1_000);
    let time = |within_ms| Some(PromisedTime { within_ms, good_ppm: 950_000, credit_basis_points: 500 });
    let terms = PromiseTerms {
        window: PromiseWindow::Day,
        availability: Some(PromisedShare { good_ppm, credit_basis_points }),
        first_token: time(1_000),
        wake: time(60_000),
        surcharge_basis_points: 1_000,
    };
    NewPromise { name: "gold".to_owned(), terms }
}

fn new_gateway() -> NewGateway {
    NewGateway { name: "gateway-1".to_owned(), url: "https://models.example.org".to_owned() }
}
