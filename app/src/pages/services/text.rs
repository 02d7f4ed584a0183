//! Texts and figures of services. Pure.

use berth_service_types::revisions::RevisionState;
use berth_service_types::services::{
    RevisionSummary, Service, ServiceProtocol, ServiceReplica, ServiceState, ServiceUse,
};

use super::super::shell_words::quote;
use super::super::text::{counted, number, sentence};
use crate::ui::BarTile;

/// The cells that a bar can have, in the order of their size.
const BAR_CELLS: [u32; 21] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 28, 30, 56];

/// The part of a replica in the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaPhase {
    /// It gets requests.
    Ready,
    /// It gets no requests yet.
    Starting,
    /// It gets no new requests.
    Draining,
}

/// Returns the phase of a replica; none after the end of its job.
pub fn phase(replica: &ServiceReplica) -> Option<ReplicaPhase> {
    if replica.state.ended() {
        None
    } else if replica.draining_since.is_some() {
        Some(ReplicaPhase::Draining)
    } else if replica.ready_since.is_some() {
        Some(ReplicaPhase::Ready)
    } else {
        Some(ReplicaPhase::Starting)
    }
}

/// Returns the phases of all replicas, the ready ones first.
pub fn phases(replicas: &[ServiceReplica]) -> Vec<ReplicaPhase> {
    let mut phases: Vec<ReplicaPhase> = replicas.iter().filter_map(phase).collect();
    phases.sort_unstable();
    phases
}

/// Returns the numbers of replicas by phase: `2 ready, 1 starting`.
pub fn replicas_text(phases: &[ReplicaPhase]) -> String {
    let count = |wanted: ReplicaPhase| phases.iter().filter(|phase| **phase == wanted).count();
    let parts = [
        (count(ReplicaPhase::Ready), "ready"),
        (count(ReplicaPhase::Starting), "starting"),
        (count(ReplicaPhase::Draining), "draining"),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// Returns the cells of the bar of a service: its greatest number of replicas, or the present number if it is greater.
pub fn bar_cells(replicas: usize, max_replicas: u32) -> u32 {
    let wanted = u32::try_from(replicas).unwrap_or(u32::MAX).max(max_replicas).max(1);
    let largest = BAR_CELLS.last().copied().unwrap_or(1);
    BAR_CELLS.into_iter().find(|cells| *cells >= wanted).unwrap_or(largest)
}

/// Returns the tiles of the bar, one for each replica. Their patterns differ by phase.
pub fn replica_tiles(phases: &[ReplicaPhase], cells: u32) -> Vec<BarTile> {
    let tile = |(start, phase): (u32, &ReplicaPhase)| {
        let (word, pattern) = match phase {
            ReplicaPhase::Ready => ("ready", "plain"),
            ReplicaPhase::Starting => ("starting", "dots"),
            ReplicaPhase::Draining => ("draining", "stripes"),
        };
        BarTile {
            start,
            size: 1,
            label: String::new(),
            meta: String::new(),
            hue: 1,
            pattern: pattern.to_owned(),
            own: true,
            foreign: false,
            level: 0,
            aria: word.to_owned(),
        }
    };
    (0..cells).zip(phases).map(tile).collect()
}

/// Returns the traffic: `revision 3`, `revision 3, 10 % to revision 4`.
pub fn traffic_text(revisions: &[RevisionSummary]) -> String {
    let live = revisions.iter().find(|revision| revision.state == RevisionState::Live);
    let canary = revisions
        .iter()
        .find(|revision| revision.state == RevisionState::Canary && revision.weight_percent > 0);
    let starting = revisions.iter().find(|revision| revision.state == RevisionState::Staging);
    match (live, canary, starting) {
        (Some(live), Some(canary), _) => {
            format!("revision {}, {} % to revision {}", live.number, canary.weight_percent, canary.number)
        }
        (Some(live), None, _) => format!("revision {}", live.number),
        (None, Some(canary), _) => format!("revision {}", canary.number),
        (None, None, Some(starting)) => format!("revision {} starts", starting.number),
        (None, None, None) => "none".to_owned(),
    }
}

/// Returns the sentence about the keys whose requests all go to the canary; empty without one.
pub fn canary_keys_text(revisions: &[RevisionSummary]) -> String {
    let Some(revision) = revisions.iter().find(|revision| !revision.canary_keys.is_empty()) else {
        return String::new();
    };
    let names: Vec<&str> = revision.canary_keys.iter().map(|key| key.name.as_str()).collect();
    let (subject, verb) = match names.as_slice() {
        [one] => (format!("Key {one}"), "uses"),
        all => (format!("Keys {}", all.join(", ")), "use"),
    };
    if revision.state == RevisionState::Canary {
        format!("{subject} always {verb} the canary.")
    } else {
        format!("{subject} will always use the canary as soon as its replicas are ready.")
    }
}

/// Returns the sentence about the state of a service.
pub fn state_text(service: &Service) -> String {
    if service.stopped && !service.replicas.is_empty() {
        return "The service is stopped and refuses all requests. Its last replicas end after their requests."
            .to_owned();
    }
    if service.stopped {
        return "The service is stopped: it has no replicas and refuses all requests. Start it to serve again."
            .to_owned();
    }
    if let Some(detail) = service.detail.as_ref().filter(|detail| !detail.trim().is_empty()) {
        return sentence(detail);
    }
    let phases = phases(&service.replicas);
    let ready = phases.iter().filter(|phase| **phase == ReplicaPhase::Ready).count();
    match service.state {
        ServiceState::Asleep if !service.replicas.is_empty() => {
            "The service sleeps. Its remaining replicas belong to a starting revision, or are about to end. Each is charged until it ends.".to_owned()
        }
        ServiceState::Asleep => {
            "The service has no replicas and costs nothing. The first request starts one.".to_owned()
        }
        ServiceState::Waking => "The replicas start. Requests wait until the first one is ready.".to_owned(),
        ServiceState::Ready => {
            let verb = if ready == 1 { "answers" } else { "answer" };
            format!("{} {verb} requests.", counted(ready, "ready replica", "ready replicas"))
        }
        ServiceState::Degraded => {
            format!("Fewer replicas are ready than the service needs: {}.", replicas_text(&phases))
        }
        ServiceState::Failed => {
            "No replica is ready, and the last ones failed. Open the log of the last replica's job."
                .to_owned()
        }
    }
}

/// Returns all tokens of a use: prompts and completions.
pub const fn tokens(used: &ServiceUse) -> u64 {
    used.prompt_tokens.saturating_add(used.completion_tokens)
}

/// Returns a time to the first byte; a dash without a request.
pub fn latency_text(ms: Option<u64>) -> String {
    match ms {
        None => "–".to_owned(),
        Some(ms) if ms < 1_000 => format!("{ms} ms"),
        Some(ms) => format!("{}.{} s", number(ms / 1_000), ms % 1_000 / 100),
    }
}

/// Returns the address of a service at a gateway: the base of the OpenAI interface, or the path of the service.
pub fn service_url(gateway: &str, service: &Service) -> String {
    let gateway = gateway.trim_end_matches('/');
    match service.protocol {
        ServiceProtocol::OpenAi => format!("{gateway}/v1"),
        ServiceProtocol::Http => format!("{gateway}{}/", service.path.trim_end_matches('/')),
    }
}

/// Returns the fault of a path that leads out of the service; absent for a good one.
pub fn path_fault(path: &str) -> Option<String> {
    let before_query = path.trim().split('?').next().unwrap_or_default();
    // A browser reads a part as these changes show it.
    let read: String = before_query.chars().filter(|c| !c.is_ascii_control()).collect();
    let read = read.to_ascii_lowercase().replace("%2e", ".");
    let leaves = read.split(['/', '\\']).any(|part| part == "..");
    leaves.then(|| "Enter a path without the part \"..\": it would lead to another service.".to_owned())
}

/// Returns the body of a chat request with one message.
pub fn chat_body(model: &str, message: &str) -> String {
    serde_json::json!({
        "model": model,
        "messages": [{"role": "user", "content": message}],
        "stream": true,
    })
    .to_string()
}

/// Returns a first request of a service as a curl command. The key is always `$BERTH_KEY`.
pub fn first_request(gateway: &str, service: &Service, is_public: bool) -> String {
    let url = service_url(gateway, service);
    let key = if is_public { "" } else { " \\\n  -H \"Authorization: Bearer $BERTH_KEY\"" };
    match service.protocol {
        ServiceProtocol::Http => format!("curl {}{key}", quote(&url)),
        ServiceProtocol::OpenAi => {
            let model = service.models.first().map_or("", |model| model.name.as_str());
            let body = quote(&chat_body(model, "Hello"));
            let url = quote(&format!("{url}/chat/completions"));
            format!("curl -N {url}{key} \\\n  -H \"Content-Type: application/json\" \\\n  -d {body}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(state: &str, ready: bool, draining: bool) -> ServiceReplica {
        let at = |yes: bool| yes.then_some("2026-11-20T09:00:00Z");
        serde_json::from_value(serde_json::json!({
            "job": "job_00000000000000000000000001", "revision": "rev_00000000000000000000000001",
            "revision_number": 1, "state": state, "ready_since": at(ready), "draining_since": at(draining),
            "nodes": [], "created_at": "2026-11-20T09:00:00Z",
        }))
        .unwrap()
    }

    fn service(protocol: &str, state: &str, replicas: Vec<ServiceReplica>) -> Service {
        serde_json::from_value(serde_json::json!({
            "id": "svc_00000000000000000000000001", "org": "org_00000000000000000000000001", "name": "chat",
            "state": state, "protocol": protocol, "access": "organization", "hosts": [],
            "path": "/s/lab/chat", "models": [{"name": "it's", "context_tokens": 10}], "max_body_bytes": 10,
            "scaling": {}, "rollout": {}, "stopped": false, "revisions": [], "replicas": replicas,
            "created_at": "2026-11-20T09:00:00Z", "created_by": "Ada",
            "token_price": {"prompt_micros_per_million": 0, "completion_micros_per_million": 0},
            "last_day": {"requests": 0, "errors": 0, "prompt_tokens": 0, "completion_tokens": 0, "token_micros": 0},
        }))
        .unwrap()
    }

    #[test]
    fn a_path_stays_below_the_address_of_the_service() {
        for path in ["", "/", "/a/..b/c..", "a/./b", "/...", "/a?b=/../c"] {
            assert_eq!(path_fault(path), None, "{path}");
        }
        for path in ["..", "../../x", "/a/../b", "/%2E./a", "a\\..\\b", "/.\t./a", "#/../a", "/..?a"] {
            assert!(path_fault(path).is_some(), "{path}");
        }
    }

    #[test]
    fn each_replica_has_one_phase() {
        use ReplicaPhase::{Draining, Ready, Starting};
        for (state, ready, draining, expected) in [
            ("queued", false, false, Some(Starting)),
            ("running", false, false, Some(Starting)),
            ("running", true, false, Some(Ready)),
            ("running", true, true, Some(Draining)),
            ("stopping", false, true, Some(Draining)),
            ("failed", true, false, None),
            ("cancelled", false, true, None),
        ] {
            assert_eq!(phase(&replica(state, ready, draining)), expected, "{state} {ready} {draining}");
        }
        let all = [
            replica("running", true, true),
            replica("queued", false, false),
            replica("failed", false, false),
            replica("running", true, false),
            replica("running", true, false),
        ];
        assert_eq!(phases(&all), [Ready, Ready, Starting, Draining]);
        assert_eq!(replicas_text(&phases(&all)), "2 ready, 1 starting, 1 draining");
        assert_eq!(replicas_text(&[]), "none");
    }

    #[test]
    fn a_bar_has_a_cell_for_each_replica() {
        for replicas in 0..60_usize {
            for most in [1, 3, 16, 17, 31, 56] {
                let wanted = u32::try_from(replicas).unwrap().max(most);
                let cells = bar_cells(replicas, most);
                assert!(cells >= wanted.min(56) && BAR_CELLS.contains(&cells), "{replicas} {most}");
                assert!(wanted > 16 || cells == wanted, "{replicas} {most}");
            }
        }
        assert_eq!(bar_cells(100, 100), 56);
        let tiles = replica_tiles(&[ReplicaPhase::Ready, ReplicaPhase::Starting, ReplicaPhase::Draining], 2);
        let drawn: Vec<(u32, &str)> = tiles.iter().map(|tile| (tile.start, tile.pattern.as_str())).collect();
        assert_eq!(drawn, [(0, "plain"), (1, "dots")], "no tile beyond the bar");
    }

    #[test]
    fn traffic_names_the_live_revision_and_the_canary() {
        let revision = |number: i64, state: RevisionState, weight_percent: u8| RevisionSummary {
            id: "rev_00000000000000000000000001".parse().unwrap(),
            number,
            state,
            weight_percent,
            canary_keys: Vec::new(),
        };
        let live = revision(3, RevisionState::Live, 90);
        let canary = revision(4, RevisionState::Canary, 10);
        let staging = revision(5, RevisionState::Staging, 0);
        for (revisions, text) in [
            (vec![], "none"),
            (vec![staging.clone()], "revision 5 starts"),
            (vec![live.clone(), staging], "revision 3"),
            (vec![live.clone(), canary], "revision 3, 10 % to revision 4"),
            (vec![live, revision(4, RevisionState::Canary, 0)], "revision 3"),
        ] {
            assert_eq!(traffic_text(&revisions), text);
        }
    }

    #[test]
    fn keys_of_the_canary_are_one_sentence() {
        let revision = |state: &str, names: &[&str]| -> RevisionSummary {
            let key =
                |name: &&str| serde_json::json!({"id": "ikey_00000000000000000000000001", "name": name});
            let keys: Vec<serde_json::Value> = names.iter().map(key).collect();
            serde_json::from_value(serde_json::json!({
                "id": "rev_00000000000000000000000001", "number": 2, "state": state, "weight_percent": 0,
                "canary_keys": keys,
            }))
            .unwrap()
        };
        let live = revision("live", &[]);
        assert_eq!(canary_keys_text(&[live.clone(), revision("canary", &[])]), "");
        let one = canary_keys_text(&[live.clone(), revision("canary", &["app"])]);
        assert_eq!(one, "Key app always uses the canary.");
        let two = canary_keys_text(&[live.clone(), revision("canary", &["app", "batch"])]);
        assert_eq!(two, "Keys app, batch always use the canary.");
        let staging = canary_keys_text(&[live, revision("staging", &["app"])]);
        assert_eq!(staging, "Key app will always use the canary as soon as its replicas are ready.");
    }

    #[test]
    fn each_state_has_a_sentence() {
        let ready = service("http", "ready", vec![replica("running", true, false)]);
        assert_eq!(state_text(&ready), "1 ready replica answers requests.");
        for state in ServiceState::ALL {
            let text = state_text(&service("http", state.name(), Vec::new()));
            assert!(text.ends_with('.'), "{text}");
        }
        let failed = Service { detail: Some("Replica 2 ended with code 3".to_owned()), ..ready.clone() };
        assert_eq!(state_text(&failed), "Replica 2 ended with code 3.");
        let stopped = Service { stopped: true, ..failed };
        assert!(state_text(&stopped).ends_with("Its last replicas end after their requests."));
        let ended = state_text(&Service { replicas: Vec::new(), ..stopped });
        assert!(ended.starts_with("The service is stopped: it has no replicas"), "{ended}");
    }

    #[test]
    fn a_first_request_has_the_address_and_no_key() {
        let http = first_request("https://gw.example/", &service("http", "ready", Vec::new()), false);
        assert_eq!(http, "curl https://gw.example/s/lab/chat/ \\\n  -H \"Authorization: Bearer $BERTH_KEY\"");
        let public = first_request("https://gw.example", &service("http", "ready", Vec::new()), true);
        assert_eq!(public, "curl https://gw.example/s/lab/chat/");
        let chat = first_request("https://gw.example", &service("openai", "ready", Vec::new()), false);
        assert!(chat.starts_with("curl -N https://gw.example/v1/chat/completions \\\n"), "{chat}");
        let (_, body) = chat.split_once("-d ").unwrap();
        let [body]: [String; 1] = super::super::super::shell_words::split(body).unwrap().try_into().unwrap();
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["model"], "it's");
    }

    #[test]
    fn a_latency_has_a_unit() {
        let texts = [None, Some(0), Some(999), Some(1_000), Some(12_345)].map(latency_text);
        assert_eq!(texts, ["–", "0 ms", "999 ms", "1.0 s", "12.3 s"]);
    }
}
