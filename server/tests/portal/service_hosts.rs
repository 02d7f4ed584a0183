//! Tests of the proof of host names of services, with a DNS server on this host.

use berth_foundation::Settings;
use berth_store::Db;
use berth_types::time::Timestamp;
use serde_json::{Value, json};

use crate::common::{Caller, Reply, TestPortal, engines};
use crate::gateways::{add_gateway, number, run, send};
use crate::idle_portal::IdlePortal;
use crate::operations::items;
use crate::people::mails;
use crate::services::service;
use crate::sso_domains::FakeDns;

async fn setup(db: Db, dns: &FakeDns) -> IdlePortal {
    let server = dns.address;
    let t = TestPortal::with(db, |settings| Settings { dns_server: Some(server), ..settings });
    IdlePortal::with_portal(t).await
}

/// Creates a service with a host; returns its address.
async fn create(setup: &IdlePortal, (caller, org): (&Caller, &str), name: &str, host: &str) -> String {
    let mut body = service(name);
    body["hosts"] = json!([host]);
    let made = setup.t.post(caller, &format!("/orgs/{org}/services"), body).await.expect(201);
    format!("/orgs/{org}/services/{}", made["id"].as_str().unwrap())
}

async fn check(setup: &IdlePortal, (caller, org): (&Caller, &str), host: &str) -> Reply {
    let path = format!("/orgs/{org}/service-hosts/check");
    setup.t.post(caller, &path, json!({"host": host})).await
}

async fn confirm(setup: &IdlePortal, org: &str, host: &str, confirmed: bool) -> Reply {
    let path = format!("/operator/orgs/{org}/service-hosts");
    setup.t.call(&setup.operator, "PUT", &path, json!({"host": host, "confirmed": confirmed})).await
}

/// The state of the first host of a service.
async fn state(setup: &IdlePortal, caller: &Caller, path: &str) -> Value {
    setup.t.get(caller, path).await.expect(200)["host_states"][0].clone()
}

/// The hosts of the next snapshot with the names of their services.
async fn routes(setup: &IdlePortal, token: &str) -> Vec<(String, String)> {
    setup.t.portal.gateway_sync.refresh_snapshot().await.unwrap();
    let path = "snapshot?after=0&wait_s=0";
    let (status, _, body) = send(&setup.t.router, ("GET", path), token, Value::Null).await;
    assert_eq!(status, 200, "{body}");
    let mut all = Vec::new();
    for service in body["services"].as_array().unwrap() {
        for address in service["addresses"].as_array().unwrap() {
            if let Some(host) = address["host"].as_str() {
                all.push((host.to_owned(), service["name"].as_str().unwrap().to_owned()));
            }
        }
    }
    all
}

fn route(host: &str, service: &str) -> (String, String) {
    (host.to_owned(), service.to_owned())
}

#[tokio::test]
async fn a_host_works_after_its_record_and_for_one_organization() {
    for (engine, db, _location) in engines("service_hosts").await {
        let dns = FakeDns::open().await;
        let setup = setup(db, &dns).await;
        let (ada, bob) = ((&setup.ada, setup.org.as_str()), (&setup.bob, setup.other.as_str()));
        let token = add_gateway(&setup.t, 1).await;
        let host = "chat.corp.example";
        // The one who is first has nothing.
        let squatter = create(&setup, bob, "squat", host).await;
        let own = create(&setup, ada, "chat", host).await;
        assert!(routes(&setup, &token).await.is_empty(), "{engine}");
        let new = state(&setup, &setup.ada, &own).await;
        assert_eq!((&new["confirmed"], &new["domain"]), (&json!(false), &Value::Null), "{engine}");
        assert_eq!(new["record_name"], "_berth.chat.corp.example", "{engine}");
        let missing = check(&setup, ada, host).await.expect(200);
        assert!(missing["problem"].as_str().unwrap().contains("was not found"), "{engine}: {missing}");

        let value = new["record"].as_str().unwrap();
        dns.put("_berth.chat.corp.example", &["v=spf1 -all", value]);
        // The record of one organization confirms nothing for another.
        assert_eq!(check(&setup, bob, host).await.expect(200)["confirmed"], false, "{engine}");
        let found = check(&setup, ada, "Chat.corp.example.").await.expect(200);
        assert_eq!((&found["confirmed"], &found["domain"]), (&json!(true), &json!(host)), "{engine}");
        assert_eq!(routes(&setup, &token).await, [route(host, "chat")], "{engine}");

        let theirs = state(&setup, &setup.bob, &squatter).await["record"].as_str().unwrap().to_owned();
        assert_ne!(theirs, value, "{engine}");
        dns.put("_berth.chat.corp.example", &[value, &theirs]);
        let taken = check(&setup, bob, host).await.expect(200);
        assert_eq!(taken["confirmed"], false, "{engine}");
        assert!(taken["problem"].as_str().unwrap().contains("another organization"), "{engine}: {taken}");
        confirm(&setup, &setup.other, host, true).await.problem(409, "service.host_taken");
        assert_eq!(routes(&setup, &token).await, [route(host, "chat")], "{engine}");

        check(&setup, bob, "else.corp.example").await.problem(404, "object.not_found");
        check(&setup, (&setup.bob, &setup.org), host).await.problem(404, "object.not_found");
        check(&setup, ada, "no host").await.problem(422, "request.invalid");
        let audit = format!("/orgs/{}/audit-events?action=service_host.confirmed", setup.org);
        assert_eq!(items(&setup.t, &setup.ada, &audit).await.len(), 1, "{engine}");
    }
}

#[tokio::test]
async fn a_confirmed_parent_domain_confirms_its_hosts_only() {
    for (engine, db, _location) in engines("service_parents").await {
        let dns = FakeDns::open().await;
        let setup = setup(db, &dns).await;
        let (ada, bob) = ((&setup.ada, setup.org.as_str()), (&setup.bob, setup.other.as_str()));
        let token = add_gateway(&setup.t, 1).await;
        create(&setup, ada, "root", "corp.example").await;
        create(&setup, ada, "chat", "chat.corp.example").await;
        create(&setup, ada, "near", "xcorp.example").await;
        let foreign = create(&setup, bob, "foreign", "lab.corp.example").await;
        confirm(&setup, &setup.org, "corp.example", true).await.expect(200);
        let both = [route("chat.corp.example", "chat"), route("corp.example", "root")];
        let mut found = routes(&setup, &token).await;
        found.sort();
        assert_eq!(found, both, "{engine}");
        // A host below the domain of another organization needs the operator, also with its record.
        let record = state(&setup, &setup.bob, &foreign).await["record"].as_str().unwrap().to_owned();
        dns.put("_berth.lab.corp.example", &[&record]);
        assert_eq!(check(&setup, bob, "lab.corp.example").await.expect(200)["confirmed"], false, "{engine}");
        confirm(&setup, &setup.other, "lab.corp.example", true).await.expect(200);
        assert_eq!(routes(&setup, &token).await.len(), 3, "{engine}");
        // The confirmation ends with all that it confirmed.
        confirm(&setup, &setup.org, "corp.example", false).await.expect(200);
        assert_eq!(routes(&setup, &token).await, [route("lab.corp.example", "foreign")], "{engine}");
        confirm(&setup, &setup.org, "else.example", true).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn the_proof_of_a_parent_domain_stays_while_a_host_needs_it() {
    for (engine, db, _location) in engines("service_parent_kept").await {
        let dns = FakeDns::open().await;
        let setup = setup(db, &dns).await;
        let ada = (&setup.ada, setup.org.as_str());
        for (name, host) in [("root", "corp.example"), ("chat", "chat.corp.example"), ("far", "lab.example")]
        {
            create(&setup, ada, name, host).await;
        }
        for host in ["corp.example", "lab.example"] {
            confirm(&setup, &setup.org, host, true).await.expect(200);
        }
        let names = async |sql: &str| {
            run(&setup.t, sql.to_owned()).await;
            setup.t.portal.services.forget_old().await.unwrap();
            number(&setup.t, "SELECT CAST(COUNT(*) AS BIGINT) FROM host_proofs").await
        };
        let unnamed = "DELETE FROM service_hosts WHERE host IN ('corp.example', 'lab.example')";
        assert_eq!(names(unnamed).await, 2, "{engine}: the domain of chat stays");
        let token = add_gateway(&setup.t, 1).await;
        assert_eq!(routes(&setup, &token).await, [route("chat.corp.example", "chat")], "{engine}");
        assert_eq!(names("DELETE FROM service_hosts").await, 0, "{engine}");
    }
}

#[tokio::test]
async fn a_host_drops_out_seven_days_after_its_record() {
    for (engine, db, _location) in engines("service_host_lapse").await {
        let dns = FakeDns::open().await;
        let setup = setup(db, &dns).await;
        let token = add_gateway(&setup.t, 1).await;
        let host = "chat.corp.example";
        let path = create(&setup, (&setup.ada, &setup.org), "chat", host).await;
        let value = state(&setup, &setup.ada, &path).await["record"].as_str().unwrap().to_owned();
        dns.put("_berth.chat.corp.example", &[&value]);
        let hosts = setup.t.portal.services.hosts.clone();
        let tick = async || assert!(!hosts.tick_hosts().await.unwrap());
        setup.t.clock.advance_s(301);
        tick().await;
        assert_eq!(routes(&setup, &token).await, [route(host, "chat")], "{engine}");
        dns.put("_berth.chat.corp.example", &[]);
        setup.t.clock.advance_s(86_401);
        tick().await;
        assert_eq!(routes(&setup, &token).await, [route(host, "chat")], "{engine}: for seven days");
        let owner_mails = async |subject: &str| {
            setup.t.portal.webhooks.deliver().await.unwrap();
            let all = mails(&setup.t, "lab@example.org").await;
            all.iter().filter(|mail| mail.contains(&format!("Subject: {subject}"))).count()
        };
        assert_eq!(owner_mails("The DNS record of chat.corp.example is missing").await, 1, "{engine}");
        setup.t.clock.advance_s(7 * 86_400 + 3_601);
        tick().await;
        assert!(routes(&setup, &token).await.is_empty(), "{engine}");
        assert_eq!(owner_mails("chat.corp.example is no longer confirmed").await, 1, "{engine}");
    }
}

#[tokio::test]
async fn hosts_have_one_form_and_are_none_of_a_gateway() {
    for (engine, db, _location) in engines("service_host_forms").await {
        let dns = FakeDns::open().await;
        let setup = setup(db, &dns).await;
        let token = add_gateway(&setup.t, 1).await;
        for bad in ["Chat.corp.example", "chat.corp.example.", "10.0.0.1", "corp", "*.corp.example"] {
            let mut body = service("chat");
            body["hosts"] = json!([bad]);
            let path = format!("/orgs/{}/services", setup.org);
            let problem = setup.t.post(&setup.ada, &path, body).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/hosts/0", "{engine} {bad}");
        }
        // A name without a proof keeps no gateway away, and a gateway's host leads to no service.
        let host = "models.corp.example";
        let path = create(&setup, (&setup.ada, &setup.org), "chat", host).await;
        let gateway = json!({"name": "edge", "url": "https://models.corp.example"});
        setup.t.post(&setup.operator, "/operator/gateways", gateway).await.expect(201);
        confirm(&setup, &setup.org, host, true).await.problem(409, "service.host_of_gateway");
        assert!(routes(&setup, &token).await.is_empty(), "{engine}");
        let shown = state(&setup, &setup.ada, &path).await;
        assert!(shown["problem"].as_str().unwrap().contains("gateway"), "{engine}: {shown}");
        confirm(&setup, &setup.org, host, false).await.expect(200);
        // The host that a gateway has now is no fault of another change.
        let patch = async |change: Value| setup.t.call(&setup.ada, "PATCH", &path, change).await;
        patch(json!({"stopped": true, "hosts": [host]})).await.expect(200);
        let both = json!({"hosts": [host, "chat.corp.example"]});
        let problem = patch(both).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], "/hosts/0", "{engine}");
        patch(json!({"hosts": []})).await.expect(200);
    }
}

#[tokio::test]
async fn the_confirmed_host_of_a_later_gateway_gets_no_second_confirmation() {
    for (engine, db, _location) in engines("service_host_gateway").await {
        let dns = FakeDns::open().await;
        let setup = setup(db, &dns).await;
        let (ada, bob) = ((&setup.ada, setup.org.as_str()), (&setup.bob, setup.other.as_str()));
        let host = "edge.corp.example";
        let own = create(&setup, ada, "chat", host).await;
        confirm(&setup, &setup.org, host, true).await.expect(200);
        let path = create(&setup, bob, "squat", host).await;
        // The confirmation stays for an hour after the service, and keeps no gateway away.
        setup.t.call(&setup.ada, "DELETE", &own, Value::Null).await.expect(204);
        let gateway = json!({"name": "edge", "url": "https://edge.corp.example"});
        setup.t.post(&setup.operator, "/operator/gateways", gateway).await.expect(201);
        confirm(&setup, &setup.other, host, true).await.problem(409, "service.host_of_gateway");
        // Its record confirms nothing either.
        let record = state(&setup, &setup.bob, &path).await["record"].as_str().unwrap().to_owned();
        dns.put("_berth.edge.corp.example", &[&record]);
        assert_eq!(check(&setup, bob, host).await.expect(200)["confirmed"], false, "{engine}");
        let confirmed = "SELECT CAST(COUNT(*) AS BIGINT) FROM host_proofs WHERE confirmed_at IS NOT NULL";
        assert_eq!(number(&setup.t, confirmed).await, 1, "{engine}");
        confirm(&setup, &setup.org, host, false).await.expect(200);
        assert_eq!(number(&setup.t, confirmed).await, 0, "{engine}");
    }
}

#[tokio::test]
async fn operators_list_host_names_with_their_states() {
    for (engine, db, _location) in engines("service_host_claims").await {
        let dns = FakeDns::open().await;
        let setup = setup(db, &dns).await;
        let (ada, bob) = ((&setup.ada, setup.org.as_str()), (&setup.bob, setup.other.as_str()));
        let path = "/operator/service-hosts";
        assert!(items(&setup.t, &setup.operator, path).await.is_empty(), "{engine}");
        setup.t.get(&setup.ada, path).await.problem(404, "object.not_found");
        let own = create(&setup, ada, "chat", "chat.corp.example").await;
        create(&setup, ada, "root", "corp.example").await;
        create(&setup, bob, "squat", "chat.corp.example").await;
        let listed = async || {
            let all = items(&setup.t, &setup.operator, path).await;
            let line = |one: &Value| {
                let text = |field: &str| one[field].as_str().unwrap_or("-").to_owned();
                let own = one["organization"] == setup.org.as_str();
                let service = one["services"][0].as_str().unwrap_or("-");
                let org = if own { "own" } else { "other" };
                format!("{} {org} {service} {} {}", text("host"), text("state"), text("domain"))
            };
            let mut lines: Vec<String> = all.iter().map(line).collect();
            lines.sort();
            lines
        };
        let waiting = [
            "chat.corp.example other squat waiting -",
            "chat.corp.example own chat waiting -",
            "corp.example own root waiting -",
        ];
        assert_eq!(listed().await, waiting, "{engine}");
        // A confirmed parent, and a confirmation of the host itself.
        setup.t.clock.advance_s(60);
        let since = setup.t.portal.context.now();
        confirm(&setup, &setup.org, "corp.example", true).await.expect(200);
        let below = [
            waiting[0],
            "chat.corp.example own chat domain corp.example",
            "corp.example own root operator corp.example",
        ];
        assert_eq!(listed().await, below, "{engine}");
        let all = items(&setup.t, &setup.operator, path).await;
        let root = all.iter().find(|one| one["host"] == "corp.example").unwrap();
        let found: Timestamp = root["since"].as_str().unwrap().parse().unwrap();
        assert!(found >= since, "{engine}: {root}");
        assert!(!root["organization_name"].as_str().unwrap().is_empty(), "{engine}");
        let record = state(&setup, &setup.ada, &own).await["record"].as_str().unwrap().to_owned();
        dns.put("_berth.chat.corp.example", &[&record]);
        check(&setup, ada, "chat.corp.example").await.expect(200);
        let by_record = "chat.corp.example own chat record chat.corp.example";
        assert_eq!(listed().await, [below[0], by_record, below[2]], "{engine}");
        dns.put("_berth.chat.corp.example", &[]);
        check(&setup, ada, "chat.corp.example").await.expect(200);
        let missing = "chat.corp.example own chat missing chat.corp.example";
        assert_eq!(listed().await, [below[0], missing, below[2]], "{engine}");
        // The withdrawal of both.
        for host in ["chat.corp.example", "corp.example"] {
            confirm(&setup, &setup.org, host, false).await.expect(200);
        }
        assert_eq!(listed().await, waiting, "{engine}");
        // The pages name each host of each organization once, also with equal hosts at their border.
        let mut seen = Vec::new();
        let mut cursor = String::new();
        for _ in 0..4 {
            let page = setup.t.get(&setup.operator, &format!("{path}?limit=1{cursor}")).await.expect(200);
            let one = &page["items"][0];
            seen.push((one["host"].to_string(), one["organization"].to_string()));
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let all = items(&setup.t, &setup.operator, path).await;
        let expected: Vec<_> =
            all.iter().map(|one| (one["host"].to_string(), one["organization"].to_string())).collect();
        assert_eq!((seen.len(), &seen), (3, &expected), "{engine}");
    }
}
